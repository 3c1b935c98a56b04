"""Operands that a product computes while it reads them: which ones, and that they are right."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronxcc.codegen import build as kb
from neuronxcc.codegen.loop import Access, Dim, Kernel, Kind, Slot, Store
from neuronxcc.ir import DType, Graph, Node, build
from neuronxcc.lowering.fusion import policy
from neuronxcc.neff import codec
from neuronxcc.program.errors import NeffError
from neuronxcc.program.steps.gemm import GemmStep
from neuronxcc.program.steps.made import Made
from neuronxcc.program.text import program_to_text
from torch_neuronx.program.executable import Executable

from .executable_programs import Maker
from .lowering_models import Model, headlines, linear, spread
from .lowering_tools import expected, lowered, run, to_numpy, to_torch

M, K, N = 64, 256, 128  # large enough for a product to be worth it


def program_of(graph: Graph) -> list[str]:
    return headlines(program_to_text(lowered(graph), kernels=False))


def random(node: Node, rng: np.random.Generator) -> np.ndarray:
    if node.dtype.is_float:
        return rng.standard_normal(node.shape).astype(node.dtype.numpy)
    return rng.integers(0, 2 if node.dtype is DType.PRED else 100, node.shape).astype(
        node.dtype.numpy
    )


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left operands of any size are made."""
    monkeypatch.setattr(policy, "LEAST_LEFT", 0)


# ---- which ------------------------------------------------------------------------------------


def test_dequantised_weights() -> None:
    m = Model()
    x, weight, scale = m.param(M, K), m.param(N, K, dtype=DType.S8), m.param(N, 1)
    wide = build.convert(weight, DType.F32)
    graph = m.graph("g", linear(x, build.multiply(wide, spread(scale, wide))))
    made = "operand_convert_multiply(%1, %2):f32[1,256,128] by columns"
    left, out = "%0:f32[1,64,256]{0,256,1}", "%3:f32[1,64,128]{0,128,1}"
    assert program_of(graph) == [f"gemm {left} @ {made} -> {out}"]
    kernel = program_to_text(lowered(graph)).split("by columns")[1]
    assert "s0[d0*32768 + d1*256 + d2] = v" in kernel  # along the memory of the weight


@pytest.mark.usefixtures("small")
def test_a_mask_before_a_transposed_product() -> None:
    m = Model()
    x, mask, w = m.param(K, M), m.param(K, M, dtype=DType.PRED), m.param(K, N)
    kept = build.multiply(x, build.convert(mask, DType.F32))
    graph = m.graph("g", build.dot_general(kept, w, lhs_contract=(0,), rhs_contract=(0,)))
    (step,) = program_of(graph)
    assert step.startswith("gemm operand_convert_multiply(%0, %1):f32[1,64,256] by columns @ %2:")


@pytest.mark.usefixtures("small")
def test_both_operands_and_an_epilogue() -> None:
    m = Model()
    x, w = m.param(M, K, dtype=DType.BF16), m.param(N, K, dtype=DType.BF16)
    wide = linear(build.convert(x, DType.F32), build.convert(w, DType.F32))
    graph = m.graph("g", build.maximum(wide, spread(build.constant(0.0, DType.F32), wide)))
    (step,) = program_of(graph)
    assert step == (
        "gemm operand_convert(%0):f32[1,64,256] @ operand_convert(%1):f32[1,256,128] by columns"
        " -> gemm_maximum(tile, %2)"
    )


def relu(x: Node) -> Node:
    return build.maximum(x, spread(build.constant(0.0, x.dtype), x))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("why", ["two readers", "a result", "slow", "few rows", "many rows", "two"])
def test_others_are_stored(why: str) -> None:
    m = Model()
    rows = {"few rows": 8, "many rows": policy.MOST_LINES[1] + 1}.get(why, M)
    x, w = m.param(rows, 2 * K), m.param(N, 2 * K)
    left = x
    if why == "slow":
        left = build.exp(x)
    elif why == "two":  # tensors as large as the operand: more to read than what is saved
        left = build.add(x, m.param(rows, 2 * K))
    elif why in ("two readers", "a result"):
        left = relu(x)
    right = relu(w) if why in ("few rows", "many rows") else w
    results = [linear(left, right)]
    if why == "two readers":
        results.append(linear(left, m.param(N, 2 * K)))
    elif why == "a result":
        results.append(left)
    assert not any("operand" in step for step in program_of(m.graph("g", *results)))


# ---- what is computed ---------------------------------------------------------------------------

_SOURCES = {
    DType.F32: (DType.F32, DType.BF16, DType.F16, DType.S8, DType.F8E4M3FN),
    DType.BF16: (DType.BF16, DType.S8, DType.F8E5M2),
    DType.F16: (DType.F16, DType.F8E4M3FN),
}


@st.composite
def products(draw: st.DrawFn) -> Graph:
    """A product of one or two operands that are made, in all layouts."""
    m = Model()
    dtype = draw(st.sampled_from(list(_SOURCES)))
    # Around the sizes of strips, panels and depths, and past the depth of 512 units.
    rows, columns = (draw(st.sampled_from([1, 3, 17, 64, 65, 130])) for _ in range(2))
    depth = draw(st.sampled_from([1, 2, 31, 64, 129, 515, 1030]))
    batch = draw(st.sampled_from([(), (1,), (2,), (2, 3)]))

    def operand(shape: tuple[int, int], make: bool) -> tuple[Node, int]:
        """An operand and the dimension that is contracted, `shape` ending in it."""
        swapped = draw(st.booleans())
        order = shape[::-1] if swapped else shape
        axis = len(batch) + (0 if swapped else 1)
        if not make:
            return m.param(*batch, *order, dtype=dtype), axis
        node = m.param(*batch, *order, dtype=draw(st.sampled_from(_SOURCES[dtype])))
        if draw(st.booleans()):  # a view between
            node = build.transpose(node, (*range(len(batch)), len(batch) + 1, len(batch)))
            axis = 2 * len(batch) + 1 - axis
        if node.dtype is not dtype:
            node = build.convert(node, dtype)
        for along in draw(st.sets(st.integers(0, node.type.rank - 1), max_size=2)):
            scale = m.param(
                *(n if d == along else 1 for d, n in enumerate(node.shape)), dtype=dtype
            )
            node = build.multiply(node, spread(scale, node))
        return relu(node), axis

    which = draw(st.sampled_from([(True, False), (False, True), (True, True)]))
    left, lhs = operand((rows, depth), which[0])
    right, rhs = operand((columns, depth), which[1])
    front = tuple(range(len(batch)))
    dot = build.dot_general(
        left, right, lhs_contract=(lhs,), rhs_contract=(rhs,), lhs_batch=front, rhs_batch=front
    )
    if draw(st.booleans()):
        dot = relu(dot)
    if draw(st.booleans()):
        dot = build.transpose(dot, (*front, len(front) + 1, len(front)))
    return m.graph("g", dot)


@pytest.mark.slow
@settings(max_examples=30)
@given(products(), st.integers(0, 99))
def test_made_operands(graph: Graph, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy, "FEW_LINES", 0)
        patch.setattr(policy, "SMALL_PRODUCT", 0)
        patch.setattr(policy, "LEAST_LEFT", 0)
        patch.setattr(policy, "MADE_TYPES", frozenset(_SOURCES))
        # Scales of small operands are no less to read than the operand.
        patch.setattr(policy, "_bytes_read", lambda _: 0)
        program = lowered(graph)
    assert any(
        isinstance(operand, Made)
        for step in program.steps
        if isinstance(step, GemmStep)
        for operand in (step.a, step.b)
    )
    encoded = codec.encode(program)
    decoded = codec.decode(encoded.document, encoded.contents)
    assert decoded.steps == program.steps
    rng = np.random.default_rng(seed)
    args = [random(node, rng) for node in graph.params]
    (wanted,) = expected(graph, args)
    # Of absolute arguments every partial sum is positive.
    reach = expected(graph, [np.abs(a) for a in args])[0].astype(np.float64)
    dot = next(node for node in graph.nodes() if node.op.value == "dot_general")
    depth = dot.srcs[0].shape[dot["lhs_contract"][0]]
    unit = {DType.F32: 2.0**-24, DType.BF16: 2.0**-8, DType.F16: 2.0**-11}[dot.dtype]
    # Sums in float32 in any order, rounded once; operands are exact in both.
    bound = reach * (depth * 2.0**-23 + 2 * unit) + 1e-6
    outputs = [run(graph, args)[0]]
    outputs += [
        to_numpy(Executable(program, device)(tuple(to_torch(a).to(device) for a in args))[0].cpu())
        for device in ("cpu", "neuron")
    ]
    for got in outputs:
        assert (np.abs(got.astype(np.float64) - wanted.astype(np.float64)) <= bound).all()


# ---- what a file may hold -----------------------------------------------------------------------


def maker_kernel(**changes: Any) -> Kernel:
    value = kb.load(DType.F32, 1, (12, 4, 1))
    kernel = Kernel(
        "k",
        (Dim(2), Dim(3), Dim(4)),
        (Slot(DType.F32, tile=True), Slot(DType.F32)),
        (Store(Access(0, (12, 4, 1)), value),),
    )
    return dataclasses.replace(kernel, **changes)


_TILE = kb.load(DType.F32, 0, (12, 4, 1))
_FINE = maker_kernel().stores[0]


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (maker_kernel(slots=(Slot(DType.F32), Slot(DType.F32))), "slot 0, and no other,"),
        (maker_kernel(slots=(Slot(DType.F32, tile=True),) * 2), "slot 0, and no other,"),
        (maker_kernel(slots=(Slot(DType.BF16, tile=True), Slot(DType.F32))), "bf16 for f32"),
        (maker_kernel(dims=(Dim(2), Dim(4), Dim(3))), "the dims of what makes an operand"),
        (maker_kernel(dims=(Dim(2), Dim(3), Dim(4, Kind.REDUCE))), "the dims of what makes"),
        (maker_kernel(stores=()), "stores every element of its tile, and nothing else"),
        (maker_kernel(stores=(_FINE, Store(Access(1, (12, 4, 1)), _FINE.value))), "stores every"),
        (maker_kernel(stores=(Store(Access(0, (12, 1, 3)), _FINE.value),)), "stores every"),
        (maker_kernel(stores=(Store(Access(0, (12, 4, 1)), _TILE),)), "does not read its tile"),
    ],
)
def test_what_makes_no_operand(kernel: Kernel, text: str) -> None:
    made = Made(kernel, ((0, 0),), DType.F32, (2, 3, 4))
    with pytest.raises(NeffError, match=text):
        made.check()
    m = Maker()
    m.buffer("input", (2, 3, 4))
    right, out = m.buffer("input", (2, 4, 5)), m.buffer("output", (2, 3, 5))
    m.steps.append(GemmStep(made, m.view(right), m.view(out)))
    with pytest.raises(ValueError, match=r"operand|tile|kernel"):
        Executable(m.program(), "neuron")


def test_shape_of_an_operand() -> None:
    with pytest.raises(NeffError, match="three dimensions"):
        Made(maker_kernel(), ((0, 0),), DType.F32, (2, 12)).check()
    Made(maker_kernel(), ((0, 0),), DType.F32, (2, 3, 4)).check()
    Made(maker_kernel(), ((0, 0),), DType.F32, (2, 4, 3), by_columns=True).check()


def test_an_epilogue_that_writes_to_its_tile_is_refused() -> None:
    m = Maker()
    left, right = m.buffer("input", (2, 3, 4)), m.buffer("input", (2, 4, 4))
    step = GemmStep(m.view(left), m.view(right), None, epilogue=maker_kernel())
    m.steps.append(dataclasses.replace(step, epilogue_operands=((left, 0),)))
    m.buffer("output", (2, 3, 4))
    with pytest.raises(NeffError, match="does not write to the tile"):
        codec.encode(m.program())


@pytest.mark.usefixtures("small")
def test_threads_do_not_change_a_bit() -> None:
    m = Model()
    x, w = m.param(300, 700), m.param(200, 700, dtype=DType.BF16)
    graph = m.graph("g", linear(relu(x), build.convert(w, DType.F32)))
    rng = np.random.default_rng(3)
    args = tuple(to_torch(random(node, rng)).to("neuron") for node in graph.params)
    executable = Executable(lowered(graph), "neuron")
    results, threads = [], torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(executable(args)[0].cpu())
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(results[0], other) for other in results)
