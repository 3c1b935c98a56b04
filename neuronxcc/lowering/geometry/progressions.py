"""Updates whose place is known when the program is made: windows, with steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op

LIMIT = 1 << 31  # of numbers that are reckoned with: far from the ends of their types


class Progression(NamedTuple):
    """The positions start, start + step, ...: one for each element along a dimension."""

    start: int
    step: int


def fixed_places(node: Node) -> tuple[Progression, ...] | None:
    """Where an update writes along each dimension of its operand, element by element of the update.

    None if that is not known now, or is not a window of the update's own shape, inside the operand
    and with positive steps.
    """
    if node.op is Op.DYNAMIC_UPDATE_SLICE:
        return _window(node)
    return _rows(node) if node.op is Op.SCATTER else None


def _window(node: Node) -> tuple[Progression, ...] | None:
    x, update, *starts = node.srcs
    if any(start.op is not Op.CONSTANT for start in starts):
        return None
    return tuple(
        Progression(min(max(int(start["literal"].array), 0), extent - size), 1)
        for start, extent, size in zip(starts, x.shape, update.shape, strict=True)
    )


def _rows(node: Node) -> tuple[Progression, ...] | None:
    """Of a scatter of whole rows, like PyTorch's index_copy."""
    x, indices, updates = node.srcs
    if node["kind"] != "set" or node["input_batching_dims"] or updates.type.rank != x.type.rank:
        return None
    dims = node["scatter_dims_to_operand_dims"]
    if len(dims) != 1 or node["inserted_window_dims"] != dims:
        return None
    (dim,) = dims
    if dim in node["update_window_dims"]:
        return None
    shape = tuple(updates.shape[dim] if d == dim else n for d, n in enumerate(x.shape))
    found = progression(indices)
    if found is None or updates.shape != shape:
        return None
    count = shape[dim]
    if count == 1:
        found = Progression(found.start, 1)
    last = found.start + (count - 1) * found.step
    if found.step < 1 or found.start < 0 or last >= x.shape[dim]:
        return None
    return tuple(found if d == dim else Progression(0, 1) for d in range(x.type.rank))


def progression(node: Node) -> Progression | None:
    """The elements of an integer tensor along its only dimension longer than 1, if known."""
    if not node.dtype.is_integer or node.dtype.itemsize < 4 or not node.type.size:
        return None
    if sum(extent > 1 for extent in node.shape) > 1:
        return None
    rule = _RULES.get(node.op)
    found = None if rule is None else rule(node)
    if found is None or max(map(abs, (found.start, found.step * node.type.size))) >= LIMIT:
        return None
    return found


def _constant(node: Node) -> Progression | None:
    array = node["literal"].array.reshape(-1)
    first = int(array[0])
    step = int(array[1]) - first if len(array) > 1 else 0
    if max(abs(first), abs(step) * len(array)) >= LIMIT:
        return None
    known = np.array_equal(array, first + step * np.arange(len(array)))
    return Progression(first, step) if known else None


def _iota(node: Node) -> Progression:
    return Progression(0, int(node.shape[node["dim"]] > 1))


def _moved(node: Node) -> Progression | None:
    found = progression(node.srcs[0])
    if found is not None and node.type.size != node.srcs[0].type.size and found.step:
        return None  # repeated
    return found


def _sliced(node: Node) -> Progression | None:
    found = progression(node.srcs[0])
    long = [d for d, extent in enumerate(node.srcs[0].shape) if extent > 1]
    if found is None or not long:
        return found
    (dim,) = long
    start, step = node["starts"][dim], node["strides"][dim]
    return Progression(found.start + start * found.step, found.step * step)


def _sum(node: Node) -> Progression | None:
    a, b = map(progression, node.srcs)
    return None if a is None or b is None else Progression(a.start + b.start, a.step + b.step)


def _difference(node: Node) -> Progression | None:
    a, b = map(progression, node.srcs)
    return None if a is None or b is None else Progression(a.start - b.start, a.step - b.step)


def _product(node: Node) -> Progression | None:
    a, b = map(progression, node.srcs)
    if a is None or b is None or (a.step and b.step):
        return None
    return Progression(a.start * b.start, a.step * b.start + a.start * b.step)


def _converted(node: Node) -> Progression | None:
    return progression(node.srcs[0])


_RULES: dict[Op, Callable[[Node], Progression | None]] = {
    Op.CONSTANT: _constant,
    Op.IOTA: _iota,
    Op.BROADCAST_IN_DIM: _moved,
    Op.RESHAPE: _moved,
    Op.SLICE: _sliced,
    Op.ADD: _sum,
    Op.SUBTRACT: _difference,
    Op.MULTIPLY: _product,
    Op.CONVERT: _converted,
}
