"""`nki.check`, and the switch: Python that the NKI compiler refuses."""

from __future__ import annotations

import enum
import inspect
import re
import types
import warnings
from typing import Any

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from neuronxcc.environment.kernels import TORCH_NEURONX_NKI_VERSION
from nki.errors import CODES, NkiError, NkiTypeError, NkiWarning
from nki.lint import check_arguments, check_python
from nki.lint.rules import RULES
from nki.versions import VERSIONS
from tests.nki import lint_samples

MARK = re.compile(r"# bad (NKI\d+) (sure|inferred)(?: (\d\.\d))?")


@pytest.fixture(autouse=True)
def _environment(reference_executor: None, monkeypatch: pytest.MonkeyPatch) -> None:
    del reference_executor
    monkeypatch.delenv(TORCH_NEURONX_NKI_VERSION.name, raising=False)
    monkeypatch.delenv("TORCH_NEURONX_NKI_LINT", raising=False)


def marked() -> list[Any]:
    """Return (function, line, code, sure, first version) of every sample that is wrong."""
    found = []
    for name, function in vars(lint_samples).items():
        if isinstance(function, types.FunctionType) and function.__module__.endswith("samples"):
            lines, start = inspect.getsourcelines(function)
            for i, line in enumerate(lines):
                match = MARK.search(line)
                if match:
                    code, sure, since = match.groups()
                    found.append(
                        pytest.param(
                            function, start + i, code, sure == "sure", since or "0.2", id=name
                        )
                    )
    return found


@pytest.mark.parametrize(("function", "line", "code", "sure", "since"), marked())
def test_samples(
    function: Any, line: int, code: str, sure: bool, since: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (problem,) = check_python(nki.jit(function))
    assert (problem.code, problem.line, problem.sure) == (code, line, sure)
    assert problem.file == lint_samples.__file__
    assert problem.code in CODES
    text = f"{problem.text}; {problem.file}:{line}; {problem.remedy} [{code}]"
    assert str(problem) == text
    number = tuple(int(n) for n in since.split("."))
    for version in VERSIONS:
        monkeypatch.setenv(TORCH_NEURONX_NKI_VERSION.name, f"{version[0]}.{version[1]}")
        codes = {p.code for p in check_python(function)}
        assert (code in codes) == (version >= number)


def test_every_rule_has_a_sample() -> None:
    def rule_of(problem: Any) -> int:
        return next(i for i, rule in enumerate(RULES) if rule.remedy == problem.remedy)

    hit = {rule_of(problem) for row in marked() for problem in check_python(row.values[0])}
    without = [rule.broken.__name__ for i, rule in enumerate(RULES) if i not in hit]
    # Its sample needs a module that starts with neuronxcc.nki: see below.
    assert without == ["_legacy"]


@pytest.mark.parametrize(
    ("function", "word"),
    [(lint_samples.calls_helper, "in a helper"), (lint_samples.uses_options, "in a method")],
)
def test_functions_that_a_kernel_uses_are_looked_at(function: Any, word: str) -> None:
    (problem,) = check_python(function)
    with open(lint_samples.__file__, encoding="utf-8") as source:  # noqa: PTH123
        assert word in source.read().splitlines()[problem.line - 1]
    assert problem.code == "NKI251"


def test_what_the_guide_shows_is_fine() -> None:
    assert check_python(lint_samples.fine) == []
    assert nki.check(lint_samples.fine) == []


def test_the_first_generation_is_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    legacy = types.ModuleType("neuronxcc.nki.language")
    monkeypatch.setitem(lint_samples.__dict__, "np", legacy)

    problems = check_python(lint_samples.fine)
    assert {(p.code, p.sure) for p in problems} == {("NKI256", True)}
    assert problems[0].text == "`np` is the module neuronxcc.nki.language"
    monkeypatch.setenv(TORCH_NEURONX_NKI_VERSION.name, "0.3")
    assert check_python(lint_samples.fine) == []


def test_source_that_cannot_be_read() -> None:
    scope: dict[str, Any] = {}
    exec("def kernel(a):\n    return a", scope)  # noqa: S102
    (problem,) = check_python(scope["kernel"])
    assert (problem.code, problem.text) == (
        "NKI259",
        "the source of 'kernel' cannot be read",
    )


# --- arguments ----------------------------------------------------------------------------------


def _two(a: Any, b: Any) -> Any:
    return a, b


class Colour(enum.Enum):
    """An enumeration."""

    red = 1


class Mine:
    """A class of its own."""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([1, 2], "the argument b is a list; pass a tuple"),
        (((1, [2]),), r"the argument b\[0\]\[1\] is a list"),
        ({1, 2}, "the argument b is a set"),
        (b"x", "the argument b is a bytes"),
        ({1: 2}, "the argument b is a dictionary with keys that are no strings"),
        (2**32, "the argument b is 4294967296"),
        (Mine(), "the argument b is of class Mine"),
    ],
)
def test_arguments_that_kernels_do_not_take(value: Any, text: str) -> None:
    (problem,) = check_arguments(_two, (1, value), {})
    assert re.match(text, f"{problem.text}; {problem.remedy}")
    assert problem.code == "NKI254"


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, -(2**31), 0.5, "x", (1, "x"), {"a": 1}, np.zeros(3), np.float32(1),
        Colour.red, nl.float32, nl.add, len, lint_samples.Config(),
        lint_samples.scale, lint_samples.Config,
        np.float32,
    ],
)  # fmt: skip
def test_arguments_that_kernels_take(value: Any) -> None:
    assert check_arguments(lambda a: a, (value,), {}) == []


# --- nki.check and the switch -------------------------------------------------------------------


@nki.jit
def doubtful(a: Any, flag: Any = None) -> Any:
    """Have one thing of every kind: refused for sure, inferred, undefined on hardware."""
    if flag is None:
        more = {1, 2}
        assert more
    out = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
    nl.store(out, nl.divide(nl.load(a), 2.0))
    return out


def test_check_runs_a_kernel_for_its_arguments() -> None:
    a = np.ones((4, 4), np.float32)
    assert [p.code for p in nki.check(doubtful)] == ["NKI251", "NKI251"]
    assert [p.code for p in nki.check(doubtful, a)] == ["NKI251", "NKI251", "NKI243"]
    assert [p.code for p in nki.check(doubtful, a, [])] == ["NKI251", "NKI251", "NKI254", "NKI243"]
    found = nki.check(doubtful, np.ones((129, 4), np.float32))
    assert found[-1].code == "NKI004"
    assert found[-1].file == __file__
    with pytest.raises(NkiTypeError, match="NKI207"):
        nki.check(doubtful, a, 1, 2, 3)


def test_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    @nki.jit
    def kernel(a: Any, flag: Any = None) -> Any:
        if flag is None:
            assert {1}
        return a

    @nki.jit
    def inferred(a: Any) -> Any:
        assert {1}
        return a

    a = np.ones((4, 4), np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel(a)
    monkeypatch.setenv("TORCH_NEURONX_NKI_LINT", "warn")
    with pytest.warns(NkiWarning) as caught:
        kernel(a)
    assert [str(w.message).rpartition(" ")[2] for w in caught] == ["[NKI251]", "[NKI251]"]
    assert {w.filename for w in caught} == {__file__}
    monkeypatch.setenv("TORCH_NEURONX_NKI_LINT", "strict")
    with pytest.raises(NkiError, match=r"`flag is None` compares identities.*write ==.*NKI251"):
        kernel(a)
    with pytest.warns(NkiWarning, match="a set is made"):
        inferred(a)
    monkeypatch.setenv("TORCH_NEURONX_NKI_LINT", "loud")
    with pytest.raises(
        NkiError, match=r"'loud' is no mode of checking; .*off, warn, strict.*NKI247"
    ):
        inferred(a)


def test_loops_on_registers_are_deprecated_and_cannot_be_left() -> None:
    def kernel(a: Any) -> Any:
        register = nisa.register_alloc(1)
        while register:
            break
        return a

    (first, second) = nki.check(kernel, np.ones((1, 1), np.float32))
    assert (first.code, second.code) == ("NKI257", "NKI245")
