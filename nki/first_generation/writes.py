"""Copies, fills and assignments: whatever writes a tile without being asked for by its name."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nki.access import overlap
from nki.access_rules import broken_rule
from nki.addressing import indices
from nki.dtypes import info
from nki.errors import NkiError
from nki.first_generation.boxes import (
    Box,
    TileRegion,
    box_slices,
    boxes_of,
    region_of_mask,
    whole_box,
)
from nki.first_generation.indices import Booleans
from nki.first_generation.state import constant, current, issue, new_tile
from nki.first_generation.tensors import HOOKS, Access, Result, Tensor
from nki.memory import MemoryRegion, Storage
from nki.pattern import AccessPattern, contiguous
from nki.tensor import NkiTensor, tensor_of

__all__ = [
    "accumulate",
    "aligned",
    "assign",
    "copied",
    "copy",
    "fill",
    "in_sbuf",
    "is_number",
    "legal",
    "merge",
    "on_chip",
    "on_sbuf",
    "predicate",
    "stretch",
    "take",
    "within",
    "write_zeros",
]


def is_number(value: Any) -> bool:
    """Return whether a value is a number of Python or NumPy."""
    return isinstance(value, (bool, int, float, np.generic))


def legal(tensor: NkiTensor) -> bool:
    """Return whether the compute engines can address an on-chip view."""
    return broken_rule(tensor.storage, tensor.pattern) is None


def take(tensor: NkiTensor, box: Box) -> NkiTensor:
    """Return the part of a tile within a box."""
    return tensor if box == whole_box(tensor.shape) else tensor[box_slices(box)]


# --- copies --------------------------------------------------------------------------------------


def copy(dst: NkiTensor, src: NkiTensor) -> None:
    """Copy between any two memories, converting; both have the same number of elements."""
    if dst.buffer.on_chip and src.buffer.on_chip:
        if legal(dst) and legal(src):
            issue("tensor_copy", dst=dst, src=src)
            return
        if MemoryRegion.psum in (dst.buffer, src.buffer):
            _through_sbuf(dst, src)
            return
    elif MemoryRegion.psum in (dst.buffer, src.buffer):
        _through_sbuf(dst, src)
        return
    issue("dma_copy", dst=dst, src=src)


def _through_sbuf(dst: NkiTensor, src: NkiTensor) -> None:
    """Copy from or to PSUM, which the DMA engines do not reach."""
    if dst.buffer is MemoryRegion.psum and not legal(dst):
        raise _unreachable(dst)
    if src.buffer is MemoryRegion.psum and not legal(src):
        raise _unreachable(src)
    between = new_tile(src.shape if src.buffer.on_chip else dst.shape, src.dtype)
    copy(between, src)
    copy(dst, between)


def _unreachable(tensor: NkiTensor) -> NkiError:
    return NkiError(
        "NKI267",
        f"partitions of {tensor.storage.label} from one where no engine starts are copied",
        "copy whole tiles of PSUM to SBUF first",
    )


def copied(value: Tensor, kind: str | None = None) -> Tensor:
    """Return a copy in SBUF, in another type if one is given; it is an instruction that waits."""
    src = value.tile()
    return Result(
        src.shape, kind or src.dtype, MemoryRegion.sbuf, lambda dst: copy(dst, src), (src,)
    )


def on_sbuf(tensor: NkiTensor) -> NkiTensor:
    """Return the tile itself, or a copy of one in PSUM."""
    if tensor.buffer is not MemoryRegion.psum:
        return tensor
    moved = new_tile(tensor.shape, tensor.dtype)
    copy(moved, tensor)
    return moved


def aligned(tensor: NkiTensor) -> NkiTensor:
    """Return a tile itself, or a copy where the engines can address it."""
    if legal(tensor):
        return tensor
    moved = new_tile(tensor.shape, tensor.dtype)
    copy(moved, tensor)
    return moved


def in_sbuf(tensor: NkiTensor) -> NkiTensor:
    """Return the tile itself, or a copy of one that is in another memory: the compiler's copy."""
    if tensor.buffer is MemoryRegion.sbuf:
        return tensor
    shape = tensor.shape if tensor.ndim > 1 else (*tensor.shape, 1)
    moved = new_tile(shape, tensor.dtype)
    copy(moved, tensor)
    return moved


def within(value: Tensor, mask: Any, domain: tuple[int, ...] | None = None) -> NkiTensor:
    """Return the tile of an operand that may leave its tensor where a mask leaves it out.

    Such an operand is copied to a tile of its shape, with 0 beyond the mask.

    Args:
        value: the operand.
        mask: of the instruction, None without one.
        domain: shape that the mask is for; by default the operand's.

    Raises:
        NkiIndexError: it leaves the tensor where the mask holds (NKI010).
    """
    if mask is None or not isinstance(value, Access) or value.inside():
        return value.tile()
    shape = value.shape
    region = region_of_mask(mask, shape if domain is None else domain)
    made = new_tile(shape, value.kind)
    fill(made, 0)
    if region.box is not None:
        box = whole_box(shape)
        if len(box) == len(region.box):
            box = tuple(
                (0, 1) if n == 1 else span for n, span in zip(shape, region.box, strict=True)
            )
        copy(take(made, box), value.part(box))
    return made


def on_chip(tensor: NkiTensor) -> NkiTensor:
    """Return the tile itself, or a copy in SBUF of one in HBM."""
    return tensor if tensor.buffer.on_chip else in_sbuf(tensor)


def stretch(tensor: NkiTensor, shape: tuple[int, ...]) -> NkiTensor:
    """Return a tile with its dimensions of size 1 repeated to a shape.

    Free dimensions are repeated by the access pattern; partitions are copied to a new tile.

    Raises:
        NkiError: the shapes do not broadcast (NKI266).
    """
    if tensor.shape == shape:
        return tensor
    pairs = list(zip(tensor.shape, shape, strict=False))
    if len(tensor.shape) != len(shape) or any(have not in (1, want) for have, want in pairs):
        raise NkiError(
            "NKI266",
            f"a tile of shape {tensor.shape} does not broadcast to {shape}",
            "give dimensions the same size, or size 1, and tiles the same number of dimensions",
        )
    for dim in range(1, len(shape)):
        if tensor.shape[dim] != shape[dim]:
            tensor = tensor.broadcast(dim, shape[dim])
    if tensor.shape[0] == shape[0]:
        return tensor
    # The whole row may be repeated along free dimensions, of which each element is copied once.
    return _spread(tensor, shape)


_QUADRANT = 32


def _spread(row: NkiTensor, shape: tuple[int, ...]) -> NkiTensor:
    """Copy one partition to several by shuffles, which keep every bit."""
    row = aligned(row)
    spread = new_tile(shape, row.dtype)
    for first in range(0, shape[0], _QUADRANT):
        issue(
            "nc_stream_shuffle",
            dst=spread[first : min(first + _QUADRANT, shape[0])],
            src=row,
            shuffle_mask=[0] * _QUADRANT,
        )
    return spread


# --- fills ---------------------------------------------------------------------------------------


def fill(dst: NkiTensor, value: Any) -> None:
    """Write a number to every element, converted to the type."""
    kind = info(dst.dtype)
    number = value.item() if isinstance(value, np.generic) else value
    if kind.is_int:
        limits = (0, 1) if dst.dtype == "bool_" else _limits(dst.dtype)
        number = round(min(max(number, limits[0]), limits[1])) if number == number else 0  # noqa: PLR0124
    else:
        number = float(number)
    if dst.buffer.on_chip and legal(dst):
        issue("memset", dst=dst, value=number)
        return
    # Not even one element starts at any partition: constants arrive from HBM.
    source = constant(np.full((1,), number, kind.numpy), dst.dtype)
    copy(dst, _repeated(source, dst.shape))


def _limits(kind: str) -> tuple[int, int]:
    found = np.iinfo(info(kind).numpy)
    return int(found.min), int(found.max)


def _repeated(one: NkiTensor, shape: tuple[int, ...]) -> NkiTensor:
    """Return a view of one element in HBM that shows it everywhere."""
    pattern = AccessPattern(one.dtype, 0, shape, (0,) * len(shape), partition=False)
    return tensor_of(one.storage, pattern)


# --- masks ---------------------------------------------------------------------------------------


def predicate(inside: Booleans) -> NkiTensor:
    """Return truth values as a tile of uint8, loaded from HBM."""
    flat = np.ascontiguousarray(inside.reshape(inside.shape[0], -1), np.uint8)
    tile = new_tile(flat.shape, "uint8")
    copy(tile, constant(flat, "uint8"))
    return tile.reshape(inside.shape)


def merge(dst: NkiTensor, src: NkiTensor, region: TileRegion) -> None:
    """Copy the elements of a region from a tile of the same shape; others stay as they are."""
    box = region.box
    if box is None:
        return
    to, of = take(dst, box), take(src, box)
    if dst.buffer is MemoryRegion.psum and not legal(to):
        _merge_rows(dst, src, region)
        return
    if region.inside is None:
        copy(to, of)
        return
    if not dst.buffer.on_chip or not legal(to):
        for piece in boxes_of(region):
            copy(take(dst, piece), take(src, piece))
        return
    if of.dtype != to.dtype or not legal(of):
        converted = new_tile(of.shape, to.dtype)
        copy(converted, of)
        of = converted
    issue("tensor_copy_predicated", dst=to, src=of, predicate=predicate(region.inside))


def _merge_rows(dst: NkiTensor, src: NkiTensor, region: TileRegion) -> None:
    """Merge into partitions of PSUM where no engine starts: with those before them, unchanged."""
    assert region.box is not None
    (low, high), rest = region.box[0], region.box[1:]
    inside = np.zeros((high, *(b - a for a, b in rest)), bool)
    inside[low:] = True if region.inside is None else region.inside
    box = ((0, high), *rest)
    source = new_tile(inside.shape, dst.dtype)
    fill(source, 0)
    copy(source[low:], take(on_sbuf(src), region.box))
    issue("tensor_copy_predicated", dst=take(dst, box), src=source, predicate=predicate(inside))


# --- assignments ---------------------------------------------------------------------------------


def assign(dst: Tensor, value: Any) -> None:
    """Write a tile or a number to a part of a tensor on chip.

    Raises:
        NkiError: the shapes differ (NKI266), or it lies in HBM (NKI267).
        NkiTypeError: the value is neither.
    """
    if not dst.region.on_chip:
        raise NkiError(
            "NKI267",
            f"a tensor of shape {dst.shape} in HBM was assigned to",
            "write nl.store(t[...], value=tile), or nisa.dma_copy",
        )
    if is_number(value):
        for block in _blocks(dst):
            fill(block, value)
        return
    if not isinstance(value, Tensor):
        raise NkiError(
            "NKI266",
            f"a {type(value).__name__} was assigned to a tile of shape {dst.shape}",
            "assign a tile or a number",
        )
    if isinstance(dst, Access) and isinstance(value, Result) and not dst.inside():
        _assign_within(dst, value)
        return
    if not dst.block_shape and _same_view(_raw(dst), value):
        return  # t[...] += x has written already
    target = dst.tile()
    if isinstance(value, Result) and value.waits and _direct(target, value):
        value.issue_to(_shaped(target, value.shape))
        return
    source = value.tile()
    region = value.valid()
    if region.covers(value.shape):
        copy(target, _fitted(source, target.shape))
    else:
        merge(_shaped(target, value.shape), source, region)


def _assign_within(dst: Access, value: Result) -> None:
    """Write what a mask has left of a result to a part that leaves its tensor elsewhere."""
    region, source = value.valid(), value.tile()
    if region.box is not None:
        part = dst.part(region.box)
        merge(part, take(source, region.box), TileRegion(whole_box(part.shape), region.inside))


def _blocks(tensor: Tensor) -> list[NkiTensor]:
    if tensor.block_shape:
        return list(tensor.blocks)
    return [tensor.tile()]


def _fits(have: tuple[int, ...], want: tuple[int, ...]) -> bool:
    return have == want or (have[0] == want[0] and math.prod(have) == math.prod(want))


def _shaped(tensor: NkiTensor, shape: tuple[int, ...]) -> NkiTensor:
    """Return a tile in a shape with the same partitions and as many elements."""
    return tensor if tensor.shape == shape else tensor.reshape(shape)


def _fitted(source: NkiTensor, shape: tuple[int, ...]) -> NkiTensor:
    if _fits(source.shape, shape):
        return source
    return stretch(source, shape)


def _direct(target: NkiTensor, value: Result) -> bool:
    """Return whether an instruction that waits can write to a part of a tensor itself."""
    shape = value.shape
    if value.kind != target.dtype or target.buffer.name not in value.regions:
        return False
    if value.valid().inside is not None or not _fits(shape, target.shape):
        return False
    if shape != target.shape and not target.is_contiguous():
        return False
    same = _shaped(target, shape)
    aligned = "hbm" in value.regions or legal(take(same, value.valid().box or whole_box(shape)))
    return aligned and all(
        (read.storage is same.storage and read.pattern == same.pattern) or not overlap(read, same)
        for read in value.reads
    )


# --- sums in PSUM --------------------------------------------------------------------------------


def accumulate(dst: Tensor, product: Result) -> bool:
    """Let a matrix product that waits add to a tile in PSUM; False if it cannot."""
    if product.accumulate is None or not product.waits or product.shape != dst.shape:
        return False
    if dst.region is not MemoryRegion.psum or dst.kind != product.kind or dst.block_shape:
        return False
    target = _raw(dst)
    state = current()
    product.blocks = (target,)
    state.waiting = None
    if product.valid().box is None or not state.empty.isdisjoint(r.storage for r in product.reads):
        return True
    covered = state.zeros.get(target.storage)
    # Elements that nothing has written are overwritten, as `accumulate=None` says: a sum over
    # loops needs no zeros to begin with.
    product.accumulate(target, accumulate=None)
    if covered is None:
        return True
    written = take(_shaped(target, product.shape), product.valid().box or ())
    covered.reshape(-1)[indices(written.pattern)] = True
    if covered.all():
        del state.zeros[target.storage]
    return True


def _raw(dst: Tensor) -> NkiTensor:
    """Return a part of a tensor without writing the zeros that are promised there."""
    if isinstance(dst, Access):
        return dst.pattern_of(whole_box(dst.shape))
    return dst.blocks[0] if dst.blocks else dst.tile()


def _same_view(target: NkiTensor, value: Tensor) -> bool:
    if isinstance(value, Result) and value.waits:
        return False
    if isinstance(value, Access):
        return value.base.storage is target.storage and _raw(value).pattern == target.pattern
    return any(b.storage is target.storage and b.pattern == target.pattern for b in value.blocks)


def write_zeros(storage: Storage, covered: Booleans) -> None:
    """Write the zeros of `nl.zeros` to the elements that no product has written."""
    shape = storage.shape
    tensor = tensor_of(storage, contiguous(storage.dtype, shape, partition=True))
    if not covered.any():
        fill(tensor, 0)
        return
    parts = [take(tensor, box) for box in boxes_of(TileRegion(whole_box(shape), ~covered))]
    if all(legal(part) for part in parts):
        for part in parts:
            fill(part, 0)
        return
    issue("tensor_copy_predicated", dst=tensor, src=0.0, predicate=predicate(~covered))


def in_place(op: str, dst: Tensor, value: Any) -> None:
    """Write ``dst <op> value`` to dst."""
    if op == "add" and isinstance(value, Result) and accumulate(dst, value):
        return
    assign(dst, HOOKS[op](dst, value))


HOOKS.update(
    assign=assign, copied=copied, fill=fill, in_place=in_place, stretch=stretch,
    write_zeros=write_zeros,
)  # fmt: skip
