"""Tensors of a kernel: a storage and a view of it."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from nki import addressing
from nki import pattern as views
from nki.context import current_run
from nki.dtypes import canonical, info
from nki.errors import NkiError, NkiIndexError, NkiTypeError
from nki.indexing import (
    DynamicSlice,
    checked_index,
    index_at_once,
    index_by_parts,
    integer,
    is_dynamic,
    scalar_index,
    vector_index,
    wrong_index,
)
from nki.memory import MemoryRegion, Storage, region_of
from nki.objects import TensorBase
from nki.pattern import AccessPattern
from nki.rearrange import rearrange

__all__ = ["NkiTensor", "create", "tensor_of"]

_INDIRECTION = 4  # the set of instructions that brought tensor indirection


class NkiTensor(TensorBase):
    """A tensor in SBUF, PSUM or HBM: a storage, and which of its elements are shown.

    All views share the storage and copy nothing. In SBUF and PSUM dimension 0 is the partition: it
    stays in front, an integer index leaves it with size 1, and there are always at least two
    dimensions. In HBM an integer index removes its dimension, and there is at least one.

    Attributes:
        storage: the memory, shared by all views.
        pattern: which elements this view shows.
        offset: number of the first element in the storage, in elements of ``dtype``.
        layout: kept by who records (`nki.forms.Layout`): the pattern without its offset, one object
            for all that are equal. None as long as nothing has used the view, and of what a value
            of the run moves.
    """

    __slots__ = ("layout", "offset", "pattern", "storage")

    storage: Storage
    pattern: AccessPattern
    offset: int
    layout: Any

    def __init__(
        self,
        shape: Sequence[int],
        dtype: Any,
        storage: Storage | None,
        buffer: Any = MemoryRegion.sbuf,
        name: str = "",
    ) -> None:
        """Bind a storage; most code calls ``nl.ndarray``.

        Args:
            shape: sizes, all at least 1.
            dtype: the type to read the storage as.
            storage: a storage in ``buffer`` with exactly as many bytes; None makes a new one, which
                costs nothing until somebody writes to it.
            buffer: the region.
            name: what messages call the tensor; "" keeps the storage's name.

        Raises:
            NkiError: no shape (NKI003, NKI029), or the storage doesn't fit it (NKI007), or a new
                one would not fit the core (NKI004, NKI005).
            NkiTypeError: no data type (NKI001) or region (NKI002).
        """
        kind, region = canonical(dtype), region_of(buffer)
        if storage is None:
            storage = Storage(region, kind, checked_shape(shape, region), name=name)
        self.storage = storage
        self.layout = None
        self.pattern = views.contiguous(
            kind, checked_shape(shape, region), partition=region.on_chip
        )
        row = self.shape[0] if region.on_chip else 1
        old = storage.shape[0] if region.on_chip else 1
        nbytes = self.size * info(kind).itemsize
        if storage.region is not region or nbytes != storage.nbytes or row != old:
            raise NkiError(
                "NKI007",
                f"{storage!r} is no storage of a tensor {kind}{list(self.shape)} in {region.name}",
                "give a storage with the region, the partitions and the bytes of the tensor",
            )
        if name and not storage.name:
            storage.name = name

    # --- what it is ----------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        """Work out the one of pattern and offset that was left out: few are asked for."""
        if name == "pattern":
            self.pattern = p = self.layout.form.pattern._replace(offset=self.offset)
            return p
        if name == "offset":
            self.offset = offset = self.pattern.offset
            return offset
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions."""
        return (self.pattern if self.layout is None else self.layout.form.pattern).shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Distances between neighbours of each dimension, in elements of ``dtype``."""
        return self.pattern.strides

    @property
    def dtype(self) -> str:
        """NKI's name of the data type."""
        return (self.pattern if self.layout is None else self.layout.form.pattern).dtype

    @property
    def name(self) -> str:
        """The name given at creation, or ""."""
        return self.storage.name

    @property
    def buffer(self) -> MemoryRegion:
        """The region of memory."""
        return self.storage.region

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.pattern.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.pattern.size

    def is_contiguous(self) -> bool:
        """Return whether elements are dense in row-major order; per partition on the chip."""
        return views.is_contiguous(self.pattern)

    def get_pattern(self) -> list[list[int]]:
        """Return ``[[stride, count], ...]`` in elements, a pair for each dimension."""
        return [[s, n] for s, n in zip(self.pattern.strides, self.pattern.shape, strict=True)]

    def is_indirect(self) -> bool:
        """Return whether a value that is known only at run time moves the view."""
        return self.pattern.indirect is not None

    def __repr__(self) -> str:
        p = self.pattern
        text = f"{self.storage.label}: {p.dtype}{list(p.shape)}"
        if p.offset or not self.is_contiguous():
            text += f" strides {list(p.strides)} offset {p.offset}"
        return f"<{text}{' indirect' if p.indirect is not None else ''}>"

    def __str__(self) -> str:
        """Say what it is and, while a kernel that was given arrays is recorded, what it holds."""
        recorder = current_run()
        return repr(self) if recorder is None else f"{self!r}\n{recorder.peek(self)}"

    # --- indexing ------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> "NkiTensor":
        """Return a view chosen by integers, slices, ``...``, ``nl.ds`` or dynamic indices.

        Negative integers count from the end. A slice reaches no further than its dimension.

        Raises:
            NkiIndexError: out of bounds (NKI010), empty or backwards (NKI012), too many (NKI013).
            NkiTypeError: an index of another kind (NKI011).
            NkiError: a second dynamic index, or one on the partition (NKI024, NKI015).
        """
        parts = key if type(key) is tuple else (key,)
        layout = self.layout
        if layout is not None:
            made = _part(self, layout, parts)
            if made is not None:
                return made
        p = self.pattern
        if p.indirect is None:
            direct = index_at_once(p, parts)
            if direct is not None:
                return tensor_of(self.storage, direct)
        return tensor_of(self.storage, index_by_parts(p, key))

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write part of a tensor within a kernel: a copy of a tensor, or a number everywhere.

        ``t[...] = x`` is `nisa.tensor_copy` between SBUF and PSUM, and `nisa.dma_copy` from and to
        HBM, with their rules.

        Raises:
            NkiError: outside of a kernel, or a value of another kind (NKI027).
        """
        recorder = current_run()
        if recorder is None or not recorder.assign(self[key], value):
            raise NkiError(
                "NKI027",
                f"{self!r} cannot be assigned a {type(value).__name__}",
                "in a kernel assign a tensor or a number, or write nisa.tensor_copy(dst=t[...], "
                "src=value), nisa.dma_copy from or to HBM, or nisa.memset for a constant",
            )

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> "NkiTensor":
        """Return elements ``start, start + step, ...`` below ``end`` of one dimension.

        Raises:
            NkiIndexError: not ``0 <= start < end <= size`` (NKI010, NKI012).
            NkiError: a step below 1 (NKI012), or an indirect dimension (NKI024).
        """
        if not type(start) is type(end) is type(step) is int:
            start, end, step = integer(start), integer(end), integer(step)
        return tensor_of(self.storage, views.slice_dim(self.pattern, dim, start, end, step))

    def select(self, dim: int, index: Any) -> "NkiTensor":
        """Return one index of a dimension, which is removed unless it is the partition.

        Args:
            dim: the dimension.
            index: an integer from 0, or one known at run time: a register, or a (1, 1) integer
                tensor in SBUF.

        Raises:
            NkiIndexError: the integer is out of bounds (NKI010).
            NkiTypeError: no such kind of index (NKI011).
            NkiError: a second dynamic index (NKI024), one on the partition (NKI015), or an index
                tensor of the wrong kind (NKI025).
        """
        p = self.pattern
        if is_dynamic(index):
            return tensor_of(self.storage, addressing.select_dynamic(p, dim, scalar_index(index)))
        return tensor_of(self.storage, views.select(p, dim, integer(index)))

    def vector_select(self, dim: int, vector_offset: "NkiTensor") -> "NkiTensor":
        """Return a view whose index ``i`` of dimension 0 is the one that a vector holds.

        Args:
            dim: 0.
            vector_offset: integers of shape (partitions, 1) in SBUF.

        Raises:
            NkiError: not dimension 0 of a tensor in HBM (NKI026), a second dynamic index (NKI024),
                or an index tensor of the wrong kind (NKI025).
        """
        count = vector_index(vector_offset)
        return tensor_of(
            self.storage, addressing.select_vector(self.pattern, dim, vector_offset, count)
        )

    # --- shape ---------------------------------------------------------------------------------

    def permute(self, dims: Sequence[int]) -> "NkiTensor":
        """Return a view with the dimensions in another order; the partition stays in front.

        Raises:
            NkiError: no permutation (NKI014), or the partition moves (NKI015).
        """
        return _rearranged(self, views.permute, dims)

    def broadcast(self, dim: int, size: int) -> "NkiTensor":
        """Return a view that repeats a dimension of size 1, which is not the partition.

        Raises:
            NkiError: another size (NKI016), or the partition (NKI015).
        """
        return _rearranged(self, views.broadcast, dim, size)

    def expand_dim(self, dim: int) -> "NkiTensor":
        """Return a view with a dimension of size 1 inserted, not before the partition.

        Raises:
            NkiError: before the partition (NKI015).
        """
        return _rearranged(self, views.expand_dim, dim)

    def squeeze_dim(self, dim: int) -> "NkiTensor":
        """Return a view without a dimension of size 1, which is not the partition.

        Raises:
            NkiError: another size (NKI016), the partition (NKI015), or too few left (NKI029).
        """
        return _rearranged(self, views.squeeze_dim, dim)

    def reshape_dim(self, dim: int, shape: Sequence[int]) -> "NkiTensor":
        """Return a view with one dimension split into several; one size may be -1.

        Raises:
            NkiError: other sizes (NKI003, NKI017), the partition (NKI015), indirect (NKI024).
        """
        return _rearranged(self, views.reshape_dim, dim, shape)

    def flatten_dims(self, start_dim: int, end_dim: int) -> "NkiTensor":
        """Return a view with dimensions ``start_dim`` to ``end_dim`` (included) merged.

        Raises:
            NkiError: not dense (NKI018), or with the partition (NKI015).
        """
        return _rearranged(self, views.flatten_dims, start_dim, end_dim)

    def reshape(self, shape: Sequence[int]) -> "NkiTensor":
        """Return a view of the same elements in another shape with the same partition.

        Raises:
            NkiError: another size (NKI017), another partition (NKI015), or a layout that would
                need a copy (NKI018).
        """
        return _rearranged(self, views.reshape, shape)

    def rearrange(
        self,
        src_pattern: Sequence[Any],
        dst_pattern: Sequence[Any],
        fixed_sizes: Mapping[str, int] | None = None,
    ) -> "NkiTensor":
        """Return a view with named dimensions split, reordered and merged.

        ``t.rearrange(("b", ("h", "w")), ("b", "w", "h"), {"h": 4})`` splits dimension 1.

        Args:
            src_pattern: a name for each dimension, or a tuple of names to split it into.
            dst_pattern: the same names in the new order; a tuple merges.
            fixed_sizes: sizes of names; one of each split may be left out.

        Raises:
            NkiError: patterns that don't match (NKI019), and what splitting, reordering and merging
                raise.
        """
        sizes = {} if fixed_sizes is None else fixed_sizes
        return tensor_of(self.storage, rearrange(self.pattern, src_pattern, dst_pattern, sizes))

    # --- bytes ---------------------------------------------------------------------------------

    def ap(
        self,
        pattern: Sequence[Sequence[int]],
        offset: int | None = None,
        scalar_offset: Any = None,
        vector_offset: "NkiTensor | None" = None,
        indirect_dim: int = 0,
        dtype: Any = None,
    ) -> "NkiTensor":
        """Return an explicit access pattern of the storage; shape and strides here don't matter.

        Args:
            pattern: ``[[stride, count], ...]`` in elements of ``dtype``. In SBUF and PSUM the first
                pair is the partition's, and its stride must be the elements of one partition.
            offset: elements of ``dtype`` to add to this view's offset; None adds none.
            scalar_offset: a register or (1, 1) integer tensor in SBUF. Its value times this view's
                stride of ``indirect_dim`` is added to the offset at run time.
            vector_offset: (P, 1) integers in SBUF, or (128, N) that are read column by column (as
                dma_transpose takes them), for tensors in HBM: index ``i`` of the pattern's
                dimension 0 starts at ``vector_offset[i]`` times this view's stride of dimension 0;
                the pattern's first stride doesn't matter.
            indirect_dim: dimension of this view that the dynamic offset counts in.
            dtype: type to read the storage as.

        A view that leaves the storage may be made, but not used (NKI022): kernels make such views
        for cases that they then leave out.

        Raises:
            NkiError: a malformed pattern (NKI021), one that steps over partitions (NKI023), bytes
                that are no whole elements (NKI020), two dynamic offsets (NKI024), an index tensor
                of the wrong kind (NKI025), or a vector where none is supported (NKI026).
        """
        storage, p = self.storage, self.pattern
        kind = p.dtype if dtype is None else canonical(dtype)
        if scalar_offset is None and vector_offset is None:
            made = _explicit(self, pattern, offset) if kind == p.dtype else None
            return made or _within(
                storage, addressing.explicit(p, pattern, offset, kind, storage.row_bytes)
            )
        if scalar_offset is not None and vector_offset is not None:
            raise NkiError(
                "NKI024",
                "an access pattern was given both scalar_offset and vector_offset",
                "give one of them",
            )
        count = 0 if vector_offset is None else vector_index(vector_offset, columns=True)
        if vector_offset is not None and (indirect_dim != 0 or p.partition):
            raise NkiError(
                "NKI026",
                "vector_offset applies to dimension 0 of a tensor in HBM",
                "set indirect_dim=0, and gather while copying from HBM",
            )
        if count:
            # The first stride is documented as ignored, so it says nothing of the bounds either.
            pattern = [(0, pair[1]) if i == 0 else pair for i, pair in enumerate(pattern)]
        static = addressing.explicit(p, pattern, offset, kind, storage.row_bytes)
        return _within(
            storage, _with_offset(p, static, scalar_offset, vector_offset, indirect_dim, count)
        )

    def view(self, dtype: Any) -> "NkiTensor":
        """Return a view of the same bytes as another type; the last dimension grows or shrinks.

        Raises:
            NkiTypeError: no data type (NKI001).
            NkiError: a last dimension that is not contiguous (NKI018), bytes that are no whole
                elements (NKI020), or an indirect view (NKI026).
        """
        return tensor_of(self.storage, addressing.reinterpret(self.pattern, dtype))

    reinterpret_cast = view

    def indirect(self, index: "NkiTensor", num_elem: int | None = None) -> "NkiTensor":
        """Return a view of columns at offsets that a tensor holds (NeuronCore-v4 only).

        Column ``i`` is the one ``index[i % G, i // G]`` elements further, where G is 16 for the
        vector, scalar and gpsimd engines and 32 for the tensor engine.

        Args:
            index: offsets of shape (P, K) in SBUF, P being this view's partitions.
            num_elem: how many offsets to use, all of ``index`` if None.

        Raises:
            NkiError: another core, or not an on-chip tensor (NKI026), a second dynamic index
                (NKI024), or an index tensor of the wrong kind (NKI025).
        """
        p = self.pattern
        core = self.storage.core.target.core
        if not p.partition or core.isa < _INDIRECTION:
            raise NkiError(
                "NKI026",
                f"tensor indirection on {self.storage.label} of NeuronCore-{core.version}",
                "use it on SBUF and PSUM tensors of trn3; elsewhere nisa.local_gather gathers",
            )
        checked_index(index)
        if index.ndim != 2 or index.shape[0] != p.shape[0]:
            raise wrong_index(index, f"shape ({p.shape[0]}, K)")
        count = index.size if num_elem is None else integer(num_elem)
        if not 1 <= count <= index.size:
            raise NkiIndexError(
                "NKI010",
                f"{count} offsets were asked of an index of shape {index.shape}",
                f"use 1 to {index.size}",
            )
        addressing.refuse_second(p)
        extent = sum(s * (n - 1) for s, n in p.dims[1:]) + 1
        shown = p._replace(
            shape=(p.shape[0], count),
            strides=(p.strides[0], 0),
            indirect=views.Indirect("tensor", index, 1, 1, extent),
        )
        return tensor_of(self.storage, shown)


def _refuse(symbol: str, function: str | None) -> Callable[..., NoReturn]:
    def operate(self: NkiTensor, *others: Any) -> NoReturn:
        shown = f"x {symbol} y" if others else f"{symbol}x"
        raise NkiTypeError(
            "NKI244",
            f"{shown} was written for the tensor {self!r}: tensors have no operators of Python",
            f"write nl.{function}, or an instruction of nki.isa"
            if function is not None
            else "write nl.matmul(x, y), or nisa.nc_matmul",
        )

    return operate


# None is documented. Equality stays that of objects: kernels ask `bias == None`.
_OPERATORS = {
    "add": ("+", "add(x, y)"),
    "sub": ("-", "subtract(x, y)"),
    "mul": ("*", "multiply(x, y)"),
    "truediv": ("/", "multiply(x, nl.reciprocal(y))"),
    "floordiv": ("//", "floor(nl.multiply(x, nl.reciprocal(y)))"),
    "mod": ("%", "mod(x, y)"),
    "pow": ("**", "power(x, y)"),
    "matmul": ("@", None),
    "and": ("&", "bitwise_and(x, y)"),
    "or": ("|", "bitwise_or(x, y)"),
    "xor": ("^", "bitwise_xor(x, y)"),
    "lshift": ("<<", "left_shift(x, y)"),
    "rshift": (">>", "right_shift(x, y)"),
}
_COMPARISONS = {
    "lt": ("<", "less(x, y)"),
    "le": ("<=", "less_equal(x, y)"),
    "gt": (">", "greater(x, y)"),
    "ge": (">=", "greater_equal(x, y)"),
    "neg": ("-", "negative(x)"),
    "invert": ("~", "invert(x)"),
    "abs": ("abs ", "abs(x)"),
}
for _name, (_symbol, _function) in _OPERATORS.items():
    for _prefix in ("", "r", "i"):
        setattr(NkiTensor, f"__{_prefix}{_name}__", _refuse(_symbol, _function))
for _name, (_symbol, _function) in _COMPARISONS.items():
    setattr(NkiTensor, f"__{_name}__", _refuse(_symbol, _function))

_new = object.__new__


def tensor_of(storage: Storage, pattern: AccessPattern) -> NkiTensor:
    """Return the view of ``storage`` that ``pattern`` describes, unchecked."""
    tensor = _new(NkiTensor)
    tensor.storage = storage
    tensor.pattern = pattern
    tensor.layout = None
    return tensor


# One function for its speed, as `index_at_once`, whose patterns it makes.
def _part(  # noqa: C901, PLR0911, PLR0912
    tensor: NkiTensor, layout: Any, parts: tuple[Any, ...]
) -> NkiTensor | None:
    """Return a part of a tensor by integers and slices with known bounds, None of other parts.

    The parts that a kernel takes of its tensors differ by their places mostly. Everything else
    about them follows from the tensor's layout and the sizes that are asked for.
    """
    dims = layout.dims
    if len(parts) > len(dims):
        return None
    begin = offset = tensor.offset
    asked: list[int] = []
    for part, (size, stride) in zip(parts, dims):  # noqa: B905 (an argument by name takes time)
        kind = type(part)
        if kind is slice:
            start, stop = part.start, part.stop
            if part.step is not None:
                return None
            if start is None:
                start = 0
            elif type(start) is not int:
                return None
            if stop is None:
                stop = size
            elif type(stop) is not int:
                return None
            if not 0 <= start < stop <= size:
                return None
            asked.append(stop - start)
            offset += start * stride
        elif kind is int:
            if not 0 <= part < size:
                return None
            asked.append(0)
            offset += part * stride
        elif kind is DynamicSlice:
            start, length = part.start, part.size
            if type(start) is not int or type(length) is not int:
                return None
            if start < 0 or length < 1 or start + length > size:
                return None
            asked.append(length)
            offset += start * stride
        else:
            return None
    if layout.row_bytes:
        size, row = layout.itemsize, layout.row_bytes
        asked.append(offset * size // row - begin * size // row)
    sizes = tuple(asked)
    found = layout.views.get(sizes)
    if found is None:
        p = tensor.pattern
        made = tensor_of(tensor.storage, index_at_once(p, parts) or index_by_parts(p, parts))
        layout.views[sizes] = layout.forms.layout(made)
        return made
    made = _new(NkiTensor)
    made.storage, made.layout, made.offset = tensor.storage, found, offset
    return made


def _rearranged(
    tensor: NkiTensor, function: Callable[..., AccessPattern], *given: Any
) -> NkiTensor:
    """Return a view that begins where a tensor does, by a function of `nki.pattern`."""
    layout = tensor.layout
    key = [function, *[tuple(value) if type(value) is list else value for value in given]]
    ints = all(type(n) is int or _are_ints(n) for n in key[1:])
    # The layout of such a view follows from that of the tensor.
    found = layout.views.get(tuple(key)) if ints and layout is not None else None
    if found is None:
        made = tensor_of(tensor.storage, function(tensor.pattern, *given))
        if ints and layout is not None:
            layout.views[tuple(key)] = layout.forms.layout(made)
        return made
    made = _new(NkiTensor)
    made.storage = tensor.storage
    made.layout = found
    made.offset = tensor.offset
    return made


_SEQUENCES = (list, tuple)


def _explicit(  # noqa: PLR0911 (each says what is left to the long way)
    tensor: NkiTensor, pairs: Sequence[Sequence[int]], offset: int | None
) -> NkiTensor | None:
    """Return the view of `NkiTensor.ap` if one like it was made before, or can be remembered.

    None where it has to be looked at: it may leave the storage, or is none at all.
    """
    storage, layout = tensor.storage, tensor.layout
    if layout is None or layout.addressed or type(pairs) not in _SEQUENCES:
        return None
    if offset is not None and type(offset) is not int:
        return None
    begin = last = tensor.offset + (offset or 0)
    if begin < 0:
        return None
    key: list[Any] = ["ap", begin if layout.row_bytes else -1]
    for pair in pairs:
        if (
            type(pair) not in _SEQUENCES
            or len(pair) != 2
            or not _are_ints(tuple(pair))
            or pair[0] < 0
            or pair[1] < 1
        ):
            return None
        key += pair
        last += pair[0] * (pair[1] - 1)
    if not layout.row_bytes and (last + 1) * layout.itemsize > storage.nbytes:
        return None
    found = layout.views.get(tuple(key))
    if found is None:
        p = addressing.explicit(
            tensor.pattern, pairs, offset, layout.form.pattern.dtype, storage.row_bytes
        )
        if addressing.leaves(p, storage.nbytes, storage.row_bytes):
            return None
        made = tensor_of(storage, p)
        layout.views[tuple(key)] = layout.forms.layout(made)
        return made
    made = _new(NkiTensor)
    made.storage = storage
    made.layout = found
    made.offset = begin
    return made


def create(
    shape: Sequence[int],
    dtype: Any,
    buffer: Any = MemoryRegion.sbuf,
    name: str = "",
    address: tuple[int, int] | None = None,
) -> NkiTensor:
    """Return a tensor on a new storage, uninitialised; see ``nl.ndarray``.

    A buffer of None, which was the default in NKI 0.2, is SBUF.
    """
    recorder = current_run()
    known = recorder is not None and address is None
    if known:
        try:
            found = recorder.made.get((shape, dtype, buffer))  # type: ignore[union-attr]
        except TypeError:  # a list as a shape, or what is no type
            known, found = False, None
        # Mostly it is the very tuple: a constant of the kernel's code.
        if found is not None and (shape is found[0] or _are_ints(shape)):
            like = found[1]
            tensor = _new(NkiTensor)
            tensor.storage = like.storage.another(name, recorder.depth)  # type: ignore[union-attr]
            tensor.layout = like.layout
            tensor.offset = 0
            return tensor
    region = MemoryRegion.sbuf if buffer is None else region_of(buffer)
    sizes = checked_shape(shape, region)
    kind = canonical(dtype)
    if recorder is not None:
        kind = recorder.stored(kind)
    storage = Storage(region, kind, sizes, name=name, address=address)
    tensor = tensor_of(storage, views.contiguous(kind, sizes, partition=region.on_chip))
    if recorder is not None:
        recorder.created(tensor)
        # Those in HBM are told apart by the lines that create them.
        if known and region.on_chip and _are_ints(shape):
            recorder.made[shape, dtype, buffer] = shape, tensor
    return tensor


def _are_ints(shape: Any) -> bool:
    """Return whether a shape is a tuple of plain integers, which others may be equal to."""
    if type(shape) is not tuple:
        return False
    for n in shape:  # noqa: SIM110 (three times as fast as `all`)
        if type(n) is not int:
            return False
    return True


def checked_shape(shape: Sequence[int], region: MemoryRegion) -> tuple[int, ...]:
    """Return a tensor's shape as a tuple.

    Raises:
        NkiError: it is none (NKI003), or has too few dimensions (NKI029).
    """
    try:
        sizes = tuple([operator.index(n) for n in shape])
    except TypeError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise NkiError(
            "NKI003",
            f"{shape!r} is no shape of a tensor",
            "a shape is a tuple of integers of at least 1",
        )
    if region.on_chip and sizes == (1,):
        return (1, 1)  # the documents of registers write [1] for the tensors that they load
    if region.on_chip and len(sizes) < 2:
        raise NkiError(
            "NKI029",
            f"a tensor in {region.name} cannot have the shape {sizes}",
            f"give the partitions and at least one free dimension: ({sizes[0]}, 1)",
        )
    return sizes


def _within(storage: Storage, p: AccessPattern) -> NkiTensor:
    """Return a view, and let its storage remember if it is one that must not be used."""
    storage.exceeded |= addressing.leaves(p, storage.nbytes, storage.row_bytes)
    return tensor_of(storage, p)


def _with_offset(
    p: AccessPattern,
    result: AccessPattern,
    scalar: Any,
    vector: NkiTensor | None,
    dim: int,
    count: int,
) -> AccessPattern:
    """Add the dynamic offset of `ap` to its static pattern ``result``; ``p`` is the base."""
    base = p._replace(indirect=None)
    dim = views.axis_of(base, dim)
    stride = base.strides[dim] * info(p.dtype).itemsize // info(result.dtype).itemsize
    if vector is None:
        axis = dim if dim < len(result.shape) else -1
        found = views.Indirect("scalar", scalar_index(scalar), stride, axis, base.shape[dim])
        return result._replace(indirect=found)
    if result.shape[0] > count:
        raise NkiError(
            "NKI025",
            f"an access pattern of shape {result.shape} needs {result.shape[0]} offsets, "
            f"and vector_offset has {count}",
            "give one offset for each index of dimension 0",
        )
    found = views.Indirect("vector", vector, stride, 0, base.shape[0])
    return result._replace(strides=(stride, *result.strides[1:]), indirect=found)
