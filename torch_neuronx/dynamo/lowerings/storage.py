"""Operators on the memory behind a tensor: strides over all of its storage, and resizing.

The IR has no memory. What lies in a storage is what the tensor holds whose memory it is, in the
order of its strides; a view's storage is that of the tensor that it is a view of.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from neuronxcc.ir import build as b
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Loc
from neuronxcc.ir.node import Node
from torch_neuronx.dynamo import emit as e
from torch_neuronx.dynamo.errors import CaptureError
from torch_neuronx.dynamo.lowerings.index import put_along, take_along
from torch_neuronx.dynamo.lowerings.memory import from_memory, in_memory, is_dense, memory_order
from torch_neuronx.dynamo.outputs import root
from torch_neuronx.dynamo.registry import Context, lowers
from torch_neuronx.dynamo.windows import may_overlap

aten = torch.ops.aten
Ints = Sequence[int]


@lowers(aten.as_strided.default, aten.as_strided_copy.default)
def as_strided(cx: Context, x: Node, size: Ints, stride: Ints, offset: int | None = None) -> Node:
    owner, held = _owner(cx, x)
    begin = int(_argument(cx).storage_offset()) if offset is None else offset
    if not math.prod(size):
        return e.number(0, cx.dtype, cx.shape)
    if _argument(cx).is_conj() is not held.is_conj():  # seen so, and so that of what is made of it
        owner = b.conj(owner)
    if _argument(cx).is_neg() is not held.is_neg():
        owner = b.negate(owner)
    order = memory_order(held)
    if order is None:
        return _found(cx, owner, held, positions(size, stride, begin))
    memory = in_memory(owner, order)
    begin -= int(held.storage_offset())
    last = begin + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if begin < 0 or last >= memory.type.size:
        raise outside(cx.fx.target, "reads", cx.loc)
    if is_dense(size, stride):
        return b.reshape(b.slice_dim(memory, 0, begin, last + 1), size)
    return take_along(memory, [(0, _places(size, stride, begin))])


@lowers(aten.as_strided_scatter.default)
def as_strided_scatter(
    cx: Context, x: Node, source: Node, size: Ints, stride: Ints, offset: int | None = None
) -> Node:
    """A copy of `x` in whose storage the source was written; what `x` does not show is lost.

    PyTorch traces a write to some elements of a strided view as this, with a source that holds what
    the view shows of all others. Where several of its elements are one of the storage, those that
    the write changed are the ones that count.
    """
    held = _argument(cx)
    begin = int(held.storage_offset()) if offset is None else offset
    if begin < 0:
        raise cx.refused(f"Tensor: invalid storage offset {begin}")
    source = b.convert(source, cx.dtype)
    order = memory_order(held)
    if order is None:
        wanted = positions(size, stride, begin)
        if len(np.unique(wanted)) < wanted.size:
            raise CaptureError(
                "a write through a strided view whose elements share memory, of a tensor with gaps",
                "write to the tensor, or to a copy of the view",
                cx.loc,
            )
        return _replaced(x, held, source, wanted)
    places = _places(size, stride, begin - int(held.storage_offset()))
    memory = in_memory(x, order)
    if not may_overlap(size, stride):
        return from_memory(put_along(memory, [(0, places)], source, "set"), x.shape, order)
    count = memory.type.size
    changed = _differ(source, take_along(memory, [(0, places)]))
    places = b.select(changed, places, e.like(places, count))  # beyond the end: thrown away
    memory = put_along(b.pad(memory, e.number(0, cx.dtype), 0, 1), [(0, places)], source, "set")
    return from_memory(b.slice_dim(memory, 0, 0, count), x.shape, order)


@lowers(aten.resize.default)
def resize(cx: Context, x: Node, _size: Ints, *, memory_format: object = None) -> Node:
    """The elements of a copy in the order of memory, under another shape; new ones are 0."""
    del memory_format  # the strides of the result say it
    order, wanted = memory_order(torch.empty_like(_argument(cx))), memory_order(cx.first)
    assert order is not None
    assert wanted is not None
    memory, count = in_memory(x, order), cx.type.size
    if count > memory.type.size:
        memory = b.pad(memory, e.number(0, cx.dtype), 0, count - memory.type.size)
    return from_memory(b.slice_dim(memory, 0, 0, count), cx.shape, wanted)


# ---- whose memory -------------------------------------------------------------------------------


def _argument(cx: Context) -> torch.Tensor:
    node = cx.fx.args[0]
    assert isinstance(node, torch.fx.Node)
    value: torch.Tensor = node.meta["val"]
    return value


def owner_of(node: torch.fx.Node) -> torch.fx.Node:
    """The node whose tensor has the memory that a node's tensor shows, counted in its elements.

    It may be of another type of one size, as long as that can be read as this one.
    """
    whole, value = root(node), node.meta["val"]
    seen = whole.meta["val"]
    if value.itemsize == seen.itemsize and not {value.dtype, seen.dtype} & _NOT_BITS:
        return whole
    return root(node, same_type=True)


# A bool is no byte to the IR, and what is lazy about a complex number is no matter of its memory.
_NOT_BITS = {torch.bool, torch.complex64, torch.complex128}


def _owner(cx: Context, x: Node) -> tuple[Node, torch.Tensor]:
    """The tensor whose memory the first argument is or shows a part of, and as PyTorch has it."""
    node = cx.fx.args[0]
    assert isinstance(node, torch.fx.Node)
    found = owner_of(node)
    owner = x if found is node else cx.values[found]
    return b.bitcast_convert(owner, x.dtype), found.meta["val"]


def outside(target: object, does: str, loc: Loc | None) -> CaptureError:
    """Refuse an operator that reads or writes what the graph has not."""
    return CaptureError(
        f"{target}: it {does} elements of a storage of which the graph was given a part",
        "pass the tensor that holds all of them, or make the part inside of the compiled function",
        loc,
    )


def _places(size: Ints, stride: Ints, begin: int) -> Node:
    places = e.number(begin, DType.S64, size)
    for d, step in enumerate(stride):
        if step and size[d] != 1:
            along = b.iota(DType.S64, size, d)
            places = b.add(places, e.scaled(along, step))
    return places


def _differ(x: Node, y: Node) -> Node:
    """Where two tensors of one type differ in how they are stored: by the sign of zero, too."""
    if x.dtype.is_complex:
        return b.or_(_differ(b.real(x), b.real(y)), _differ(b.imag(x), b.imag(y)))
    if x.dtype.is_float:
        bits = DType(f"u{8 * x.dtype.itemsize}")
        x, y = b.bitcast_convert(x, bits), b.bitcast_convert(y, bits)
    return b.not_equal(x, y)


# ---- memory with gaps ---------------------------------------------------------------------------


def positions(size: Ints, stride: Ints, begin: int) -> np.ndarray:
    """Where in the storage every element lies."""
    places = np.full(tuple(size), begin, np.int64)
    for d, step in enumerate(stride):
        places += (np.arange(size[d]) * step).reshape(
            [-1 if i == d else 1 for i in range(len(size))]
        )
    return places


def held_positions(x: torch.Tensor) -> np.ndarray:
    sizes, strides = ([int(n) for n in f()] for f in (x.size, x.stride))
    return positions(sizes, strides, int(x.storage_offset()))


def _lookup(places: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The number of the last of `places` at each wanted one, -1 where there is none."""
    known = dict(zip(places.reshape(-1).tolist(), range(places.size), strict=True))
    found = [known.get(place, -1) for place in wanted.reshape(-1).tolist()]
    return np.array(found, np.int64).reshape(wanted.shape)


def _found(cx: Context, owner: Node, held: torch.Tensor, wanted: np.ndarray) -> Node:
    number = _lookup(held_positions(held), wanted)
    if (number < 0).any():
        raise outside(cx.fx.target, "reads", cx.loc)
    return take_along(b.reshape(owner, (owner.type.size,)), [(0, b.constant(number))])


def _replaced(x: Node, held: torch.Tensor, source: Node, places: np.ndarray) -> Node:
    number = _lookup(places, held_positions(held))
    memory = b.reshape(source, (source.type.size,))
    taken = take_along(memory, [(0, b.constant(np.maximum(number, 0)))])
    return b.select(b.constant(number >= 0), taken, x)
