"""Takes down what a kernel does while it runs as Python: checks every instruction, records it."""

from __future__ import annotations

import gc
import math
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from neuronxcc.environment.kernels import NKI_PRECISE_FP
from neuronxcc.targets import Target
from nki.conditions import Conditions
from nki.context import Issuer, use
from nki.core import Core
from nki.errors import NkiError, NkiTypeError, user_location
from nki.forms import Forms, Key, number
from nki.isa import enums
from nki.isa.describe import prepare
from nki.isa.functions import FUNCTIONS
from nki.isa.objects import NkiInstruction, VirtualRegister
from nki.isa.spec import Instruction, Role
from nki.isa.state import Finding
from nki.isa.table import HIDDEN, TABLE
from nki.memory import MemoryRegion, Storage
from nki.psum import Accumulation
from nki.recording import Block, Grid, Loop, Recording, Result, Template
from nki.reference import Machine
from nki.repeats import Repeats
from nki.tensor import NkiTensor, create
from nki.uninitialised import Initialisation
from nki.versions import since

__all__ = ["Recorder"]

_new = object.__new__  # without `__init__`, which takes as long again
_IMPRECISE = frozenset({"bfloat16", "float16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"})


class Recorder:
    """Records one kernel on one core.

    Attributes:
        recording: what was recorded so far.
        core: whose memory the kernel's tensors lie in.
        forms: numbers the storages.
        initialisation: follows what is read and written.
        accumulation: follows what PSUM holds.
        made: by shape, data type and buffer as they were given that shape and the first tensor.
        depth: number of nested loops of the device that are open.
        shared: storages in shared HBM in the order of their creation.
        filled: by id of a storage that two cores share, the number it was created with.
        cores: physical cores of the logical core.
        rank: number of the logical core.
        ranks: how many logical cores take part.
        lane: number of this physical core among all that take part.
        names: the user's lines of the instructions with each name.
        values: gives the contents of the inputs; None while only shapes are known.
        where: file and line that instructions are taken to be at; None for those of the caller.
    """

    def __init__(
        self,
        name: str,
        target: Target,
        *,
        grid: Grid = (),
        index: int = 0,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        """Begin.

        Args:
            name: of the kernel.
            target: what to check for.
            grid: programs along each axis of the launch grid, () without one.
            index: which of them this is.
            rank: which of several logical cores this is, for collectives.
            ranks: how many there are.
        """
        self.recording = Recording(name, target)
        self.core = Core(target, index)
        self.shared: list[Storage] = []
        self.filled: dict[int, float] = {}
        self.names: dict[str, list[tuple[str, int]]] = {}
        self._grid = grid
        self._index = index
        self.cores = max(1, math.prod(grid))
        self.rank = rank
        self.ranks = ranks
        self.lane = rank * self.cores + index
        self.recording.cores = self.cores * ranks
        self._generation = target.core.isa
        precise = NKI_PRECISE_FP.get()
        self._precise = since("NKI_PRECISE_FP") if precise is None else precise
        self.forms = Forms()
        self.recording.storages = self.forms.storages
        self.made: dict[Any, tuple[Any, NkiTensor]] = {}
        self.depth = 0
        self.where: tuple[str, int] | None = None
        self._templates: dict[Key, int] = {}
        self._lines: dict[tuple[str, int], int] = {}
        self._blocks: list[Block] = [self.recording.body]
        # Of each open loop the values of its counter, None if it may not run.
        self._counters: list[range | None] = []
        # By number of a register that follows a loop's counter: the counter's values and its own.
        self._ranges: dict[int | None, tuple[range, range]] = {}
        self._count = 0
        self._created: dict[int, tuple[str, int]] = {}  # of storages in shared HBM
        self._registers: set[int] = set()  # written
        self.accumulation = Accumulation(self)
        self.initialisation = Initialisation(self)
        self._repeats = Repeats(self, self.initialisation, self.accumulation)
        self._conditions = Conditions(self)
        self.decide = self._conditions.decide
        self._peeking: Machine | None = None
        self._failures: list[NkiError] = []
        # What the inputs hold, for those who look at values.
        self.values: Callable[[], list[npt.NDArray[Any]]] | None = None

    # --- running -------------------------------------------------------------------------------

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let this thread's kernel be recorded here within a ``with`` block."""
        issuer = Issuer(self.issue, self._repeats.again, self._learn)
        with _uncollected(), use(core=self.core, run=self, issuer=issuer):
            yield
        self._conditions.finish()
        if self._failures:
            raise self._failures[0]

    def position(self) -> int:
        """Return where the next instruction will be in the code of the outermost block."""
        return len(self.recording.body.code)

    def innermost(self, begin: int) -> None:
        """Take note of a loop of Python's without others in it, whose code began at a position."""
        self.recording.innermost.append((begin, self.position()))

    def fail(self, error: NkiError) -> None:
        """Raise an error when the kernel has ended: it was found where Python lets none pass."""
        self._failures.append(error)

    def argument(self, shape: tuple[int, ...], dtype: str, name: str) -> NkiTensor:
        """Return the tensor of the next array argument, wholly initialised.

        It is in private HBM, as the documented simulator has it, and with two cores in shared HBM.
        Its contents are given when the recording runs.
        """
        several = math.prod(self._grid) > 1
        region = MemoryRegion.shared_hbm if several else MemoryRegion.private_hbm
        tensor = create(shape, dtype, region, name)
        tensor.storage.mark_all()
        self.forms.layout(tensor)
        self.recording.inputs.append(self.forms.number(tensor.storage))
        return tensor

    def result(self, tensor: NkiTensor) -> Result:
        """Return what stands for a tensor among the results."""
        self.initialisation.returned(tensor)
        places = array("q")
        form = self.forms.tile(tensor, places)
        return Result(places[0], places[1], form)

    def created(self, tensor: NkiTensor) -> None:
        """Take note of a tensor with a storage of its own."""
        storage = tensor.storage
        storage.depth = self.depth
        self.forms.layout(tensor)
        if storage.region is MemoryRegion.shared_hbm:
            self.shared.append(storage)
        if not storage.region.on_chip:
            self._created[id(storage)] = user_location()

    def stored(self, dtype: str) -> str:
        """Return the type that tensors of a type are stored as: with ``NKI_PRECISE_FP=0`` float32.

        That is the documented switch to tell errors of rounding from others.
        """
        return "float32" if not self._precise and dtype in _IMPRECISE else dtype

    def where_created(self, storage: Storage) -> tuple[str, int]:
        """Return the user's line that created a storage in HBM."""
        return self._created[id(storage)]

    def depth_of(self, number: int) -> int:
        """Return in how many nested loops of the device a storage was created."""
        return self.recording.storages[number].depth

    def constant(self, storage: Storage) -> None:
        """Take note of a storage that holds data from the start."""
        self.recording.constants.append(self.forms.number(storage))

    # --- instructions --------------------------------------------------------------------------

    def issue(
        self, row: Instruction, operands: Mapping[str, Any], attributes: Mapping[str, Any]
    ) -> Any:
        """Check an instruction and append it; see `nki.context.Issuer`."""
        answer = _ANSWERS.get(row.name)
        if answer is not None:
            return answer(self, attributes)
        self._check_registers(row, operands)
        where = self.where or user_location()
        template, places = self._template(row, operands, attributes)
        for rule in row.findings:
            broken = rule.check(template.call)
            if broken is not None:
                self.finding(rule.code, f"{broken[0]}; {broken[1]}")
        self.initialisation.issued(template, operands)
        written = [
            tensor
            for operand in row.operands
            if operand.role is not Role.READ and type(tensor := operands[operand.name]) is NkiTensor
        ]
        template = self.accumulation.issued(template, written)
        code = self.number_of(template), self.line(where)
        return self.append([*code, *places], attributes.get("name"))

    def append(self, code: list[int], name: str | None) -> NkiInstruction:
        """Append an instruction to the current block.

        Args:
            code: of the event, see `nki.recording.Block`.
            name: the user's, if any.
        """
        self._blocks[-1].code.fromlist(code)  # twice as fast as `extend`
        if name is not None:
            self.names.setdefault(str(name), []).append(self.recording.locations[code[1]])
        made = _new(NkiInstruction)
        made.handle = self._count
        self._count += 1
        return made

    def _learn(
        self,
        key: Any,
        call: tuple[tuple[Any, ...], dict[str, Any]],
        row: Instruction,
        operands: Mapping[str, Any],
        attributes: Mapping[str, Any],
    ) -> None:
        """Remember a call that was issued, for those like it; see `nki.repeats`."""
        if row.name in _ANSWERS:
            return
        template, _ = self._template(row, operands, attributes)
        # What is undefined on hardware is told of every call.
        if not any(rule.check(template.call) for rule in row.findings):
            self._repeats.learn(key, template, *call)

    def hidden_fill(self, block: Block, tensor: NkiTensor, value: Any) -> None:
        """Append a fill that no instruction of the user asks for to an open block."""
        template, places = self._template(
            HIDDEN["fill"], {"dst": tensor}, {"value": value}, hidden=True
        )
        block.code.extend((self.number_of(template), self.line(user_location())))
        block.code.extend(places)

    def block_of(self, storage: Storage) -> Block:
        """Return the innermost open block in which a storage exists in all iterations."""
        return self._blocks[min(storage.depth, self.depth)]

    def inside_loop_of(self, storage: Storage) -> bool:
        """Return whether the current block is a loop that the storage was created outside of."""
        return storage.depth < self.depth

    def surely_runs(self, storage: Storage) -> bool:
        """Return whether the current block runs, once control is where a storage is created.

        What is created in HBM within a loop may be returned.
        """
        begin = storage.depth if storage.region.on_chip else 0
        return all(self._counters[begin:])

    def counted(self, storage: Storage, index: Any) -> range | None:
        """Return the values that a register takes while a storage exists; None if unknown."""
        found = self._ranges.get(getattr(index, "number", None))
        if found is not None:
            for values in self._counters[storage.depth :]:
                if values is found[0]:
                    return found[1]
        return None

    def variant(self, template: Template, **changes: Any) -> Template:
        """Return a template like another with some fields changed, always the same one."""
        key = (id(template), *changes.items())
        found = self._templates.get(key)
        if found is None:
            found = self._add(key, template, **changes)
        return self.recording.templates[found]

    def finding(self, code: str, text: str, where: tuple[str, int] | None = None) -> None:
        """Take note of something that works here and is undefined on hardware."""
        self.recording.findings.append((Finding(code, text), where or user_location()))

    def _template(
        self,
        row: Instruction,
        operands: Mapping[str, Any],
        attributes: Mapping[str, Any],
        *,
        hidden: bool = False,
    ) -> tuple[Template, array[int]]:
        places = array("q")
        group = 32 if row.name.startswith("nc_matmul") else 16
        try:
            forms = self.forms.operands(row, operands, places, group)
            parts: list[Any] = [row.name, hidden]
            # Equal keys must mean the same number: 1, 1.0 and True are equal, 0.0 and -0.0 too.
            for form in forms:
                kind = type(form)
                parts.append((kind, repr(form)) if kind is float or kind is bool else form)
            for name, value in attributes.items():
                kind = type(value)
                if kind is float or kind is bool:
                    parts.append((kind, repr(value)))
                elif name != "name":
                    parts.append(value)
            key: Key = tuple(parts)
            number = self._templates.get(key)
        except (AttributeError, TypeError, ValueError):
            # Something that is no operand: the checks say what.
            prepare(row, operands, attributes, self._generation)
            raise
        if number is None:
            call = prepare(row, operands, attributes, self._generation)
            kept = {name: v for name, v in call.attributes.items() if name != "name"}
            names = [operand.name for operand in row.operands]
            template = Template(
                row,
                tuple(zip(names, forms, strict=True)),
                kept,
                call,
                core=self.lane,
                hidden=hidden,
                words=len(places),
            )
            number = self._templates[key] = len(self.recording.templates)
            self.recording.templates.append(template)
            self._templates[id(template)] = number
        return self.recording.templates[number], places

    def _add(self, key: Key, template: Template, **changes: Any) -> int:
        fields = {name: getattr(template, name) for name in Template.__slots__}
        made = Template(**{**fields, **changes})
        number = self._templates[key] = len(self.recording.templates)
        self.recording.templates.append(made)
        self._templates[id(made)] = number
        return number

    def number_of(self, template: Template) -> int:
        """Return the number of a template."""
        return self._templates[id(template)]

    def line(self, where: tuple[str, int]) -> int:
        """Return the number of a user's line."""
        line = self._lines.get(where)
        if line is None:
            line = self._lines[where] = len(self.recording.locations)
            self.recording.locations.append(where)
        return line

    # --- registers -----------------------------------------------------------------------------

    def register(
        self, value: int | NkiTensor | None = None, *, frozen: bool = False
    ) -> VirtualRegister:
        """Return a new register; an instruction moves or loads the value to it."""
        number = self.recording.registers
        self.recording.registers += 1
        made = VirtualRegister(frozen=False, number=number)
        if value is not None:
            row = TABLE["register_load" if isinstance(value, NkiTensor) else "register_move"]
            self.issue(row, {"dst": made, "src": value}, {})
        made.frozen = frozen
        return made

    def compute(self, op: str, a: Any, b: Any) -> VirtualRegister:
        """Record arithmetic of two registers, or of one and an integer.

        Args:
            op: "add", "subtract" or "multiply".
            a: a register or an integer.
            b: likewise.
        """
        made = self.register()
        self.issue(HIDDEN["register_alu"], {"dst": made, "a": a, "b": b}, {"op": op})
        known = self._values_of(op, a, b)
        if known is not None:
            self._ranges[made.number] = known
        return made

    def _values_of(self, op: str, a: Any, b: Any) -> tuple[range, range] | None:
        """Return what follows from a loop's counter and a number, None if that is not known."""
        if isinstance(b, VirtualRegister) and op != "subtract":
            a, b = b, a
        found = self._ranges.get(a.number) if isinstance(a, VirtualRegister) else None
        if found is None or isinstance(b, VirtualRegister) or (op == "multiply" and b < 1):
            return None
        counter, values = found
        if op == "multiply":
            taken = range(values.start * b, values.stop * b, values.step * b)
        else:
            by = b if op == "add" else -b
            taken = range(values.start + by, values.stop + by, values.step)
        fits = not taken or (taken[0] >= -(2**31) and taken[-1] < 2**31)
        return (counter, taken) if fits else None

    def _check_registers(self, row: Instruction, operands: Mapping[str, Any]) -> None:
        for operand in row.operands:
            register = operands[operand.name]
            if not isinstance(register, VirtualRegister):
                continue
            if operand.role is Role.READ:
                if register.number not in self._registers:
                    register.value = None
                    register.read()  # raises
            elif register.frozen:
                register.assign(0)  # raises
            else:
                self._registers.add(register.number)
                self._ranges.pop(register.number, None)

    # --- control flow --------------------------------------------------------------------------

    @contextmanager
    def for_loop(self, lower: Any, upper: Any, step: Any = 1) -> Iterator[VirtualRegister]:
        """Record a loop that the device counts; what is issued inside of the block is its body.

        Args:
            lower: first value, an int or a register.
            upper: the counter stays below it, an int or a register.
            step: at least 1.
        """
        if isinstance(step, bool) or not isinstance(step, int) or step < 1:
            raise NkiError(
                "NKI200",
                f"a loop on the device has the step {step!r}",
                "give an integer of at least 1 that is known when the kernel is built",
            )
        bounds = self._bound(lower, "lower"), self._bound(upper, "upper")
        counter = self.register(frozen=True)
        self._registers.add(counter.number)
        known = all(isinstance(bound, int) for bound in bounds)
        values = range(*bounds, step) if known else range(0)
        self._ranges[counter.number] = values, values
        with self._nested(values or None) as body:
            yield counter
        self._loop(Loop("for", (counter.number,), *bounds, step, body, 0))

    @contextmanager
    def while_loop(self, initial: VirtualRegister) -> Iterator[tuple[VirtualRegister, list[Any]]]:
        """Record a loop that runs while a register is not 0.

        Yields:
            The register that the body is given, and a list to which the body's result is appended.
        """
        first = self._bound(initial, "init", register=True)
        current = self.register()
        self._registers.add(current.number)
        following: list[Any] = []
        with self._nested() as body:
            yield current, following
            if len(following) != 1:
                raise NkiError(
                    "NKI201",
                    "the body of a while_loop returned no register",
                    "return the register that decides whether the loop goes on",
                )
            after = self._bound(following[0], "the body's result", register=True)
        self._loop(Loop("while", (current.number,), first, after, 1, body, 0))

    @contextmanager
    def _nested(self, values: range | None = None) -> Iterator[Block]:
        block = Block()
        self._blocks.append(block)
        self._counters.append(values)
        self.depth += 1
        try:
            yield block
        finally:
            self._blocks.pop()
            self._counters.pop()
            self.depth -= 1

    def _loop(self, loop: Loop) -> None:
        loop.location = self.line(user_location())
        block = self._blocks[-1]
        block.code.extend((-1, len(block.loops)))
        block.loops.append(loop)

    def _bound(self, value: Any, what: str, *, register: bool = False) -> Any:
        if isinstance(value, VirtualRegister):
            if value.number not in self._registers:
                value.value = None
                value.read()  # raises
            return (value.number,)
        if not register and isinstance(value, (int, np.integer)) and not isinstance(value, bool):
            return int(value)
        raise NkiTypeError(
            "NKI202",
            f"{what} of a loop on the device is a {type(value).__name__}",
            "give a register" if register else "give an integer or a register",
        )

    # --- SPMD ----------------------------------------------------------------------------------

    def program_ndim(self) -> int:
        """Return the number of axes of the launch grid."""
        return len(self._grid)

    def num_programs(self, axes: Any = None) -> int:
        """Return the number of programs along some axes, by default along all."""
        chosen = range(len(self._grid)) if axes is None else np.atleast_1d(axes)
        return math.prod(self._grid[self._axis(a)] if self._grid else 1 for a in chosen)

    def program_id(self, axis: int = 0) -> int:
        """Return the number of this program along an axis."""
        if not self._grid:
            return 0
        return int(np.unravel_index(self._index, self._grid)[self._axis(axis)])

    def _axis(self, axis: Any) -> int:
        count = max(1, len(self._grid))
        if not -count <= axis < count:
            raise NkiError(
                "NKI203",
                f"the launch grid has {len(self._grid)} axes, and axis {axis} was asked for",
                "launch with kernel[n], which has the one axis 0",
            )
        return int(axis)

    # --- making tensors (nki.context.KernelRun) ---------------------------------------------------

    def fill(self, tensor: NkiTensor, value: float) -> None:
        """Record that every element of a new tensor is ``value``."""
        if self.cores > 1 and tensor.buffer is MemoryRegion.shared_hbm:
            # The cores share it, and a second fill would undo what the first core has written.
            self.filled[id(tensor.storage)] = value
            if self._index > 0:
                return
        self._set(tensor, value)

    def _set(self, tensor: NkiTensor, value: float) -> None:
        """Record that every element of a tensor becomes ``value``.

        On chip that is a memset. In HBM it is a DMA from constant memory, for which NKI has no
        instruction of its own.
        """
        if tensor.buffer.on_chip:
            FUNCTIONS["memset"](tensor, value)
        else:
            self.issue(HIDDEN["fill"], {"dst": tensor}, {"value": value})

    def copy(self, dst: NkiTensor, src: NkiTensor) -> None:
        """Record that ``dst`` becomes ``src``."""
        FUNCTIONS["tensor_copy"](dst, src)

    def assign(self, dst: NkiTensor, value: Any) -> bool:
        """Record ``dst[...] = value``: a copy of a tensor, or a number in every element.

        Returns:
            False if `value` is neither.
        """
        if isinstance(value, NkiTensor):
            on_chip = dst.buffer.on_chip and value.buffer.on_chip
            FUNCTIONS["tensor_copy" if on_chip else "dma_copy"](dst, value)
        elif isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
            self._set(dst, number(value))
        else:
            return False
        return True

    # --- looking at values -----------------------------------------------------------------------

    def device_print(self, prefix: str, tensor: NkiTensor) -> None:
        """Record that a tensor is printed."""
        self.issue(HIDDEN["device_print"], {"src": tensor}, {"prefix": prefix})

    def peek(self, tensor: NkiTensor) -> npt.NDArray[Any]:
        """Return what a tensor holds now, by running what was recorded on copies of the inputs.

        Raises:
            NkiError: inside of a loop of the device, which has not begun (NKI205), or where there
                are no inputs (NKI206).
        """
        if len(self._blocks) > 1:
            raise NkiError(
                "NKI205",
                "the value of a tensor is asked for in the body of a loop that the device runs",
                "use nl.device_print, which prints in every iteration",
            )
        if self.values is None:
            raise NkiError(
                "NKI206",
                "the value of a tensor is asked for while only shapes are known",
                "call the kernel with arrays, or do not look at values here",
            )
        self.forms.tile(tensor, array("q"))  # raises if it leaves its storage
        self.recording.peeked = True
        if self._peeking is None:
            self._peeking = Machine(self.recording, [np.array(a) for a in self.values()])
        self._peeking.proceed()
        return self._peeking.read(tensor)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Let nobody look for garbage in cycles within a ``with`` block.

    What a kernel makes is mostly kept, and looking through it again and again takes a fifth of the
    time. Garbage without cycles is freed as ever.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


_ANSWERS: dict[str, Callable[[Recorder, Mapping[str, Any]], Any]] = {
    "get_nc_version": lambda recorder, _: enums.nc_version[f"gen{recorder._generation}"],  # noqa: SLF001
    "get_nc_sub_version": lambda _, __: 0,
    "register_alloc": lambda recorder, attributes: recorder.register(attributes["x"]),
}
