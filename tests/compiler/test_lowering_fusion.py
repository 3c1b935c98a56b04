"""What becomes one kernel: golden step lists of the patterns that models are made of."""

from __future__ import annotations

import numpy as np
import pytest

from neuronxcc.ir import DType, Graph, TensorType, build, indexing, parameter
from neuronxcc.program.steps.gemm import GemmStep
from neuronxcc.program.steps.loop import LoopStep
from neuronxcc.program.text import program_to_text

from .lowering_models import (
    Model,
    decoder,
    gelu,
    headlines,
    heads,
    layer_norm,
    linear,
    log_softmax,
    picked,
    rms_norm,
    softmax,
    spread,
)
from .lowering_tools import expected, lowered, run


def arguments(graph: Graph) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [
        rng.standard_normal(p.shape).astype(p.dtype.numpy)
        if p.dtype.is_float
        else rng.integers(0, 4, p.shape).astype(p.dtype.numpy)
        for p in graph.params
    ]


def steps(graph: Graph) -> list[str]:
    """The steps of the graph's program, which is run as well: up to rounding it is right."""
    args = arguments(graph)
    for got, wanted in zip(run(graph, args), expected(graph, args), strict=True):
        # A few roundings of sums of at most 64 values around 1.
        np.testing.assert_allclose(
            got.astype(np.float64), wanted.astype(np.float64), rtol=1e-5, atol=1e-5
        )
    return headlines(program_to_text(lowered(graph), kernels=False))


def test_softmax_is_one_kernel() -> None:
    m = Model()
    assert steps(m.graph("g", softmax(m.param(3, 4, 8)))) == [
        "loop loop_reduce_subtract_exponential_divide [3,4,8+] (%0, %1)"
    ]


def test_log_softmax_is_one_kernel() -> None:
    m = Model()
    assert steps(m.graph("g", log_softmax(m.param(12, 8)))) == [
        "loop loop_reduce_subtract_exponential_log [12,8+] (%0, %1)"
    ]


def test_layer_norm_with_its_statistics_is_one_kernel() -> None:
    m = Model()
    results = layer_norm(m.param(3, 4, 8), m.param(8), m.param(8))
    assert steps(m.graph("g", *results)) == [
        "loop loop_reduce_multiply_subtract_add [3,4,8+] (%0, %1, %2, %3, %5, %4)"
    ]


def test_rms_norm_is_one_kernel() -> None:
    m = Model()
    assert steps(m.graph("g", rms_norm(m.param(12, 8), m.param(8)))) == [
        "loop loop_multiply_reduce_add_rsqrt [12,8+] (%0, %1, %2)"
    ]


def test_cross_entropy_is_one_kernel_and_the_mean() -> None:
    m = Model()
    logits, labels = m.param(12, 4), m.param(12, dtype=DType.S64)
    losses = build.negate(picked(log_softmax(logits), labels))
    loss = build.multiply(build.reduce(losses, "add"), 1 / 12)
    assert steps(m.graph("g", loss)) == [
        "loop loop_reduce_subtract_exponential [12,4+] (%0, %3, %4)",
        "loop loop_subtract_log_gather_negate [12+] (%0, %1, %4, %3, %2)",
    ]


def test_the_gradient_of_picking_is_computed_in_place() -> None:
    m = Model()
    saved, labels = m.param(12, 4), m.param(12, dtype=DType.S64)
    zeros = build.splat(0.0, saved.type)
    ones = build.splat(-1.0, TensorType(DType.F32, (12, 1)))
    grad = indexing.put_along(zeros, build.reshape(labels, (12, 1)), ones, 1, "set")
    total = spread(build.reduce(grad, "add", 1, keep=True), grad)
    result = build.subtract(grad, build.multiply(build.exp(saved), total))
    (step,) = steps(m.graph("g", result))
    assert step.startswith("loop loop_scatter") or "[12,4+]" in step


def test_a_product_takes_what_follows_as_its_epilogue() -> None:
    m = Model()
    x, w, b, residual = m.param(6, 8), m.param(16, 8), m.param(16), m.param(2, 3, 16)
    hidden = linear(x, w, b)
    result = build.add(build.reshape(gelu(hidden), (2, 3, 16)), residual)
    (step,) = steps(m.graph("g", result, hidden))
    product, epilogue = step.split(" -> ")
    assert product == "gemm %0:f32[1,6,8]{0,8,1} @ %1:f32[1,8,16]{0,1,8} constant"
    assert epilogue == "gemm_add_multiply_tanh(tile, %2, %3, %4, %5)"


def test_a_product_in_another_type_is_rounded_by_its_epilogue() -> None:
    m = Model()
    x, w = m.param(6, 8, dtype=DType.BF16), m.param(16, 8, dtype=DType.BF16)
    product = build.dot_general(x, w, lhs_contract=(1,), rhs_contract=(1,), dtype=DType.F32)
    (step,) = steps(m.graph("g", build.convert(build.multiply(product, 0.5), DType.BF16)))
    assert step.endswith("constant -> gemm_multiply_convert(tile, %2)")


def test_what_consumers_can_widen_is_stored_narrow() -> None:
    m = Model()
    x, w = m.param(6, 8, dtype=DType.BF16), m.param(16, 8, dtype=DType.BF16)
    wide = build.convert(linear(x, w), DType.F32)
    total = build.reduce(wide, "add", 1, keep=True)
    graph = m.graph("g", build.subtract(wide, spread(total, wide)))
    steps(graph)
    temporaries = [b for b in lowered(graph).buffers if b.kind == "temp"]
    assert [b.dtype for b in temporaries] == [DType.BF16]


def test_heads_of_attention_are_views_where_one_stride_will_do() -> None:
    m = Model()
    q, k = (heads(m.param(1, 5, 12), 3) for _ in range(2))
    scores = build.dot_general(
        q, k, lhs_batch=(0, 1), rhs_batch=(0, 1), lhs_contract=(3,), rhs_contract=(3,)
    )
    probabilities = softmax(build.multiply(scores, 0.5))
    v = heads(m.param(1, 5, 12), 3)
    mixed = build.dot_general(
        probabilities, v, lhs_batch=(0, 1), rhs_batch=(0, 1), lhs_contract=(3,), rhs_contract=(2,)
    )
    merged = build.reshape(build.transpose(mixed, (0, 2, 1, 3)), (1, 5, 12))
    assert steps(m.graph("g", merged)) == [
        "gemm %0:f32[3,5,4]{4,12,1} @ %1:f32[3,4,5]{4,1,12} constant -> gemm_multiply(tile, %4)",
        "loop loop_reduce_subtract_exponential_divide [3,5,5+] (%4)",
        "gemm %4:f32[3,5,5] @ %2:f32[3,5,4]{4,12,1} constant -> %3:f32[3,5,4]{4,12,1}",
    ]


def test_a_block_is_two_norms_four_products_and_attention() -> None:
    program = lowered(decoder(1))
    kinds = [line.split()[0] for line in headlines(program_to_text(program, kernels=False))]
    # Embedding and first norm, queries keys and values, attention, its projection; second norm,
    # two products; last norm, logits.
    assert kinds == ["loop", "gemm", "aten", "gemm", "loop", "gemm", "gemm", "loop", "gemm"]


def test_layers_share_their_kernels() -> None:
    program = lowered(decoder(6))
    kernels = {step.kernel for step in program.steps if isinstance(step, LoopStep)}
    products = [step for step in program.steps if isinstance(step, GemmStep)]
    epilogues = {step.epilogue for step in products if step.epilogue is not None}
    # The norm after the embedding, those of the blocks, and the last, which overwrites its operand.
    assert (len(kernels), len(epilogues)) == (3, 3)


def test_sums_over_rows_of_the_same_tensor_are_one_kernel() -> None:
    m = Model()
    grad, x = m.param(12, 8), m.param(12, 8)
    bias = build.reduce(grad, "add", 0)
    weight = build.reduce(build.multiply(grad, x), "add", 0)
    assert steps(m.graph("g", bias, weight)) == [
        "loop loop_multiply_reduce [12+,8] (%0, %1, %3, %2)"
    ]


def test_long_sums_to_few_results_are_done_in_parts() -> None:
    m = Model()
    x = m.param(1 << 18)
    text = headlines(program_to_text(lowered(m.graph("g", build.reduce(x, "add"))), kernels=False))
    assert text == ["loop loop_reduce [8,32768+] (%0, %2)", "loop loop_reduce [8+] (%2, %1)"]


def test_parts_need_not_divide_the_length() -> None:
    prime = 262147
    m = Model()
    graph = m.graph("g", build.reduce(m.param(prime, dtype=DType.S64), "add"))
    args = [np.arange(prime)]
    assert run(graph, args)[0] == prime * (prime - 1) // 2


def test_cheap_producers_are_computed_by_every_consumer() -> None:
    m = Model()
    x = m.param(12, 8, dtype=DType.BF16)
    wide = build.convert(x, DType.F32)
    rows, columns = build.reduce(wide, "add", 1), build.reduce(wide, "max", 0)
    program = lowered(m.graph("g", rows, columns))
    assert [buffer.kind for buffer in program.buffers] == ["input", "output", "output"]


def test_costly_producers_are_stored_once() -> None:
    m = Model()
    x = m.param(12, 8)
    powers = build.exp(x)
    rows, columns = build.reduce(powers, "add", 1), build.reduce(powers, "max", 0)
    assert steps(m.graph("g", rows, columns)) == [
        "loop loop_exponential_reduce [12,8+] (%0, %1, %3)",
        "loop loop_reduce [12+,8] (%3, %2)",
    ]


def test_an_embedding_is_read_by_the_kernel_that_needs_it() -> None:
    m = Model()
    ids, table = m.param(2, 3, dtype=DType.S64), m.param(10, 8)
    assert steps(m.graph("g", rms_norm(indexing.take(table, ids, 0), m.param(8)))) == [
        "loop loop_gather_multiply_reduce_add [2,3,8+] (%1, %0, %2, %3)"
    ]


def test_a_concatenation_is_stored_part_by_part() -> None:
    m = Model()
    x, y = m.param(4, 8), m.param(4, 2)
    assert steps(m.graph("g", build.concatenate([build.tanh(x), y], 1))) == [
        "loop loop_copy [4,2] (%1, %2+8)",
        "loop loop_tanh [4,8] (%0, %2)",
    ]


def test_turning_halves_around_is_part_of_the_kernel() -> None:
    m = Model()
    x, cos, sin = m.param(6, 8), m.param(6, 8), m.param(6, 8)
    halves = [build.slice_dim(x, 1, 4, 8), build.slice_dim(x, 1, 0, 4)]
    turned = build.concatenate([build.negate(halves[0]), halves[1]], 1)
    result = build.add(build.multiply(x, cos), build.multiply(turned, sin))
    (step,) = steps(m.graph("g", result))
    assert step == "loop loop_negate_multiply_add [6,8] (%0, %1, %2, %3)"


@pytest.mark.parametrize("dims", [(0,), (0, 2), (1,)])
def test_statistics_over_any_dimensions_are_one_kernel(dims: tuple[int, ...]) -> None:
    m = Model()
    x = m.param(16, 12, 10)
    total = build.reduce(x, "add", dims, keep=True)
    (step,) = steps(m.graph("g", build.subtract(x, spread(total, x))))
    assert step.startswith("loop loop_reduce_subtract")


def test_a_loop_keeps_its_state_contiguous() -> None:
    p = parameter(0, TensorType(DType.F32, (2, 3)))
    more = build.less(build.reduce(p, "add"), 100.0)
    cond = Graph("cond", (p,), (more,))
    body = Graph("body", (p,), (build.add(p, 1.0),))
    m = Model()
    x = m.param(3, 2)
    loop = build.while_(cond, body, [build.transpose(x, (1, 0))])
    assert [s.split()[0] for s in steps(m.graph("g", loop))] == ["loop", "while"]
