"""Convolutions as steps of a program: what the executor computes, what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from neuronxcc.codegen.errors import CodegenUnsupported
from neuronxcc.ir.dtypes import DType
from neuronxcc.program.check import check_program
from neuronxcc.program.errors import NeffError
from neuronxcc.program.program import Program
from neuronxcc.program.reference import run_program
from neuronxcc.program.steps.conv import ConvStep
from neuronxcc.program.text import program_to_text
from tests.compiler.conv_programs import EXTRAS, Case, arguments, cases, exact, program
from tests.compiler.executable_programs import DEVICES
from tests.compiler.lowering_tools import to_numpy, to_torch
from tests.compiler.test_executable_errors import mutate
from torch_neuronx.program.executable import Executable


def moved(args: list[torch.Tensor], device: str) -> list[torch.Tensor]:
    """The same tensors on a device, with their strides."""
    return [
        torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device).copy_(x)
        for x in args
    ]


# It ended the process: all columns see padding alone (csrc/conv/by_aten.cpp).
PADDING_ALONE = Case(
    (1, 16, 11, 1), (32, 1, 2, 1), (1, 2), (1, 1), (2, 2), 16, DType.BF16, w_last=True,
    extras=frozenset(EXTRAS), constant=True, narrow=True,
)  # fmt: skip


@given(case=cases(), device=st.sampled_from(DEVICES), seed=st.integers(0, 9))
@example(case=PADDING_ALONE, device="neuron", seed=4)
@settings(max_examples=60)
def test_convolutions(case: Case, device: str, seed: int) -> None:
    made = program(case)
    check_program(made)
    args = arguments(made, seed)
    want, bound = exact(case, args)
    run = Executable(made, device)
    given = moved(args, device)
    for _ in range(3 if case.constant else 1):  # filters are kept from the second time on
        (got,) = run(tuple(given))
        assert got.stride() == made.buffers[-1].strides
        assert ((got.cpu().double() - want).abs() <= bound).all()


@given(case=cases(), seed=st.integers(0, 9))
@settings(max_examples=40)
def test_the_reference(case: Case, seed: int) -> None:
    made = program(case)
    args = arguments(made, seed)
    want, bound = exact(case, args)
    (got,) = run_program(made, [to_numpy(x) for x in args])
    assert ((to_torch(got).double() - want).abs() <= bound).all()


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("side", [1, 3])
def test_what_is_not_finite_stays_where_it_is(side: int, last: bool) -> None:
    extras = frozenset({"scale", "shift", "residual"})
    case = Case((2, 16, 9, 20), (24, 16, side, side), padding=(side // 2,) * 2, last=last,
                extras=extras)  # fmt: skip
    made = program(case)
    args = arguments(made, 0)
    _, bound = exact(case, args)  # of a tile with an infinity there is none
    args[0][1, 3, 4, 5] = torch.inf
    (got,) = Executable(made, "neuron")(tuple(moved(args, "neuron")))
    want, _ = exact(case, args)
    finite = want.isfinite()
    assert torch.equal(got.cpu().isfinite(), finite)
    assert ((got.cpu().double() - want).abs() <= bound)[finite].all()


def test_kept_filters_follow_the_weight() -> None:
    case = Case((2, 32, 16, 16), (32, 32, 3, 3), padding=(1, 1), extras=frozenset(), constant=True)
    made = program(case)
    args = moved(arguments(made, 0), "neuron")
    run = Executable(made, "neuron")
    before = [run(tuple(args))[0].cpu() for _ in range(3)]
    args[1].mul_(2)
    after = [run(tuple(args))[0].cpu() for _ in range(3)]
    assert torch.equal(before[0], before[2])
    for got in after:
        assert torch.equal(got, 2 * before[0])  # a factor of two rounds nothing


# ---- what is refused

GOOD = program(Case((1, 4, 5, 6), (6, 2, 3, 3), groups=2))
FUSED = program(Case((1, 4, 5, 6), (6, 4, 3, 3), extras=frozenset({"shift"})))


def changed(made: Program, **fields: Any) -> Program:
    (step,) = made.steps
    return replace(made, steps=(replace(step, **fields),))


X, W = GOOD.steps[0].x, GOOD.steps[0].w  # type: ignore[union-attr]
# A broken program, what is said of it, and what the native core says if nobody has looked before
# ("": the step can't be handed to it).
WRONG: list[tuple[Program, str, str]] = [
    (changed(GOOD, stride=(0, 1)), r"stride \[0, 1\]", ""),
    (changed(GOOD, stride=(1,)), r"stride \[1\]", ""),
    (changed(GOOD, stride=(-1, 1)), "stride", "stride -1"),
    (changed(GOOD, padding=(0, -1)), "padding", "padding -1"),
    (changed(GOOD, dilation=(1 << 40, 1)), "dilation", "dilation"),
    (changed(GOOD, dilation=(3, 1)), "a convolution to", "larger than what it moves over"),
    (changed(GOOD, groups=0), "0 groups", "in 0 groups"),
    (changed(GOOD, groups=4), "4 groups", "in 4 groups"),
    (changed(GOOD, padding=(1, 1)), "for a convolution to", r"goes with float32\[1, 6, 3, 4\]"),
    (changed(GOOD, out=None), "either a result or an epilogue", "either an epilogue or a place"),
    (changed(GOOD, epilogue_operands=((0, 0),)), "that is not there", "has operands for one"),
    (changed(GOOD, x=replace(X, shape=(4, 5, 6), strides=(30, 6, 1))), "four dimensions", ""),
    (changed(GOOD, x=replace(X, offset=1)), "are not all in", "are used, but it has"),
    (changed(GOOD, w=replace(W, dtype=DType.S32)), "of f32 and s32", "float32 and int32"),
    (changed(FUSED, last=True), "dims of an epilogue", r"covers \(1, 6, 12\)"),
    (changed(FUSED, epilogue_operands=((2, 0),)), "1 operands for 4 slots", "1 operands are given"),
]


@pytest.mark.parametrize(("made", "wrong", "in_core"), WRONG)
def test_wrong_numbers(
    made: Program, wrong: str, in_core: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NeffError, match=wrong):
        check_program(made)
    with pytest.raises(NeffError):
        Executable(made, "neuron")
    if in_core:
        monkeypatch.setattr(ConvStep, "check_window", lambda _step: None)
        with pytest.raises(ValueError, match=in_core):
            Executable(made, "neuron")


def test_an_operand_with_a_negative_stride() -> None:
    turned = replace(X, strides=(120, 30, 6, -1), offset=5)
    with pytest.raises(ValueError, match="negative stride"):
        Executable(changed(GOOD, x=turned), "neuron")


@given(st.data())
@settings(max_examples=120)
def test_mutated_convolutions_do_not_crash(data: st.DataObject) -> None:
    made = data.draw(st.sampled_from([GOOD, FUSED]))
    args = moved(arguments(made, 0), "neuron")
    for _ in range(data.draw(st.integers(1, 3))):
        made = mutate(data.draw, made)
    try:
        run = Executable(made, "neuron")
    except (ValueError, KeyError, AttributeError, TypeError, AssertionError, CodegenUnsupported):
        return
    try:
        run(tuple(args))
    except (ValueError, RuntimeError, IndexError, MemoryError):
        return


# ---- as text


def test_text() -> None:
    case = Case((1, 4, 5, 6), (6, 4, 3, 3), (2, 1), (1, 0), extras=frozenset({"shift"}), last=True,
                constant=True)  # fmt: skip
    made = program(case)
    lines = program_to_text(made).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("  conv"))
    assert lines[at] == (
        "  conv %0:f32[1,4,5,6] * %1:f32[6,4,3,3] constant stride 2,1 padding 1,0"
        " -> epilogue(last tile, %2, %3, %4, %5)"
    )
    assert lines[at + 1 : at + 5] == [
        "    v0: f32 = load s0[d0*72 + d1*6 + d2]",
        "    v1: f32 = load s2[d2]",
        "    v2: f32 = add(v0, v1)",
        "    s4[d0*72 + d1*6 + d2] = v2",
    ]
    step = made.steps[0]
    assert isinstance(step, ConvStep)
    assert step.title == "conv 1x4x5x6 3x3/2 -> 6"
