"""A program: the third IR. A flat list of steps over planned buffers; what a NEFF stores.

Nothing here is machine code or Python: loop kernels are kept as data and compiled for the host
when a program is loaded. `torch_neuronx.program.executable` hands a program to the native executor.
The steps that hold steps or programs are here, all others in `steps`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from neuronxcc.ir.arithmetic import Array
from neuronxcc.ir.dtypes import DType
from neuronxcc.program.errors import NeffError
from neuronxcc.program.memory import Buffer, Register, View
from neuronxcc.program.step import Code, Maker, Spec, Step
from neuronxcc.program.steps.collective import CollectiveStep, WaitStep
from neuronxcc.program.steps.conv import ConvStep
from neuronxcc.program.steps.copy import CopyStep
from neuronxcc.program.steps.gemm import GemmStep
from neuronxcc.program.steps.loop import LoopStep
from neuronxcc.program.steps.operator import AtenStep
from neuronxcc.program.steps.printing import PrintStep
from neuronxcc.program.steps.tape import TapeStep
from neuronxcc.program.words import buffer_text, register_text, view_text

if TYPE_CHECKING:
    from neuronxcc.program.checker import Checker
    from neuronxcc.program.machine import Machine


@dataclass(frozen=True, slots=True)
class CallStep(Step):
    """Runs one of `bodies` on operands; control flow.

    kind:
      "call"   bodies[0]
      "cond"   bodies[selector]: the selector is a pred (True takes body 0) or s32 scalar view
      "while"  bodies[0] computes a pred from the state, bodies[1] the next state; operands are the
               initial state, outs the final one
    """

    kind: str
    bodies: tuple[Program, ...]
    operands: tuple[View, ...]
    outs: tuple[View, ...]
    selector: View | None = None

    def programs(self) -> tuple[Program, ...]:
        return self.bodies

    def check(self, checker: Checker) -> None:
        most = {"call": 1, "cond": 1 << 16, "while": 2}.get(self.kind, 0)
        if not (1 if self.kind == "call" else 2) <= len(self.bodies) <= most:
            raise NeffError(f"{self.kind!r} with {len(self.bodies)} bodies")
        if (self.kind == "cond") != (self.selector is not None):
            raise NeffError(f"{self.kind!r} and its selector")
        checker.views((*self.operands, self.selector))
        checker.outs(self.outs)
        if self.selector is not None and self.selector.dtype not in {DType.PRED, DType.S32}:
            raise NeffError(f"a selector of type {self.selector.dtype.value}")
        for number, body in enumerate(self.bodies):
            self._check_body(number, body)

    def _check_body(self, number: int, body: Program) -> None:
        """Check that one body takes the operands and gives the results."""
        for buffer in body.buffers:
            if buffer.kind == "input":
                if buffer.index >= len(self.operands):
                    raise NeffError(f"body {number} has more inputs than there are operands")
                what = f"input {buffer.index} of body {number}"
                _check_type(self.operands[buffer.index], buffer, what)
        results = [body.buffers[result] for result in body.results]
        if self.kind == "while" and number == 0:
            if [(result.dtype, result.shape) for result in results] != [(DType.PRED, ())]:
                raise NeffError("the condition of a loop is one truth value")
            return
        if len(results) != len(self.outs):
            raise NeffError(f"body {number} has {len(results)} results")
        for index, (view, result) in enumerate(zip(self.outs, results, strict=True)):
            _check_type(view, result, f"result {index} of body {number}")

    def lines(self, *, kernels: bool) -> Iterator[str]:
        operands = ", ".join(map(view_text, self.operands))
        outs = ", ".join(map(view_text, self.outs))
        selector = "" if self.selector is None else f" by {view_text(self.selector)}"
        yield f"{self.kind}{selector} ({operands}) -> {outs}"
        for body in self.bodies:
            yield from (f"  {line}" for line in body.lines(kernels=kernels))

    def run(self, machine: Machine) -> None:
        state = [machine.array(view).copy() for view in self.operands]
        if self.kind == "while":
            cond, body = self.bodies
            while machine.body(cond, state)[0]:
                state = machine.body(body, state)
        else:
            state = machine.body(self.bodies[self._chosen(machine)], state)
        for out, value in zip(self.outs, state, strict=True):
            machine.array(out)[...] = value

    def _chosen(self, machine: Machine) -> int:
        if self.selector is None:
            return 0
        value = machine.array(self.selector)[()]
        if self.selector.dtype is DType.PRED:
            return int(not value)
        last = len(self.bodies) - 1
        return int(value) if 0 <= value <= last else last

    def spec(self, maker: Maker) -> Spec:
        return {
            "kind": self.kind,
            "name": self.kind,
            "loc": "",
            "bodies": tuple(map(maker.program, self.bodies)),
            "operands": tuple(map(maker.view, self.operands)),
            "outs": tuple(map(maker.view, self.outs)),
            "selector": maker.value(self.selector),
        }


def _check_type(view: View, buffer: Buffer, what: str) -> None:
    """Check that a body sees the memory as it is."""
    if (view.dtype, view.shape) != (buffer.dtype, buffer.shape):
        raise NeffError(f"{what} is {buffer.dtype.value}{list(buffer.shape)}, given {view}")


class _Repeating(Step):
    """The base of loops: counters, two numbers that bound them, and a body."""

    __slots__ = ()
    counters: tuple[Register, ...]
    body: tuple[AnyStep, ...]

    def ends(self) -> tuple[int | Register, int | Register]:
        """The numbers that bound it, or where they stand."""
        raise NotImplementedError

    def inner(self) -> tuple[AnyStep, ...]:
        return self.body

    def check(self, checker: Checker) -> None:
        if not self.counters:
            raise NeffError("a loop without a counter")
        for register in (*self.counters, *self.ends()):
            if isinstance(register, int):
                if not -(1 << 31) <= register < 1 << 31:
                    raise NeffError(f"{register} is no number of 32 bits")
                continue
            size = checker.buffer_bytes(register.buffer)
            checker.inside(register.element, register.element, DType.S32, size, register.buffer)
        for register in self.counters:
            if register.buffer in checker.constants:
                raise NeffError(f"it writes to constant {register.buffer}")
        for number, inner in enumerate(self.body):
            if isinstance(inner, CollectiveStep | WaitStep):
                raise NeffError("a collective in a loop that the device decides")
            try:
                inner.check(checker)
            except NeffError as error:
                where = f"step {number} ({type(inner).__name__}) of its body"
                raise NeffError(f"{where}: {error}") from None

    def lines(self, *, kernels: bool) -> Iterator[str]:
        yield self._title()
        for inner in self.body:
            yield from (f"  {line}" for line in inner.lines(kernels=kernels))

    def _title(self) -> str:
        raise NotImplementedError

    def _counters_text(self) -> str:
        return ", ".join(map(register_text, self.counters))

    def _count(self, machine: Machine, value: int) -> None:
        for counter in self.counters:
            machine.register(counter)[...] = value

    def codes(self, far: Array) -> Iterator[Code]:
        del far  # `all_steps` comes by the steps of the body
        return iter(())

    def _spec(self, maker: Maker, kind: str, name: str, step: int) -> Spec:
        lower, upper = map(_register, self.ends())
        return {
            "kind": kind,
            "name": name,
            "loc": "",
            "counters": [_register(register) for register in self.counters],
            "body": [inner.spec(maker) for inner in self.body],
            "lower": lower,
            "upper": upper,
            "step": step,
        }


def _register(register: int | Register) -> int | tuple[int, int]:
    return register if isinstance(register, int) else (register.buffer, register.element)


@dataclass(frozen=True, slots=True)
class ForStep(_Repeating):
    """Runs steps on the same memory for a counter of lower, lower + step... below upper.

    The ends are read once, before the first time. After the loop the counters hold what they held
    the last time, or what they held before if there was none.

    Attributes:
        counters: All of them hold the counter.
        lower: Where it begins: a number of 32 bits, or a register.
        upper: Likewise, where it ends.
        step: At least 1.
        body: What is repeated.
    """

    counters: tuple[Register, ...]
    lower: int | Register
    upper: int | Register
    step: int
    body: tuple[AnyStep, ...]

    def ends(self) -> tuple[int | Register, int | Register]:
        return self.lower, self.upper

    def check(self, checker: Checker) -> None:
        if not 1 <= self.step < 1 << 31:
            raise NeffError(f"a loop with the step {self.step}")
        super(ForStep, self).check(checker)

    def _title(self) -> str:
        ends = f"{register_text(self.lower)} to {register_text(self.upper)} by {self.step}"
        return f"for {self._counters_text()} from {ends}"

    def run(self, machine: Machine) -> None:
        lower, upper = (int(machine.register(end)) for end in self.ends())
        for value in range(lower, upper, self.step):
            self._count(machine, value)
            machine.steps(self.body)

    def spec(self, maker: Maker) -> Spec:
        return self._spec(maker, "for", "for", self.step)


@dataclass(frozen=True, slots=True)
class WhileStep(_Repeating):
    """Copies `initial` to the counters; while it is not 0: runs the body, copies `next` to them.

    Attributes:
        counters: All of them hold the value.
        initial: Decides whether the body runs the first time.
        next: Decides, after the body, whether it runs again.
        body: What is repeated, on the same memory.
    """

    counters: tuple[Register, ...]
    initial: Register
    next: Register
    body: tuple[AnyStep, ...]

    def ends(self) -> tuple[int | Register, int | Register]:
        return self.initial, self.next

    def _title(self) -> str:
        first, then = register_text(self.initial), register_text(self.next)
        return f"while {self._counters_text()} from {first}, then {then}"

    def run(self, machine: Machine) -> None:
        value = int(machine.register(self.initial))
        self._count(machine, value)
        while value:
            machine.steps(self.body)
            value = int(machine.register(self.next))
            self._count(machine, value)

    def spec(self, maker: Maker) -> Spec:
        return self._spec(maker, "repeat_while", "while", 1)


# Every kind of step: what a NEFF may hold.
AnyStep = (
    LoopStep
    | GemmStep
    | ConvStep
    | AtenStep
    | CopyStep
    | CallStep
    | TapeStep
    | ForStep
    | WhileStep
    | PrintStep
    | CollectiveStep
    | WaitStep
)


def all_steps(steps: Iterable[AnyStep]) -> Iterator[AnyStep]:
    """Iterate over steps and, after a loop, those in its body; not over the bodies of calls."""
    for step in steps:
        yield step
        yield from all_steps(step.inner())


@dataclass(eq=False)
class Program:
    """Steps in the order of execution.

    Attributes:
        results: For every result, the buffer that holds it: an "output" buffer, or an "input"
            buffer if that argument is the result: updated in place, or handed on as the graph's
            aliases say. A parameter that is a result without an alias is copied to an output.
        scratch_bytes: Size of the scratchpad that temp buffers lie in.
        meta: What the compiler tells about the program. A NEFF keeps it, all but "seconds".
    """

    name: str
    buffers: tuple[Buffer, ...]
    steps: tuple[AnyStep, ...]
    results: tuple[int, ...]
    scratch_bytes: int = 0
    meta: Mapping[str, Any] = field(default_factory=dict)

    def lines(self, *, kernels: bool) -> Iterator[str]:
        """The program as text: a line per buffer and per step, kernels below the step."""
        results = ", ".join(f"%{number}" for number in self.results)
        yield f"program {self.name} -> ({results}) scratch {self.scratch_bytes}"
        for number, buffer in enumerate(self.buffers):
            yield f"  %{number} = {buffer_text(buffer)}"
        for step in self.steps:
            for line in step.lines(kernels=kernels):
                yield f"  {line}"
