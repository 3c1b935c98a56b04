"""Checks of numbers become part of the loop that reads them.

A check is a step that reads all of a tensor, and returns the 0 that is added to its numbers where
they are used. If the next step to use that 0 is a loop that reads all of those numbers anyway, the
loop compares them and notes in the place of the 0 whether one was outside. The step comes after it
then, and has nothing to do unless there is something to report. Loops cut off what they read at in
any case, and one that writes to an argument is left alone: a call that fails must not have changed
its arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from neuronxcc.codegen.loop import Kernel, Scalar, operands, scalars
from neuronxcc.codegen.rewrite import rebuilt, restored
from neuronxcc.ir.calls import CHECK, NOTED
from neuronxcc.ir.op import Op
from neuronxcc.program.memory import Buffer, View
from neuronxcc.program.program import AnyStep
from neuronxcc.program.steps.collective import CollectiveStep
from neuronxcc.program.steps.loop import LoopStep
from neuronxcc.program.steps.operator import AtenStep

_DIVISIONS = frozenset({Op.DIVIDE, Op.REMAINDER})


def folded(buffers: Sequence[Buffer], steps: Sequence[AnyStep]) -> tuple[AnyStep, ...]:
    """The steps of a program, with as many checks done by loops as can be."""
    result = list(steps)
    if any(isinstance(step, CollectiveStep) for step in steps):
        return tuple(steps)  # others know them by their positions
    for check in steps:
        if not isinstance(check, AtenStep) or check.target != CHECK or check.outs[0] is None:
            continue
        at = next(i for i, step in enumerate(result) if step is check)
        found = _reader(buffers, result, at, check)
        if found is None:
            continue
        place, kernel = found
        loop = result[place]
        assert isinstance(loop, LoopStep)
        result[place] = replace(loop, kernel=kernel)
        after = place + 1
        while after < len(result) and _is(result[after], NOTED):
            after += 1
        noted = replace(check, target=NOTED, args=(check.outs[0], *check.args), outs=())
        result.insert(after, noted)
        del result[at]
    return tuple(result)


def _is(step: AnyStep, *targets: str) -> bool:
    return isinstance(step, AtenStep) and step.target in targets


def _reader(
    buffers: Sequence[Buffer], steps: Sequence[AnyStep], at: int, check: AtenStep
) -> tuple[int, Kernel] | None:
    """The loop that can do a check, by its position, and its kernel that does."""
    values, token = check.args[0], check.outs[0]
    assert token is not None
    for place in range(at + 1, len(steps)):
        step = steps[place]
        if _is(step, CHECK, NOTED):
            continue
        if not isinstance(step, LoopStep):
            return None
        written = {step.operands[store.access.slot][0] for store in step.kernel.stores}
        if values.buffer in written or any(buffers[n].kind == "input" for n in written):
            return None
        if any(buffer == token.buffer for buffer, _ in step.operands):
            kernel = _checking(step, check.args, token)
            return None if kernel is None else (place, kernel)
    return None


def _checking(step: LoopStep, args: Sequence[object], token: View) -> Kernel | None:
    """The loop's kernel where it checks the numbers; None if it doesn't read just all of them."""
    values, low, high, *_ = args
    assert isinstance(values, View)
    assert isinstance(low, int)
    assert isinstance(high, int)
    kernel, dtype = step.kernel, values.dtype
    if not dtype.is_integer or any(
        s.op in _DIVISIONS and s.dtype is dtype for s in scalars(kernel)
    ):
        return None
    info = np.iinfo(dtype.numpy)
    low, high = max(low, int(info.min)), min(high, int(info.max))
    if low > high:
        return None
    zeros = [s for s in scalars(kernel) if _reads(step, s, token.buffer)]
    new: dict[Scalar, Scalar] = {}
    done = False
    for scalar in scalars(kernel):
        used = [src for src in operands(scalar) if src in zeros]
        if not used:
            new[scalar] = rebuilt(scalar, new)
            continue
        if scalar.op is not Op.ADD or len(used) != 1:
            return None
        (zero,) = used
        (number,) = (src for src in scalar.srcs if src is not zero)
        new[scalar] = new[number]
        if _covers(step, number, values):
            bounds = (Scalar.make("const", dtype, value=n) for n in (low, high))
            new[scalar] = Scalar.make("check", dtype, (new[number], *bounds), access=zero.access)
            done = True
    stored = {root for store in kernel.stores for root in (store.value, store.mask)}
    if not done or not stored.isdisjoint(zeros):
        return None
    return restored(kernel, new)


def _reads(step: LoopStep, scalar: Scalar, buffer: int) -> bool:
    access = scalar.access
    return access is not None and step.operands[access.slot][0] == buffer


def _covers(step: LoopStep, number: Scalar, values: View) -> bool:
    """Return whether the expression reads every element of the view, and nothing else."""
    access = number.access
    if number.what != "load" or number.srcs or access is None or access.indices:
        return False
    buffer, offset = step.operands[access.slot]
    extents = [dim.extent for dim in step.kernel.dims]
    if 0 in extents or 0 in values.shape or (buffer, number.dtype) != (values.buffer, values.dtype):
        return False
    here = _walk(extents, access.strides)
    return (offset + access.offset, here) == (values.offset, _walk(values.shape, values.strides))


def _walk(extents: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """(Stride, extent) from the innermost: equal for windows with the same elements, if regular."""
    moving = sorted((s, n) for n, s in zip(extents, strides, strict=True) if s and n > 1)
    joined: list[tuple[int, int]] = []
    for stride, extent in moving:
        if joined and stride == joined[-1][0] * joined[-1][1]:
            joined[-1] = (joined[-1][0], joined[-1][1] * extent)
        else:
            joined.append((stride, extent))
    return joined
