"""Scatter: windows are written to, or combined with, what lies where indices point to.

128 windows go at once, one to a partition. Several of them may meet in one place: windows that are
added are added to each other first, by a product with a matrix that has 1 where two of them begin
at the same place, so that each has the sum of all; of windows that are written the last one is.
Products, largest and smallest go one after the other, and so do windows that may meet in parts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

import nki.isa as nisa
import nki.language as nl
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from nki.device.emitter import PARTITIONS, Emitter, NoLoweringError, Value, chunks, require_form
from nki.device.groups import Group
from nki.device.indexed import Indexing, divided, indexing, starts_of
from nki.device.movement import in_hbm, placed
from nki.device.transfers import Leaf, load
from nki.device.types import HELD, words
from nki.device.views import Dims, collapsed, contiguous
from nki.tensor import NkiTensor

__all__ = ["run_scatter"]

Tensors = Mapping[Node, NkiTensor]

_NAMES: Final = (
    "scatter_dims_to_operand_dims", "input_batching_dims", "scatter_indices_batching_dims"
)  # fmt: skip
_COMBINES: Final = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}
_FLOATS: Final = frozenset({DType.F32, DType.BF16, DType.F16})  # what products add up
_BITS: Final = 12  # of a place that are compared at once: float32 tells them apart
_BANK: Final = 512  # columns of one product


class _Windows(NamedTuple):
    """Where windows come from and go to.

    Attributes:
        source: tensor of the updates, in HBM.
        target: tensor of the result.
        rows: (size, stride) of the windows in the source.
        inner: (size, stride of the target, stride of the source) of each dimension of a window.
        first: element of the source with which the first window begins.
    """

    source: NkiTensor
    target: NkiTensor
    rows: Dims
    inner: list[tuple[int, int, int]]
    first: int


def run_scatter(e: Emitter, group: Group, inputs: Tensors, outputs: Tensors) -> None:
    """Write or combine the window of each index; windows that leave the tensor are left out."""
    (node,) = group.nodes
    e.at(node)
    operand, given, updates = group.uses[node]
    require_form(node.dtype)
    if words(node.dtype) > 1:
        raise NoLoweringError("64-bit integers are not scattered")
    result = contiguous(node.shape)
    window_dims = node["update_window_dims"]
    dropped = {*node["inserted_window_dims"], *node["input_batching_dims"]}
    kept = [d for d in range(len(node.shape)) if d not in dropped]
    sizes = [1] * len(node.shape)
    for d, w in zip(kept, window_dims, strict=True):
        sizes[d] = updates.view.shape[w]
    window = [
        (sizes[d], result.strides[d], updates.view.strides[w])
        for d, w in zip(kept, window_dims, strict=True)
        if sizes[d] > 1
    ]
    placed(e, operand, inputs, outputs[node], result)
    source = in_hbm(e, updates, inputs)
    batch = [d for d in range(len(updates.view.shape)) if d not in window_dims]
    rows = collapsed(updates.view.permuted(batch).dims)
    windows = _Windows(source, outputs[node], rows, window, updates.view.offset)
    at = indexing(node, given.view, result, sizes, _NAMES)
    _write(e, node, at, (in_hbm(e, given, inputs), given.source.dtype), windows)


def _write(
    e: Emitter,
    node: Node,
    at: Indexing,
    indices: tuple[NkiTensor, DType],
    windows: _Windows,
) -> None:
    """Write or combine windows, as many at once as may be."""
    unique = bool(node.get("unique")) or at.windows == 1
    # Windows that begin at different places share no element.
    apart = all(at.sizes[d] == 1 for d in at.mapped)
    kind, beyond = node["kind"], node.type.size
    together = apart and (kind == "set" or (kind == "add" and node.dtype in _FLOATS))
    for row, partitions in chunks(at.windows, PARTITIONS if together or unique else 1):
        e.partitions = partitions
        starts = starts_of(e, at, *indices, row, clamp=False, width=1, beyond=beyond)
        meet = None
        if together and not unique and partitions > 1:
            meet = _meeting(e, starts)
            if kind == "set":
                starts, meet = _last_ones(e, starts, meet, beyond), None
        _write_windows(e, node, windows, starts, row, meet)


def _meeting(e: Emitter, starts: NkiTensor) -> NkiTensor:
    """Return (windows, windows): 1 where two of a block begin at the same place, else 0."""
    count = e.partitions
    found: NkiTensor | None = None
    for op, operand in (("bitwise_and", (1 << _BITS) - 1), ("logical_shift_right", _BITS)):
        part = e.tile(1, "int32")
        nisa.tensor_scalar(part, starts, op0=op, operand0=operand)
        number = e.tile(1, "float32")
        nisa.tensor_copy(number, part)
        wide = e.tile(count, "float32")
        nisa.tensor_copy(wide, number.broadcast(1, count))
        turned = nl.ndarray((count, count), dtype="float32", buffer=nl.psum)
        nisa.nc_transpose(turned, wide)
        same = e.tile(count, "float32")
        nisa.tensor_scalar(same, turned, op0="equal", operand0=number)
        if found is None:
            found = same
        else:
            both = e.tile(count, "float32")
            nisa.tensor_tensor(both, found, same, op="multiply")
            found = both
    assert found is not None
    return found


def _last_ones(e: Emitter, starts: NkiTensor, meet: NkiTensor, beyond: int) -> NkiTensor:
    """Return where windows begin, those beyond the tensor that a later one of a block hides."""
    count = e.partitions
    later = e.tile(count, "float32")
    # Column less row: above 0 where the column's window comes later.
    order = e.tile(count, "int32")
    nisa.iota(order, pattern=[[1, count]], offset=0, channel_multiplier=-1)
    nisa.tensor_copy(later, order)
    ahead = e.tile(count, "float32")
    nisa.tensor_scalar(ahead, later, op0="greater", operand0=0.0)
    both = e.tile(count, "float32")
    nisa.tensor_tensor(both, meet, ahead, op="multiply")
    hidden = e.tile(1, "float32")
    nisa.tensor_reduce(hidden, op="maximum", data=both, axis=(1,))
    e.columns = 1
    word = e.tile(1, "int32")
    nisa.tensor_copy(word, hidden)
    place, gone = (Value(tile, DType.S32, vector=True) for tile in (starts, word))
    rest = e.integer("subtract", beyond, place, DType.S32)
    return e.integer("add", place, e.integer("multiply", gone, rest, DType.S32), DType.S32).tile


def _write_windows(
    e: Emitter, node: Node, windows: _Windows, starts: NkiTensor, row: int, meet: NkiTensor | None
) -> None:
    kind = HELD[node.dtype]
    skip = nisa.oob_mode.skip
    outer, inner = divided(windows.inner, kind, 1)
    size = math.prod(n for n, _, _ in inner)
    for offset, shift in outer:
        pairs = [[1, e.partitions], *[[s, n] for n, s, _ in inner]]
        pairs += [[1, 1]] if len(pairs) == 1 else []
        moved = windows.target.ap(pairs, offset=offset, vector_offset=starts)
        columns = collapsed(tuple((n, s) for n, _, s in inner))
        leaf = Leaf(windows.source, node.dtype, windows.first + shift, windows.rows, columns)
        e.columns = size
        new = load(e, leaf, row, 0)
        tile = new.tile
        if new.vector and size > 1:
            tile = e.tile(size, kind)
            nisa.tensor_copy(tile, new.tile.broadcast(1, size))
        if node["kind"] != "set":
            old = e.tile(size, kind)
            nisa.memset(old, 0)
            nisa.dma_copy(dst=old, src=moved, oob_mode=skip)
            tile = _combined(e, node, old, tile, meet)
        nisa.dma_copy(dst=moved, src=tile, oob_mode=skip)


def _combined(
    e: Emitter, node: Node, old: NkiTensor, new: NkiTensor, meet: NkiTensor | None
) -> NkiTensor:
    """Return what is there combined with what comes, and with what else comes there."""
    op = _COMBINES[node["kind"]]
    if meet is None:
        there, comes = (Value(tile, node.dtype) for tile in (old, new))
        return e.binary(op, there, comes, node.dtype).tile
    kind = HELD[node.dtype]
    ones = meet
    if kind != "float32":
        ones = e.tile(e.partitions, kind)
        nisa.tensor_copy(ones, meet)
    made = e.tile(e.columns, kind)
    for at, columns in chunks(e.columns, _BANK):
        total = nl.ndarray((e.partitions, columns), dtype="float32", buffer=nl.psum)
        nisa.nc_matmul(total, ones, new[:, at : at + columns])
        nisa.tensor_tensor(made[:, at : at + columns], old[:, at : at + columns], total, op=op)
    return made
