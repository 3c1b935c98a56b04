"""Loads under a condition stay inside of their tensor, also where nothing proves that they do.

Only what a kernel reaches by the bounds of `codegen/bounds.py` is run. They are intervals, and some
conditions (of gradients of slices of flattened windows, say) say more than intervals can. The place
of such an access is then computed, cut off at the ends of the tensor, and looked up, which is right
for the same reason for which it is right not to: where the condition holds, the place is inside.
"""

from __future__ import annotations

from collections.abc import Sequence

from neuronxcc.codegen import build
from neuronxcc.codegen.bounds import places
from neuronxcc.codegen.loop import Access, Kernel, Scalar
from neuronxcc.codegen.rewrite import relocated
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op


def kept_inside(kernel: Kernel, limits: Sequence[tuple[int, int]]) -> Kernel:
    """The kernel whose accesses provably lie in [low, high) of their slot's limits.

    Args:
        kernel: Its places are right wherever their conditions hold.
        limits: Elements from the pointer of each slot on; what is said of tiles is not read.
    """
    unproven = set()
    for access, condition, (first, last) in places(kernel):
        low, high = limits[access.slot]
        if (condition is None and not access.indices) or kernel.slots[access.slot].tile:
            continue  # there is nothing to prove
        if first <= last and low < high and (first < low or last >= high):
            unproven.add(access)

    def place(access: Access, moved: Access) -> Access:
        low, high = limits[access.slot]
        return _cut_off(moved, low, high - 1) if access in unproven else moved

    return relocated(kernel, place) if unproven else kernel


def _cut_off(access: Access, first: int, last: int) -> Access:
    """The same place as one index between `first` and `last`."""
    place: Scalar = build.const(access.offset, DType.S64)
    for dim, stride in enumerate(access.strides):
        if stride:
            step = build.op(Op.MULTIPLY, build.index(dim), stride)
            place = build.op(Op.ADD, place, step)
    for index, stride in access.indices:
        step = build.op(Op.MULTIPLY, build.convert(index, DType.S64), stride)
        place = build.op(Op.ADD, place, step)
    ends = build.const(first, DType.S64), build.const(last, DType.S64)
    inside = build.op(Op.CLAMP, ends[0], place, ends[1])
    return Access(access.slot, (0,) * len(access.strides), 0, ((inside, 1),))
