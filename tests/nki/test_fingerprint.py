"""Hashes of kernels: equal for equal code, another one for whatever changes what the code does."""

from __future__ import annotations

import enum
import functools
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import nki
import nki.language as nl
from nki.fingerprint import fingerprint

BASE = """
import enum
import math
import numpy as np
import nki
import nki.language as nl
import nki.isa as nisa
import helper_of_kernel

WIDTH = 4
TABLE = {"a": (1, 2.0)}

class Mode(enum.Enum):
    one = 1

class Config(nl.NKIObject):
    size: int = 3
    def rows(self):
        return self.size * WIDTH

def inner(x):
    return x * WIDTH + TABLE["a"][0]

@nki.jit
def nested(x):
    return helper_of_kernel.scale(x)

def kernel(x, mode=Mode.one):
    nested(x)
    square = lambda v: v * math.pi
    return inner(x) + Config().rows() + square(x), nl.float32, np.float32
"""


def load(text: str, helper: str = "def scale(x):\n    return x * 2\n") -> str | None:
    """Return the fingerprint of `kernel` in a module with this text."""
    parts: dict[str, ModuleType] = {}
    for name, source in (("helper_of_kernel", helper), ("kernel_module", text)):
        module = ModuleType(name)
        module.__file__ = f"/somewhere/{name}.py"
        sys.modules[name] = parts[name] = module
        try:
            exec(compile(source, module.__file__, "exec"), vars(module))  # noqa: S102 (our own text)
        finally:
            if name == "kernel_module":
                found = fingerprint(vars(module).get("kernel"))
                del sys.modules["kernel_module"], sys.modules["helper_of_kernel"]
    return found


def test_equal_code_has_equal_fingerprints() -> None:
    assert load(BASE) == load(BASE) is not None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("WIDTH = 4", "WIDTH = 5"),
        ("(1, 2.0)", "(1, 2)"),
        ("x * WIDTH + TABLE", "x * WIDTH - TABLE"),
        ("size: int = 3", "size: int = 4"),
        ("self.size * WIDTH", "self.size + WIDTH"),
        ("one = 1", "one = 2"),
        ("v * math.pi", "v * math.e"),
        ("nl.float32, np", "nl.bfloat16, np"),
        ("@nki.jit\ndef nested", "\ndef nested"),
        ("helper_of_kernel.scale(x)", "helper_of_kernel.scale(x + 1)"),
        ("WIDTH = 4", "\n\nWIDTH = 4"),  # the lines that errors name
    ],
)
def test_every_change_counts(old: str, new: str) -> None:
    assert old in BASE
    assert load(BASE.replace(old, new)) not in (load(BASE), None)


def test_modules_that_are_used_count() -> None:
    assert load(BASE, "def scale(x):\n    return x * 3\n") != load(BASE)
    other = "def scale(x):\n    return x * 2\ndef unused(x):\n    return 1\n"
    assert load(BASE, other) == load(BASE)


def test_modules_that_are_imported_inside_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    text = textwrap.dedent("""
        def kernel(x):
            import late_module_of_kernel
            return late_module_of_kernel.f(x)
    """)
    (tmp_path / "late_module_of_kernel.py").write_text("def f(x):\n    return x\n")
    first = load(text)
    (tmp_path / "late_module_of_kernel.py").write_text("def f(x):\n    return x + 1\n")
    assert load(text) not in (first, None)


def test_arguments() -> None:
    class Mode(enum.Enum):
        a = 1
        b = 2

    values: list[Any] = [
        1, 1.0, True, "1", b"1", None, -0.0, 0.0, (1, 2), [1, 2], (1, (2,)), {"a": 1}, {"a": 2},
        Mode.a, Mode.b, np.arange(3), np.arange(3.0), np.float32(1), nl.float32, len,
        functools.partial(len, "x"), functools.partial(len, "y"), frozenset({1, 2}),
    ]  # fmt: skip
    found = [fingerprint(value) for value in values]
    assert None not in found
    assert len(set(found)) == len(values)
    assert [fingerprint(value) for value in values] == found


@pytest.mark.parametrize("value", [object(), iter(()), {object()}, np.array([object()])])
def test_what_cannot_be_followed_has_no_fingerprint(value: Any) -> None:
    assert fingerprint(value) is None
    assert fingerprint(lambda: value) is None


def test_named_tuples() -> None:
    text = """
        import typing
        class Tiles(typing.NamedTuple):
            rows: int
            columns: int = 3
            def both(self):
                return self.rows + self.columns
        def kernel(x):
            return Tiles(1).both()
    """
    base = load(textwrap.dedent(text))
    for old, new in (("= 3", "= 4"), ("columns", "width"), ("rows +", "rows -")):
        assert load(textwrap.dedent(text.replace(old, new))) not in (base, None)
    shown = text.replace("def both", "def __repr__")
    assert load(textwrap.dedent(shown)) != load(textwrap.dedent(shown.replace("rows +", "rows -")))


def test_kernels_of_torch_neuronx_are_followed() -> None:
    module = ModuleType("torch_neuronx.kernels.invented")
    sys.modules[module.__name__] = module
    found = set()
    for factor in (2, 3):
        exec(f"def helper(x): return x * {factor}\ndef kernel(x): return helper(x)", vars(module))  # noqa: S102
        found.add(fingerprint(vars(module)["kernel"]))
    del sys.modules[module.__name__]
    assert len(found) == 2
    assert None not in found


def test_recursion_ends() -> None:
    def even(n: int) -> bool:
        return n == 0 or odd(n - 1)

    def odd(n: int) -> bool:
        return n != 0 and even(n - 1)

    loop: list[Any] = []
    loop.append(loop)
    assert fingerprint(even) is not None
    assert fingerprint(loop) is not None


def test_kernels_with_grids_differ() -> None:
    @nki.jit
    def kernel() -> None:
        pass

    assert fingerprint(kernel) != fingerprint(kernel[2]) is not None
