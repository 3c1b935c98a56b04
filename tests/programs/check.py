"""One program on the CPU, on the device, and compiled: what is different."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode

from tests.programs import compare, noise
from tests.programs.compare import Verdict
from tests.programs.program import Outcome, Program, run, steps

MODES = ("eager", "compiled", "dynamic")


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
    """Run the program everywhere and compare."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Which operators an autocast region casts is a table of the device's own (it is CUDA's, not the
        # CPU's): there eager mode on the device is what compiled programs are compared with.
        device = "cpu" if program.autocast is None else "neuron"
        expected = run(program, device)
        noisy = []
        if expected.error is None:
            backward = expected.stage == "backward"
            noisy = noise.reruns(program, backward=backward, seed=seed, device=device)
        if program.autocast is not None:
            modes = [m for m in modes if m != "eager"]
        verdicts = {mode: _mode(program, mode, expected, noisy) for mode in modes}
    return Result(expected, verdicts)


def _mode(program: Program, mode: str, expected: Outcome, noisy: Sequence[Outcome]) -> Verdict:
    if mode == "eager":
        got = run(program, "neuron")
        verdict = compare.outcomes(expected, got, noisy, same_class=True)
        if verdict.kind == "strides" and _follows_the_rule(program, expected, got, "neuron"):
            return compare.outcomes(expected, got, noisy, strides=False)
        return verdict
    if expected.error is not None and expected.stage == "backward":
        # Functionalised graphs don't refuse what autograd's version counters refuse.
        return Verdict()
    got = compiled(program, "neuron", "neuron", mode)
    verdict = compare.outcomes(expected, got, noisy)
    if verdict.kind:
        # PyTorch's tracing and functionalisation refuse or change some programs for every backend.
        device = "cpu" if program.autocast is None else "neuron"
        judge = compare.outcomes(expected, compiled(program, device, "aot_eager", mode), noisy)
        if verdict.kind in {"strides", "dtype"} and any(
            _follows_the_rule(program, expected, got, device) for device in ("cpu", "neuron")
        ):
            # Values of another type than the CPU's can't be compared with them.
            same = verdict.kind == "strides"
            return compare.outcomes(expected, got, noisy, strides=False) if same else Verdict()
        if judge.kind == verdict.kind or (
            judge.kind.startswith("refused") and verdict.kind.startswith("refused")
        ):
            return Verdict()
    return verdict


def compiled(program: Program, device: str, backend: str, mode: str) -> Outcome:
    """What the program does when a backend compiles it."""
    torch.compiler.reset()
    return run(
        program, device, wrap=lambda f: torch.compile(f, backend=backend, dynamic=mode == "dynamic")
    )


def _follows_the_rule(program: Program, expected: Outcome, got: Outcome, device: str) -> bool:
    """Whether types and strides of results are those of PyTorch's rules, which graphs are made of.

    Some of the CPU's kernels (Fourier transforms, normalisations) have other ones.
    """
    try:
        with FakeTensorMode():
            with torch.device(device):
                function = program.function(program.built(None))
            results = function(*(_fake(x, device) for x in program.inputs.values()))
    except (DynamicOutputShapeException, RuntimeError):
        return False  # a shape that depends on data, or a module that can't be converted there
    names = [f"result {n}" for n in range(len(results))]
    return all(
        _facts(got.values[name]) in (_facts(expected.values[name]), (rule.dtype, steps(rule)))
        for name, rule in zip(names, results, strict=True)
    )


def _facts(x: torch.Tensor | None) -> tuple[torch.dtype | None, tuple[int, ...]]:
    return (None if x is None else x.dtype), getattr(x, "layout_of", ())


def _fake(x: torch.Tensor, device: str) -> torch.Tensor:
    made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)
    return made.requires_grad_(x.requires_grad)
