"""One program on the CPU, on the device, and compiled: what is different."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._functorch import config as functorch_config
from torch._subclasses.fake_tensor import (
    DynamicOutputShapeException,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    ShapeEnv,
    has_free_symbols,
)

from tests.programs import compare, noise
from tests.programs.compare import Verdict
from tests.programs.program import Outcome, Program, run, steps
from torch_neuronx import neuron

MODES = ("eager", "compiled", "dynamic", "resized", "moved", "strict", "fused")
#: Operators whose mean and variance of 16 bits are float32 in graphs, by PyTorch's rule.
_FLOAT32_STATISTICS = ("native_batch_norm",)
#: A backend of PyTorch's that runs what operators are taken apart into, where tracing breaks too.
_DECOMPOSED = "aot_eager_decomp_partition"
#: Of these the device has to give the bits that its eager mode gives.
QUEUED = ("strict", "fused")
_SAVED = "tensors_saved_with_vc_check"
_NO_DERIVATIVE = re.compile(r"derivative for aten::\w+_backward is not implemented")
_REFUSED_EARLY = "what the backward pass refuses is refused when it is traced"
#: A compiled function is called once more: with longer inputs, or with views of larger storages.
_AGAIN = ("resized", "moved")


@dataclass
class Result:
    """The verdict of every mode that was run, and what the CPU did."""

    expected: Outcome
    verdicts: dict[str, Verdict]

    @property
    def findings(self) -> dict[str, Verdict]:
        """Those that differ."""
        return {m: v for m, v in self.verdicts.items() if v.kind}


def check(program: Program, modes: Sequence[str] = MODES, *, seed: int = 0) -> Result:
    """Run the program everywhere and compare.

    Where a value differs it is asked again with more noise: what jumps (a remainder, a comparison)
    may do so in none of a few runs.
    """
    result = _check(program, modes, seed, noise.RUNS)
    doubtful = [mode for mode, verdict in result.findings.items() if verdict.kind == "values"]
    if doubtful:
        result.verdicts.update(_check(program, doubtful, seed, noise.MORE_RUNS).verdicts)
    return result


def _check(program: Program, modes: Sequence[str], seed: int, runs: int) -> Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = run(program, program.truth)
        verdicts = {}
        noisy = _noisy(program, expected, seed, runs) if set(modes) - {*QUEUED, *_AGAIN} else []
        for mode in modes:
            if mode in QUEUED:
                verdicts[mode] = _queued(program, mode, expected)
            elif mode == "eager":
                own = program.truth != "cpu"
                verdicts[mode] = (
                    _facts_alone(program, expected) if own else _eager(program, expected, noisy)
                )
            elif mode in _AGAIN:
                verdicts[mode] = _again(program, mode, seed, runs)
            else:
                verdicts[mode] = _compiled(program, mode, expected, noisy, seed, runs)
    return Result(expected, verdicts)


def _noisy(program: Program, expected: Outcome, seed: int, runs: int) -> Sequence[Outcome]:
    if expected.error is not None:
        return []
    backward = expected.stage == "backward"
    return noise.reruns(program, backward=backward, seed=seed, device=program.truth, runs=runs)


def _forward(program: Program, expected: Outcome) -> tuple[Program, Outcome]:
    """The program without its backward pass if that is refused.

    What autograd's version counters refuse, functionalised graphs don't.
    """
    if expected.error is None or expected.stage == "forward":
        return program, expected
    plain = replace(program, forward=True)
    return plain, run(plain, plain.truth)


def _compiled(
    program: Program, mode: str, expected: Outcome, noisy: Sequence[Outcome], seed: int, runs: int
) -> Verdict:
    plain, expected = _forward(program, expected)
    if plain is not program:
        noisy = _noisy(plain, expected, seed, runs)
    got = compiled(plain, "neuron", "neuron", mode)
    if plain is not program and "modified by an inplace operation" in str(got.error):
        return Verdict(excuse=_REFUSED_EARLY)
    return _judged(plain, mode, expected, got, noisy)


def _eager(program: Program, expected: Outcome, noisy: Sequence[Outcome]) -> Verdict:
    got = run(program, "neuron")
    verdict = compare.outcomes(expected, got, noisy, same_class=True)
    if verdict.kind == "accepted" and _NO_DERIVATIVE.search(str(expected.error)):
        return Verdict(excuse="the CPU's operator has no second derivative, and the device's has")
    if verdict.kind == "strides" and _follows_the_rule(program, [expected], got, "neuron"):
        return _excused(
            compare.outcomes(expected, got, noisy, strides=False), "strides are those of the rule"
        )
    return verdict


def _facts_alone(program: Program, expected: Outcome) -> Verdict:
    """Compare what the CPU knows of a program whose values are the device's own.

    That is nothing where an operator casts by the device's table. The device gives the same bits
    again.
    """
    verdict = _same_bits(program, expected, run(program, "neuron"))
    if verdict.kind or program.autocast is not None or program.has("autocast", "elsewhere"):
        return verdict
    theirs = [run(program, "cpu", seed=seed) for seed in range(3)]
    if len({o.kind for o in theirs}) > 1:
        return Verdict(excuse="whether the CPU refuses it depends on what is drawn")
    if theirs[0].error is not None or expected.error is not None:
        same = theirs[0].kind == expected.kind
        return verdict if same else compare.errors(theirs[0], expected, same_class=True)
    facts = compare.facts(theirs, expected)
    if facts.kind == "strides" and _follows_the_rule(program, theirs[:1], expected, "neuron"):
        return Verdict(excuse="strides are those of the rule")
    return facts if facts.kind else verdict


def _queued(program: Program, mode: str, expected: Outcome) -> Verdict:
    """Compare with what operators give that run at the call."""
    at_once = expected if program.truth == "neuron" else run(program, "neuron")
    neuron.set_eager_mode(mode)
    try:
        run(program, "neuron")  # the first call of a kind runs at once
        got = run(program, "neuron")
        neuron.synchronize()
    except RuntimeError as error:  # of what was enqueued and nobody read
        got = Outcome(error=error)
    finally:
        neuron.set_eager_mode("debug")
    return _same_bits(program, at_once, got)


def _same_bits(program: Program, expected: Outcome, got: Outcome) -> Verdict:
    # The order of sums in a second backward pass depends on the counters of two threads.
    settled = not program.has("elsewhere") and program.use != "double"
    verdict = compare.same_bits(expected, got, gradients=settled)
    if verdict.kind == "bits" and "lstsq" in program.text():
        return Verdict(excuse="LAPACK's least squares depend on where the memory is")
    return verdict


def _again(program: Program, mode: str, seed: int, runs: int) -> Verdict:
    """Call a compiled function with other sizes, or places, after a call with the first ones."""
    other = program.resized() if mode == "resized" else program.moved()
    other, expected = _forward(other, run(other, other.truth))
    program = replace(program, forward=other.forward)
    noisy = _noisy(other, expected, seed, runs)
    got = _second(program, other, "neuron", "neuron")
    if other.forward and "modified by an inplace operation" in str(got.error):
        return Verdict(excuse=_REFUSED_EARLY)
    # A module that was called twice has seen both calls.
    for name in [n for n in expected.values if "." in n]:
        del expected.values[name]
    return _judged(other, mode, expected, got, noisy, before=program)


def _second(program: Program, other: Program, device: str, backend: str) -> Outcome:
    """What one compiled function gives for the second one of two programs that differ by sizes."""
    torch.compiler.reset()
    made: list[Any] = []

    def once(function: Any) -> Any:
        if not made:
            made.append(torch.compile(function, backend=backend))
        return made[0]

    run(program, device, wrap=once)
    return run(other, device, wrap=once)


def _judged(  # noqa: C901, PLR0911 (a return for each reason)
    program: Program, mode: str, expected: Outcome, got: Outcome, noisy: Sequence[Outcome],
    before: Program | None = None,
) -> Verdict:  # fmt: skip
    """Compare a compiled program, and let PyTorch's own tracing be the judge of differences.

    Tracing and functionalisation refuse or change some programs for every backend. What `aot_eager`
    gives then is what is asked for.
    """
    verdict = compare.outcomes(expected, got, noisy)
    if not verdict.kind or verdict.kind.startswith("internal"):
        return verdict
    where = _traced_on(program, verdict, got)
    judge = _judge(program, where, mode, verdict, got, before)
    if known := _known(program, mode, verdict, str(got.error), judge):
        return Verdict(excuse=known)
    strides = True

    def by_the_rule() -> bool:
        apart = compiled(program, where, _DECOMPOSED, "compiled")
        return _follows_the_rule(program, [expected, judge, apart], got, "cpu", "neuron")

    if verdict.kind in {"strides", "dtype"} and by_the_rule():
        # Values of another type than the CPU's can't be compared with them.
        if verdict.kind == "dtype":
            return Verdict(excuse="dtypes are those of the rule")
        strides = False
        verdict = compare.outcomes(expected, got, noisy, strides=strides)
        if not verdict.kind:
            return replace(verdict, excuse="strides are those of the rule")
    if judge.error is not None and got.error is not None:
        return Verdict(excuse=f"aot_eager refuses it: {judge.kind}")
    if verdict.kind == "strides" and where == "cpu":
        # Of an `out=` they are those of the operator's result, which the device may lay out otherwise.
        judge = compiled(program, "neuron", "aot_eager", "compiled")
    theirs = compare.outcomes(expected, judge, noisy, strides=strides)
    if not theirs.kind or judge.error is not None or got.error is not None:
        return verdict
    # It is excused only if it gives what aot_eager gives, not something third.
    again = compare.outcomes(judge, got, noisy, around=expected, strides=strides)
    if again.kind == "strides" and by_the_rule():
        again = compare.outcomes(judge, got, noisy, around=expected, strides=False)
    return _excused(again, f"aot_eager has the same: {verdict.kind}")


def _judge(
    program: Program, where: str, mode: str, verdict: Verdict, got: Outcome,
    before: Program | None,
) -> Outcome:  # fmt: skip
    """What PyTorch's own tracing gives."""
    if before is not None:
        judge = _second(before, program, where, "aot_eager")
    else:
        judge = compiled(program, where, "aot_eager", mode)
    if (judge.error is None) != (got.error is None) and mode == "dynamic":
        judge = compiled(program, where, "aot_eager", "compiled")  # it traces the same or fails
    # Of streams, and of parameters under our device, it asserts something that is not so.
    asserts = any(text in str(judge.error) for text in ("placeholders=", _SAVED))
    if asserts and got.error is None and where == "neuron" and not _shares_parts(program, verdict):
        judge = compiled(program, "cpu", "aot_eager", "compiled")
    return judge


def _shares_parts(program: Program, verdict: Verdict) -> bool:
    return verdict.kind == "sharing" and "unsafe_" in program.text()


def _traced_on(program: Program, verdict: Verdict, got: Outcome) -> str:
    """The device of which PyTorch's tracing is the judge."""
    if _shares_parts(program, verdict):
        return "neuron"  # only there tracing knows that the parts share memory
    if got.error is None:
        return program.truth
    # That it traces on the device at all is none of its promises, but there are streams only there,
    # and other rules of types.
    statistics = any(name in program.text() for name in _FLOAT32_STATISTICS)
    rules = statistics or "autocast::prioritize" in str(got.error)
    return "neuron" if rules or program.has("aside") else "cpu"


def _known(program: Program, mode: str, verdict: Verdict, error: str, judge: Outcome) -> str:
    """Why a difference is none of ours that asking `aot_eager` would not show; "" if none is known."""
    statistics = any(name in program.text() for name in _FLOAT32_STATISTICS)
    reasons = {
        "autograd knows no derivative of what it traces for an out=": (
            "derivative for aten::" in error and "is not implemented" in error
        ),
        "quantised tensors and complex32 are refused in graphs, as documented": (
            "NCC_ESPP004" in error and ("torch.q" in error or "torch.complex32" in error)
        ),
        "parts of unsafe_ operators share no memory in training, as documented": (
            _SAVED in str(judge.error) and _shares_parts(program, verdict)
        ),
        "under autocast operators that mix no types are not asked, as documented": (
            verdict.kind == "accepted" and program.autocast is not None
        ),
        "writes beside an argument are refused, as documented": (
            mode == "moved" and "of which the graph was given a part" in error
        ),
        # Where sparse tensors, or a module, hide them.
        "dtypes are those of the rule": (
            statistics and (verdict.kind == "dtype" or "must have the same dtype" in error)
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _excused(verdict: Verdict, why: str) -> Verdict:
    return verdict if verdict.kind else replace(verdict, excuse=why)


def compiled(program: Program, device: str, backend: str, mode: str) -> Outcome:
    """What the program does when a backend compiles it."""
    torch.compiler.reset()
    return run(
        program, device, wrap=lambda f: torch.compile(f, backend=backend, dynamic=mode == "dynamic")
    )


def _follows_the_rule(
    program: Program, judges: Sequence[Outcome], got: Outcome, *devices: str
) -> bool:
    """Whether types and strides of results are a judge's or those of PyTorch's rules.

    Graphs are made of the rules. Some of the CPU's kernels (Fourier transforms, normalisations) have
    other ones, and so has tracing.
    """
    found = [
        _by_the_rule(program, device, with_data=False)
        or _by_the_rule(program, device, with_data=True)
        for device in devices
    ]
    # None for a shape that depends on data.
    known = [results for results in found if results is not None]
    names = [name for name in got.values if name.startswith("result")]
    return bool(names) and all(
        any(name in o.values and _facts(got.values[name]) == _facts(o.values[name]) for o in judges)
        or any(
            not has_free_symbols(rules[n])
            and _facts(got.values[name]) == (rules[n].dtype, steps(rules[n]))
            for rules in known
        )
        for n, name in enumerate(names)
    )


def _by_the_rule(
    program: Program, device: str, *, with_data: bool
) -> Sequence[torch.Tensor] | None:
    """What PyTorch's fake kernels say of the results, None if they can't.

    With data they are told what the inputs hold, for programs that ask for it.
    """
    # With symbols for sizes that data decide, results of other sizes are known all the same.
    shapes = ShapeEnv(allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
    modules = program.built(device)
    try:
        with (
            functorch_config.patch(fake_tensor_propagate_real_tensors=with_data),
            FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True) as mode,
        ):
            function = program.function(modules)
            if with_data:
                real = [_moved(x, device) for x in program.inputs.values()]
                return function(*(mode.from_tensor(x, static_shapes=True) for x in real))
            return function(*(_fake(x, device) for x in program.inputs.values()))
    except (GuardOnDataDependentSymNode, DynamicOutputShapeException, RuntimeError, ValueError):
        return None  # ValueError: a list of tensors whose number depends on data


def _facts(x: torch.Tensor | None) -> tuple[torch.dtype | None, tuple[int, ...]]:
    return (None if x is None else x.dtype), getattr(x, "layout_of", ())


def _fake(x: torch.Tensor, device: str) -> torch.Tensor:
    made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)
    return made.requires_grad_(x.requires_grad)


def _moved(x: torch.Tensor, device: str) -> torch.Tensor:
    with unset_fake_temporarily(), torch.no_grad():
        made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device).copy_(x)
        return made.requires_grad_(x.requires_grad)
