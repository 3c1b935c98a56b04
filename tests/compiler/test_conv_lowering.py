"""Convolutions with what follows them: one step each, in a layout that suits all of a class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from neuronxcc.ir import DType, Graph, Node, build
from neuronxcc.ir.reference import evaluate
from neuronxcc.lowering.fusion.channels import last_strides
from neuronxcc.lowering.geometry.layout import contiguous
from neuronxcc.program.program import Program
from neuronxcc.program.reference import run_program
from neuronxcc.program.steps.conv import ConvStep
from neuronxcc.program.steps.loop import LoopStep
from neuronxcc.program.steps.operator import AtenStep
from neuronxcc.program.text import program_to_text

from .lowering_models import Model, headlines
from .lowering_tools import lowered

UNIT = 2.0**-24


def normalised(m: Model, x: Node) -> Node:
    """Batch norm of inference, as the front end writes it."""
    mean, var, weight, bias = (m.param(x.shape[1]) for _ in range(4))
    scale = build.multiply(build.rsqrt(build.add(var, 1e-5)), weight)
    shift = build.subtract(bias, build.multiply(mean, scale))
    scale, shift = (build.broadcast_in_dim(v, x.shape, (1,)) for v in (scale, shift))
    return build.add(build.multiply(x, scale), shift)


def relu(x: Node) -> Node:
    return build.maximum(x, 0.0)


def conv(m: Model, x: Node, outs: int, side: int = 3, stride: int = 1) -> Node:
    w = m.param(outs, x.shape[1], side, side)
    edge = (side // 2,) * 2
    return build.convolution(x, w, strides=(stride,) * 2, low=edge, high=edge)


def residual_block() -> Graph:
    m = Model()
    x = m.param(2, 16, 8, 8)
    y = relu(normalised(m, conv(m, x, 32, 3, 2)))
    y = normalised(m, conv(m, y, 32))
    shortcut = normalised(m, conv(m, x, 32, 1, 2))
    z = relu(build.add(y, shortcut))
    return m.graph("block", build.reduce(z, "add", (2, 3)))


def test_a_residual_block() -> None:
    """Three convolutions with all that follows them; the other steps make constants of channels."""
    program = lowered(residual_block())
    steps = headlines(program_to_text(program))
    convolutions = [step for step in steps if step.startswith("conv ")]
    # The last one sums over the pixels.
    *constants, _ = [step for step in program.steps if isinstance(step, LoopStep)]
    assert [d.extent for step in constants for d in step.kernel.dims] == [32] * 3
    assert len(steps) == 3 + 3 + 1
    assert [step.split(" -> ")[-1].split("(")[0] for step in convolutions] == [
        "conv_multiply_add_maximum",
        "conv_multiply_add",
        "conv_multiply_add_maximum",
    ]
    last = [step for step in program.steps if isinstance(step, ConvStep)][-1]
    assert last.epilogue is not None
    text = program_to_text(program)
    assert (
        """\
    v0: f32 = load s1[d0*512 + d1*32 + d2]
    v1: f32 = load s0[d0*512 + d1*32 + d2]
    v2: f32 = load s2[d2]
    v3: f32 = multiply(v1, v2)
    v4: f32 = load s3[d2]
    v5: f32 = add(v3, v4)
    v6: f32 = add(v0, v5)
    v8: f32 = maximum(v6, 0.0:f32)
    s4[d0*512 + d1*32 + d2] = v8
"""
        in text
    )


def convolutions(program: Program) -> list[ConvStep]:
    return [step for step in program.steps if isinstance(step, ConvStep)]


def buffer_strides(program: Program, step: ConvStep) -> tuple[int, ...]:
    """Of what a step writes."""
    if step.out is not None:
        return step.out.strides
    assert step.epilogue is not None
    slot = step.epilogue.stores[0].access.slot
    return program.buffers[step.epilogue_operands[slot - 1][0]].strides


# ---- layouts


def test_promised_strides_win() -> None:
    """A lone convolution writes what the caller wants."""
    for strides in (contiguous, last_strides):
        m = Model()
        y = relu(conv(m, m.param(2, 16, 8, 8), 32))
        program = lowered(m.graph("g", y), result_strides=[strides(y.shape)])
        (step,) = program.steps
        assert isinstance(step, ConvStep)
        assert step.last == (strides is last_strides)
        assert buffer_strides(program, step) == strides(y.shape)


def test_few_channels_lie_in_planes() -> None:
    m = Model()
    y = relu(conv(m, m.param(1, 3, 16, 16), 8))
    z = conv(m, y, 4)
    program = lowered(m.graph("g", build.reduce(z, "add", (2, 3))))
    assert [step.last for step in convolutions(program)] == [False, False]


def test_inside_and_at_the_results() -> None:
    """What is inside has its channels last; the result of the last convolution has planes."""
    m = Model()
    y = relu(conv(m, m.param(2, 3, 16, 16), 32, 7, 2))
    window = (1, 1, 3, 3)
    y = build.reduce_window(y, "max", window, strides=(1, 1, 2, 2), low=(0, 0, 1, 1),
                            high=(0, 0, 1, 1))  # fmt: skip
    y = relu(conv(m, y, 32))
    y = conv(m, y, 32)
    program = lowered(m.graph("g", y))
    assert [step.last for step in convolutions(program)] == [True, True, False]
    assert not any(isinstance(step, AtenStep) for step in program.steps)
    (pool,) = (step for step in program.steps if isinstance(step, LoopStep))
    assert pool.kernel.stores[0].access.strides[-1] == 1
    assert pool.kernel.dims[-1].extent == 32


def test_flattening_counts() -> None:
    """Rows for a product that need planes."""
    m = Model()
    y = relu(conv(m, m.param(2, 16, 8, 8), 32))
    flat = build.reshape(y, (2, 32 * 64))
    product = build.dot_general(flat, m.param(10, 32 * 64), lhs_contract=(1,), rhs_contract=(1,))
    program = lowered(m.graph("g", product))
    assert [step.last for step in convolutions(program)] == [False]
    assert len(program.steps) == 2


# ---- generated


def grouped(m: Model, x: Node, _: int) -> Node:
    channels = x.shape[1]
    w = m.param(2 * channels, 1, 3, 2)
    return build.convolution(x, w, low=(1, 0), high=(1, 1), feature_group_count=channels)


def rounded(m: Model, x: Node, outs: int) -> Node:
    """Sums of bfloat16 that are rounded to it."""
    return build.convert(build.convert(short(m, x, outs), DType.BF16), DType.F32)


def short(m: Model, x: Node, outs: int) -> Node:
    """Sums of bfloat16 that are not rounded."""
    w = m.param(outs, x.shape[1], 3, 3, dtype=DType.BF16)
    narrow = build.convert(x, DType.BF16)
    return build.convolution(narrow, w, low=(1, 1), high=(1, 1), dtype=DType.F32)


def pooled(_: Model, x: Node) -> Node:
    return build.reduce_window(x, "max", (1, 1, 2, 2)) if min(x.shape[2:]) > 1 else x


CONVOLUTIONS: list[Callable[[Model, Node, int], Node]] = [
    conv,
    lambda m, x, outs: conv(m, x, outs, 1),
    lambda m, x, outs: conv(m, x, outs, 3, 2),
    grouped,
    rounded,
    short,
]
FOLLOWERS: list[Callable[[Model, Node], Node]] = [
    lambda _, x: relu(x),
    lambda m, x: build.add(x, build.broadcast_in_dim(m.param(x.shape[1]), x.shape, (1,))),
    lambda m, x: build.add(x, m.param(*x.shape)),
    pooled,
]


@st.composite
def networks(draw: st.DrawFn) -> tuple[Graph, list[Any], list[Any]]:
    """Some convolutions with what may lie between them, parameters and results in any layout."""
    m = Model()
    x = m.param(draw(st.integers(1, 2)), draw(st.sampled_from([2, 3, 16])), 6, 5)
    seen = [x]
    for _ in range(draw(st.integers(1, 3))):
        outs = draw(st.sampled_from([4, 16, 18]))
        y = draw(st.sampled_from(CONVOLUTIONS))(m, seen[-1], outs)
        for follow in draw(st.lists(st.sampled_from(FOLLOWERS), max_size=3)):
            y = follow(m, y)
        same = [s for s in seen if s.shape == y.shape]
        seen.append(build.multiply(y, same[-1]) if same else y)
    results = [seen[-1]]
    if draw(st.booleans()):
        results.append(build.reduce(seen[-1], "add", (2, 3)))
    if draw(st.booleans()):
        results.append(build.transpose(seen[1], (0, 2, 3, 1)))
    graph = m.graph("network", *results)

    def layout(node: Node) -> tuple[int, ...]:
        last = node.type.rank == 4 and draw(st.booleans())
        return last_strides(node.shape) if last else contiguous(node.shape)

    return graph, [layout(p) for p in graph.params], [layout(r) for r in graph.results]


@given(networks(), st.integers(0, 9))
@settings(max_examples=40)
def test_networks(made: tuple[Graph, list[Any], list[Any]], seed: int) -> None:
    """What a program computes is what the graph means, wherever its images lie."""
    graph, param_strides, result_strides = made
    program = lowered(graph, param_strides=param_strides, result_strides=result_strides)
    assert not any(isinstance(step, AtenStep) for step in program.steps)
    assert len(convolutions(program)) >= 1
    rng = np.random.default_rng(seed)
    args = [(rng.standard_normal(p.shape) / 4).astype(p.dtype.numpy) for p in graph.params]
    for got, want in zip(run_program(program, args), evaluate(graph, args), strict=True):
        # The same sums in the same order, but for rounding to bfloat16 on the way.
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), rtol=1e-5, atol=1e-5
        )
    for number, strides in zip(program.results, result_strides, strict=True):
        assert program.buffers[number].strides == strides


# ---- as users write them


class Block(nn.Module):
    def __init__(self, groups: int, stride: int, dilation: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(16, 32, 3, stride, dilation, dilation, groups, bias=True)
        self.norm = nn.BatchNorm2d(32)
        self.second = nn.Conv2d(32, 32, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(16, 32, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(functional.relu(self.norm(self.first(x))))
        return functional.max_pool2d(functional.relu(y + self.shortcut(x)), 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("groups", "stride", "dilation", "last"), [(1, 1, 1, True), (16, 2, 2, False)]
)
def test_compiled(groups: int, stride: int, dilation: int, last: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    block = Block(groups, stride, dilation).eval()
    layout = torch.channels_last if last else torch.contiguous_format
    x = torch.randn(2, 16, 20, 20).to(dtype).to(memory_format=layout)
    block = block.to(dtype)
    with torch.no_grad():
        own = block(x).double()
        want = block.double()(x.double())
        on_core = block.to(dtype).to("neuron")
        got = torch.compile(on_core, backend="neuron")(x.to("neuron"))
    # A small multiple of what eager mode on the CPU is off by; Winograd's method has up to 4 times
    # (8 in the worst element) the error of a direct sum.
    own = (own - want).abs()
    off = (got.cpu().double() - want).abs()
    assert off.pow(2).mean().sqrt() <= 4 * own.pow(2).mean().sqrt()
    assert off.max() <= 8 * own.max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("padding", [(0, 1), (2, 2)])
def test_gradients(padding: tuple[int, int], dtype: torch.dtype) -> None:
    """Of a convolution large enough for ours; the input's gradient is a convolution, too."""
    torch.manual_seed(0)
    x = torch.randn(2, 16, 25, 24).to(dtype)
    weight = torch.randn(17, 16, 3, 3).to(dtype)

    def gradients(x: torch.Tensor, weight: torch.Tensor, compiled: bool) -> list[torch.Tensor]:
        x, weight = (t.detach().clone().requires_grad_() for t in (x, weight))

        def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return functional.conv2d(x, weight, None, 1, padding).relu()

        run = torch.compile(function, backend="neuron") if compiled else function
        run(x, weight).sum().backward()
        assert x.grad is not None
        assert weight.grad is not None
        return [x.grad, weight.grad]

    exact = gradients(x.double(), weight.double(), compiled=False)
    cpu = gradients(x, weight, compiled=False)
    ours = gradients(x.to("neuron"), weight.to("neuron"), compiled=True)
    for want, own, got in zip(exact, cpu, ours, strict=True):
        # As above; a ReLU that rounding switches counts for both.
        own_off, off = (own.double() - want).abs(), (got.cpu().double() - want).abs()
        assert off.pow(2).mean().sqrt() <= 4 * own_off.pow(2).mean().sqrt()
        assert off.max() <= 8 * own_off.max()
