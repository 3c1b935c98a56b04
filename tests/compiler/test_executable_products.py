"""Which epilogues a product does by itself, and that it does them right."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from neuronxcc.codegen import build
from neuronxcc.codegen.loop import Access, Dim, Kernel, Scalar, Slot, Store
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op
from neuronxcc.program.steps.gemm import GemmStep
from tests.compiler.executable_programs import Maker, random
from torch_neuronx.program.dtypes import TO_TORCH
from torch_neuronx.program.executable import Executable

B, M, K, N = 2, 70, 40, 100
ROWS = (M * N, N, 1)
TILE = build.load(DType.F32, 0, ROWS)
BIAS = build.load(DType.F32, 1, (0, 0, 1))


def made(
    value: Scalar,
    dtype: DType = DType.F32,
    *,
    strides: tuple[int, int, int] = ROWS,
    store: Store | None = None,
    c0: bool = False,
) -> tuple[Maker, GemmStep]:
    """Slots: the tile, a bias, the result."""
    maker = Maker()
    a, b = maker.buffer("input", (B, M, K), dtype), maker.buffer("input", (B, K, N), dtype)
    bias, other = maker.buffer("input", (N,)), maker.buffer("input", (B, M, N), dtype)
    out = maker.buffer("output", (B, M, N), value.dtype, strides)
    store = store or Store(Access(2, strides), value)
    slots = (Slot(DType.F32, tile=True), Slot(DType.F32), Slot(value.dtype))
    kernel = Kernel("k", (Dim(B), Dim(M), Dim(N)), slots, (store,))
    step = GemmStep(
        maker.view(a),
        maker.view(b),
        None,
        maker.view(other) if c0 else None,
        kernel,
        ((bias, 0), (out, 0)),
    )
    maker.steps.append(step)
    return maker, step


def results(maker: Maker, device: str) -> tuple[torch.Tensor, list[torch.Tensor]]:
    args = [random(b.shape, TO_TORCH[b.dtype]) for b in maker.buffers if b.kind == "input"]
    (got,) = Executable(maker.program(), device)(tuple(x.to(device) for x in args))
    return got.cpu(), [x.double() for x in args]


@pytest.mark.parametrize("device", ["cpu", "neuron"])
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F16])
def test_storing_in_its_own_type(dtype: DType, device: str) -> None:
    maker, step = made(build.convert(TILE, dtype), dtype)
    plain = step.plain()
    assert plain.epilogue is None
    assert plain.c0 is None
    assert plain.out == maker.view(4)
    got, (a, b, *_) = results(maker, device)
    bound = {DType.F32: 0.0, DType.BF16: 2.0**-8, DType.F16: 2.0**-11}[dtype]
    exact = a @ b
    assert ((got.double() - exact).abs() <= bound * exact.abs() + 1e-5).all()


@pytest.mark.parametrize("sum_", [(TILE, BIAS), (BIAS, TILE)], ids=["after", "before"])
def test_adding_a_bias_in_float32(sum_: tuple[Scalar, Scalar]) -> None:
    maker, step = made(build.op(Op.ADD, *sum_))
    plain = step.plain()
    assert plain.epilogue is None
    assert plain.c0 is not None
    assert plain.c0.strides == (0, 0, 1)
    got, (a, b, bias, _) = results(maker, "neuron")
    assert torch.allclose(got.double(), a @ b + bias, atol=1e-5)


def test_adding_to_a_tensor_in_place() -> None:
    maker, step = made(build.op(Op.ADD, TILE, build.load(DType.F32, 2, ROWS)))
    plain = step.plain()
    assert plain.c0 == plain.out
    maker.steps[0] = dataclasses.replace(step, epilogue_operands=((2, 0), (3, 0)))
    args = [random(b.shape) for b in maker.buffers if b.kind == "input"]
    moved = [x.to("neuron") for x in args]
    (got,) = Executable(maker.program(3), "neuron")(tuple(moved))
    assert got is moved[3]
    assert torch.allclose(got.cpu(), args[0] @ args[1] + args[3], atol=1e-5)


MASK = build.compare("LT", build.index(2), 50)
# The bias of column N - 1 - column: data could decide as well.
INDEXED = build.load(DType.F32, 1, (0, 0, 0), N - 1, indices=[(build.index(2), -1)])


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (made(build.op(Op.MAXIMUM, TILE, 0.0)), "it does more"),
        (made(build.op(Op.ADD, build.op(Op.ADD, TILE, BIAS), BIAS)), "it adds two things"),
        (made(build.op(Op.ADD, BIAS, BIAS)), "it does not add the tile"),
        (made(build.convert(build.op(Op.ADD, TILE, BIAS), DType.BF16), DType.BF16), "not float32"),
        (made(build.convert(TILE, DType.BF16)), "another type"),
        (made(TILE, DType.BF16), "another type"),
        (made(TILE, strides=(M * N, 1, M)), "columns are not neighbours"),
        (made(TILE, store=Store(Access(2, ROWS), TILE, mask=MASK)), "a mask"),
        (made(TILE, store=Store(Access(2, ROWS), TILE, combine=Op.ADD)), "it combines"),
        (
            made(build.op(Op.ADD, TILE, build.load(DType.F32, 1, (0, 0, 1), mask=MASK))),
            "a masked addend",
        ),
        (made(build.op(Op.ADD, TILE, build.load(DType.F32, 2, (0, N, 1)))), "it moves the addend"),
        (made(build.op(Op.ADD, TILE, INDEXED)), "an addend whose place is computed"),
        (made(build.op(Op.ADD, INDEXED, TILE)), "an addend whose place is computed"),
        (made(TILE, c0=True), "the product adds already"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_epilogues_that_stay(step: tuple[Maker, GemmStep], why: str) -> None:
    assert step[1].plain() is step[1], why


def test_adding_what_an_index_finds() -> None:
    """The product cannot do it, and dropped the addend once."""
    maker, _ = made(build.op(Op.ADD, TILE, INDEXED))
    got, (a, b, bias, _) = results(maker, "neuron")
    assert torch.allclose(got.double(), a @ b + bias.flip(0), atol=1e-5)


def test_several_stores_stay() -> None:
    _, step = made(TILE)
    assert step.epilogue is not None
    kernel = dataclasses.replace(step.epilogue, stores=step.epilogue.stores * 2)
    twice = dataclasses.replace(step, epilogue=kernel)
    assert twice.plain() is twice
