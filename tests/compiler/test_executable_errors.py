"""Wrong arguments, failing steps and programs that contradict themselves: errors, never crashes."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronxcc.codegen import build
from neuronxcc.codegen.errors import CodegenUnsupported
from neuronxcc.codegen.loop import Access, Dim, Kernel, Scalar, Slot, Store
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op
from neuronxcc.program.errors import NeffError
from neuronxcc.program.memory import Buffer, View
from neuronxcc.program.program import CallStep, Program
from neuronxcc.program.steps.conv import ConvStep
from neuronxcc.program.steps.copy import CopyStep
from neuronxcc.program.steps.gemm import GemmStep
from neuronxcc.program.steps.loop import LoopStep
from neuronxcc.program.steps.operator import AtenStep
from tests.compiler.executable_programs import Maker, adder, apply, contiguous, random, trusted
from tests.device.enqueued import to_the_end
from torch_neuronx import _C
from torch_neuronx.program.executable import Executable


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, device="neuron")


# ---- what is passed to a program


@pytest.fixture(scope="module")
def run() -> Executable:
    return trusted(adder((4, 4)), "neuron:0")


WANTED = r"program adder: argument 1 must be float32\[4, 4\], strides \[4, 1\], on neuron:0, got "


@pytest.mark.parametrize(
    ("make", "got"),
    [
        (lambda: zeros(4, 5), r"float32\[4, 5\], strides \[5, 1\], on neuron:0"),
        (lambda: zeros(4), r"float32\[4\], strides \[1\], on neuron:0"),
        (lambda: zeros(4, 4).t(), r"float32\[4, 4\], strides \[1, 4\], on neuron:0"),
        (lambda: zeros(4, 4).double(), r"float64\[4, 4\], strides \[4, 1\], on neuron:0"),
        (lambda: zeros(4, 4).to("neuron:1"), r"float32\[4, 4\], strides \[4, 1\], on neuron:1"),
        (lambda: torch.zeros(4, 4, device="meta"), r"float32\[4, 4\].*, on meta"),
    ],
)
def test_a_wrong_argument(run: Executable, make: Any, got: str) -> None:
    with pytest.raises(ValueError, match=WANTED + got):
        run((zeros(4, 4), make()))


def test_unusual_tensors(run: Executable) -> None:
    for bad in (
        zeros(4, 4).to_sparse(),
        torch._neg_view(zeros(4, 4)),
        torch.zeros(4, 4, dtype=torch.complex64, device="neuron").conj(),
    ):
        with pytest.raises(ValueError, match="argument 1 must be a plain float32"):
            run((zeros(4, 4), bad))


def test_a_tensor_without_its_memory(run: Executable) -> None:
    lost = zeros(4, 4)
    lost.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=r"argument 0 reaches beyond its storage of 0 bytes"):
        run((lost, zeros(4, 4)))


@pytest.mark.parametrize("args", [(), (1,), ("x", "y", "z")])
def test_a_wrong_number_of_arguments(run: Executable, args: Any) -> None:
    with pytest.raises(ValueError, match=f"program adder takes 2 arguments, got {len(args)}"):
        run(args)


def test_arguments_that_are_no_tensors(run: Executable) -> None:
    with pytest.raises(TypeError, match="argument 1 must be a tensor, got int"):
        run((zeros(4, 4), 3))  # type: ignore[arg-type]
    for bad in (3, None, zeros(4, 4)):
        with pytest.raises(TypeError, match="takes one list or tuple of tensors"):
            run.run(bad)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes one list or tuple of tensors"):
        run.run([], [])  # type: ignore[call-arg]


def test_cpu_tensors_are_read_where_they_are(run: Executable) -> None:
    a, b = random((4, 4)), random((4, 4))
    (got,) = run((a, b.to("neuron")))
    assert got.device.type == "neuron"
    assert torch.equal(got.cpu(), a + b)


def test_a_program_for_the_cpu_refuses_device_tensors() -> None:
    with pytest.raises(ValueError, match="on cpu, got"):
        trusted(adder(), "cpu")((zeros(16), zeros(16)))


def test_devices_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match="there is no neuron device 99"):
        trusted(adder(), "neuron:99")
    with pytest.raises(ValueError, match="not on meta"):
        trusted(adder(), "meta")


# ---- steps that fail


def failing(step: AtenStep) -> Program:
    maker = Maker("failing")
    maker.buffer("input", (3, 4))
    maker.buffer("output", (3, 3))
    maker.buffer("temp", (1000, 1000))
    maker.steps.append(step)
    return maker.program()


X = View(0, DType.F32, (3, 4), (4, 1))
OUT = View(1, DType.F32, (3, 3), (3, 1))


# It takes what it is given, and then dislikes the numbers.
UNLUCKY = AtenStep("aten::multinomial", (X, 3), {}, (OUT,))


def test_the_error_of_an_operator_tells_where_it_was_written() -> None:
    step = dataclasses.replace(UNLUCKY, loc="model.py:12")
    with pytest.raises(RuntimeError, match="invalid multinomial distribution") as error:
        trusted(failing(step), "neuron")((zeros(3, 4),))
    where = "While running aten::multinomial of program failing, written at model.py:12"
    assert where in str(error.value)


def test_exceptions_of_python_operators_pass_through() -> None:
    class OwnError(Exception):
        pass

    @torch.library.custom_op("executable_test::fails", mutates_args=())
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise OwnError(f"no {x.shape[0]}")

    step = AtenStep("executable_test::fails", (X,), {}, (OUT,), loc="model.py:3")
    with pytest.raises(OwnError, match="no 3") as error:
        trusted(failing(step), "neuron")((zeros(3, 4),))
    assert error.value.__notes__ == [
        "While running executable_test::fails of program failing, written at model.py:3"
    ]


@pytest.mark.parametrize(
    ("target", "args", "text"),
    [
        ("aten::t", (X,), r"a result 0 of shape \[4, 3\], the program expects \[3, 3\]"),
        ("aten::argmax", (X,), r"a result 0 of shape \[\], the program expects \[3, 3\]"),
        ("aten::sort", (X,), r"has 2 results, the program expects 1"),
        ("aten::to_sparse", (X,), r"a result 0 of layout torch.sparse_coo"),
        ("aten::mm", (X, X), r"refuses its arguments: 'a and b must have same reduction dim"),
    ],
)
def test_results_that_nobody_expects(target: str, args: tuple[Any, ...], text: str) -> None:
    with pytest.raises(NeffError, match=text):
        trusted(failing(AtenStep(target, args, {}, (OUT,))), "neuron")


def test_results_whose_sizes_only_the_operator_knows() -> None:
    run = trusted(failing(AtenStep("aten::nonzero", (X,), {}, (OUT,))), "neuron")
    with pytest.raises(RuntimeError, match=r"result 0 is int64\[0, 2\], the program expects"):
        to_the_end(run, (zeros(3, 4),))
    number = AtenStep("aten::item", (View(0, DType.F32, (), ()),), {}, (OUT,))
    with pytest.raises(RuntimeError, match="result 0 is not a dense tensor"):
        to_the_end(trusted(failing(number), "neuron"), (zeros(3, 4),))


def test_memory_is_released_after_an_error() -> None:
    run = trusted(failing(UNLUCKY), "neuron")
    x = zeros(3, 4)
    gc.collect()  # tensors that the cycles of an earlier test's exception keep
    before = torch.neuron.memory_allocated()  # type: ignore[attr-defined]
    for _ in range(3):
        with pytest.raises(RuntimeError, match="invalid multinomial"):
            to_the_end(run, (x,))
        assert torch.neuron.memory_allocated() == before  # type: ignore[attr-defined]


def test_no_room_for_the_scratchpad() -> None:
    program = dataclasses.replace(adder(), scratch_bytes=1 << 44)
    run = trusted(program, "neuron")
    with pytest.raises(torch.OutOfMemoryError):
        run((zeros(16), zeros(16)))
    with pytest.raises(RuntimeError, match="allocate memory"):
        trusted(program, "cpu")((torch.zeros(16), torch.zeros(16)))


# ---- programs that contradict themselves


def rebuilt(program: Program, **changes: Any) -> Program:
    return dataclasses.replace(program, **changes)


def with_buffer(number: int, **changes: Any) -> Program:
    program = adder()
    buffers = list(program.buffers)
    buffers[number] = dataclasses.replace(buffers[number], **changes)
    return rebuilt(program, buffers=tuple(buffers))


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (with_buffer(0, shape=(15,)), "bytes 0 to 64 of buffer 0 are used, but it has 60"),
        (with_buffer(0, shape=(-1,)), "has the size -1"),
        (with_buffer(0, shape=(1 << 62,)), "larger than any memory"),
        (with_buffer(0, shape=(1 << 40, 1 << 40), strides=(0, 0)), "larger than any memory"),
        (with_buffer(0, shape=(16,), strides=()), "1 sizes but 0 strides"),
        (with_buffer(0, strides=(-1,)), "negative stride"),
        (with_buffer(0, kind="gift"), "of kind 'gift'"),
        (with_buffer(0, index=1), "two buffers are argument 1"),
        (with_buffer(0, index=-1), "argument number -1"),
        (with_buffer(0, index=2), "no buffer is argument 0"),
        (with_buffer(0, kind="constant"), "constant 0 has no bytes"),
        (with_buffer(0, kind="temp", offset=0), "outside the scratchpad of 0 bytes"),
        (with_buffer(0, kind="temp", offset=-4), "outside the scratchpad"),
        (rebuilt(adder(), results=(7,)), "there is no buffer 7"),
        (rebuilt(adder(), results=(-1,)), "there is no buffer -1"),
        (rebuilt(adder(), scratch_bytes=-1), "scratch_bytes is negative"),
    ],
)
def test_buffers(program: Program, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        trusted(program, "neuron")


def test_temporaries_are_aligned() -> None:
    program = with_buffer(0, kind="temp", offset=2)
    with pytest.raises(ValueError, match="temporary 0 is not aligned"):
        trusted(rebuilt(program, scratch_bytes=1000), "neuron")


def test_results_are_outputs_or_arguments() -> None:
    maker = Maker()
    x, temp, out = (
        maker.buffer("input", (4,)),
        maker.buffer("temp", (4,)),
        maker.buffer("output", (4,)),
    )
    apply(maker, Op.ADD, x, x, temp)
    apply(maker, Op.ADD, x, temp, out)
    with pytest.raises(ValueError, match="result 0 is neither an input nor an output"):
        trusted(maker.program(temp), "neuron")


def test_constants_are_not_written() -> None:
    maker = Maker()
    x = maker.buffer("input", (4,))
    c = maker.buffer("constant", (4,), literal=np.zeros(4, np.float32))
    maker.steps.append(CopyStep(maker.view(x), maker.view(c)))
    with pytest.raises(ValueError, match="constant 1 is written to"):
        trusted(maker.program(), "neuron")


def steps_program(*steps: Any) -> Program:
    maker = Maker()
    maker.buffer("input", (2, 3, 4))
    maker.buffer("output", (2, 3, 4))
    maker.buffer("constant", (2,), DType.S64, literal=np.zeros(2, np.int64))
    maker.steps += steps
    return maker.program()


A = View(0, DType.F32, (2, 3, 4), (12, 4, 1))
O = View(1, DType.F32, (2, 3, 4), (12, 4, 1))  # noqa: E741
AT = View(0, DType.F32, (2, 4, 3), (12, 1, 4))
SQUARE = View(1, DType.F32, (2, 3, 3), (9, 3, 1))


def typed(view: View, dtype: DType) -> View:
    return dataclasses.replace(view, dtype=dtype)


def shifted(view: View, offset: int) -> View:
    return dataclasses.replace(view, offset=offset)


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (CopyStep(shifted(A, 1), O), "bytes 4 to 100 of buffer 0 are used, but it has 96"),
        (CopyStep(A, shifted(O, -1)), "bytes -4 to 92 of buffer 1"),
        (CopyStep(shifted(A, 1 << 62), O), "offset"),
        (CopyStep(A, dataclasses.replace(O, buffer=9)), "there is no buffer 9"),
        (CopyStep(A, dataclasses.replace(O, buffer=-1)), "there is no buffer -1"),
        (CopyStep(A, dataclasses.replace(O, strides=(12, 4, -1))), "bytes -12 to 84"),
        (CopyStep(A, SQUARE), "different shape or dtype"),
        (CopyStep(A, dataclasses.replace(O, dtype=DType.S32)), "different shape or dtype"),
        (GemmStep(A, A, SQUARE), r"a product of \[2, 3, 4\] and \[2, 3, 4\]"),
        (GemmStep(A, AT, O), r"a product of shape \[2, 3, 3\] goes with"),
        (GemmStep(A, AT, None), "either an epilogue or a place"),
        (GemmStep(A, AT, SQUARE, A), r"a product of shape \[2, 3, 3\] goes with"),
        (GemmStep(A, AT, SQUARE, epilogue_operands=((0, 0),)), "has operands for one"),
        (
            GemmStep(typed(A, DType.S32), typed(AT, DType.S32), SQUARE),
            "a product of int32 and int32",
        ),
        (
            GemmStep(X, View(0, DType.F32, (4, 3), (1, 4)), SQUARE),
            "must have three dimensions",
        ),
        (AtenStep("aten::nope", (A,), {}, (O,)), "there is no operator aten::nope"),
        (AtenStep("nope", (A,), {}, (O,)), "has no namespace"),
        (AtenStep("aten::relu", (), {}, (O,)), "aten::relu needs its argument 'self'"),
        (AtenStep("aten::relu", (A, 1, 2), {}, (O,)), "takes 1 arguments, got 3"),
        (AtenStep("aten::relu", (A,), {"q": 1}, (O,)), "no argument for some keyword"),
        (
            AtenStep("aten::cumsum", (A, "x"), {}, (O,)),
            "argument 'dim' of aten::cumsum must be int",
        ),
        (AtenStep("aten::cumsum", (A, A), {}, (O,)), "argument 'dim' of aten::cumsum is no tensor"),
        (
            AtenStep("aten::relu_", (1,), {}, (O,)),
            "argument 'self' of aten::relu_ must be a tensor",
        ),
        (AtenStep("aten::cat", ((A, None),), {}, (O,)), "has a None in it"),
        (
            AtenStep("aten::zero_", (View(2, DType.S64, (2,), (1,)),), {}, (None,)),
            "constant 2 is written to",
        ),
        (CallStep("call", (), (), ()), "a call has 0 bodies"),
        (CallStep("cond", (), (), ()), "a cond has 0 bodies"),
        (CallStep("while", (adder(),), (A, A), (O,)), "1 bodies instead of 2"),
        (CallStep("leap", (adder(),), (A, A), (O,)), "of kind 'leap'"),
        (CallStep("call", (adder(),), (A,), (O,)), "a body takes 2 operands, got 1"),
        (CallStep("call", (adder(),), (A, A), (O,)), r"operand 0 of a body is float32\[2, 3, 4\]"),
        (CallStep("call", (adder((2, 3, 4)),), (A, A), ()), "has 1 results, the program takes 0"),
        (CallStep("call", (adder((2, 3, 4)),), (A, A), (SQUARE,)), "result 0 of a body is"),
        (CallStep("cond", (adder((2, 3, 4)),), (A, A), (O,)), "a choice has a selector"),
        (CallStep("cond", (adder((2, 3, 4)),), (A, A), (O,), A), "one pred or s32"),
        (
            CallStep("while", (adder((2, 3, 4)), adder((2, 3, 4))), (A, A), (O,)),
            "the condition of a loop is no pred",
        ),
    ],
)
def test_steps(step: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        trusted(steps_program(step), "neuron")


def test_bodies_are_not_nested_without_end() -> None:
    program = adder()
    x, y, out = (View(n, DType.F32, (16,), (1,)) for n in range(3))
    for _ in range(40):
        step = CallStep("call", (program,), (x, y), (out,))
        program = rebuilt(program, steps=(step,))
    with pytest.raises(ValueError, match="nested more than 32 deep"):
        trusted(program, "neuron")


def kernel(access: Access, dtype: DType = DType.F32, slots: int = 2) -> Kernel:
    value = Scalar.make("load", dtype, access=access)
    return Kernel("k", (Dim(16),), (Slot(dtype),) * slots, (Store(Access(1, (1,)), value),))


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (LoopStep(kernel(Access(0, (2,))), ((0, 0), (1, 0))), "bytes 0 to 124 of buffer 0"),
        (LoopStep(kernel(Access(0, (1,), -1)), ((0, 0), (1, 0))), "bytes -4 to 60 of buffer 0"),
        (LoopStep(kernel(Access(0, (1,))), ((0, 9), (1, 0))), "bytes 36 to 100 of buffer 0"),
        (LoopStep(kernel(Access(0, (1,))), ((0, 0), (1, 9))), "bytes 36 to 100 of buffer 1"),
        (LoopStep(kernel(Access(0, (1,))), ((0, 0), (2, 0))), "there is no buffer 2"),
        (LoopStep(kernel(Access(0, (1,))), ((0, 0),)), "2 slots, 1 operands are given"),
    ],
)
def test_kernels(step: LoopStep, text: str) -> None:
    maker = Maker()
    maker.buffer("input", (16,))
    maker.buffer("output", (16,))
    maker.steps.append(step)
    with pytest.raises(ValueError, match=text):
        trusted(maker.program(), "neuron")


def epilogue(dims: tuple[int, ...], *, tile: bool = True) -> Kernel:
    store = Store(Access(1, contiguous(dims)), build.load(DType.F32, 0, (0,) * len(dims)))
    slots = (Slot(DType.F32, tile=tile), Slot(DType.F32))
    return Kernel("e", tuple(map(Dim, dims)), slots, (store,))


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (epilogue((2, 4, 4)), r"epilogue e covers \(2, 4, 4\), the product has \(2, 3, 3\)"),
        (epilogue((2, 3, 3), tile=False), r"has its tile in slots \[\]"),
    ],
)
def test_epilogues(kernel: Kernel, text: str) -> None:
    step = GemmStep(A, AT, None, epilogue=kernel, epilogue_operands=((1, 0),))
    with pytest.raises(ValueError, match=text):
        trusted(steps_program(step), "neuron")
    if "covers" in text:
        with pytest.raises((ValueError, CodegenUnsupported, AssertionError)):
            trusted(steps_program(LoopStep(kernel, ((0, 0), (1, 0)))), "neuron")


def test_plain_data_is_checked_too() -> None:
    spec = {"name": "x", "device": 0, "scratch_bytes": 0, "buffers": [], "steps": [], "results": []}
    assert _C.Program(spec)([]) == []
    for name, value, text in (
        ("name", 3, "name must be a str, got int"),
        ("name", "\ud800", "not valid Unicode"),
        ("device", "neuron", "device must be an integer, got str"),
        ("device", 1 << 70, "device is out of range"),
        ("buffers", 3, "buffers must be a list or tuple, got int"),
        ("buffers", [3], "a buffer must be a list or tuple"),
        ("buffers", [()], "a buffer has 0 parts instead of 8"),
        ("steps", [3], "a step must be a dict, got int"),
        ("steps", [{}], "the program has no field 'kind'"),
    ):
        with pytest.raises(ValueError, match=text):
            _C.Program({**spec, name: value})
    for name in spec:
        with pytest.raises(ValueError, match=f"no field '{name}'"):
            _C.Program({key: value for key, value in spec.items() if key != name})
    with pytest.raises(TypeError):
        _C.Program(3)  # type: ignore[arg-type]
    loop = {"kind": "loop", "name": "", "loc": "", "address": 0, "items": 1, "grain": 1,
            "scratch_bytes": 0, "operands": [], "cleared": []}  # fmt: skip
    bad: tuple[tuple[str, object, str], ...] = (
        ("address", 0, "a kernel has no address"),
        ("address", -5, "a kernel has no address"),
        ("items", -1, "a loop has -1 items"),
        ("grain", 0, "in chunks of 0"),
        ("scratch_bytes", 1 << 40, "bytes of scratch per thread"),
        ("operands", [(0, 0, 0, 4, False)], "there is no buffer 0"),
        ("cleared", [(0, 0)], "what is cleared has 2 parts"),
        ("cleared", [(0, 0, 8)], "a loop notes what it found in operand 0"),
    )
    for key, content, text in bad:
        with pytest.raises(ValueError, match=text):
            _C.Program({**spec, "steps": [{**loop, "address": 1, key: content}]})


# ---- mutated programs


def sample() -> Program:
    """A valid program with steps of every kind."""
    maker = Maker("sample")
    x, w = maker.buffer("input", (2, 8, 8)), maker.buffer("input", (2, 8, 8))
    s = maker.buffer("input", (), DType.S32)
    product, sums = maker.buffer("temp", (2, 8, 8)), maker.buffer("temp", (2, 8, 8))
    bias = maker.buffer("constant", (8,), literal=np.ones(8, np.float32))
    chosen, out, last = (maker.buffer(k, (2, 8, 8)) for k in ("temp", "output", "output"))
    fused = Store(
        Access(2, (64, 8, 1)),
        build.op(Op.ADD, build.load(DType.F32, 0, (0, 0, 0)), build.load(DType.F32, 1, (0, 0, 1))),
    )
    slots = (Slot(DType.F32, tile=True), Slot(DType.F32), Slot(DType.F32))
    kernel = Kernel("fused", (Dim(2), Dim(8), Dim(8)), slots, (fused,))
    maker.steps += [
        GemmStep(
            maker.view(x), maker.view(w), None, epilogue=kernel,
            epilogue_operands=((bias, 0), (product, 0)),
        ),
        GemmStep(maker.view(x), maker.view(product), maker.view(chosen), constant_b=True),
        AtenStep("aten::cumsum", (maker.view(product), 1), {}, (maker.view(sums),)),
    ]  # fmt: skip
    apply(maker, Op.ADD, product, sums, out)
    branches = []
    for op in (Op.ADD, Op.MULTIPLY):
        body = Maker("branch")
        a, b, c = (body.buffer(kind, (2, 8, 8)) for kind in ("input", "input", "output"))
        apply(body, op, a, b, c)
        branches.append(body.program())
    maker.steps += [
        CallStep(
            "cond", tuple(branches), (maker.view(x), maker.view(out)), (maker.view(chosen),),
            maker.view(s),
        ),
        CopyStep(maker.view(chosen), maker.view(last)),
    ]  # fmt: skip
    return maker.program()


SAMPLE = sample()
NUMBERS = st.one_of(
    st.integers(-4, 20),
    st.sampled_from([63, 64, 65, 128, 512, 1 << 31, 1 << 40, -(1 << 40), (1 << 63) - 1]),
)
RECORDS = (AtenStep, Access, Buffer, CallStep, ConvStep, CopyStep, Dim, GemmStep, Kernel, LoopStep,
           Program, Slot, View)  # fmt: skip
KEPT = {"name", "loc", "meta", "kwargs"}


def mutate(draw: Callable[..., Any], value: Any) -> Any:
    """The value with one part of it replaced by something of a similar type."""
    result = value
    if isinstance(value, bool):
        result = not value
    elif isinstance(value, int):
        result = draw(NUMBERS)
    elif isinstance(value, DType):
        result = draw(st.sampled_from(list(DType)))
    elif isinstance(value, tuple) and value:
        at = draw(st.integers(0, len(value) - 1))
        action = draw(st.sampled_from(["change", "change", "change", "drop", "double"]))
        middle: tuple[Any, ...] = (value[at],) * {"drop": 0, "double": 2}.get(action, 0)
        if action == "change":
            middle = (mutate(draw, value[at]),)
        result = (*value[:at], *middle, *value[at + 1 :])
    elif isinstance(value, RECORDS):
        names = [f.name for f in dataclasses.fields(value) if f.name not in KEPT]
        name = draw(st.sampled_from(names))
        result = dataclasses.replace(value, **{name: mutate(draw, getattr(value, name))})
    elif value is None:
        result = draw(st.sampled_from([None, None, View(0, DType.F32, (2, 8, 8), (64, 8, 1))]))
    return result


@pytest.mark.slow
@given(st.data())
@settings(max_examples=400)
def test_mutated_programs_do_not_crash(data: st.DataObject) -> None:
    program = SAMPLE
    for _ in range(data.draw(st.integers(1, 3))):
        program = mutate(data.draw, program)
    try:
        run = trusted(program, "neuron")
    except (ValueError, KeyError, AttributeError, TypeError, AssertionError, CodegenUnsupported):
        return
    x, w = random((2, 8, 8), device="neuron"), random((2, 8, 8), device="neuron")
    try:
        run((x, w, torch.tensor(1, dtype=torch.int32)))
    except (ValueError, RuntimeError, IndexError, MemoryError):
        return


def test_the_sample_is_right() -> None:
    x, w = random((2, 8, 8)), random((2, 8, 8))
    for branch in (0, 1):
        out, last = trusted(SAMPLE, "neuron")(
            (x.to("neuron"), w.to("neuron"), torch.tensor(branch, dtype=torch.int32))
        )
        product = x @ w + 1
        expected = product + product.cumsum(1)
        assert torch.allclose(out.cpu(), expected, atol=1e-4)
        assert torch.allclose(last.cpu(), x * expected if branch else x + expected, atol=1e-4)
