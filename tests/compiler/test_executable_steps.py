"""What the native executor computes, step by step, against PyTorch on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronxcc.codegen import build
from neuronxcc.codegen.loop import Access, Dim, Kernel, Slot, Store
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op
from neuronxcc.program.memory import View
from neuronxcc.program.program import CallStep, Program
from neuronxcc.program.steps.copy import CopyStep
from neuronxcc.program.steps.gemm import GemmStep
from neuronxcc.program.steps.loop import LoopStep
from neuronxcc.program.steps.operator import AtenStep
from tests.compiler.executable_programs import (
    DEVICES,
    Maker,
    adder,
    apply,
    contiguous,
    elementwise,
    random,
    trusted,
)
from torch_neuronx import _C
from torch_neuronx.program.dtypes import TO_TORCH

UNIT = 2.0**-24
FLOATS = [DType.F32, DType.BF16, DType.F16]
ROUNDING = {DType.F32: 2.0**-24, DType.BF16: 2.0**-8, DType.F16: 2.0**-11}


@pytest.mark.parametrize("device", DEVICES)
def test_one_loop(device: str) -> None:
    run = trusted(adder(), device)
    x, y = random((16,), device=device), random((16,), device=device)
    (out,) = run((x, y))
    assert out.device == x.device
    assert torch.equal(out.cpu(), x.cpu() + y.cpu())


@pytest.mark.parametrize("device", DEVICES)
def test_large_loops_are_split_over_threads(device: str) -> None:
    shape = (300, 1000)
    run = trusted(adder(shape), device)
    x, y = random(shape, device=device), random(shape, device=device)
    assert torch.equal(run((x, y))[0].cpu(), x.cpu() + y.cpu())


def test_steps_hand_on_through_the_scratchpad() -> None:
    maker = Maker()
    x, y = maker.buffer("input", (5, 7)), maker.buffer("input", (5, 7))
    first, second = maker.buffer("temp", (5, 7)), maker.buffer("temp", (5, 7))
    out = maker.buffer("output", (5, 7))
    apply(maker, Op.MULTIPLY, x, y, first)
    apply(maker, Op.ADD, first, y, second)
    apply(maker, Op.SUBTRACT, second, first, out)
    run = trusted(maker.program(), "neuron")
    a, b = random((5, 7)), random((5, 7))
    (got,) = run((a.to("neuron"), b.to("neuron")))
    assert torch.equal(got.cpu(), (a * b + b) - a * b)
    assert run.memory.scratch == maker.scratch
    assert run.memory.inputs == 2 * 35 * 4


@pytest.mark.parametrize("device", DEVICES)
def test_constants(device: str) -> None:
    maker = Maker()
    x = maker.buffer("input", (3, 4))
    value = np.arange(12, dtype=np.float32).reshape(3, 4)
    c = maker.buffer("constant", (3, 4), strides=(1, 3), literal=value)
    out = maker.buffer("output", (3, 4), strides=(1, 3))
    loads = [build.load(DType.F32, 0, (4, 1)), build.load(DType.F32, 1, (1, 3))]
    store = Store(Access(2, (1, 3)), build.op(Op.ADD, *loads))
    kernel = Kernel("k", (Dim(3), Dim(4)), (Slot(DType.F32),) * 3, (store,))
    maker.steps.append(LoopStep(kernel, ((x, 0), (c, 0), (out, 0))))
    run = trusted(maker.program(), device)
    assert run.memory.constants == 48
    a = random((3, 4))
    (got,) = run((a.to(device),))
    assert got.stride() == (1, 3)
    assert torch.equal(got.cpu(), a + torch.from_numpy(value))


def test_outputs_have_the_strides_of_the_program() -> None:
    maker = Maker()
    x = maker.buffer("input", (2, 3, 1))
    out = maker.buffer("output", (2, 3, 1), strides=(1, 2, 17))
    maker.steps.append(CopyStep(maker.view(x), maker.view(out)))
    (got,) = trusted(maker.program(), "neuron")((random((2, 3, 1), device="neuron"),))
    assert got.stride() == (1, 2, 17)


def test_an_argument_can_be_a_result() -> None:
    maker = Maker()
    x, y = maker.buffer("input", (4,)), maker.buffer("input", (4,))
    apply(maker, Op.ADD, x, y, x)
    run = trusted(maker.program(x, y, x), "neuron")
    a, b = random((4,), device="neuron"), random((4,), device="neuron")
    expected = a.cpu() + b.cpu()
    results = run((a, b))
    assert results[0] is a
    assert results[1] is b
    assert results[2] is a
    assert torch.equal(a.cpu(), expected)


def test_a_program_without_steps_and_arguments() -> None:
    assert trusted(Maker().program(), "neuron")(()) == []


# ---- products


@st.composite
def gemm_cases(draw: st.DrawFn) -> dict[str, Any]:
    side = st.one_of(st.integers(0, 9), st.sampled_from([17, 64, 70, 130]))
    return {
        "batch": draw(st.integers(1, 3)),
        "m": draw(side),
        "n": draw(side),
        "k": draw(st.one_of(side, st.just(600))),
        "dtype": draw(st.sampled_from(FLOATS)),
        "out_dtype": draw(st.sampled_from([None, None, *FLOATS])),
        "out_layout": draw(st.sampled_from(["rows", "columns", "heads", "gaps", "batch last"])),
        "b_layout": draw(st.sampled_from(["rows", "columns", "shared"])),
        "c0": draw(st.sampled_from([None, "row", "full", "other dtype"])),
        "constant_b": draw(st.booleans()),
        "seed": draw(st.integers(0, 5)),
    }


def out_strides(layout: str, batch: int, m: int, n: int) -> tuple[int, int, int]:
    return {
        "rows": (m * n, n, 1),
        "columns": (m * n, 1, m),
        "heads": (n, batch * n, 1),
        "gaps": (3 * m * n, 3 * n, 3),
        "batch last": (1, n * batch, batch),
    }[layout]


@given(case=gemm_cases(), device=st.sampled_from(DEVICES))
@settings(max_examples=150)
def test_products(case: dict[str, Any], device: str) -> None:
    torch.manual_seed(case["seed"])
    batch, m, n, k, dtype = (case[name] for name in ("batch", "m", "n", "k", "dtype"))
    out_dtype = case["out_dtype"] or dtype
    maker = Maker()
    a = maker.buffer("input", (batch, m, k), dtype)
    b_strides = {"rows": (k * n, n, 1), "columns": (k * n, 1, k), "shared": (0, n, 1)}
    b = maker.buffer("input", (batch, k, n), dtype, b_strides[case["b_layout"]])
    c0_dtype = DType.F32 if case["c0"] == "other dtype" else dtype
    c0 = None
    if case["c0"] is not None:
        strides = (0, 0, 1) if case["c0"] == "row" else contiguous((batch, m, n))
        c0 = maker.buffer("input", (batch, m, n), c0_dtype, strides)
    strides = out_strides(case["out_layout"], batch, m, n)
    out = maker.buffer("output", (batch, m, n), out_dtype, strides)
    views = [None if x is None else maker.view(x) for x in (a, b, out, c0)]
    assert views[0] is not None
    assert views[1] is not None
    maker.steps.append(
        GemmStep(views[0], views[1], views[2], views[3], constant_b=case["constant_b"])
    )
    run = trusted(maker.program(), device)
    args = []
    for number, buffer in enumerate(maker.buffers[:-1]):
        del number
        memory = torch.empty_strided(buffer.shape, buffer.strides, dtype=TO_TORCH[buffer.dtype])
        memory.untyped_storage()  # exists even if empty
        if memory.numel():
            flat = memory.as_strided((memory.untyped_storage().nbytes() // memory.itemsize,), (1,))
            flat.copy_(random(tuple(flat.shape), memory.dtype))
        args.append(memory)
    moved = [
        torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device).copy_(x)
        if 0 not in x.stride()
        else expand_on(x, device)
        for x in args
    ]
    got = None
    for _ in range(3):  # the packed form of B is used from the second time on
        (got,) = run(tuple(moved))
    assert got is not None
    assert got.stride() == strides
    exact = args[0].double() @ args[1].double()
    size = args[0].double().abs() @ args[1].double().abs()
    bound = (k + 2) * UNIT * size
    if c0 is not None:
        exact = exact + args[2].double()
        bound = bound + (k + 2) * UNIT * args[2].double().abs()
    bound = bound + ROUNDING[out_dtype] * (exact.abs() + bound) + 2.0**-25
    assert ((got.cpu().double() - exact).abs() <= bound).all()


def expand_on(x: torch.Tensor, device: str) -> torch.Tensor:
    """A tensor with strides of zero, on another device."""
    memory = torch.empty(x.untyped_storage().nbytes() // x.itemsize, dtype=x.dtype)
    memory.copy_(x.as_strided(memory.shape, (1,)))
    return memory.to(device).as_strided(x.shape, x.stride())


def bias_and_relu(batch: int, m: int, n: int, dtype: DType) -> Kernel:
    tile = build.load(DType.F32, 0, (0, 0, 0))
    bias = build.convert(build.load(dtype, 1, (0, 0, 1)), DType.F32)
    value = build.op(Op.MAXIMUM, build.op(Op.ADD, tile, bias), 0.0)
    store = Store(Access(2, contiguous((batch, m, n))), build.convert(value, dtype))
    slots = (Slot(DType.F32, tile=True), Slot(dtype), Slot(dtype))
    return Kernel("bias_relu", (Dim(batch), Dim(m), Dim(n)), slots, (store,))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("batch", "m", "k", "n"),
    [(1, 100, 700, 130), (1, 4, 768, 300), (2, 33, 64, 70), (1, 200, 40, 1), (3, 1, 50, 1),
     (1, 300, 20, 3), (2, 5, 0, 6)],
)  # fmt: skip
def test_products_with_an_epilogue(dtype: DType, batch: int, m: int, k: int, n: int) -> None:
    torch.manual_seed(0)
    maker = Maker()
    a, b = maker.buffer("input", (batch, m, k), dtype), maker.buffer("input", (batch, k, n), dtype)
    bias = maker.buffer("input", (n,), dtype)
    out = maker.buffer("output", (batch, m, n), dtype)
    kernel = bias_and_relu(batch, m, n, dtype)
    step = GemmStep(
        maker.view(a),
        maker.view(b),
        None,
        epilogue=kernel,
        epilogue_operands=((bias, 0), (out, 0)),
        constant_b=True,
    )
    maker.steps.append(step)
    run = trusted(maker.program(), "neuron")
    torch_dtype = TO_TORCH[dtype]
    x, w, c = (
        random((batch, m, k), torch_dtype),
        random((batch, k, n), torch_dtype),
        random((n,), torch_dtype),
    )
    args = tuple(t.to("neuron") for t in (x, w, c))
    for _ in range(3):
        (got,) = run(args)
        exact = (x.double() @ w.double() + c.double()).clamp(min=0)
        bound = (k + 3) * UNIT * (x.double().abs() @ w.double().abs() + c.double().abs())
        bound = bound + ROUNDING[dtype] * (exact + bound) + 2.0**-25
        assert ((got.cpu().double() - exact).abs() <= bound).all()


def test_the_packed_weight_follows_the_weight() -> None:
    maker = Maker()
    a, b = maker.buffer("input", (64, 128)), maker.buffer("input", (128, 256))
    out = maker.buffer("output", (64, 256))
    maker.steps.append(
        GemmStep(maker.matrix(a), maker.matrix(b), maker.matrix(out), constant_b=True)
    )
    run = trusted(maker.program(), "neuron")
    x, w = random((64, 128)), random((128, 256))
    xn, wn = x.to("neuron"), w.to("neuron")
    before = _C.gemm_cache_stats()["hits"]  # type: ignore[attr-defined]
    for _ in range(4):
        assert torch.allclose(run((xn, wn))[0].cpu(), x @ w, atol=1e-4)
    if _C.gemm_method(x, w, torch.empty(64, 256)) == "panel":  # type: ignore[attr-defined]
        assert _C.gemm_cache_stats()["hits"] > before  # type: ignore[attr-defined]
    wn.mul_(2)
    assert torch.allclose(run((xn, wn))[0].cpu(), x @ (2 * w), atol=1e-4)


def test_a_weight_written_by_a_program_is_not_kept() -> None:
    """One program updates the weight in place, the other multiplies by it."""
    multiply = Maker()
    a, b = multiply.buffer("input", (64, 128)), multiply.buffer("input", (128, 256))
    out = multiply.buffer("output", (64, 256))
    multiply.steps.append(
        GemmStep(multiply.matrix(a), multiply.matrix(b), multiply.matrix(out), constant_b=True)
    )
    update = Maker()
    w, g = update.buffer("input", (128, 256)), update.buffer("input", (128, 256))
    apply(update, Op.ADD, w, g, w)
    run, step = trusted(multiply.program(), "neuron"), trusted(update.program(w), "neuron")
    x, weight = random((64, 128)), random((128, 256))
    xn, wn = x.to("neuron"), weight.to("neuron")
    for turn in range(4):
        for _ in range(3):
            expected = x @ (weight * 2**turn)
            assert torch.allclose(run((xn, wn))[0].cpu(), expected, atol=1e-3)
        step((wn, wn.clone()))


# ---- operators of ATen


@pytest.mark.parametrize("device", DEVICES)
def test_an_operator_with_two_results(device: str) -> None:
    maker = Maker()
    x = maker.buffer("input", (6, 50))
    values, order = maker.buffer("output", (6, 50)), maker.buffer("output", (6, 50), DType.S64)
    outs = (maker.view(values), maker.view(order))
    maker.steps.append(
        AtenStep(
            "aten::sort.stable",
            (maker.view(x),),
            {"stable": True, "dim": 1, "descending": True},
            outs,
        )
    )
    run = trusted(maker.program(), device)
    a = random((6, 50))
    got = run((a.to(device),))
    expected = torch.sort(a, dim=1, descending=True, stable=True)
    assert torch.equal(got[0].cpu(), expected[0])
    assert torch.equal(got[1].cpu(), expected[1])
    assert {g.device.type for g in got} == {device}


def test_results_go_into_a_part_of_a_buffer() -> None:
    maker = Maker()
    x = maker.buffer("input", (4, 3))
    out = maker.buffer("output", (4, 6))
    left = View(out, DType.F32, (4, 3), (6, 1), 0)
    right = View(out, DType.F32, (4, 3), (6, 1), 3)
    maker.steps.append(AtenStep("aten::cumsum", (maker.view(x), 1), {}, (left,)))
    maker.steps.append(AtenStep("aten::cumprod", (maker.view(x), 1), {}, (right,)))
    a = random((4, 3))
    (got,) = trusted(maker.program(), "neuron")((a.to("neuron"),))
    assert torch.equal(got.cpu(), torch.cat([a.cumsum(1), a.cumprod(1)], 1))


def test_lists_dtypes_and_names_as_arguments() -> None:
    maker = Maker()
    x, i = maker.buffer("input", (3, 4)), maker.buffer("input", (2,), DType.S64)
    joined, picked = maker.buffer("temp", (6, 4)), maker.buffer("temp", (6, 2))
    out = maker.buffer("output", (6, 2), DType.BF16)
    maker.steps += [
        AtenStep("aten::cat", ((maker.view(x), maker.view(x)), 0), {}, (maker.view(joined),)),
        AtenStep(
            "aten::index.Tensor",
            (maker.view(joined), (None, maker.view(i))),
            {},
            (maker.view(picked),),
        ),
        AtenStep(
            "aten::_to_copy.default",
            (maker.view(picked),),
            {"dtype": DType.BF16, "device": "neuron", "memory_format": "contiguous_format"},
            (maker.view(out),),
        ),
    ]
    a, where = random((3, 4)), torch.tensor([2, 0])
    (got,) = trusted(maker.program(), "neuron")((a.to("neuron"), where.to("neuron")))
    assert torch.equal(got.cpu(), torch.cat([a, a])[:, where].bfloat16())


def test_lists_of_results() -> None:
    maker = Maker()
    x = maker.buffer("input", (2, 6))
    outs = [maker.buffer("output", (2, 2)) for _ in range(3)]
    views = (maker.view(outs[0]), None, maker.view(outs[2]))
    maker.steps.append(AtenStep("aten::split_with_sizes", (maker.view(x), (2, 2, 2), 1), {}, views))
    program = maker.program(outs[0], outs[2])
    a = random((2, 6))
    first, last = trusted(program, "neuron")((a.to("neuron"),))
    assert torch.equal(first.cpu(), a[:, :2])
    assert torch.equal(last.cpu(), a[:, 4:])
    first.zero_()  # it must not share memory with the argument
    assert torch.equal(last.cpu(), a[:, 4:])


def test_an_operator_that_writes_to_its_argument() -> None:
    maker = Maker()
    x, v = maker.buffer("input", (5,)), maker.buffer("input", (2,))
    i = maker.buffer("constant", (2,), DType.S64, literal=np.array([3, 1]))
    maker.steps.append(
        AtenStep("aten::index_put_", (maker.view(x), (maker.view(i),), maker.view(v)), {}, (None,))
    )
    run = trusted(maker.program(x), "neuron")
    a, b = random((5,)), random((2,))
    target = a.to("neuron")
    assert run((target, b.to("neuron")))[0] is target
    a[[3, 1]] = b
    assert torch.equal(target.cpu(), a)


def test_numbers_stand_for_tensors() -> None:
    maker = Maker()
    x, out = maker.buffer("input", (3,), DType.BF16), maker.buffer("output", (3,), DType.BF16)
    maker.steps.append(AtenStep("aten::mul.Tensor", (maker.view(x), 3), {}, (maker.view(out),)))
    a = random((3,), torch.bfloat16)
    assert torch.equal(trusted(maker.program(), "neuron")((a.to("neuron"),))[0].cpu(), a * 3)


def test_random_numbers_are_the_devices() -> None:
    """A step with device=True draws what the eager operator draws."""
    maker = Maker()
    x = maker.buffer("input", (1000,))
    out, mask = maker.buffer("output", (1000,)), maker.buffer("output", (1000,), DType.PRED)
    noise = maker.buffer("output", (7,))
    maker.steps += [
        AtenStep(
            "aten::native_dropout",
            (maker.view(x), 0.5, True),
            {},
            (maker.view(out), maker.view(mask)),
            device=True,
        ),
        AtenStep("aten::rand", ((7,),), {"dtype": DType.F32}, (maker.view(noise),), device=True),
    ]
    run = trusted(maker.program(), "neuron")
    a = random((1000,), device="neuron")
    torch.manual_seed(5)
    expected = [*torch.native_dropout(a, 0.5, True), torch.rand(7, device="neuron")]  # noqa: FBT003
    torch.manual_seed(5)
    for got, wanted in zip(run((a,)), expected, strict=True):
        assert got.device == a.device
        assert torch.equal(got.cpu(), wanted.cpu())


def test_host_steps_are_counted() -> None:
    maker = Maker()
    x, out = maker.buffer("input", (4, 4)), maker.buffer("output", (4, 4))
    temp = maker.buffer("temp", (4, 4))
    maker.steps += [
        AtenStep("aten::matrix_exp", (maker.view(x),), {}, (maker.view(temp),), host=True),
        AtenStep("aten::cumsum", (maker.view(temp), 0), {}, (maker.view(out),)),
    ]
    run = trusted(maker.program(), "neuron")
    assert run.host_steps == ("aten::matrix_exp",)
    _C.reset_operator_counts()
    run((random((4, 4), device="neuron"),))
    counts = {(name, dtype): calls for name, dtype, calls, _ in _C.operator_counts()}
    assert counts.get(("aten::matrix_exp", "float32")) == 1
    assert ("aten::cumsum", "float32") not in counts


def test_custom_operators_in_python() -> None:
    seen: list[torch.device] = []

    @torch.library.custom_op("executable_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.device)
        return x * 2

    maker = Maker()
    x, out = maker.buffer("input", (4,)), maker.buffer("output", (4,))
    maker.steps.append(
        AtenStep("executable_test::twice", (maker.view(x),), {}, (maker.view(out),), host=True)
    )
    a = random((4,))
    (got,) = trusted(maker.program(), "neuron")((a.to("neuron"),))
    assert torch.equal(got.cpu(), a * 2)
    assert seen == [torch.device("cpu")]


# ---- copies


@given(
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple),
    dtype=st.sampled_from(sorted(DType, key=str)),
    data=st.data(),
)
@settings(max_examples=60)
def test_copies(shape: tuple[int, ...], dtype: DType, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(shape))))
    strides, step = [0] * len(shape), 1
    for dim in order:
        strides[dim] = step
        step *= max(shape[dim], 1) + data.draw(st.integers(0, 1))
    maker = Maker()
    x, out = (
        maker.buffer("input", shape, dtype),
        maker.buffer("output", shape, dtype, tuple(strides)),
    )
    maker.steps.append(CopyStep(maker.view(x), maker.view(out)))
    run = trusted(maker.program(), "neuron")
    torch_dtype = torch.uint8 if dtype is DType.F8E4M3 else TO_TORCH[dtype]
    bits = torch.randint(0, 2, (*shape, dtype.itemsize), dtype=torch.uint8)
    a = bits.view(torch_dtype).reshape(shape)
    (got,) = run((a.to("neuron"),))
    assert got.stride() == tuple(strides)
    fresh = torch.empty(shape, dtype=torch_dtype).copy_(got)
    assert torch.equal(fresh.view(-1).view(torch.uint8), a.reshape(-1).view(torch.uint8))


# ---- control flow


def body_of(op: Op, shape: tuple[int, ...] = (4,)) -> Program:
    maker = Maker("body")
    x, y, out = (maker.buffer(kind, shape) for kind in ("input", "input", "output"))
    apply(maker, op, x, y, out)
    return maker.program()


def test_calls() -> None:
    maker = Maker()
    x, y = maker.buffer("input", (4,)), maker.buffer("input", (4,))
    temp, out = maker.buffer("temp", (4,)), maker.buffer("output", (4,))
    body = body_of(Op.MULTIPLY)
    maker.steps += [
        CallStep("call", (body,), (maker.view(x), maker.view(y)), (maker.view(temp),)),
        CallStep("call", (body,), (maker.view(temp), maker.view(y)), (maker.view(out),)),
    ]
    a, b = random((4,)), random((4,))
    (got,) = trusted(maker.program(), "neuron")((a.to("neuron"), b.to("neuron")))
    assert torch.equal(got.cpu(), a * b * b)


@pytest.mark.parametrize(
    ("dtype", "value", "taken"),
    [(DType.PRED, True, 0), (DType.PRED, False, 1), (DType.S32, 0, 0), (DType.S32, 1, 1),
     (DType.S32, 2, 2), (DType.S32, 7, 2), (DType.S32, -1, 2)],
)  # fmt: skip
def test_branches(dtype: DType, value: int, taken: int) -> None:
    maker = Maker()
    x, y, s = (
        maker.buffer("input", (4,)),
        maker.buffer("input", (4,)),
        maker.buffer("input", (), dtype),
    )
    out = maker.buffer("output", (4,))
    ops = [Op.ADD, Op.SUBTRACT] + ([Op.MULTIPLY] if dtype is DType.S32 else [])
    maker.steps.append(
        CallStep(
            "cond",
            tuple(map(body_of, ops)),
            (maker.view(x), maker.view(y)),
            (maker.view(out),),
            maker.view(s),
        )
    )
    a, b = random((4,)), random((4,))
    selector = torch.tensor(value, dtype=TO_TORCH[dtype])
    (got,) = trusted(maker.program(), "neuron")(
        (a.to("neuron"), b.to("neuron"), selector.to("neuron"))
    )
    assert torch.equal(got.cpu(), [a + b, a - b, a * b][taken])


def while_program(limit: int) -> Program:
    """(i, x, y, w) -> while i < limit: (i + 1, y, x + w, w)."""
    condition = Maker("condition")
    i = condition.buffer("input", (), DType.S32)
    for _ in range(3):
        condition.buffer("input", (3,))
    go = condition.buffer("output", (), DType.PRED)
    test = build.compare("LT", build.load(DType.S32, 0, ()), limit)
    kernel = Kernel("less", (), (Slot(DType.S32), Slot(DType.PRED)), (Store(Access(1, ()), test),))
    condition.steps.append(LoopStep(kernel, ((i, 0), (go, 0))))
    body = Maker("body")
    i = body.buffer("input", (), DType.S32)
    x, y, w = (body.buffer("input", (3,)) for _ in range(3))
    next_i, next_y = body.buffer("output", (), DType.S32), body.buffer("output", (3,))
    increment = Store(Access(1, ()), build.op(Op.ADD, build.load(DType.S32, 0, ()), 1))
    kernel = Kernel("next", (), (Slot(DType.S32),) * 2, (increment,))
    body.steps.append(LoopStep(kernel, ((i, 0), (next_i, 0))))
    apply(body, Op.ADD, x, w, next_y)
    maker = Maker()
    state = [maker.buffer("input", (), DType.S32), *(maker.buffer("input", (3,)) for _ in range(3))]
    outs = [
        maker.buffer("output", (), DType.S32),
        *(maker.buffer("output", (3,)) for _ in range(3)),
    ]
    maker.steps.append(
        CallStep(
            "while",
            (condition.program(), body.program(next_i, y, next_y, w)),
            tuple(map(maker.view, state)),
            tuple(map(maker.view, outs)),
        )
    )
    return maker.program()


@pytest.mark.parametrize("limit", [0, 1, 2, 7])
def test_loops(limit: int) -> None:
    run = trusted(while_program(limit), "neuron")
    x, y, w = random((3,)), random((3,)), random((3,))
    args = [torch.tensor(0, dtype=torch.int32), x, y, w]
    got = run(tuple(t.to("neuron") for t in args))
    for _ in range(limit):
        x, y = y, x + w
    assert got[0].item() == limit
    for result, expected in zip(got[1:], (x, y, w), strict=True):
        assert torch.equal(result.cpu(), expected)


def test_a_loop_that_updates_its_state_in_place() -> None:
    """The body writes to variable 1; what the caller lent stays as it was."""
    condition = Maker("condition")
    i, _ = condition.buffer("input", (), DType.S32), condition.buffer("input", (3,))
    go = condition.buffer("output", (), DType.PRED)
    test = build.compare("LT", build.load(DType.S32, 0, ()), 5)
    kernel = Kernel("less", (), (Slot(DType.S32), Slot(DType.PRED)), (Store(Access(1, ()), test),))
    condition.steps.append(LoopStep(kernel, ((i, 0), (go, 0))))
    body = Maker("body")
    i, x = body.buffer("input", (), DType.S32), body.buffer("input", (3,))
    increment = Store(Access(0, ()), build.op(Op.ADD, build.load(DType.S32, 0, ()), 1))
    body.steps.append(LoopStep(Kernel("next", (), (Slot(DType.S32),), (increment,)), ((i, 0),)))
    apply(body, Op.ADD, x, x, x)
    maker = Maker()
    state = [maker.buffer("input", (), DType.S32), maker.buffer("input", (3,))]
    outs = [maker.buffer("output", (), DType.S32), maker.buffer("output", (3,))]
    maker.steps.append(
        CallStep(
            "while",
            (condition.program(), body.program(i, x)),
            tuple(map(maker.view, state)),
            tuple(map(maker.view, outs)),
        )
    )
    run = trusted(maker.program(), "neuron")
    start, x0 = torch.tensor(0, dtype=torch.int32, device="neuron"), random((3,), device="neuron")
    before = x0.cpu().clone()
    count, doubled = run((start, x0))
    assert count.item() == 5
    assert torch.equal(doubled.cpu(), before * 32)
    assert torch.equal(x0.cpu(), before)
    assert start.item() == 0


def test_kernels_are_compiled_once() -> None:
    kernel = elementwise(Op.ADD, (4,))
    assert kernel == elementwise(Op.ADD, (4,))
    maker = Maker()
    x, y, out = (
        maker.buffer("input", (4,)),
        maker.buffer("input", (4,)),
        maker.buffer("output", (4,)),
    )
    apply(maker, Op.ADD, x, y, out)
    apply(maker, Op.ADD, out, y, out)
    run = trusted(maker.program(), "cpu")
    assert run._module is not None
    assert len(run._module.functions) == 1
    a, b = random((4,)), random((4,))
    assert torch.equal(run((a, b))[0], a + b + b)
