"""What must hold for the collectives of a program, whoever wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neuronxcc.ir.collectives import ALL_RANKS
from neuronxcc.ir.node import TensorType
from neuronxcc.ir.op import Group, Op
from neuronxcc.ir.shapes import ShapeError, infer
from neuronxcc.program.errors import NeffError
from neuronxcc.program.program import CollectiveStep, Step, View, WaitStep

MOST_NAME = 1 << 12  # characters of the name of a process group
MOST_RANKS = 1 << 20

_BY_NAME = {op.value: op for op in Group.COLLECTIVE}
_REDUCING = frozenset({Op.ALL_REDUCE, Op.REDUCE_SCATTER})
# Of all ranks, however many: their number doesn't matter to shapes.
_OPEN = frozenset({Op.ALL_REDUCE, Op.COLLECTIVE_BROADCAST})
# Several operands at once.
_COALESCED = frozenset({Op.ALL_REDUCE, Op.ALL_GATHER, Op.REDUCE_SCATTER})


def operator_of(step: CollectiveStep) -> Op:
    """The operator of the tensor IR that a step does."""
    op = _BY_NAME.get(step.kind)
    if op is None:
        raise NeffError(f"{step.kind!r} is no collective")
    return op


def attributes(step: CollectiveStep) -> dict[str, Any]:
    """Attributes of that operator, along dimension 0."""
    attrs: dict[str, Any] = {"name": step.name, "group": step.group}
    match operator_of(step):
        case Op.ALL_REDUCE:
            attrs |= {"kind": step.reduction}
        case Op.ALL_GATHER:
            attrs |= {"dim": 0}
        case Op.REDUCE_SCATTER:
            attrs |= {"kind": step.reduction, "dim": 0}
        case Op.ALL_TO_ALL:
            attrs |= {"split_dim": 0, "concat_dim": 0}
            if step.send or step.receive:
                attrs |= {"send": step.send, "receive": step.receive}
        case Op.COLLECTIVE_BROADCAST:
            attrs |= {"root": step.root}
        case Op.COLLECTIVE_PERMUTE:
            attrs |= {"pairs": step.pairs}
    return attrs


def check_collective(step: CollectiveStep) -> None:
    """Check a step by itself; that its views are inside their buffers is checked elsewhere.

    Raises:
        NeffError: What is wrong.
    """
    op = operator_of(step)
    if not 0 < len(step.name) <= MOST_NAME:
        raise NeffError(f"a process group whose name has {len(step.name)} characters")
    if sum(map(len, step.group)) + len(step.pairs) > MOST_RANKS:
        raise NeffError(f"a collective of more than {MOST_RANKS} ranks")
    everybody = step.name == ALL_RANKS and op in _OPEN  # with a group or without
    grouped = everybody or bool(step.group) == (op is not Op.COLLECTIVE_PERMUTE)
    for what, value, fits in (
        ("the group", step.group, grouped),
        ("the reduction", step.reduction, bool(step.reduction) == (op in _REDUCING)),
    ):
        if not fits:
            raise NeffError(f"{step.kind} with {what} {value!r}")
    for what, there, allowed in (
        ("rows", bool(step.send + step.receive), op is Op.ALL_TO_ALL),
        ("pairs", bool(step.pairs), op is Op.COLLECTIVE_PERMUTE),
    ):
        if there and not allowed:
            raise NeffError(f"{step.kind} with {what}")
    _check_operands(op, step)


def _check_operands(op: Op, step: CollectiveStep) -> None:
    if not step.inputs or (len(step.inputs) > 1 and op not in _COALESCED):
        raise NeffError(f"{step.kind} of {len(step.inputs)} operands")
    if len(step.inputs) != len(step.outs):
        raise NeffError(f"{step.kind} of {len(step.inputs)} operands to {len(step.outs)} outs")
    attrs = attributes(step)
    for view, out in zip(step.inputs, step.outs, strict=True):
        try:
            (wanted,) = infer(op, (TensorType(view.dtype, view.shape),), attrs)
        except ShapeError as error:
            raise NeffError(f"{step.kind}: {error}") from None
        if (out.dtype, out.shape) != (wanted.dtype, wanted.shape):
            found = TensorType(out.dtype, out.shape)
            raise NeffError(f"{step.kind} gives {wanted}, its out is {found}")
        if not _is_contiguous(view) or not _is_contiguous(out):
            raise NeffError(f"{step.kind} of a view that is not contiguous")


def _is_contiguous(view: View) -> bool:
    step = 1
    for extent, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if extent != 1 and stride != step and 0 not in view.shape:
            return False
        step *= extent
    return True


def check_waits(steps: Sequence[Step]) -> None:
    """Every collective is waited for once, after it was started.

    Raises:
        NeffError: Names the step.
    """
    running: set[int] = set()
    for number, step in enumerate(steps):
        if isinstance(step, CollectiveStep):
            running.add(number)
        elif isinstance(step, WaitStep):
            if step.start not in running:
                raise NeffError(f"step {number} waits for step {step.start}, which is not running")
            running.remove(step.start)
    if running:
        raise NeffError(f"nobody waits for the collective of step {min(running)}")
