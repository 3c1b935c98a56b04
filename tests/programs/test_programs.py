"""Random programs on the device and compiled: as on the CPU. `python -m tests.programs` searches on."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from tests.programs import compare, noise
from tests.programs.check import _judged, check
from tests.programs.generate import Generator, program
from tests.programs.minimise import minimise
from tests.programs.program import Outcome, Program, Statement, run
from tests.programs.uses import USES
from tests.shallow import shallow

#: Programs that are compared in every run of the tests: so many seeds from so many on.
_EAGER, _COMPILED, _DYNAMIC = range(150), range(1000, 1030), range(2000, 2010)


@shallow
def _found(seed: int, mode: str) -> str:
    made = program(seed)
    return "\n".join(
        f"{mode}, seed {seed}: {v.kind}: {v.detail}\n{made.describe()}\n{made.text()}"
        for mode, v in check(made, [mode], seed=seed).findings.items()
    )


@pytest.mark.every(2)
@pytest.mark.parametrize("first", _EAGER[::10])
def test_eager_programs(first: int) -> None:
    assert not "\n".join(filter(None, (_found(seed, "eager") for seed in range(first, first + 10))))


@pytest.mark.every(2)
@pytest.mark.parametrize("seed", _COMPILED)
def test_compiled_programs(seed: int) -> None:
    assert not _found(seed, "compiled")


@pytest.mark.every(2)
@pytest.mark.parametrize("seed", _DYNAMIC)
def test_programs_with_dynamic_shapes(seed: int) -> None:
    assert not _found(seed, "dynamic")


def test_a_seed_makes_the_same_program() -> None:
    assert program(5).text() == program(5).text()
    assert 5 <= len(program(5).statements) <= 40


def _doubled(wrong: str = "") -> Program:
    inputs = {"x": torch.tensor([1.0, 2.0, 3.0], requires_grad=True)}
    lines = [Statement(("y",), "x.exp()", "pointwise"), Statement(("z",), "y * 2", "scalar")]
    if wrong:
        lines[1] = Statement(("z",), wrong, "scalar")
    return Program(inputs, {}, lines, ("y", "z"))


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ("y * 2.001", "values"),
        ("(y * 2).double()", "dtype"),
        ("(y * 2)[:2]", "shape"),
        ("(y * 2).detach()", "values"),  # of the gradient
        ("y.no_such_method()", "refused AttributeError"),
        ("y * 2 + torch.tensor([0, torch.inf, 0])", "values"),
    ],
)
def test_what_is_different_is_found(wrong: str, kind: str) -> None:
    noisy = noise.reruns(_doubled(), backward=True, seed=1)
    assert len(noisy) == noise.RUNS
    expected, got = run(_doubled(), "cpu"), run(_doubled(wrong), "cpu")
    assert compare.outcomes(expected, run(_doubled(), "cpu"), noisy).kind == ""
    assert compare.outcomes(expected, got, noisy).kind == kind


@pytest.mark.parametrize("use", USES)
def test_uses_compare_gradients(use: str) -> None:
    """Each use runs on the device as on the CPU, and a gradient that is wrong in it is found."""
    right = replace(_doubled(), use=use, results=("z", "y"))
    wrong = replace(right, statements=_doubled("y * 2 + 0.01 * (x - x.detach())").statements)
    noisy = noise.reruns(right, backward=True, seed=1)
    expected = run(right, "cpu")
    assert expected.error is None
    assert compare.outcomes(expected, run(right, "neuron"), noisy).kind == ""
    found = compare.outcomes(expected, run(wrong, "cpu"), noisy).kind
    assert found == ("" if use == "inference" else "values")


def test_every_use_is_drawn() -> None:
    assert {Generator(seed).program.use for seed in range(200)} == set(USES)


def test_another_error_than_the_cpu_s_is_found() -> None:
    refused = Outcome(error=IndexError("out of range"))
    assert compare.errors(refused, Outcome(), same_class=True).kind == "accepted"
    other = Outcome(error=RuntimeError("out of range"))
    assert compare.errors(refused, other, same_class=True).kind == "other error"
    assert compare.errors(refused, other, same_class=False).kind == ""


def test_noise_shows_what_has_no_digits() -> None:
    """Differences of nearly equal numbers may be anything, and their sign says nothing."""
    x = torch.tensor([1.0, 2.0, 3.0])
    lines = [
        Statement(("y",), "(x + 1e-7) - x", "scalar"),
        Statement(("z",), "y > 1e-7", "scalar"),
    ]
    unstable = Program({"x": x}, {}, lines, ("y", "z"))
    noisy = noise.reruns(unstable, backward=False, seed=1)
    expected = run(unstable, "cpu")
    values, signs = (expected.values[f"result {n}"] for n in (0, 1))
    assert values is not None
    assert signs is not None
    bound, _ = noise.tolerance(values, [o.values["result 0"] for o in noisy])  # type: ignore[misc]
    assert bool((bound > 1e-7).all())
    _, compared = noise.tolerance(signs, [o.values["result 1"] for o in noisy])  # type: ignore[misc]
    assert not bool(compared.all())


def test_what_jumps_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last bit of a number is all that is left of it, and six runs do not move every one."""
    x = torch.linspace(-0.9, 0.3, 8192)  # a sixth of the results is below 0.5
    lines = [
        Statement(("y",), "x.exp()", "pointwise"),
        Statement(("z",), "y % 2.0**-24", "scalar"),
    ]
    jumps = Program({"x": x}, {}, lines, ("z",))
    assert check(jumps, ["eager"]).verdicts["eager"].kind == ""
    monkeypatch.setattr(noise, "MORE_RUNS", noise.RUNS)
    assert check(jumps, ["eager"]).verdicts["eager"].kind == "values"


def test_without_noisy_runs_nothing_is_compared() -> None:
    expected, got = run(_doubled(), "cpu"), run(_doubled("y * 3"), "cpu")
    verdict = compare.outcomes(expected, got, [])
    assert (verdict.kind, verdict.compared) == ("", 0)
    assert verdict.elements > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(
    "code",
    ["F.gelu(x)", "F.layer_norm(x, (4,), x[0], x[1])", "x.unfold(0, 5, 1) * 3", "x @ x.mT"],
)
def test_noise_keeps_types(code: str, dtype: torch.dtype) -> None:
    x = torch.randn(300, 4).to(dtype).requires_grad_()
    made = Program({"x": x}, {}, [Statement(("y",), code, "operator")], ("y",))
    expected = run(made, "cpu")
    noisy = noise.reruns(made, backward=True, seed=1)
    assert len(noisy) == noise.RUNS
    for name, value in expected.values.items():
        assert value is not None
        for other in noisy:
            found = other.values[name]
            assert found is not None
            assert found.dtype == value.dtype
            assert name == "input x" or not torch.equal(found, value)


def test_what_the_cpu_sums_in_16_bits_is_no_finding() -> None:
    """The gradient of the bias, of 1,000 equal numbers."""
    x = torch.randn(1000, 4).to(torch.bfloat16).requires_grad_()
    bias = torch.zeros(4, dtype=torch.bfloat16).requires_grad_()
    line = Statement(("y",), "F.layer_norm(x, (4,), None, b)", "operator")
    made = Program({"x": x, "b": bias}, {}, [line], ("y",))
    assert check(made, ["eager"], seed=1).verdicts["eager"].kind == ""
    bound, _ = noise.tolerance(*_gradient_of_bias(made))
    assert bool((bound > 0.1).all())


def _gradient_of_bias(made: Program) -> tuple[torch.Tensor, list[torch.Tensor]]:
    runs = [run(made, "cpu"), *noise.reruns(made, backward=True, seed=1)]
    values = [r.values["gradient b"] for r in runs]
    found = [v for v in values if v is not None]
    return found[0], found[1:]


def test_minimising_keeps_the_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a comparison that allows no difference, programs are cut to the line that has one."""
    monkeypatch.setattr(noise, "FACTOR", 0.0)
    monkeypatch.setattr(noise, "ROUNDINGS", -1.0)
    lines = [
        Statement(("a",), "x + 1", "scalar"),
        Statement(("b",), "a.sum()", "reduce"),
        Statement(("c",), "x * 3", "scalar"),
    ]
    whole = Program({"x": torch.randn(4)}, {}, lines, ("a", "b", "c"))
    small = minimise(whole, "eager", "values", seed=1)
    assert len(small.statements) == 1
    assert len(small.results) == 1


@pytest.mark.slow
@shallow
def test_calls_of_the_table_are_drawn_in_every_form() -> None:
    """New results, in place, and `out=`; complex operands among others."""
    forms = {"in place": r"\w+\.[a-z]\w*[a-z0-9]_\(", "out": r".*, out=\w+\.new_zeros"}
    made = [program(seed) for seed in range(100)]
    calls = [s.code for p in made for s in p.statements if s.form in ("operator", "random")]
    for form, pattern in forms.items():
        assert sum(bool(re.match(pattern, code)) for code in calls) >= 8, form
    for dtype in (torch.complex64, torch.int32, torch.float64):
        assert any(x.dtype is dtype for p in made for x in p.inputs.values())


@pytest.mark.slow
@shallow
def test_what_is_seldom_written_is_drawn() -> None:
    """Draws, regions of autocast, mistakes of callers, modules in both modes, other kinds."""
    made = [program(seed) for seed in range(160)]
    forms = {s.form for p in made for s in p.statements}
    assert forms >= {"random", "autocast", "elsewhere", "round trip", "out", "write"}
    assert any(p.autocast is torch.float16 for p in made)
    texts = [text for p in made for text in p.modules.values()]
    assert 0 < sum(text.endswith(".eval()") for text in texts) < len(texts)
    assert sum(run(p, "cpu").error is not None for p in made[:60]) >= 3


def test_a_program_that_draws_is_compared_with_the_device() -> None:
    """Eager mode has the CPU's types and shapes, graphs have eager mode's bits of randomness."""
    x = torch.randn(6, 5).requires_grad_()
    lines = [
        Statement(("y",), "F.dropout(x, 0.5)", "random"),
        Statement(("z",), "y + torch.rand_like(x)", "random"),
    ]
    made = Program({"x": x}, {}, lines, ("y", "z"))
    assert made.truth == "neuron"
    found = check(made, ["eager", "compiled", "strict"], seed=1)
    assert not found.findings
    assert found.verdicts["compiled"].compared == found.verdicts["compiled"].elements > 0
    wrong = Program({"x": x}, {}, [lines[0], Statement(("z",), "y.double()", "random")], ("y", "z"))
    assert compare.facts([run(made, "cpu")], run(wrong, "neuron")).kind == "dtype"


def test_the_same_bits_are_the_same_bits() -> None:
    one, other = run(_doubled(), "cpu"), run(_doubled("y * (2 + 3e-7)"), "cpu")
    assert compare.same_bits(one, run(_doubled(), "cpu")).kind == ""
    assert compare.same_bits(one, other).kind == "bits"


def test_what_aot_eager_gives_is_no_excuse_for_something_third(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A difference is excused if tracing makes it for every backend, and only that one."""
    right, theirs = run(_doubled(), "cpu"), run(_doubled("y * 3"), "cpu")
    noisy = noise.reruns(_doubled(), backward=True, seed=1)
    monkeypatch.setattr("tests.programs.check.compiled", lambda *_: theirs)
    same = _judged(_doubled(), "compiled", right, theirs, noisy)
    assert (same.kind, same.excuse) == ("", "aot_eager has the same: values")
    third = _judged(_doubled(), "compiled", right, run(_doubled("y * 4"), "cpu"), noisy)
    assert third.kind == "values"


def test_the_sign_of_nan_is_nobodys_in_its_bits_either() -> None:
    nan = torch.tensor([torch.nan, 1.0]).view(torch.int32)
    other = nan + torch.tensor([torch.iinfo(torch.int32).min, 0], dtype=torch.int32)
    same = [_of(nan)]  # under noise
    assert compare.outcomes(_of(nan), _of(other), same).kind == ""
    assert compare.outcomes(_of(nan), _of(other + 1), same).kind == "values"


def _of(x: torch.Tensor) -> Outcome:
    return Outcome(values={"result 0": x})
