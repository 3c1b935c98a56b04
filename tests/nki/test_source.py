"""The text that Python finds for a function may be another's."""

from __future__ import annotations

import importlib.util
import linecache
import types
from pathlib import Path
from typing import Any

import pytest

from nki.first_generation.syntax import spelled_out
from nki.lint import check_python
from nki.source import source_of


def _from(text: str, file: str) -> types.FunctionType:
    """The function `kernel` of a text, said to be from that file."""
    scope: dict[str, Any] = {}
    exec(compile(text, file, "exec"), scope)  # noqa: S102
    made = scope["kernel"]
    assert isinstance(made, types.FunctionType)
    return made


KERNEL = "def kernel(a, *, b=1, **more):\n    return a\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (KERNEL, True),
        ("import os; print(...)\n", False),
        ("def kernal(a, *, b=1, **more):\n    return a\n", False),
        ("def kernel(a, *, c=1, **more):\n    return a\n", False),
        ("def kernel(a, b=1, **more):\n    return a\n", False),
        ("def kernel(\n", False),
    ],
)
def test_the_text_is_compared(monkeypatch: pytest.MonkeyPatch, text: str, found: bool) -> None:
    file = "<somewhere>"
    monkeypatch.setitem(
        linecache.cache, file, (len(text), None, text.splitlines(keepends=True), file)
    )
    kernel = _from(KERNEL, file)
    source = source_of(kernel)
    assert (source is not None) == found
    if source is not None:
        assert (source.file, source.first) == (file, 1)
    assert ("NKI259" in {p.code for p in check_python(kernel)}) == (not found)


@pytest.mark.parametrize("flags", [0, annotations.compiler_flag])
def test_a_cell_after_another(monkeypatch: pytest.MonkeyPatch, flags: int) -> None:
    """What an earlier cell of a notebook imports from the future changes the code of this one."""
    file, text = (
        "<cell>",
        (
            "def kernel(nl, a, b):\n"
            "    def inner(x: int) -> int:\n"
            "        return x\n"
            "    return nl.load(inner(a), mask=a and b)\n"
        ),
    )
    monkeypatch.setitem(
        linecache.cache, file, (len(text), None, text.splitlines(keepends=True), file)
    )
    scope: dict[str, Any] = {}
    exec(compile(text, file, "exec", flags, dont_inherit=True), scope)  # noqa: S102
    assert spelled_out(scope["kernel"]) is not scope["kernel"]


def test_lambdas() -> None:
    kernel = lambda a, b=2: a + b  # noqa: E731
    assert isinstance(kernel, types.FunctionType)
    source = source_of(kernel)
    assert source is not None
    assert Path(source.file).name == "test_source.py"


def test_a_file_that_was_edited_since(tmp_path: Path) -> None:
    """Its new text is not compiled in the place of what was imported."""
    file = tmp_path / "edited.py"
    text = "def kernel(nl, a, b):\n    return nl.load(a, mask=a {} b)\n"
    file.write_text(text.format("and"))
    spec = importlib.util.spec_from_file_location("edited", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert spelled_out(module.kernel) is not module.kernel
    file.write_text("def kernel(nl, a, b):\n    return nl.load(b, mask=a and b and a)\n")
    assert spelled_out(module.kernel) is module.kernel
