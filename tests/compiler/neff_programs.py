"""Programs for the tests of NEFFs: a hypothesis strategy of valid ones, a large one, equality."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from neuronxcc.codegen.loop import Access, Dim, Kernel, Kind, Scalar, Slot, Store
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Literal
from neuronxcc.ir.op import Op
from neuronxcc.program.memory import Buffer, Register, View
from neuronxcc.program.program import AnyStep, CallStep, ForStep, Program, WhileStep
from neuronxcc.program.steps.conv import ConvStep
from neuronxcc.program.steps.copy import CopyStep
from neuronxcc.program.steps.gemm import GemmStep
from neuronxcc.program.steps.loop import LoopStep
from neuronxcc.program.steps.operator import AtenStep
from neuronxcc.program.steps.printing import PrintStep
from neuronxcc.program.tape_functions import TapeLoop, TapeNative, TapeProduct
from neuronxcc.program.tape_writer import TapeWriter

Draw = Callable[[st.SearchStrategy[Any]], Any]

DTYPES = st.sampled_from(list(DType))


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def same(a: Program, b: Program) -> bool:
    """Whether two programs are equal; the class itself compares by identity."""
    if (a.name, a.buffers, a.results, a.scratch_bytes) != (
        b.name,
        b.buffers,
        b.results,
        b.scratch_bytes,
    ):
        return False
    if repr(a.meta) != repr(b.meta) or len(a.steps) != len(b.steps):  # repr: NaN equals NaN
        return False
    for x, y in zip(a.steps, b.steps, strict=True):
        if isinstance(x, CallStep) and isinstance(y, CallStep):
            parts = [(s.kind, s.operands, s.outs, s.selector, len(s.bodies)) for s in (x, y)]
            if parts[0] != parts[1] or not all(map(same, x.bodies, y.bodies)):
                return False
        elif isinstance(x, AtenStep):
            if repr(x) != repr(y):
                return False
        elif x != y:
            return False
    return True


def literal(dtype: DType, shape: tuple[int, ...], seed: int) -> Literal:
    size = int(np.prod(shape, dtype=np.int64))
    data = np.random.default_rng(seed).integers(0, 2, size * dtype.itemsize, dtype=np.uint8)
    return Literal(data.view(dtype.numpy).reshape(shape))


@st.composite
def scalar_values(draw: Draw, dtype: DType) -> bool | complex:
    if dtype is DType.PRED:
        return bool(draw(st.booleans()))
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        return int(draw(st.integers(int(info.min), min(int(info.max), (1 << 63) - 1))))
    if dtype.is_complex:
        return complex(draw(st.complex_numbers()))
    return float(draw(st.floats()))


@st.composite
def kernels(draw: Draw) -> Kernel:
    """A kernel in one to three slots of its own choice; slot 0 is stored to."""
    extents = draw(st.lists(st.integers(0, 5), min_size=1, max_size=3))
    reduce = draw(st.booleans())
    dims = [Dim(extent) for extent in extents]
    if reduce:
        dims[-1] = Dim(dims[-1].extent, Kind.REDUCE)
    dtypes = draw(st.lists(DTYPES, min_size=1, max_size=3))
    strides = contiguous(tuple(extents))
    pool: list[Scalar] = []
    for number, dtype in enumerate(dtypes):
        pool.append(Scalar.make("load", dtype, access=Access(number, strides)))
        pool.append(Scalar.make("const", dtype, value=draw(scalar_values(dtype))))
    index = Scalar.make("index", DType.S64, dim=len(dims) - 1)
    pool.append(index)
    for _ in range(draw(st.integers(0, 6))):
        x = draw(st.sampled_from(pool))
        match draw(st.integers(0, 5)):
            case 0:
                pool.append(Scalar.make("op", x.dtype, (x,), op=Op.NEGATE))
            case 1:
                pool.append(Scalar.make("op", x.dtype, (x, x), op=Op.ADD))
            case 2:
                pool.append(Scalar.make("op", DType.PRED, (x, x), op=Op.COMPARE, direction="LT"))
            case 3 if reduce:
                pool.append(Scalar.make("reduce", x.dtype, (x,), op=Op.MAXIMUM))
            case 4:
                mask = Scalar.make("op", DType.PRED, (index, index), op=Op.COMPARE, direction="EQ")
                access = Access(0, strides, 1, ((index, 2),))
                other = Scalar.make("const", dtypes[0], value=draw(scalar_values(dtypes[0])))
                pool.append(Scalar.make("load", dtypes[0], (mask, other), access=access))
            case _:
                pool.append(Scalar.make("op", dtypes[0], (x,), op=Op.CONVERT))
    values = [scalar for scalar in pool if scalar.dtype is dtypes[0]]
    mask = draw(st.sampled_from([None, *(s for s in pool if s.dtype is DType.PRED)]))
    combine = draw(st.sampled_from([None, Op.ADD]))
    store = Store(Access(0, strides), draw(st.sampled_from(values)), combine, mask)
    name = draw(st.text(max_size=4))
    return Kernel(name, tuple(dims), tuple(map(Slot, dtypes)), (store,))


ARGUMENTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats()
    | st.text(max_size=5)
    | DTYPES
    | st.complex_numbers(),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.lists(inner, max_size=2),
    max_leaves=5,
)


@st.composite
def convolutions(draw: Draw, buffer: Callable[..., int], view: Callable[[int], View]) -> ConvStep:
    """A valid convolution over new buffers."""
    n, groups, c, o = draw(st.tuples(*[st.integers(1, 3)] * 4))
    x = view(buffer("input", DType.F16, (n, groups * c, 5, 4)))
    w = view(buffer("constant", DType.F16, (groups * o, c, 2, 3)))
    stride = draw(st.tuples(st.integers(1, 3), st.integers(1, 2)))
    conv = ConvStep(x, w, None, stride, (1, 2), (2, 1), groups, loc="model.py:1")
    out = view(buffer("temp", DType.F16, conv.out_shape))
    flags = draw(st.tuples(*[st.booleans()] * 2))
    return replace(conv, out=out, last=flags[0], constant_w=flags[1])


@st.composite
def loops(draw: Draw, buffer: Callable[..., int], view: Callable[[int], View]) -> AnyStep:
    """A loop around a tape with functions of all kinds, and a print."""
    kernel = draw(kernels())
    writer = TapeWriter()
    numbers = [buffer("temp", slot.dtype, (125,)) for slot in kernel.slots]
    places = [part for number in numbers for part in (number, 0)]
    line = writer.location(draw(st.text(max_size=4)))
    advance = (0,) * len(numbers)
    writer.group(draw(st.integers(1, 3)))
    writer.add(writer.function(TapeLoop(kernel, lanes=True, advance=advance)), line, places)
    writer.group(0)
    row = ((4, 1), (4, 1), (4, 1))
    product = TapeProduct(2, 3, 4, DType.BF16, DType.F32, *row, draw(st.booleans()))
    out, a, b = (buffer("temp", kind, (16,)) for kind in (DType.F32, DType.BF16, DType.BF16))
    writer.add(writer.function(product), line, (out, 0, a, 0, b, 0))
    registers = buffer("temp", DType.S32, (4,))
    check = TapeNative("check_index", (draw(st.integers(0, 2)), 1, 5))
    writer.add(writer.function(check), line, (registers, 4))
    counter, other = Register(registers, 0), Register(registers, 3)
    body = (writer.step(), PrintStep(draw(st.text(max_size=2)), view(out), "user.py:1"))
    if draw(st.booleans()):
        return WhileStep((counter,), other, counter, body)
    return ForStep((counter, other), draw(st.integers(-2, 2)), other, draw(st.integers(1, 3)), body)


@st.composite
def programs(draw: Draw, depth: int = 1) -> Program:  # noqa: C901, PLR0915 - one case per kind of step
    """A valid program with steps of every kind; it need not make sense."""
    buffers: list[Buffer] = []
    steps: list[AnyStep] = []
    scratch = 0

    def buffer(kind: str, dtype: DType, shape: tuple[int, ...]) -> int:
        nonlocal scratch
        strides = contiguous(shape)
        index, offset, value = -1, -1, None
        if kind == "temp":
            offset = scratch
            scratch += int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        elif kind == "constant":
            value = literal(dtype, shape, draw(st.integers(0, 3)))
        else:
            index = sum(b.kind == kind for b in buffers)
        buffers.append(Buffer(kind, dtype, shape, strides, index, offset, value, kind))
        return len(buffers) - 1

    def view(number: int) -> View:
        b = buffers[number]
        return View(number, b.dtype, b.shape, b.strides)

    readable = st.sampled_from(["input", "temp", "constant"])
    for _ in range(draw(st.integers(0, 4))):
        match draw(st.integers(0, 6)):
            case 6:
                steps.append(draw(loops(buffer, view)))
            case 0:
                kernel = draw(kernels())
                shape = tuple(dim.extent for dim in kernel.dims)
                numbers = [buffer("temp", kernel.slots[0].dtype, shape)]
                numbers += [buffer(draw(readable), s.dtype, shape) for s in kernel.slots[1:]]
                steps.append(LoopStep(kernel, tuple((number, 0) for number in numbers)))
            case 1:
                b, m, n, k = draw(st.tuples(*[st.integers(1, 3)] * 4))
                left, right = (
                    view(buffer("input", DType.BF16, shape)) for shape in ((b, m, k), (b, k, n))
                )
                out = view(buffer("temp", DType.F32, (b, m, n)))
                steps.append(GemmStep(left, right, out, constant_b=draw(st.booleans())))
            case 2:
                x = view(buffer(draw(readable), draw(DTYPES), (2, 3)))
                kwargs = draw(st.dictionaries(st.text(max_size=3), ARGUMENTS, max_size=2))
                outs = (None, view(buffer("temp", x.dtype, (2, 3))))
                args = (x, draw(ARGUMENTS))
                steps.append(AtenStep("aten::sort.stable", args, kwargs, outs, draw(st.booleans())))
            case 5:
                steps.append(draw(convolutions(buffer, view)))
            case 3:
                x = view(buffer(draw(readable), draw(DTYPES), (4,)))
                steps.append(CopyStep(x, view(buffer("temp", x.dtype, (4,)))))
            case _ if depth:
                body = draw(programs(depth=depth - 1))
                inputs = [b for b in body.buffers if b.kind == "input"]
                results = [body.buffers[number] for number in body.results]
                operands = tuple(view(buffer("input", b.dtype, b.shape)) for b in inputs)
                temps = tuple(view(buffer("temp", b.dtype, b.shape)) for b in results)
                steps.append(CallStep("call", (body,), operands, temps))
    result = buffer("output", draw(DTYPES), (2,))
    meta = draw(st.dictionaries(st.text(max_size=3), ARGUMENTS, max_size=2))
    return Program(
        draw(st.text(max_size=5)), tuple(buffers), tuple(steps), (result,), scratch, meta
    )


def large_program(layers: int = 12) -> Program:
    """As many steps as a GPT-2 of this many layers, no two kernels alike: the worst case."""
    buffers = [Buffer("input", DType.F32, (256, 768), (768, 1), 0, name="x")]
    steps: list[AnyStep] = []
    for layer in range(layers):
        for part in range(10):
            buffers.append(Buffer("temp", DType.F32, (256, 768), (768, 1), offset=0))
            out = len(buffers) - 1
            value = Scalar.make("load", DType.F32, access=Access(0, (768, 1)))
            for turn in range(30):
                factor = float(layer * 1000 + part * 100 + turn)
                const = Scalar.make("const", DType.F32, value=factor)
                op = (Op.MULTIPLY, Op.ADD)[turn % 2]
                value = Scalar.make("op", DType.F32, (value, const), op=op)
            store = Store(Access(1, (768, 1)), value)
            dims = (Dim(256), Dim(768))
            slots = (Slot(DType.F32), Slot(DType.F32))
            kernel = Kernel(f"layer{layer}_{part}", dims, slots, (store,))
            steps.append(LoopStep(kernel, ((out - 1, 0), (out, 0))))
        for part in range(6):
            weight = Buffer("input", DType.F32, (768, 768), (768, 1), layer * 6 + part + 1)
            buffers += [weight, Buffer("temp", DType.F32, (256, 768), (768, 1), offset=0)]
            out = len(buffers) - 1
            x = View(out - 2, DType.F32, (1, 256, 768), (0, 768, 1))
            w = View(out - 1, DType.F32, (1, 768, 768), (0, 768, 1))
            steps.append(GemmStep(x, w, View(out, DType.F32, (1, 256, 768), (0, 768, 1))))
            if part < 5:
                buffers.append(
                    buffers[0].__class__("temp", DType.F32, (256, 768), (768, 1), offset=0)
                )
    buffers.append(Buffer("output", DType.F32, (256, 768), (768, 1), 0))
    last = len(buffers) - 1
    steps.append(
        CopyStep(
            View(0, DType.F32, (256, 768), (768, 1)), View(last, DType.F32, (256, 768), (768, 1))
        )
    )
    return Program("large", tuple(buffers), tuple(steps), (last,), 256 * 768 * 4)
