"""What must hold in every program: ids exist, types agree, and all memory that is named is there.

A program may come from a file that anyone wrote, and its execution works on raw addresses. So
everything that can be decided without running it is decided here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from neuronxcc.codegen.loop import Access, Kernel, Kind, Scalar, scalars
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Group, Op
from neuronxcc.program.collective_check import check_collective, check_waits
from neuronxcc.program.errors import NeffError
from neuronxcc.program.program import (
    AtenStep,
    Buffer,
    CallStep,
    CollectiveStep,
    ConvStep,
    CopyStep,
    ForStep,
    GemmStep,
    LoopStep,
    Made,
    PrintStep,
    Program,
    Register,
    Step,
    View,
    WaitStep,
    WhileStep,
    all_steps,
)
from neuronxcc.program.tape import TapeFunction, TapeLoop, TapeStep
from neuronxcc.program.tape_check import SlotReach, check_tape, product_slots

MOST_RANK = 64
MOST_BYTES = 1 << 48  # of one buffer: the address space of a process is not larger
MOST_STEP = 1 << 30  # of a window: numbers of it are added and multiplied in 64 bits

_KINDS = ("input", "output", "temp", "constant")
_REDUCTIONS = frozenset({Op.ADD, Op.MULTIPLY, Op.MINIMUM, Op.MAXIMUM, Op.AND, Op.OR, Op.XOR})
_DIRECTIONS = ("EQ", "NE", "LT", "LE", "GT", "GE")
_GEMM_TYPES = frozenset({DType.F32, DType.BF16, DType.F16})
_TARGET = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*(\.\w+)?", re.ASCII)

_ARITY: dict[Op, int] = {
    **dict.fromkeys(Group.ELEMENTWISE, 2),
    **dict.fromkeys(Group.UNARY | Group.CONVERSION, 1),
    # The numbers of bits of a reduced precision are constant operands.
    **dict.fromkeys({Op.SELECT, Op.CLAMP, Op.REDUCE_PRECISION}, 3),
}


def extents_size(shape: tuple[int, ...]) -> int:
    """Number of elements; NeffError for a shape that no tensor has."""
    if len(shape) > MOST_RANK:
        raise NeffError(f"{len(shape)} dimensions, more than {MOST_RANK}")
    size = 1
    for extent in shape:
        if extent < 0:
            raise NeffError(f"negative extent {extent}")
        size *= extent
        if size > MOST_BYTES:
            raise NeffError(f"shape {list(shape)} is larger than any memory")
    return size


def check_scalar(scalar: Scalar) -> None:
    """Whether the parts of an expression fit each other; its operands have been checked."""
    rule = _SCALARS.get(scalar.what)
    if rule is None:
        raise NeffError(f"unknown kind of scalar {scalar.what!r}")
    access, op, value = scalar.access is not None, scalar.op is not None, scalar.value is not None
    placed = scalar.what in ("load", "check")
    if (access, op, value) != (placed, rule.op, scalar.what == "const"):
        raise NeffError(f"a {scalar.what!r} with parts that it cannot have")
    rule(scalar)


class _Rule:
    """The operands that one kind of scalar takes."""

    def __init__(self, *counts: int, op: bool = False) -> None:
        self.counts = counts
        self.op = op

    def __call__(self, scalar: Scalar) -> None:
        if len(scalar.srcs) not in self.counts:
            raise NeffError(f"a {scalar.what!r} with {len(scalar.srcs)} operands")


class _OpRule(_Rule):
    def __call__(self, scalar: Scalar) -> None:
        assert scalar.op is not None
        if len(scalar.srcs) != _ARITY.get(scalar.op, -1):
            raise NeffError(f"{scalar.op.value} of {len(scalar.srcs)} operands in a loop kernel")
        if scalar.op is Op.REDUCE_PRECISION and any(s.what != "const" for s in scalar.srcs[1:]):
            raise NeffError("a reduced precision that is not constant")
        if (scalar.op is Op.COMPARE) != (scalar.direction in _DIRECTIONS):
            raise NeffError(f"{scalar.op.value} with direction {scalar.direction!r}")


class _ReduceRule(_Rule):
    def __init__(self, *ops: Op) -> None:
        super().__init__(1, op=True)
        self.ops = ops

    def __call__(self, scalar: Scalar) -> None:
        super().__call__(scalar)
        assert scalar.op is not None
        if scalar.op not in self.ops:
            raise NeffError(f"a {scalar.what!r} by {scalar.op.value}")


class _ConstRule(_Rule):
    def __call__(self, scalar: Scalar) -> None:
        super().__call__(scalar)
        if type(scalar.value) not in {bool, int, float, complex}:
            raise NeffError(f"a constant of type {type(scalar.value).__name__}")


class _IndexRule(_Rule):
    def __call__(self, scalar: Scalar) -> None:
        super().__call__(scalar)
        if scalar.dim < 0 or not scalar.dtype.is_integer:
            raise NeffError(f"the position along dimension {scalar.dim} as {scalar.dtype.value}")


class _LoadRule(_Rule):
    def __call__(self, scalar: Scalar) -> None:
        super().__call__(scalar)
        if scalar.srcs and (scalar.srcs[0].dtype, scalar.srcs[1].dtype) != (
            DType.PRED,
            scalar.dtype,
        ):
            raise NeffError("a masked load needs a truth value and a value of its own type")


class _CheckRule(_Rule):
    def __call__(self, scalar: Scalar) -> None:
        super().__call__(scalar)
        assert scalar.access is not None
        if not scalar.dtype.is_integer or any(s.dtype is not scalar.dtype for s in scalar.srcs):
            raise NeffError("a check of numbers of several types, or that are no integers")
        if any(scalar.access.strides) or scalar.access.indices:
            raise NeffError("a check that makes its note at more than one place")


_SCALARS: dict[str, _Rule] = {
    "load": _LoadRule(0, 2),
    "check": _CheckRule(3),
    "const": _ConstRule(0),
    "index": _IndexRule(0),
    "op": _OpRule(op=True),
    "reduce": _ReduceRule(*_REDUCTIONS),
    "arg": _ReduceRule(Op.MINIMUM, Op.MAXIMUM),
}


def check_kernel(kernel: Kernel) -> dict[int, tuple[int, int]]:
    """Check one loop kernel.

    Returns:
        For every slot that is accessed at places known beforehand, the first and the last of them
        (elements from the slot's pointer).
    """
    size = extents_size(tuple(dim.extent for dim in kernel.dims))
    touched: dict[int, tuple[int, int]] = {}
    for access, dtype, free in _accesses(kernel):
        if not 0 <= access.slot < len(kernel.slots):
            raise NeffError(f"slot {access.slot} of {len(kernel.slots)}")
        slot = kernel.slots[access.slot]
        if slot.dtype is not dtype:
            raise NeffError(f"slot {access.slot} is {slot.dtype.value}, accessed as {dtype.value}")
        if len(access.strides) != len(kernel.dims):
            raise NeffError(
                f"an access with {len(access.strides)} strides in {len(kernel.dims)} dims"
            )
        for index, _ in access.indices:
            if not index.dtype.is_integer:
                raise NeffError(f"an index of type {index.dtype.value}")
        if size and not free and not slot.tile:
            extents = tuple(dim.extent for dim in kernel.dims)
            low, high = _span(extents, access.strides, access.offset)
            before = touched.get(access.slot, (low, high))
            touched[access.slot] = min(before[0], low), max(before[1], high)
    return touched


def _accesses(kernel: Kernel) -> Iterator[tuple[Access, DType, bool]]:
    """Every access with the type it is made as, and whether data decides where it goes or if."""
    reductions = sum(dim.kind is Kind.REDUCE for dim in kernel.dims)
    for scalar in scalars(kernel):
        if scalar.access is not None:
            free = bool(scalar.access.indices) or (scalar.what == "load" and bool(scalar.srcs))
            yield scalar.access, scalar.dtype, free
        if scalar.what == "index" and scalar.dim >= len(kernel.dims):
            raise NeffError(f"dimension {scalar.dim} of {len(kernel.dims)}")
        if scalar.what == "reduce" and not reductions:
            raise NeffError("a reduction in a kernel without dimensions to reduce")
        if scalar.what == "arg" and reductions != 1:
            raise NeffError(f"a position along {reductions} dimensions to reduce")
    for store in kernel.stores:
        if store.mask is not None and store.mask.dtype is not DType.PRED:
            raise NeffError(f"a mask of type {store.mask.dtype.value}")
        free = bool(store.access.indices) or store.mask is not None
        yield store.access, store.value.dtype, free


def _span(shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> tuple[int, int]:
    """First and last element that a strided window touches; its shape has no 0."""
    low = high = offset
    for extent, stride in zip(shape, strides, strict=True):
        reach = (extent - 1) * stride
        low, high = (low + reach, high) if reach < 0 else (low, high + reach)
    return low, high


def check_program(program: Program) -> None:
    """Check a program and the bodies it calls.

    Raises:
        NeffError: Names the program, the buffer or step, and what is wrong with it.
    """
    _Checker().program(program)


class _Checker:
    """Remembers what has been checked: layers of a model share their kernels."""

    def __init__(self) -> None:
        self.kernels: dict[Kernel, dict[int, tuple[int, int]]] = {}
        self.programs: set[Program] = set()
        # Of the program in work: the bytes of each buffer, and which of them are constants.
        self.bytes: list[int] = []
        self.constants: set[int] = set()

    def program(self, program: Program) -> None:
        if program in self.programs:
            return
        for step in all_steps(program.steps):
            if isinstance(step, CallStep):
                for body in step.bodies:
                    self.program(body)
        where = "the results"
        try:
            _check_numbers(program)
            sizes = []
            for number, buffer in enumerate(program.buffers):
                where = f"buffer {number}"
                sizes.append(check_buffer(buffer, program))
            self.bytes = sizes
            self.constants = {n for n, b in enumerate(program.buffers) if b.kind == "constant"}
            for number, step in enumerate(program.steps):
                where = f"step {number} ({type(step).__name__})"
                self.step(step)
            where = "its collectives"
            check_waits(program.steps)
        except NeffError as error:
            raise NeffError(f"program {program.name!r}, {where}: {error}") from None
        self.programs.add(program)

    def step(self, step: Step) -> None:
        match step:
            case LoopStep():
                self.operands(step.kernel, step.operands)
            case GemmStep():
                self.gemm(step)
            case ConvStep():
                self.conv(step)
            case CopyStep():
                self.copy(step)
            case AtenStep():
                if not _TARGET.fullmatch(step.target):
                    raise NeffError(f"{step.target!r} is no name of an operator")
                self.outs(step.outs)
                self.views(_views_in((step.args, tuple(step.kwargs.values()))))
            case CallStep():
                self.call(step)
            case CollectiveStep() | WaitStep():
                self.collective(step)
            case _:
                self.instructions(step)

    def copy(self, step: CopyStep) -> None:
        self.views((step.src,))
        self.outs((step.out,))
        if (step.src.dtype, step.src.shape) != (step.out.dtype, step.out.shape):
            raise NeffError("a copy between different types")

    def collective(self, step: CollectiveStep | WaitStep) -> None:
        if isinstance(step, CollectiveStep):  # of the others see check_waits
            check_collective(step)
            self.views(step.inputs)
            self.outs(step.outs)

    def instructions(self, step: TapeStep | ForStep | WhileStep | PrintStep) -> None:
        match step:
            case TapeStep():
                self.tape(step)
            case ForStep():
                if not 1 <= step.step < 1 << 31:
                    raise NeffError(f"a loop with the step {step.step}")
                self.loop(step, (step.lower, step.upper))
            case WhileStep():
                self.loop(step, (step.initial, step.next))
            case PrintStep():
                self.views((step.view,))

    def loop(self, step: ForStep | WhileStep, ends: tuple[int | Register, ...]) -> None:
        if not step.counters:
            raise NeffError("a loop without a counter")
        for register in (*step.counters, *ends):
            if isinstance(register, int):
                if not -(1 << 31) <= register < 1 << 31:
                    raise NeffError(f"{register} is no number of 32 bits")
                continue
            size = self.buffer_bytes(register.buffer)
            self.inside(register.element, register.element, DType.S32, size, register.buffer)
        for register in step.counters:
            if register.buffer in self.constants:
                raise NeffError(f"it writes to constant {register.buffer}")
        for number, inner in enumerate(step.body):
            if isinstance(inner, CollectiveStep | WaitStep):
                raise NeffError("a collective in a loop that the device decides")
            try:
                self.step(inner)
            except NeffError as error:
                where = f"step {number} ({type(inner).__name__}) of its body"
                raise NeffError(f"{where}: {error}") from None

    def tape(self, step: TapeStep) -> None:
        slots = []
        for number, function in enumerate(step.functions):
            try:
                slots.append(self.slots(function))
            except NeffError as error:
                raise NeffError(f"function {number}: {error}") from None
        check_tape(step, slots, self.bytes, self.constants)

    def slots(self, function: TapeFunction) -> tuple[SlotReach, ...]:
        """What a function of a tape touches of its slots, in bytes."""
        if not isinstance(function, TapeLoop):
            return product_slots(function)
        kernel = function.kernel
        touched = self.kernel(kernel)
        if any(slot.tile for slot in kernel.slots):
            raise NeffError(f"kernel {kernel.name!r} has a tile")
        found = []
        for number, slot in enumerate(kernel.slots):
            low, high = touched.get(number, (0, -1))
            size = slot.dtype.itemsize
            found.append(SlotReach(low * size, (high + 1) * size, _stores_to(kernel, number)))
        return tuple(found)

    def kernel(self, kernel: Kernel) -> dict[int, tuple[int, int]]:
        """What a kernel touches, see `check_kernel`."""
        touched = self.kernels.get(kernel)
        if touched is None:
            try:
                touched = self.kernels[kernel] = check_kernel(kernel)
            except NeffError as error:
                raise NeffError(f"kernel {kernel.name!r}: {error}") from None
        return touched

    def operands(self, kernel: Kernel, given: tuple[tuple[int, int], ...], skip: int = 0) -> None:
        """Check the memory that a kernel is given; its first `skip` slots get theirs elsewhere."""
        touched = self.kernel(kernel)
        if len(given) != len(kernel.slots) - skip:
            raise NeffError(f"{len(given)} operands for {len(kernel.slots) - skip} slots")
        for position, (number, offset) in enumerate(given):
            slot = kernel.slots[position + skip]
            size = self.buffer_bytes(number)
            if slot.tile:
                raise NeffError(f"slot {position + skip} is a tile")
            low, high = touched.get(position + skip, (0, -1))
            if high >= low:
                self.inside(offset + low, offset + high, slot.dtype, size, number)
            elif offset < 0 or offset * slot.dtype.itemsize > size:
                raise NeffError(f"offset {offset} is outside buffer {number}")
            if number in self.constants and _stores_to(kernel, position + skip):
                raise NeffError(f"it writes to constant {number}")

    def factor(self, operand: View | Made) -> None:
        """Check an operand of a product."""
        if isinstance(operand, Made):
            check_made(operand)
            self.operands(operand.kernel, operand.operands, skip=1)
        else:
            self.views((operand,))

    def gemm(self, step: GemmStep) -> None:
        self.factor(step.a)
        self.factor(step.b)
        self.views((step.c0,))
        self.outs((step.out,))
        shape = _product_shape(step.a, step.b)
        for view in (step.c0, step.out):
            if view is not None and view.shape != shape:
                raise NeffError(f"{list(view.shape)} for a product of {list(shape)}")
        if (step.out is None) == (step.epilogue is None):
            raise NeffError("a product needs either a result or an epilogue")
        self.epilogue(step.epilogue, shape, step.epilogue_operands)

    def epilogue(
        self,
        kernel: Kernel | None,
        shape: tuple[int, ...],
        given: tuple[tuple[int, int], ...],
    ) -> None:
        if kernel is not None:
            if not kernel.slots or not kernel.slots[0].tile:
                raise NeffError("slot 0 of an epilogue is the tile")
            if tuple(dim.extent for dim in kernel.dims) != shape:
                raise NeffError("the dims of an epilogue are those of the product")
            if _stores_to(kernel, 0):
                raise NeffError("an epilogue does not write to the tile")
            self.operands(kernel, given, skip=1)
        elif given:
            raise NeffError("operands of an epilogue that is not there")

    def conv(self, step: ConvStep) -> None:
        self.views((step.x, step.w))
        self.outs((step.out,))
        _check_convolution(step)
        if (step.out is None) == (step.epilogue is None):
            raise NeffError("a convolution needs either a result or an epilogue")
        if step.out is not None and (step.out.dtype, step.out.shape) != (
            step.x.dtype,
            step.out_shape,
        ):
            raise NeffError(
                f"{step.out.dtype.value}{list(step.out.shape)} for a convolution to "
                f"{step.x.dtype.value}{list(step.out_shape)}"
            )
        self.epilogue(step.epilogue, step.dims, step.epilogue_operands)

    def call(self, step: CallStep) -> None:
        most = {"call": 1, "cond": 1 << 16, "while": 2}.get(step.kind, 0)
        if not (1 if step.kind == "call" else 2) <= len(step.bodies) <= most:
            raise NeffError(f"{step.kind!r} with {len(step.bodies)} bodies")
        if (step.kind == "cond") != (step.selector is not None):
            raise NeffError(f"{step.kind!r} and its selector")
        self.views((*step.operands, step.selector))
        self.outs(step.outs)
        if step.selector is not None and step.selector.dtype not in {DType.PRED, DType.S32}:
            raise NeffError(f"a selector of type {step.selector.dtype.value}")
        for number, body in enumerate(step.bodies):
            _check_body(step, number, body)

    def outs(self, views: Any) -> None:
        """Check views that are written to."""
        self.views(views)
        for view in views:
            if view is not None and view.buffer in self.constants:
                raise NeffError(f"it writes to constant {view.buffer}")

    def views(self, views: Any) -> None:
        for view in views:
            if view is None:
                continue
            size = self.buffer_bytes(view.buffer)
            if len(view.shape) != len(view.strides):
                raise NeffError(f"{len(view.shape)} extents but {len(view.strides)} strides")
            if extents_size(view.shape):
                low, high = _span(view.shape, view.strides, view.offset)
                self.inside(low, high, view.dtype, size, view.buffer)

    def buffer_bytes(self, number: int) -> int:
        if not 0 <= number < len(self.bytes):
            raise NeffError(f"buffer {number} of {len(self.bytes)}")
        return self.bytes[number]

    @staticmethod
    def inside(low: int, high: int, dtype: DType, size: int, number: int) -> None:
        if low < 0 or (high + 1) * dtype.itemsize > size:
            raise NeffError(
                f"elements {low} to {high} of {dtype.value} are not all in the {size} bytes of "
                f"buffer {number}"
            )


def check_buffer(buffer: Buffer, program: Program) -> int:
    """Check one buffer and return the bytes from its first to its last element."""
    if buffer.kind not in _KINDS:
        raise NeffError(f"unknown kind {buffer.kind!r}")
    if len(buffer.shape) != len(buffer.strides):
        raise NeffError(f"{len(buffer.shape)} extents but {len(buffer.strides)} strides")
    size = extents_size(buffer.shape)
    if any(stride < 0 for stride in buffer.strides):
        raise NeffError(f"negative stride in {list(buffer.strides)}")
    last = _span(buffer.shape, buffer.strides, 0)[1] + 1 if size else 0
    nbytes = last * buffer.dtype.itemsize
    if nbytes > MOST_BYTES:
        raise NeffError(f"{nbytes} bytes are more than any memory has")
    if (buffer.kind == "constant") != (buffer.literal is not None):
        raise NeffError("constants, and nothing else, have a literal")
    if buffer.literal is not None:
        kind = buffer.literal.type
        if (kind.dtype, kind.shape) != (buffer.dtype, buffer.shape) or last != size:
            raise NeffError(f"its literal is {kind}")
    if buffer.kind == "temp" and not 0 <= buffer.offset <= program.scratch_bytes - nbytes:
        raise NeffError(
            f"{nbytes} bytes at {buffer.offset} are not in the scratchpad of "
            f"{program.scratch_bytes}"
        )
    if buffer.kind in {"input", "output"} and buffer.index < 0:
        raise NeffError(f"{buffer.kind} number {buffer.index}")
    return nbytes


def _check_numbers(program: Program) -> None:
    """Check the scratchpad, and that inputs, outputs and results have numbers that fit."""
    if not 0 <= program.scratch_bytes <= MOST_BYTES:
        raise NeffError(f"a scratchpad of {program.scratch_bytes} bytes")
    for kind in ("input", "output"):
        numbers = [buffer.index for buffer in program.buffers if buffer.kind == kind]
        if len(set(numbers)) != len(numbers):
            raise NeffError(f"two {kind}s of one number")
    for number in program.results:
        if not 0 <= number < len(program.buffers):
            raise NeffError(f"buffer {number} of {len(program.buffers)}")
        if program.buffers[number].kind not in {"input", "output"}:
            raise NeffError(f"buffer {number}, a {program.buffers[number].kind}, is no result")
    if any(b.kind == "output" and b.index >= len(program.results) for b in program.buffers):
        raise NeffError("an output beyond the number of results")


def check_made(operand: Made) -> None:
    """Check that a kernel makes every element of an operand of a product, and nothing else.

    Raises:
        NeffError: It does not.
    """
    kernel, shape = operand.kernel, operand.shape
    if len(shape) != 3:
        raise NeffError("operands of a product have three dimensions")
    extents_size(shape)
    if operand.by_columns:
        shape = (shape[0], shape[2], shape[1])
    if [slot.tile for slot in kernel.slots] != [True] + [False] * (len(kernel.slots) - 1):
        raise NeffError("slot 0, and no other, of what makes an operand is the tile")
    if kernel.slots[0].dtype is not operand.dtype:
        raise NeffError(f"a tile of {kernel.slots[0].dtype.value} for {operand.dtype.value}")
    if tuple(dim.extent for dim in kernel.dims) != shape or any(
        dim.kind is Kind.REDUCE for dim in kernel.dims
    ):
        raise NeffError("the dims of what makes an operand are those of the operand")
    whole = Access(0, (shape[1] * shape[2], shape[2], 1))
    stores = [(store.access, store.mask, store.combine) for store in kernel.stores]
    if stores != [(whole, None, None)]:
        raise NeffError("what makes an operand stores every element of its tile, and nothing else")
    if any(s.access is not None and s.access.slot == 0 for s in scalars(kernel)):
        raise NeffError("what makes an operand does not read its tile")


def _product_shape(a: View | Made, b: View | Made) -> tuple[int, ...]:
    """Shape of a batch of matrix products."""
    if len(a.shape) != 3 or len(b.shape) != 3:
        raise NeffError("operands of a product have three dimensions")
    if a.dtype is not b.dtype or a.dtype not in _GEMM_TYPES:
        raise NeffError(f"a product of {a.dtype.value} and {b.dtype.value}")
    if (a.shape[0], a.shape[2]) != b.shape[:2]:
        raise NeffError(f"a product of {list(a.shape)} and {list(b.shape)}")
    return (*a.shape[:2], b.shape[2])


def _check_convolution(step: ConvStep) -> None:
    """Check the operands of a convolution and how its window moves."""
    x, w = step.x, step.w
    if len(x.shape) != 4 or len(w.shape) != 4:
        raise NeffError("operands of a convolution have four dimensions")
    if x.dtype is not w.dtype or x.dtype not in _GEMM_TYPES:
        raise NeffError(f"a convolution of {x.dtype.value} and {w.dtype.value}")
    for name, values, least in (
        ("stride", step.stride, 1),
        ("padding", step.padding, 0),
        ("dilation", step.dilation, 1),
    ):
        if len(values) != 2 or not all(least <= value <= MOST_STEP for value in values):
            raise NeffError(f"a convolution with {name} {list(values)}")
    if not all((*x.shape, *w.shape)):
        raise NeffError("a convolution of nothing")
    groups = step.groups
    if groups < 1 or x.shape[1] != w.shape[1] * groups or w.shape[0] % groups:
        raise NeffError(f"a convolution of {list(x.shape)} and {list(w.shape)}, {groups} groups")
    if min(step.out_shape) < 1:
        raise NeffError(f"a convolution to {list(step.out_shape)}")
    extents_size(step.out_shape)


def _check_body(step: CallStep, number: int, body: Program) -> None:
    """Check that one body of a call takes its operands and gives its results."""
    for buffer in body.buffers:
        if buffer.kind == "input":
            if buffer.index >= len(step.operands):
                raise NeffError(f"body {number} has more inputs than there are operands")
            what = f"input {buffer.index} of body {number}"
            _same_type(step.operands[buffer.index], buffer, what)
    results = [body.buffers[result] for result in body.results]
    if step.kind == "while" and number == 0:
        if [(result.dtype, result.shape) for result in results] != [(DType.PRED, ())]:
            raise NeffError("the condition of a loop is one truth value")
        return
    if len(results) != len(step.outs):
        raise NeffError(f"body {number} has {len(results)} results")
    for index, (view, result) in enumerate(zip(step.outs, results, strict=True)):
        _same_type(view, result, f"result {index} of body {number}")


def _same_type(view: View, buffer: Buffer, what: str) -> None:
    """Check that a body sees the memory as it is."""
    if (view.dtype, view.shape) != (buffer.dtype, buffer.shape):
        raise NeffError(f"{what} is {buffer.dtype.value}{list(buffer.shape)}, given {view}")


def _stores_to(kernel: Kernel, slot: int) -> bool:
    return any(store.access.slot == slot for store in kernel.stores)


def _views_in(value: Any) -> Iterator[View]:
    """Views among the arguments of an operator."""
    if isinstance(value, View):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _views_in(item)
    elif isinstance(value, dict):
        yield from _views_in(tuple(value.values()))
