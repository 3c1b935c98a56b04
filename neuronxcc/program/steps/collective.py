"""Steps that start a collective of the ranks of a process group, and wait for it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from neuronxcc.ir.collectives import ALL_RANKS
from neuronxcc.ir.node import TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.checks import ShapeError
from neuronxcc.ir.table import Group, infer
from neuronxcc.program.errors import NeffError
from neuronxcc.program.memory import View, is_contiguous
from neuronxcc.program.step import Maker, Spec, Step
from neuronxcc.program.words import numbers, view_text

if TYPE_CHECKING:
    from neuronxcc.program.checker import Checker
    from neuronxcc.program.machine import Machine


MOST_NAME = 1 << 12  # characters of the name of a process group
MOST_RANKS = 1 << 20

_BY_NAME = {op.value: op for op in Group.COLLECTIVE}
_REDUCING = frozenset({Op.ALL_REDUCE, Op.REDUCE_SCATTER})
# Of all ranks, however many: their number doesn't matter to shapes.
_OPEN = frozenset({Op.ALL_REDUCE, Op.COLLECTIVE_BROADCAST})
# Several operands at once.
_COALESCED = frozenset({Op.ALL_REDUCE, Op.ALL_GATHER, Op.REDUCE_SCATTER})


@dataclass(frozen=True, slots=True)
class CollectiveStep(Step):
    """Starts a collective of the ranks of a process group; a WaitStep of the same list ends it.

    Several operands are several collectives of one kind, done as one. All views are contiguous.
    Until the wait nothing may write to the inputs, or read or write the outs.

    Attributes:
        kind: Name of the operator in the tensor IR: "all_reduce", "all_gather", "reduce_scatter",
            "all_to_all", "collective_broadcast", "collective_permute". All are along dimension 0.
        name: The process group, resolved when the step runs.
        group: The groups of ranks, each in the order of its process group; () for a permute.
        inputs: What this rank brings.
        outs: What it gets; where one is its input, an all_reduce or a broadcast is done in place.
        reduction: "add", "mul", "min", "max", "and", "or", "xor", "avg"; "" if it reduces nothing.
        root: Of a broadcast: place of the source in its group.
        send: Of an all_to_all: rows for each rank; () for equal parts. It has one operand then.
        receive: Rows from each rank.
        pairs: Of a permute: source and target, as places in the process group.
        loc: The user's line.
    """

    kind: str
    name: str
    group: tuple[tuple[int, ...], ...]
    inputs: tuple[View, ...]
    outs: tuple[View, ...]
    reduction: str = ""
    root: int = 0
    send: tuple[int, ...] = ()
    receive: tuple[int, ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()
    loc: str = ""

    @property
    def op(self) -> Op:
        """The operator of the tensor IR that it does; NeffError if there is none."""
        op = _BY_NAME.get(self.kind)
        if op is None:
            raise NeffError(f"{self.kind!r} is no collective")
        return op

    def attributes(self) -> dict[str, Any]:
        """Attributes of that operator, along dimension 0."""
        attrs: dict[str, Any] = {"name": self.name, "group": self.group}
        match self.op:
            case Op.ALL_REDUCE:
                attrs |= {"kind": self.reduction}
            case Op.ALL_GATHER:
                attrs |= {"dim": 0}
            case Op.REDUCE_SCATTER:
                attrs |= {"kind": self.reduction, "dim": 0}
            case Op.ALL_TO_ALL:
                attrs |= {"split_dim": 0, "concat_dim": 0}
                if self.send or self.receive:
                    attrs |= {"send": self.send, "receive": self.receive}
            case Op.COLLECTIVE_BROADCAST:
                attrs |= {"root": self.root}
            case Op.COLLECTIVE_PERMUTE:
                attrs |= {"pairs": self.pairs}
        return attrs

    def check(self, checker: Checker) -> None:
        self.check_alone()
        checker.views(self.inputs)
        checker.outs(self.outs)

    def check_alone(self) -> None:
        """Check all but that its views are inside of their buffers.

        Raises:
            NeffError: What is wrong.
        """
        op = self.op
        if not 0 < len(self.name) <= MOST_NAME:
            raise NeffError(f"a process group whose name has {len(self.name)} characters")
        if sum(map(len, self.group)) + len(self.pairs) > MOST_RANKS:
            raise NeffError(f"a collective of more than {MOST_RANKS} ranks")
        everybody = self.name == ALL_RANKS and op in _OPEN  # with a group or without
        grouped = everybody or bool(self.group) == (op is not Op.COLLECTIVE_PERMUTE)
        for what, value, fits in (
            ("the group", self.group, grouped),
            ("the reduction", self.reduction, bool(self.reduction) == (op in _REDUCING)),
        ):
            if not fits:
                raise NeffError(f"{self.kind} with {what} {value!r}")
        for what, there, allowed in (
            ("rows", bool(self.send + self.receive), op is Op.ALL_TO_ALL),
            ("pairs", bool(self.pairs), op is Op.COLLECTIVE_PERMUTE),
        ):
            if there and not allowed:
                raise NeffError(f"{self.kind} with {what}")
        self._check_operands()

    def _check_operands(self) -> None:
        op = self.op
        if not self.inputs or (len(self.inputs) > 1 and op not in _COALESCED):
            raise NeffError(f"{self.kind} of {len(self.inputs)} operands")
        if len(self.inputs) != len(self.outs):
            raise NeffError(f"{self.kind} of {len(self.inputs)} operands to {len(self.outs)} outs")
        attrs = self.attributes()
        for view, out in zip(self.inputs, self.outs, strict=True):
            try:
                (wanted,) = infer(op, (TensorType(view.dtype, view.shape),), attrs)
            except ShapeError as error:
                raise NeffError(f"{self.kind}: {error}") from None
            if (out.dtype, out.shape) != (wanted.dtype, wanted.shape):
                found = TensorType(out.dtype, out.shape)
                raise NeffError(f"{self.kind} gives {wanted}, its out is {found}")
            if not is_contiguous(view) or not is_contiguous(out):
                raise NeffError(f"{self.kind} of a view that is not contiguous")

    def lines(self, *, kernels: bool) -> Iterator[str]:
        del kernels
        facts = [f"by {self.reduction}"] if self.reduction else []
        facts += [f"from {self.root}"] if self.kind == "collective_broadcast" else []
        facts += [f"rows {numbers(self.send)} for {numbers(self.receive)}"] if self.send else []
        facts += [f"pairs {self.pairs}"] if self.pairs else []
        views = (", ".join(map(view_text, views)) for views in (self.inputs, self.outs))
        who = f"group {self.name!r} {[list(ranks) for ranks in self.group]}"
        yield f"start {' '.join((self.kind, *facts, who))} ({' -> '.join(views)})"

    def run(self, machine: Machine) -> None:
        """Spoil the outs: what reads them before the wait must not look right by chance."""
        inputs = {(view.buffer, view.offset) for view in self.inputs}
        for out in self.outs:
            if (out.buffer, out.offset) not in inputs:
                spoilt = np.full((), 0xA5, np.uint8).astype(out.dtype.numpy)
                machine.array(out)[...] = spoilt

    def finish(self, machine: Machine) -> None:
        """Do the collective of what the inputs hold now."""
        for view, out in zip(self.inputs, self.outs, strict=True):
            value = machine.array(view).copy()
            machine.array(out)[...] = machine.collective(self.op, self.attributes(), value)

    def spec(self, maker: Maker) -> Spec:
        nbytes = sum(math.prod(view.shape) * view.dtype.itemsize for view in self.inputs)
        return {
            "kind": "collective",
            "name": f"{self.kind} of {nbytes} bytes in {self.name!r}",
            "loc": self.loc,
            "collective": self.kind,
            "group": self.name,
            "size": len(self.group[0]) if self.group else 0,
            "reduction": self.reduction,
            "root": self.root,
            "send": self.send,
            "receive": self.receive,
            "pairs": self.pairs,
            "inputs": tuple(map(maker.view, self.inputs)),
            "outs": tuple(map(maker.view, self.outs)),
        }


@dataclass(frozen=True, slots=True)
class WaitStep(Step):
    """Waits for the collective that step number `start` of the same program has started."""

    start: int
    loc: str = ""

    def check(self, checker: Checker) -> None:
        """Nothing is known of the step that it waits for: see `check_waits`."""

    def lines(self, *, kernels: bool) -> Iterator[str]:
        del kernels
        yield f"wait for step {self.start}"

    def run(self, machine: Machine) -> None:
        machine.program.steps[self.start].finish(machine)

    def spec(self, maker: Maker) -> Spec:
        del maker
        return {"kind": "wait", "name": "wait", "loc": self.loc, "start": self.start}


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
