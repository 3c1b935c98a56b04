"""Tensors and tiles as kernels of the first generation handle them.

A :class:`Tensor` is a view of `nki.tensor.NkiTensor`s: of one, or of one for each index of the
dimensions before the partition ("block dimensions"). An :class:`Access` is indexed with index
expressions, which may leave the tensor as long as a mask keeps the instruction within. A
:class:`Result` is what an instruction returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from nki.dtypes import info
from nki.errors import NkiError, NkiIndexError, NkiTypeError
from nki.first_generation.boxes import Box, TileRegion, box_slices, region_of_mask, whole_box
from nki.first_generation.dtypes import dtype_name, numpy_dtype
from nki.first_generation.indices import Index, Mask, MeshGrid, as_index, common_shape
from nki.first_generation.state import current, new_tile, nothing
from nki.indexing import DynamicSlice, checked_index
from nki.memory import MemoryRegion
from nki.pattern import AccessPattern, Indirect
from nki.tensor import NkiTensor, tensor_of

__all__ = ["HOOKS", "Access", "Dynamic", "Result", "Tensor"]


# What tensors do by functions that are made of tensors; those register by name.
HOOKS: dict[str, Callable[..., Any]] = {}


def _operate(op: str, x: Any, y: Any) -> Any:
    """Compute with an operator of Python; an index expression beside a tile is an index."""
    for tile, other in ((x, y), (y, x)):
        if isinstance(tile, Tensor) and isinstance(other, (Index, Dynamic)):
            return _dynamic(op, tile, other, x is tile)
    return HOOKS[op](x, y)


def _in_place(op: str, dst: Tensor, value: Any) -> Tensor:
    """Write ``dst <op> value`` to dst, which is what stays bound to the name."""
    HOOKS["in_place"](op, dst, value)
    return dst


class Tensor:
    """A tensor in SBUF, PSUM or HBM, or a part of one.

    Attributes:
        blocks: the tensors of today behind it, in row-major order of the block dimensions.
        block_shape: sizes of the dimensions before the partition; () where there are none.
    """

    __slots__ = ("block_shape", "blocks")

    __array_ufunc__ = None  # NumPy's scalars and arrays leave operators to this class

    blocks: tuple[NkiTensor, ...]
    block_shape: tuple[int, ...]

    def __init__(self, blocks: Sequence[NkiTensor], block_shape: tuple[int, ...] = ()) -> None:
        self.blocks = tuple(blocks)
        self.block_shape = block_shape

    # --- what it is ----------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of all dimensions, block dimensions first."""
        return self.block_shape + self.blocks[0].shape

    @property
    def kind(self) -> str:
        """NKI's name of the data type."""
        return self.blocks[0].dtype

    @property
    def dtype(self) -> np.dtype[Any]:
        """The data type, as NumPy's."""
        return numpy_dtype(self.kind)

    @property
    def region(self) -> MemoryRegion:
        """Where it lies."""
        return self.blocks[0].buffer

    @property
    def buffer(self) -> MemoryRegion:
        """Where it lies."""
        return self.region

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return info(self.kind).itemsize

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def tile(self) -> NkiTensor:
        """Return the tensor of today that an instruction reads or writes.

        Raises:
            NkiError: there are block dimensions (NKI264).
        """
        if self.block_shape:
            raise NkiError(
                "NKI264",
                f"a tensor of shape {self.shape} with block dimensions {self.block_shape} was "
                "given to an instruction",
                "index the dimensions before the partition: t[i]",
            )
        tensor = self.blocks[0]
        _settle_zeros(tensor)
        return tensor

    def part(self, box: Box) -> NkiTensor:
        """Return the part of the tile within a box."""
        tensor = self.tile()
        return tensor if box == whole_box(tensor.shape) else tensor[box_slices(box)]

    def valid(self) -> TileRegion:
        """Return which elements the instruction that made it has written."""
        return TileRegion(whole_box(self.shape))

    # --- indexing ------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Tensor:
        """Return a part, chosen by integers and slices or by index expressions.

        Raises:
            NkiTypeError: an index of another kind (NKI011, NKI260).
            NkiIndexError: out of bounds (NKI010); expressions are checked when they are used.
            NkiError: expressions that no access pattern shows (NKI260, NKI265).
        """
        given = key if isinstance(key, tuple) else (key,)
        parts = [_known(part) for part in given]
        if any(type(part) is Mask for part in parts):
            return _masked_operand(self, parts)
        block = self._take_blocks(parts)
        if block is not self:
            return block[tuple(parts)] if parts else block
        tensor = self.blocks[0]
        if any(type(part) is slice and part != slice(None) for part in parts):
            filled = _filled(parts, tensor.shape)
            if filled is not None:
                return Tensor((nothing(self[tuple(filled)].tile()),))
        if any(isinstance(part, (Index, Tensor, Dynamic)) for part in parts):
            return Access(tensor, parts)
        made = Element if len(parts) == tensor.ndim and all(map(_is_whole, parts)) else Tensor
        return made((tensor[tuple(_plain(part) for part in parts)],))

    def _take_blocks(self, parts: list[Any]) -> Tensor:
        """Use up the indices of block dimensions; self if there are none."""
        if not self.block_shape:
            return self
        if parts and parts[0] is ...:
            if len(parts) == 1:
                parts.clear()
                return Tensor(self.blocks, self.block_shape)
            parts[:1] = [slice(None)] * (self.ndim - len(parts) + 1)
        numbers = np.arange(len(self.blocks)).reshape(self.block_shape)
        rank = len(self.block_shape)
        chosen = tuple(
            _block_index(part, n) for part, n in zip(parts, self.block_shape, strict=False)
        )
        picked = np.asarray(numbers[chosen])
        del parts[:rank]
        if picked.size == 0:
            raise NkiIndexError(
                "NKI012",
                f"an empty part of the block dimensions {self.block_shape} was asked for",
                "a view has at least one element",
            )
        taken = Tensor([self.blocks[int(i)] for i in picked.reshape(-1)], picked.shape)
        if picked.ndim and parts:
            if any(part != slice(None) for part in parts):
                raise NkiError(
                    "NKI264",
                    f"a part of several blocks of a tensor of shape {self.shape} was asked for",
                    "index the dimensions before the partition with integers first",
                )
            parts.clear()
        return taken

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write a tile or a number to a part.

        Raises:
            NkiError: as indexing, or the shapes differ (NKI266), or it lies in HBM (NKI267).
        """
        HOOKS["assign"](self[key], value)

    # --- shapes --------------------------------------------------------------------------------

    def reshape(self, shape: Sequence[int]) -> Tensor:
        """Return a view in another shape with the same partition."""
        return Tensor((self.tile().reshape(tuple(shape)),))

    def view(self, dtype: Any) -> Tensor:
        """Return a view of the same bytes as another type."""
        return Tensor([block.view(dtype_name(dtype)) for block in self.blocks], self.block_shape)

    def expand_dims(self, axis: Any) -> Tensor:
        """Return a view with dimensions of size 1 inserted."""
        tensor = self.tile()
        axes = [axis] if isinstance(axis, int) else list(axis)
        rank = tensor.ndim + len(axes)
        for one in sorted(a % rank for a in axes):
            tensor = tensor.expand_dim(one)
        return Tensor((tensor,))

    def assert_shape(self, shape: Sequence[int]) -> Tensor:
        """Return the tensor itself, if it has a shape.

        Raises:
            NkiError: it has another (NKI266).
        """
        if tuple(shape) != self.shape:
            raise NkiError(
                "NKI266",
                f"a tensor of shape {self.shape} was expected to have {tuple(shape)}",
                "change one of them",
            )
        return self

    def broadcast_to(self, shape: Sequence[int]) -> Tensor:
        """Return a tile with dimensions of size 1 repeated; see `nl.broadcast_to`."""
        return Tensor((HOOKS["stretch"](self.tile(), tuple(shape)),))

    def astype(self, dtype: Any) -> Tensor:
        """Return a copy in another data type."""
        return HOOKS["copied"](self, dtype_name(dtype))  # type: ignore[no-any-return]

    # --- operators -----------------------------------------------------------------------------

    def __add__(self, other: Any) -> Any:
        return _operate("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return _operate("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return _operate("subtract", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _operate("subtract", other, self)

    def __mul__(self, other: Any) -> Any:
        return _operate("multiply", self, other)

    def __rmul__(self, other: Any) -> Any:
        return _operate("multiply", other, self)

    def __truediv__(self, other: Any) -> Any:
        return _operate("divide", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _operate("divide", other, self)

    def __mod__(self, other: Any) -> Any:
        return _operate("mod", self, other)

    def __rmod__(self, other: Any) -> Any:
        return _operate("mod", other, self)

    def __pow__(self, other: Any) -> Any:
        return _operate("power", self, other)

    def __rpow__(self, other: Any) -> Any:
        return _operate("power", other, self)

    def __and__(self, other: Any) -> Any:
        return _operate("bitwise_and", self, other)

    def __rand__(self, other: Any) -> Any:
        return _operate("bitwise_and", other, self)

    def __or__(self, other: Any) -> Any:
        return _operate("bitwise_or", self, other)

    def __ror__(self, other: Any) -> Any:
        return _operate("bitwise_or", other, self)

    def __xor__(self, other: Any) -> Any:
        return _operate("bitwise_xor", self, other)

    def __rxor__(self, other: Any) -> Any:
        return _operate("bitwise_xor", other, self)

    def __lshift__(self, other: Any) -> Any:
        return _operate("left_shift", self, other)

    def __rshift__(self, other: Any) -> Any:
        return _operate("right_shift", self, other)

    def __lt__(self, other: Any) -> Any:
        return _operate("less", self, other)

    def __le__(self, other: Any) -> Any:
        return _operate("less_equal", self, other)

    def __gt__(self, other: Any) -> Any:
        return _operate("greater", self, other)

    def __ge__(self, other: Any) -> Any:
        return _operate("greater_equal", self, other)

    def __neg__(self) -> Tensor:
        return HOOKS["negative"](self)  # type: ignore[no-any-return]

    def __invert__(self) -> Tensor:
        return HOOKS["invert"](self)  # type: ignore[no-any-return]

    def __abs__(self) -> Tensor:
        return HOOKS["abs"](self)  # type: ignore[no-any-return]

    def __iadd__(self, other: Any) -> Any:
        return _in_place("add", self, other)

    def __isub__(self, other: Any) -> Any:
        return _in_place("subtract", self, other)

    def __imul__(self, other: Any) -> Any:
        return _in_place("multiply", self, other)

    def __itruediv__(self, other: Any) -> Any:
        return _in_place("divide", self, other)

    def __bool__(self) -> bool:
        if self.region.on_chip:
            raise NkiTypeError(
                "NKI261",
                "a tile was used as a condition of Python",
                "its values are known on the device only: use masks, nl.where, or `is not None`",
            )
        return True

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<{self.kind}{list(self.shape)} in {self.region.name}>"


class Element(Tensor):
    """One element of a tensor, which integers chose: as an index it is one too."""

    __slots__ = ()


class Dynamic:
    """An index with a value of a tile in it: ``tile * scale + index``.

    Attributes:
        tile: one integer, or one for each partition, in SBUF.
        scale: what it is multiplied with.
        index: what is added.
    """

    __slots__ = ("index", "scale", "tile")

    def __init__(self, tile: Tensor, scale: int = 1, index: Index | None = None) -> None:
        self.tile = tile
        self.scale = scale
        self.index = Index((), 0, ()) if index is None else index

    def on_sbuf(self) -> Dynamic:
        """Return it with a tile in SBUF, which the compiler of this generation copies."""
        if self.tile.region is MemoryRegion.sbuf:
            return self
        moved: Tensor = HOOKS["copied"](self.tile, self.tile.kind)
        made = Element if isinstance(self.tile, Element) else Tensor
        return Dynamic(made((moved.tile(),)), self.scale, self.index)


def _dynamic(op: str, tile: Tensor, index: Any, tile_first: bool) -> Dynamic:
    """Return an index made of a tile and an expression.

    Raises:
        NkiTypeError: another operator than + (NKI265).
    """
    if op != "add" or not isinstance(index, Index):
        raise NkiTypeError(
            "NKI265",
            f"an index expression and an index tile are combined by {op}",
            "add them: t[i_p, tile + i_f]",
        )
    del tile_first
    return Dynamic(tile, 1, index)


def _block_index(part: Any, size: int) -> Any:
    if isinstance(part, Index) and part.affine and not any(part.steps):
        part = part.offset
    if isinstance(part, slice):
        return part
    number = as_index(part)
    if number is None or number.shape:
        raise NkiError(
            "NKI264",
            f"a block dimension of size {size} was indexed with {part!r}",
            "use an integer: blocks are separate tiles",
        )
    if not -size <= number.offset < size:
        raise NkiIndexError(
            "NKI010",
            f"index {number.offset} is out of bounds for a block dimension of size {size}",
            "stay within the dimension",
        )
    return number.offset


def _known(part: Any) -> Any:
    """Return ``nl.ds`` as a slice, or with the tensor of today that it starts at."""
    if not isinstance(part, DynamicSlice):
        return part
    if isinstance(part.start, Tensor):
        return DynamicSlice(part.start.tile(), part.size)
    start = as_index(part.start)
    if start is None or start.shape:
        return part
    return slice(start.offset, start.offset + int(part.size))


def _filled(parts: list[Any], shape: tuple[int, ...]) -> list[Any] | None:
    """Return indices with empty slices made to have one element; None if no slice is empty.

    The last tile of a loop may be empty, and a slice of it then ends where it begins or before.
    """
    found, dims = list(parts), list(shape)
    if ... in [part if part is ... else None for part in parts]:
        at = next(i for i, part in enumerate(parts) if part is ...)
        dims[at : at + 1 + len(shape) - len(parts)] = [0]
    empty = False
    for i, (part, size) in enumerate(zip(parts, dims, strict=False)):
        if type(part) is slice and _is_empty(part, size):
            found[i], empty = slice(0, 1), True
    return found if empty else None


def _is_empty(part: slice, size: int) -> bool:
    """Return whether a slice forwards ends where it begins or before, wherever it lies."""
    start = as_index(0 if part.start is None else part.start)
    stop = as_index(size if part.stop is None else part.stop)
    if start is None or stop is None or start.shape or stop.shape or (part.step or 1) < 1:
        return False
    first, last = (end + size if end < 0 else end for end in (start.offset, stop.offset))
    return first >= last


def _is_whole(part: Any) -> bool:
    """Return whether an index is an integer."""
    return isinstance(part, (int, np.integer)) and not isinstance(part, bool)


def _plain(part: Any) -> Any:
    """Return an index as `nki.tensor` takes it."""
    if isinstance(part, (slice, type(...))):
        return part
    if isinstance(part, (np.integer, bool)):
        return int(part)
    return part


def _masked_operand(tensor: Tensor, parts: list[Any]) -> Tensor:
    """Return the part of a tile that masks as indices leave: "operand masking" of products."""
    mask = parts[0]
    for part in parts[1:]:
        mask = mask & part
    region = region_of_mask(mask, tensor.shape)
    if region.box is None or region.inside is not None:
        raise NkiError(
            "NKI262",
            f"a mask that cuts no box out of a tile of shape {tensor.shape} was used as its index",
            "compare each dimension with a bound",
        )
    return Tensor((tensor.part(region.box),))


def _settle_zeros(tensor: NkiTensor) -> None:
    """Write the zeros that `nl.zeros` promised, before anything but a product touches them."""
    zeros = current().zeros
    if zeros and tensor.storage in zeros:
        HOOKS["write_zeros"](tensor.storage, zeros.pop(tensor.storage))


class Access(Tensor):
    """A part of a tensor that index expressions choose.

    Attributes:
        base: the tensor.
        key: an expression for each of its dimensions, all of the part's shape.
        dynamic: the dimension whose index a tile holds, and that index.
        is_one: in HBM, that index is one for all of the part.
    """

    __slots__ = ("_key", "_parts", "_shape", "_view", "base", "dynamic", "is_one")

    def __init__(self, base: NkiTensor, parts: list[Any]) -> None:
        self.base = base
        self.dynamic: tuple[int, Dynamic] | None = None
        self.is_one = False
        self._parts = parts
        self._key: tuple[Index, ...] | None = None
        self._view = None
        known = _chosen(base, parts)
        if known is None:
            self._shape, self._key = self._spell_out(parts)
        else:
            self._shape, self._view = known
        self.block_shape = ()
        self.blocks = ()

    @property
    def key(self) -> tuple[Index, ...]:
        """The expressions; of a part like one before they are worked out if somebody asks."""
        if self._key is None:
            self._key = self._spell_out(self._parts)[1]
        return self._key

    def _spell_out(self, parts: list[Any]) -> tuple[tuple[int, ...], tuple[Index, ...]]:
        base = self.base
        parts = [p for part in parts for p in (part if isinstance(part, MeshGrid) else [part])]
        if ... in [part if part is ... else None for part in parts]:
            at = next(i for i, part in enumerate(parts) if part is ...)
            parts[at : at + 1] = [slice(None)] * (base.ndim - len(parts) + 1)
        if len(parts) > base.ndim:
            raise NkiIndexError(
                "NKI013",
                f"{len(parts)} indices for a tensor of shape {base.shape}",
                f"give at most {base.ndim}",
            )
        parts += [slice(None)] * (base.ndim - len(parts))
        key = [self._one(dim, part) for dim, part in enumerate(parts)]
        # Which dimensions have an axis of the result: slices get one only if all others have.
        rows = None if base.buffer.on_chip or self.dynamic is None else self.dynamic[0]
        self.is_one = rows is not None and self._is_one(key)
        if self.is_one:
            rows = None
        owners = [
            dim
            for dim, part in enumerate(key)
            if dim == rows or isinstance(part, slice) or part.ndim
        ]
        rank = max((part.ndim for part in key if isinstance(part, Index)), default=0)
        rank = rank or len(owners)
        indices = [
            _from_slice(part, base.shape[dim], owners.index(dim), rank, len(owners))
            if isinstance(part, slice)
            else part
            for dim, part in enumerate(key)
        ]
        lanes = self._lanes()
        shape: tuple[int, ...] = ()
        for index in indices:
            shape = common_shape(shape, index.shape)
        if self.is_one or lanes > 1 or rows is not None:
            shape = shape or (lanes, 1)
            if not self.is_one and shape[0] not in (1, lanes):
                raise NkiError(
                    "NKI265",
                    f"{lanes} index values were given beside expressions of shape {shape}",
                    "give expressions whose first axis has the partitions of the index tile",
                )
            shape = shape if self.is_one else (lanes, *shape[1:])
        if base.buffer.on_chip and len(shape) < 2:
            shape = (1,) * (2 - len(shape)) + shape
        return shape, tuple(index.raised(shape) for index in indices)

    def _is_one(self, key: list[Index | slice]) -> bool:
        """Return whether an index tile is one integer, which has no axis, and not a row of them.

        A tile of one value broadcasts against the axes of expressions beside it.
        """
        assert self.dynamic is not None
        tile = self.dynamic[1].tile
        if tile.size != 1:
            return False
        beside = (part.ndim for dim, part in enumerate(key) if isinstance(part, Index))
        return isinstance(tile, Element) or max(beside, default=0) > 0

    def _lanes(self) -> int:
        return 1 if self.dynamic is None else self.dynamic[1].tile.shape[0]

    def _one(self, dim: int, part: Any) -> Index | slice:
        if isinstance(part, slice):
            return part
        if isinstance(part, Tensor):
            part = Dynamic(part)
        if isinstance(part, Dynamic):
            if self.dynamic is not None:
                raise NkiError(
                    "NKI265",
                    f"two dimensions of a tensor of shape {self.base.shape} are indexed by tiles",
                    "load with one of them first",
                )
            dynamic = part.on_sbuf()
            checked_index(dynamic.tile.tile())
            self.dynamic = (dim, dynamic)
            return dynamic.index
        index = as_index(part)
        if index is None:
            raise NkiTypeError(
                "NKI260",
                f"a tensor was indexed with {part!r} of type {type(part).__name__} beside index "
                "expressions",
                "use expressions of nl.arange, integers, whole slices, or a tile of integers",
            )
        if not index.ndim and index.offset < 0:
            return index + self.base.shape[dim]  # type: ignore[no-any-return]
        return index

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes: what the expressions broadcast to."""
        return self._shape

    @property
    def kind(self) -> str:
        """NKI's name of the data type."""
        return self.base.dtype

    @property
    def region(self) -> MemoryRegion:
        """Where it lies."""
        return self.base.buffer

    def tile(self) -> NkiTensor:
        """Return the tensor of today.

        Raises:
            NkiIndexError: an expression leaves its dimension (NKI010).
            NkiError: no access pattern shows the elements (NKI260, NKI265).
        """
        _settle_zeros(self.base)
        if self._view is None:
            self._view = self.pattern_of(whole_box(self._shape))
            _choose(self.base, self._parts, self.key, self._view)
        return self._view

    def part(self, box: Box) -> NkiTensor:
        """Return the part within a box, which alone has to be within the tensor."""
        if box == whole_box(self._shape):
            return self.tile()
        _settle_zeros(self.base)
        return self.pattern_of(box)

    def inside(self) -> bool:
        """Return whether all of it lies within the tensor."""
        if self._view is not None and self.dynamic is None:
            return True
        fixed = self.dynamic[0] if self.dynamic is not None else None
        for dim, (index, size) in enumerate(zip(self.key, self.base.shape, strict=True)):
            low, high = index.bounds()
            if dim != fixed and (low < 0 or high >= size):
                return False
        return True

    def pattern_of(self, box: Box) -> NkiTensor:
        """Return the part within a box, without writing promised zeros first."""
        base = self.base.pattern
        shape = self._shape
        key = list(self.key)
        if box != whole_box(shape):
            shape = tuple([high - low for low, high in box])
            key = [index.part(box) for index in key]
        fixed = self.dynamic[0] if self.dynamic is not None else None
        offset = base.offset
        strides = [0] * len(shape)
        for dim, index in enumerate(key):
            low, high = index.bounds()
            if dim != fixed and not (low >= 0 and high < base.shape[dim]):
                raise NkiIndexError(
                    "NKI010",
                    f"an index expression from {low} to {high} is out of bounds for dimension "
                    f"{dim} of size {base.shape[dim]} of a tensor of shape {base.shape}",
                    "keep within the tensor, or mask the elements beyond: mask=(i < n)",
                )
            if not index.affine:
                raise _no_pattern(self.base, index)
            stride = base.strides[dim]
            offset += index.offset * stride
            for axis, step in enumerate(index.steps):
                strides[axis] += step * stride
        if base.partition:
            lanes = key[0]
            if any(lanes.steps[1:]) or any(index.steps[0] for index in key[1:]):
                raise NkiError(
                    "NKI260",
                    f"an index of an on-chip tensor of shape {base.shape} mixes partitions and "
                    "free dimensions",
                    "let the first axis index the partitions, and them only",
                )
            strides[0] = lanes.steps[0] * base.strides[0] if shape[0] > 1 else base.strides[0]
            if shape[0] > 1 and not lanes.steps[0]:
                raise NkiError(
                    "NKI260",
                    f"partition {lanes.offset} of a tensor of shape {base.shape} was indexed as "
                    f"{shape[0]} partitions",
                    "copy it to several with nl.broadcast_to first",
                )
        pattern = AccessPattern(
            base.dtype, offset, shape, tuple(strides), base.partition, base.indirect
        )
        if self.dynamic is not None:
            pattern = self._moved(pattern, box, key)
        return tensor_of(self.base.storage, pattern)

    def _moved(self, pattern: AccessPattern, box: Box, key: list[Index]) -> AccessPattern:
        """Let the index tile move the pattern."""
        assert self.dynamic is not None
        base = self.base.pattern
        dim, index = self.dynamic
        tile = index.tile.tile()
        stride = base.strides[dim] * index.scale
        extent = key[dim].bounds()[1] - key[dim].bounds()[0]
        bound = -(-(base.shape[dim] - extent - key[dim].offset) // index.scale)
        if base.indirect is not None or index.scale < 1 or key[dim].bounds()[0] < 0:
            raise NkiError(
                "NKI265",
                "an index tile moves a view that one moves already, or backwards",
                "load with one of them first",
            )
        if not base.partition and not self.is_one:
            if any(index.steps[0] for index in key):
                raise NkiError(
                    "NKI265",
                    "an index tile and an expression both depend on the first axis",
                    "let expressions beside an index tile depend on the other axes only",
                )
            low, high = box[0]
            rows = tile if high - low == tile.shape[0] else tile[low:high]
            return pattern._replace(
                strides=(stride, *pattern.strides[1:]),
                indirect=Indirect("vector", rows, stride, 0, bound),
            )
        if base.partition and (dim == 0 or tile.size != 1):
            raise NkiError(
                "NKI265",
                f"an on-chip tensor is indexed by a tile of shape {tile.shape} in dimension {dim}",
                "use one value, in a free dimension; gather rows while loading from HBM, or with "
                "nl.gather_flattened",
            )
        axis = next((k for k, s in enumerate(key[dim].steps) if s), -1)
        return pattern._replace(indirect=Indirect("scalar", tile, stride, axis, bound))

    def _take_blocks(self, parts: list[Any]) -> Tensor:
        del parts
        return Tensor((self.tile(),))

    def __getitem__(self, key: Any) -> Tensor:
        """Return a part of the part; a mask may leave out what is beyond the tensor."""
        parts = list(key) if isinstance(key, tuple) else [key]
        if any(type(part) is Mask for part in parts):
            return _masked_operand(self, parts)
        return Tensor((self.tile(),))[key]

    def view(self, dtype: Any) -> Tensor:
        """Return a view of the same bytes as another type."""
        return Tensor((self.tile(),)).view(dtype)


class _Chosen(NamedTuple):
    """What parts that the same expressions choose have in common, whatever is added to these.

    Attributes:
        shape: sizes of the parts.
        spans: for each expression the smallest and the largest value less the first one, the size
            of its dimension, and the distance between neighbours there.
        layouts: of the parts by how many partitions they begin after the tensor.
    """

    shape: tuple[int, ...]
    spans: tuple[tuple[int, int, int, int], ...]
    layouts: dict[int, Any]


def _expressions(parts: list[Any]) -> tuple[Any, ...] | None:
    """Return what tells parts by affine expressions and integers apart but for their offsets."""
    key: list[Any] = []
    for part in parts:
        if type(part) is Index and part.affine:
            key += (part.shape, part.steps)
        elif type(part) is int and part >= 0:
            key.append(None)
        else:
            return None
    return tuple(key)


def _partitions(base: NkiTensor, offset: int) -> int:
    """Return how many partitions after a tensor a part of it begins, 0 in HBM."""
    size, row = base.layout.itemsize, base.layout.row_bytes
    return offset * size // row - base.offset * size // row if row else 0


def _chosen(base: NkiTensor, parts: list[Any]) -> tuple[tuple[int, ...], NkiTensor] | None:
    """Return sizes and view of a part like one that was chosen before, None if it is no such."""
    key = None if base.layout is None else _expressions(parts)
    found: _Chosen | None = None if key is None else base.layout.chosen.get(key)
    if found is None:
        return None
    offset = base.offset
    for part, (low, high, size, stride) in zip(parts, found.spans, strict=True):
        at = part if type(part) is int else part.offset
        if at + low < 0 or at + high >= size:
            return None
        offset += at * stride
    layout = found.layouts.get(_partitions(base, offset))
    if layout is None:
        return None
    made = _new(NkiTensor)
    made.storage, made.layout, made.offset = base.storage, layout, offset
    return found.shape, made


def _choose(base: NkiTensor, parts: list[Any], key: tuple[Index, ...], view: NkiTensor) -> None:
    """Remember a part that was chosen, for others like it."""
    said = None if base.layout is None or view.pattern.indirect is not None else _expressions(parts)
    if said is None:
        return
    found = base.layout.chosen.get(said)
    if found is None:
        spans = []
        for index, (size, stride) in zip(key, base.layout.dims, strict=True):
            low, high = index.bounds()
            spans.append((low - index.offset, high - index.offset, size, stride))
        found = _Chosen(view.shape, tuple(spans[: len(parts)]), {})
        base.layout.chosen[said] = found
    found.layouts[_partitions(base, view.offset)] = base.layout.forms.layout(view)


_new = object.__new__


def _no_pattern(base: NkiTensor, index: Index) -> NkiError:
    return NkiError(
        "NKI260",
        f"an index {index!r} of a tensor of shape {base.shape} is not affine",
        "write it as a sum of multiples of nl.arange along several axes",
    )


def _from_slice(part: slice, size: int, axis: int, rank: int, spread: int) -> Index:
    """Return a slice beside expressions as one: along its own axis of their shape.

    Raises:
        NkiError: there is no axis for it (NKI260).
    """
    if rank != spread:
        raise NkiError(
            "NKI260",
            "a slice beside index expressions has no axis of its own",
            "write nl.arange with an axis for each dimension, or slices alone",
        )
    if part.stop is not None and part.stop > size:
        raise NkiIndexError(
            "NKI010",
            f"the slice {part.start}:{part.stop} is out of bounds for a dimension of size {size}",
            "stay within the dimension, or mask the elements beyond",
        )
    start, stop, step = part.indices(size)
    count = max(0, -(-(stop - start) // step))
    if count == 0 or step < 1:
        raise NkiIndexError(
            "NKI012", f"the slice {part} of a dimension of size {size} is empty", "use a wider one"
        )
    steps = tuple(step if k == axis else 0 for k in range(rank))
    return Index(tuple(count if k == axis else 1 for k in range(rank)), start, steps)


class Result(Tensor):
    """The tile that an instruction returns.

    Attributes:
        write: issues the instruction with a tensor of the full shape as its destination.
        regions: memories that it can write to.
        reads: what it reads.
        accumulate: adds to a tensor in PSUM instead; of matrix products only.
    """

    __slots__ = ("_kind", "_region", "_shape", "_valid", "accumulate", "reads", "regions", "write")

    def __init__(
        self,
        shape: tuple[int, ...],
        kind: str,
        region: MemoryRegion,
        write: Callable[[NkiTensor], None],
        reads: Sequence[NkiTensor] = (),
        valid: TileRegion | None = None,
        regions: frozenset[str] = frozenset({"sbuf", "psum"}),
        accumulate: Callable[..., None] | None = None,
    ) -> None:
        self._shape = shape
        self._kind = kind
        self._region = region
        self._valid = TileRegion(whole_box(shape)) if valid is None else valid
        self.write = write
        self.reads = tuple(reads)
        self.regions = regions
        self.accumulate = accumulate
        self.block_shape = ()
        self.blocks = ()
        state = current()
        state.flush()
        state.waiting = self

    @property
    def waits(self) -> bool:
        """Return whether the instruction is not issued yet."""
        return not self.blocks

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes."""
        return self._shape

    @property
    def kind(self) -> str:
        """NKI's name of the data type."""
        return self._kind

    @property
    def region(self) -> MemoryRegion:
        """Where it lies."""
        return self._region

    def valid(self) -> TileRegion:
        """Return which elements the instruction writes."""
        return self._valid

    def only(self, region: TileRegion) -> Result:
        """Say that only a region of the result is defined; returns itself."""
        self._valid = region
        self.regions = frozenset()  # the instruction writes more, so it needs a tile of its own
        return self

    def issue_to(self, tensor: NkiTensor) -> None:
        """Issue the instruction with `tensor`, of the full shape, as its destination."""
        self.blocks = (tensor,)
        state = current()
        if state.waiting is self:
            state.waiting = None
        if self._valid.box is not None:
            self.write(tensor)

    def tile(self) -> NkiTensor:
        """Return the tile; the instruction is issued now if it waited."""
        if not self.blocks:
            made = new_tile(self._shape, self._kind, self._region)
            if not self._valid.covers(self._shape):
                # Kernels compute on rows that a mask has left undefined, and then mask the store.
                current().waiting = None
                HOOKS["fill"](made, 0)
            self.issue_to(made)
        return super().tile()

    def _take_blocks(self, parts: list[Any]) -> Tensor:
        del parts
        self.tile()
        return self

    def view(self, dtype: Any) -> Tensor:
        """Return a view of the same bytes as another type."""
        self.tile()
        return super().view(dtype)
