"""Programs of one convolution with an epilogue, and their meaning in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from neuronxcc.codegen import build
from neuronxcc.codegen.loop import Access, Dim, Kernel, Scalar, Slot, Store
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op
from neuronxcc.program.program import Program
from neuronxcc.program.steps.conv import ConvStep
from tests.compiler.executable_programs import Maker, Shape, contiguous
from tests.kernels.test_conv import winograd
from torch_neuronx.program.dtypes import TO_TORCH

UNIT = 2.0**-24
ROUNDING = {DType.F32: 2.0**-24, DType.BF16: 2.0**-8, DType.F16: 2.0**-11}
EXTRAS = ("scale", "shift", "residual", "relu")


@dataclass(frozen=True)
class Case:
    """A convolution; `extras` of EXTRAS are its epilogue, None: it has none."""

    x: Shape
    w: Shape
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    dtype: DType = DType.F32
    x_last: bool = False
    w_last: bool = False
    last: bool = False
    extras: frozenset[str] | None = None
    constant: bool = False
    narrow: bool = False


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Small ones of all kinds, and some that Winograd's method or a product takes."""
    channels = st.one_of(st.integers(1, 5), st.sampled_from([16, 17, 33]))
    kind = draw(st.sampled_from(["any", "any", "3x3", "1x1", "depthwise"]))
    images = draw(st.integers(1, 3))
    height, width = draw(st.integers(1, 12)), draw(st.integers(1, 18))
    c, o, groups = draw(channels), draw(channels), 1
    side, stride, dilation, padding = (3, 3), (1, 1), (1, 1), (1, 1)
    if kind == "1x1":
        side, padding = (1, 1), (0, 0)
    elif kind == "3x3":
        padding = draw(st.sampled_from([(1, 1), (0, 2)]))
        height, width = max(3, height), max(3, width)
    else:
        small = st.tuples(st.integers(1, 3), st.integers(1, 3))
        side, stride, dilation = draw(small), draw(small), draw(small)
        padding = draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
        groups = c if kind == "depthwise" else draw(st.sampled_from([1, 1, 2]))
        per_group = 1 if kind == "depthwise" else draw(st.integers(1, 4))
        o = groups * draw(st.integers(1, 3))
        c = groups * per_group
        reach = [d * (k - 1) + 1 - 2 * p for d, k, p in zip(dilation, side, padding, strict=True)]
        height, width = max(height, reach[0]), max(width, reach[1])
    x_last, w_last, last, constant, narrow = draw(st.tuples(*[st.booleans()] * 5))
    extras = draw(st.one_of(st.none(), st.frozensets(st.sampled_from(EXTRAS))))
    dtype = draw(st.sampled_from(list(ROUNDING)))
    x, w = (images, c, height, width), (o, c // groups, *side)
    return Case(
        x,
        w,
        stride,
        padding,
        dilation,
        groups,
        dtype,
        x_last,
        w_last,
        last,
        extras,
        constant,
        narrow,
    )


def strides(shape: Shape, last: bool) -> Shape:
    """Dense strides of an image."""
    n, c, h, w = shape
    if not last:
        return contiguous(shape)
    del n
    return h * w * c, 1, w * c, c


def _epilogue(case: Case, step: ConvStep) -> Kernel:
    """Slots: tile, scale, shift, residual, out."""
    dims, dtype = step.dims, case.dtype
    dense = contiguous(dims)
    channel = (0, 0, 1) if case.last else (0, 1, 0)

    def wide(slot: int, where: Shape) -> Scalar:
        return build.convert(build.load(dtype, slot, where), DType.F32)

    value = build.load(DType.F32, 0, dense)
    if case.narrow:
        value = build.convert(build.convert(value, dtype), DType.F32)
    extras = case.extras or frozenset()
    for name, slot, where, op in (
        ("scale", 1, channel, Op.MULTIPLY),
        ("shift", 2, channel, Op.ADD),
        ("residual", 3, dense, Op.ADD),
    ):
        if name in extras:
            value = build.op(op, value, wide(slot, where))
    if "relu" in extras:
        value = build.op(Op.MAXIMUM, value, 0.0)
    store = Store(Access(4, dense), build.convert(value, dtype))
    slots = (Slot(DType.F32, tile=True), *[Slot(dtype)] * 4)
    return Kernel("epilogue", tuple(map(Dim, dims)), slots, (store,))


def program(case: Case) -> Program:
    """Arguments: x, w, and with an epilogue scale, shift and residual. One result."""
    maker = Maker("convolution")
    x = maker.buffer("input", case.x, case.dtype, strides(case.x, case.x_last))
    w = maker.buffer("input", case.w, case.dtype, strides(case.w, case.w_last))
    moves = (case.stride, case.padding, case.dilation, case.groups)
    step = ConvStep(maker.view(x), maker.view(w), None, *moves, loc="model.py:7")
    step = replace(step, last=case.last, constant_w=case.constant, narrow=case.narrow)
    shape = step.out_shape
    if case.extras is not None:
        scale, shift = (maker.buffer("input", (shape[1],), case.dtype) for _ in range(2))
        residual = maker.buffer("input", shape, case.dtype, strides(shape, case.last))
    out = maker.buffer("output", shape, case.dtype, strides(shape, case.last))
    if case.extras is None:
        step = replace(step, out=maker.view(out))
    else:
        operands = tuple((number, 0) for number in (scale, shift, residual, out))
        step = replace(step, epilogue=_epilogue(case, step), epilogue_operands=operands)
    maker.steps.append(step)
    return maker.program()


def arguments(made: Program, seed: int) -> list[Tensor]:
    """Random tensors for a program."""
    generator = torch.Generator().manual_seed(seed)
    args = []
    for buffer in made.buffers[:-1]:
        value = torch.randn(buffer.shape, generator=generator).to(TO_TORCH[buffer.dtype])
        args.append(
            torch.empty_strided(buffer.shape, buffer.strides, dtype=value.dtype).copy_(value)
        )
    return args


def exact(case: Case, args: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The result in float64, and how far a correct one may be from it.

    Direct sums of K products are off by (K + 3) u times that of their absolute values, Winograd's
    by the bound that tests/kernels/test_conv.py derives; the epilogue rounds at most three times
    more, and the result once to its type (twice if the sums may be rounded first).
    """
    x, w = (arg.double() for arg in args[:2])
    moves = (None, case.stride, case.padding, case.dilation, case.groups)
    sums = functional.conv2d(x, w, *moves)
    terms = functional.conv2d(x.abs(), w.abs(), *moves)
    count = w[0].numel()
    off = (count + 3) * UNIT * terms
    if w.shape[2:] == (3, 3) and case.groups == 1 and case.stride == case.dilation == (1, 1):
        channels = w.size(1)
        roundings = 6 + 1 + min(channels, 32) + channels / 32 + 8 + 4
        off = off.maximum(roundings * UNIT * winograd(x, w, case.padding, absolute=True))
    if case.narrow:
        off = off + ROUNDING[case.dtype] * (sums.abs() + off)
    extras = case.extras or frozenset()
    size = terms
    if "scale" in extras:
        scale = args[2].double().view(-1, 1, 1)
        sums, off, size = sums * scale, off * scale.abs(), size * scale.abs()
    if "shift" in extras:
        shift = args[3].double().view(-1, 1, 1)
        sums, size = sums + shift, size + shift.abs()
    if "residual" in extras:
        residual = args[4].double()
        sums, size = sums + residual, size + residual.abs()
    off = off + 3 * UNIT * (size + off)
    if "relu" in extras:
        sums = sums.relu()
    return sums, off + ROUNDING[case.dtype] * (sums.abs() + off) + 2.0**-25
