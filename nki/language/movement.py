"""Functions that move tiles: to and from HBM, across partitions, by index or condition."""

from __future__ import annotations

from typing import Any, Final

from nki.arguments import as_integers
from nki.dtypes import canonical, info
from nki.errors import NkiError, NkiTypeError, NkiValidationError
from nki.isa.functions import FUNCTIONS
from nki.language.function import Unary, kind_of
from nki.language.tiles import cast_copy, is_number, new, promote, same_shape, tile
from nki.memory import MemoryRegion
from nki.tensor import NkiTensor, create
from nki.versions import since

__all__ = [
    "broadcast_to",
    "copy",
    "gather_flattened",
    "load",
    "load_transpose2d",
    "matmul",
    "store",
    "transpose",
    "where",
]

_QUADRANT = 32
_MOVING = 512
_STATIONARY = 128


# --- copies ------------------------------------------------------------------------------------


class _Copy(Unary):
    def __call__(self, x: NkiTensor, dtype: Any = None) -> NkiTensor:
        """Return a copy in SBUF, bit by bit if the types agree.

        Before NKI 0.6 the Scalar Engine copied, through float32 and to the memory of `x`.

        Args:
            x: a tile in SBUF or PSUM.
            dtype: the type of the result, by default that of `x`.

        Raises:
            NkiTypeError: `x` is no tile (NKI240).
        """
        data = tile("copy", "x", x)
        if since("nl.copy"):
            return cast_copy(data, dtype)
        out = create(data.shape, kind_of(data, dtype), data.buffer)
        FUNCTIONS["activation"](out, "copy", data)
        return out


copy: Final = _Copy("copy", "Return a copy in SBUF; as an operator the identity.", None)


def _hbm(function: str, name: str, value: Any) -> NkiTensor:
    if not isinstance(value, NkiTensor) or value.buffer.on_chip:
        shown = f"{value!r} in {value.buffer.name}" if isinstance(value, NkiTensor) else repr(value)
        raise NkiTypeError(
            "NKI240",
            f"nl.{function} {name} must be a tensor in hbm, got {shown}",
            "use nisa.tensor_copy between sbuf and psum, and nisa.dma_copy within sbuf",
        )
    return value


def load(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return a new tile in SBUF with what a tensor in HBM holds.

    Args:
        src: at most 128 along its first dimension; a tensor of one dimension gives a tile of one
            element per partition.
        dtype: the type of the tile, by default that of `src`; the DMA casts.

    Raises:
        NkiTypeError: `src` is no tensor in HBM (NKI240).
        NkiError: a first dimension above 128 (NKI004).
    """
    data = _hbm("load", "src", src)
    shape = data.shape if data.ndim > 1 else (*data.shape, 1)
    out = new(shape, kind_of(data, dtype))
    FUNCTIONS["dma_copy"](out, data)
    return out


def store(dst: NkiTensor, value: NkiTensor) -> None:
    """Write a tile in SBUF to HBM; the DMA casts.

    Args:
        dst: a tensor in HBM.
        value: a tile in SBUF in the shape of `dst`; sizes of 1 may differ.

    Raises:
        NkiTypeError: `dst` is not in HBM, or `value` no tile (NKI240).
        NkiError: the shapes differ (NKI241).
        NkiValidationError: `value` is in PSUM (NKI109).
    """
    target = _hbm("store", "dst", dst)
    data = tile("store", "value", value)
    if [n for n in target.shape if n != 1] != [n for n in data.shape if n != 1]:
        raise NkiError(
            "NKI241",
            f"nl.store writes a tile of shape {data.shape} to {target.shape}",
            "slice dst to the shape of the tile",
        )
    FUNCTIONS["dma_copy"](target, data)


def load_transpose2d(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return a new tile in SBUF with the transpose of a tensor in HBM.

    Args:
        src: two dimensions, at most 128 along the second one, which become the partitions.
        dtype: the type of the tile, by default that of `src`.

    Raises:
        NkiTypeError: `src` is no tensor in HBM (NKI240).
        NkiError: another number of dimensions (NKI240), or a second dimension above 128 (NKI004).
    """
    data = _two_dimensions("load_transpose2d", "src", _hbm("load_transpose2d", "src", src))
    out = new((data.shape[1], data.shape[0]), data.dtype)
    FUNCTIONS["dma_transpose"](out, data)
    same = kind_of(data, dtype) == data.dtype
    return out if same else cast_copy(out, dtype)


def _two_dimensions(function: str, name: str, x: NkiTensor) -> NkiTensor:
    if x.ndim != 2:
        raise NkiError(
            "NKI240",
            f"nl.{function} {name} must have 2 dimensions, got shape {x.shape}",
            "reshape or index it to a matrix",
        )
    return x


# --- across partitions -------------------------------------------------------------------------


def transpose(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return a new tile in PSUM with partitions and elements of a tile swapped.

    Args:
        x: two dimensions of at most 128 each, in SBUF.
        dtype: the type of the result, by default that of `x`.

    Raises:
        NkiTypeError: `x` is no tile (NKI240).
        NkiError: another number of dimensions (NKI240).
        NkiValidationError: too large (NKI104), or not in SBUF (NKI109).
    """
    data = _two_dimensions("transpose", "x", tile("transpose", "x", x))
    kind = kind_of(data, dtype)
    if kind != data.dtype:
        data = cast_copy(data, kind)
    out = create((data.shape[1], data.shape[0]), kind, MemoryRegion.psum)
    FUNCTIONS["nc_transpose"](out, data, engine="tensor")
    return out


def matmul(x: NkiTensor, y: NkiTensor, transpose_x: bool = False) -> NkiTensor:
    """Return x @ y, or x.T @ y, as a new float32 tile in PSUM.

    The Tensor Engine contracts over partitions: without `transpose_x` a transpose of `x` is issued
    first.

    Args:
        x: a tile in SBUF, (M, K), or (K, M) if `transpose_x`; both at most 128.
        y: a tile in SBUF, (K, N), N at most 512.
        transpose_x: `x` is already transposed.

    Raises:
        NkiTypeError: an argument is no tile (NKI240).
        NkiError: another number of dimensions (NKI240).
        NkiValidationError: too large (NKI121, NKI122), contractions that differ (NKI120), or data
            types that do not go together (NKI108).
    """
    stationary = _two_dimensions("matmul", "x", tile("matmul", "x", x))
    moving = _two_dimensions("matmul", "y", tile("matmul", "y", y))
    if not transpose_x:
        stationary = cast_copy(transpose(stationary))
    for code, name, size, most in (
        ("NKI121", "x", stationary.shape[1], _STATIONARY),
        ("NKI122", "y", moving.shape[1], _MOVING),
    ):
        if size > most:
            raise NkiValidationError(
                code,
                f"nl.matmul {name} has a free dimension of {size}, at most {most} is possible",
                "multiply in blocks",
            )
    out = create((stationary.shape[1], moving.shape[1]), "float32", MemoryRegion.psum)
    FUNCTIONS["nc_matmul"](out, stationary, moving)
    return out


def broadcast_to(x: NkiTensor, shape: tuple[int, ...], dtype: Any = None) -> NkiTensor:
    """Return a tile of another shape, in SBUF, that repeats a tile along dimensions of size 1.

    Args:
        x: a tile in SBUF or PSUM.
        shape: as many dimensions as `x` has; each as in `x`, or any size where that has 1.
        dtype: the type of the result, by default that of `x`.

    Returns:
        `x` itself if nothing changes.

    Raises:
        NkiTypeError: `x` is no tile, or `shape` no tuple of integers (NKI240).
        NkiError: it cannot be repeated to this shape (NKI241), or more than 128 partitions
            (NKI004).
    """
    data = tile("broadcast_to", "x", x)
    sizes = as_integers(shape, "nl.broadcast_to shape")
    fits = len(sizes) == data.ndim and not [
        n for n, m in zip(data.shape, sizes, strict=True) if n not in (1, m)
    ]
    if not fits:
        raise NkiError(
            "NKI241",
            f"nl.broadcast_to cannot repeat a tile of shape {data.shape} to {sizes}",
            "give as many dimensions, and the same size wherever it is not 1",
        )
    kind = kind_of(data, dtype)
    if (data.shape, data.dtype) == (sizes, kind):
        return data
    wide = data
    for dim in range(1, data.ndim):
        if wide.shape[dim] != sizes[dim]:
            wide = wide.broadcast(dim, sizes[dim])
    if data.shape[0] == sizes[0]:
        return cast_copy(wide, kind)
    return _over_partitions(cast_copy(wide, kind), sizes[0])


def _over_partitions(row: NkiTensor, partitions: int) -> NkiTensor:
    """Repeat a tile of one partition, bit by bit; a shuffle reaches 32 partitions."""
    out = new((partitions, *row.shape[1:]), row.dtype)
    for start in range(0, partitions, _QUADRANT):
        count = partitions - start if start + _QUADRANT > partitions else _QUADRANT
        FUNCTIONS["nc_stream_shuffle"](out[start : start + count], row, (0,) * _QUADRANT)
    return out


# --- by index or condition ---------------------------------------------------------------------


def gather_flattened(
    data: NkiTensor, indices: NkiTensor, axis: int = 0, dtype: Any = None
) -> NkiTensor:
    """Return, in each partition, the elements that indices name, in a new tile in SBUF.

    Args:
        data: a tile in SBUF, whose free dimensions count as one.
        indices: a tile of integers with the partitions of `data`; each an index of the flattened
            free dimensions.
        axis: only 0 is possible: the flattened free dimensions are the only axis.
        dtype: the type of the result, by default that of `data`.

    Returns:
        A tile in the shape of `indices`.

    Raises:
        NkiTypeError: an argument is no tile, or indices are no integers (NKI240).
        NkiError: another axis (NKI242); while the kernel runs, an index out of bounds (NKI132).
    """
    source = tile("gather_flattened", "data", data)
    wanted = tile("gather_flattened", "indices", indices)
    if not info(wanted.dtype).is_int:
        raise NkiTypeError(
            "NKI240",
            f"nl.gather_flattened indices must be integer, got {wanted.dtype}",
            "load them as nl.uint32",
        )
    if axis != 0:
        raise NkiError(
            "NKI242",
            f"nl.gather_flattened cannot gather along axis {axis}",
            "leave axis out: indices count in the flattened free dimensions",
        )
    if wanted.dtype != "uint32":
        wanted = cast_copy(wanted, "uint32")
    out = new(wanted.shape, source.dtype)
    FUNCTIONS["nc_n_gather"](out, source, wanted)
    return out if kind_of(source, dtype) == source.dtype else cast_copy(out, dtype)


def where(condition: NkiTensor, x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """Return, in a new tile in SBUF, `x` where a condition is not 0 and `y` elsewhere.

    Args:
        condition: a tile, of ones and zeros.
        x: a tile in the shape of the condition, or a number.
        y: likewise.
        dtype: the type of the result, by default the common one of `x` and `y`, or that of the
            condition if both are numbers.

    Raises:
        NkiTypeError: an argument is neither (NKI240).
        NkiError: the shapes differ (NKI241).
    """
    chosen = tile("where", "condition", condition)
    kinds = []
    for name, value in (("x", x), ("y", y)):
        if not is_number(value):
            same_shape("where", chosen, tile("where", name, value))
            kinds.append(value.dtype)
    kind = canonical(dtype) if dtype is not None else promote(*(2 * (kinds or [chosen.dtype]))[:2])
    if len(kinds) == 2 and dtype is None:
        kind = promote(*kinds)
    if chosen.dtype not in ("uint8", "uint16", "uint32"):
        mask = new(chosen.shape, "uint8")
        FUNCTIONS["tensor_scalar"](mask, chosen, "not_equal", 0.0)
        chosen = mask
    out = new(chosen.shape, kind)
    if is_number(y):
        FUNCTIONS["memset"](out, float(y) if info(kind).is_float else int(y))
    else:
        FUNCTIONS["tensor_copy"](out, y)
    src = x
    if is_number(x):
        src = float(x)
    elif x.dtype != kind:
        src = cast_copy(x, kind)
    elif x.buffer is MemoryRegion.psum and chosen.buffer is MemoryRegion.psum:
        src = cast_copy(x)  # an instruction reads one tile of PSUM
    FUNCTIONS["tensor_copy_predicated"](out, src, chosen)
    return out
