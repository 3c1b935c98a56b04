"""The registry of environment variables: everybody reads through it, and its page is this page."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from neuronxcc.environment import command, page
from neuronxcc.environment.kernels import TORCH_NEURONX_NKI_LINT
from neuronxcc.environment.registry import SECTIONS, VARIABLES, unknown
from neuronxcc.environment.runtime import NEURON_RT_LOG_LEVEL, NEURON_RT_ROOT_COMM_ID
from neuronxcc.environment.variable import (
    FLAG,
    Kind,
    Reader,
    VariableError,
    changed,
    choice,
    number,
    words,
)

ROOT = Path(__file__).parents[2]
READERS = {
    "neuronxcc": Reader.COMPILER,
    "nki": Reader.NKI,
    "torch_neuronx": Reader.DEVICE,
    "nrtpy": Reader.NRTPY,
    "neuron_tools": Reader.TOOLS,
}
OUTSIDE = {Reader.CORE, Reader.PYTORCH, Reader.TESTS, Reader.MAKE}
# Functions that read variables for whoever calls them (neuronxcc/machine.py).
READ_FOR = {
    "named_target": {"NEURON_PLATFORM_TARGET_OVERRIDE"},
    "named_lnc": {"NEURON_LOGICAL_NC_CONFIG", "NEURON_RT_VIRTUAL_CORE_SIZE"},
}
REGISTRY = ROOT / "neuronxcc" / "environment"
OURS = re.compile(r'"((?:NEURON|TORCH_NEURONX|NKI)_[A-Z0-9_]+)"')


def sources(
    *packages: str, said: Iterable[str] = ("environ", "getenv")
) -> Iterator[tuple[str, str]]:
    """Names and texts of the files that say one of some words, but for the registry's own."""
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if any(word in text for word in said) and not path.is_relative_to(REGISTRY):
                yield path.relative_to(ROOT).as_posix(), text


def reads_of_the_environment(tree: ast.AST) -> Iterator[int]:
    """Lines that read or change the process's environment, but for `{**os.environ, ...}`.

    That is the environment of another process.
    """
    passed_on = {
        value
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if key is None
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv", "putenv"}:
            owner = isinstance(node.value, ast.Name) and node.value.id == "os"
            if owner and node not in passed_on:
                yield node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            yield from (node.lineno for a in node.names if a.name in {"environ", "getenv"})


def test_nothing_but_the_registry_reads_the_environment() -> None:
    found = [
        f"{name}:{line}"
        for name, text in sources(*READERS, "neuron_dtypes")
        for line in reads_of_the_environment(ast.parse(text))
    ]
    assert not found, "declare the variable in neuronxcc/environment and `get` it: " + str(found)


def test_reads_are_found() -> None:
    text = 'import os\nx = os.environ["A"]\nrun({**os.environ})\nos.getenv("B")\n'
    assert sorted(reads_of_the_environment(ast.parse(text))) == [2, 4]


def test_variables_are_read_by_those_who_are_named() -> None:
    readers: dict[str, set[Reader]] = defaultdict(set)
    for name, text in sources(*READERS, said=("environment", "neuronxcc.machine")):
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.ImportFrom):
                continue
            module = str(node.module)
            if "neuronxcc.environment" not in module and module != "neuronxcc.machine":
                continue
            for alias in node.names:
                for variable in READ_FOR.get(alias.name, {alias.name}):
                    readers[variable].add(READERS[name.partition("/")[0]])
    named = {name: v.readers - OUTSIDE for name, v in VARIABLES.items() if name == v.name}
    assert {name: found for name, found in readers.items() if name in named} == {
        name: wanted for name, wanted in named.items() if wanted
    }


def test_variables_of_the_native_core_are_those_of_its_sources() -> None:
    found = {
        name
        for pattern in ("*.cpp", "*.h")
        for path in (ROOT / "torch_neuronx" / "csrc").rglob(pattern)
        for name in re.findall(r'getenv\("([A-Z0-9_]+)"\)', path.read_text(encoding="utf-8"))
    }
    assert found == {v.name for v in VARIABLES.values() if Reader.CORE in v.readers}
    text = "".join(
        path.read_text(encoding="utf-8")
        for pattern in ("*.cpp", "*.h")
        for path in (ROOT / "torch_neuronx" / "csrc").rglob(pattern)
    )
    assert text.count("getenv(") == len(re.findall(r'getenv\("[A-Z0-9_]+"\)', text))


def test_names_in_tests_and_benchmarks_are_known() -> None:
    found = {
        name
        for file, text in sources("tests", "benchmarks", "examples")
        if not file.endswith(Path(__file__).name)
        for line in text.splitlines()
        if "environ" in line or "setenv" in line
        for name in OURS.findall(line)
    }
    assert found <= set(VARIABLES)


def test_the_page_is_the_committed_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--markdown"]) == 0
    committed = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out == committed, "python -m torch_neuronx.env --markdown"


def test_every_variable_has_one_row_and_a_good_default() -> None:
    names = [v.name for section in SECTIONS for v in section.variables]
    assert len(names) == len(set(names))
    for variable in VARIABLES.values():
        assert variable.meaning
        assert variable.source
        assert variable.get({}) == variable.get({variable.name: " "}) == variable.default


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (FLAG, {"1": True, "True": True, "off": False}, ["2", "maybe"]),
        (choice("a", "b"), {"a": "a", "B": "b"}, ["c", "a b"]),
        (choice("a", exact=True), {"a": "a"}, ["A"]),
        (number(1, 9), {"1": 1, "9": 9}, ["0", "10", "-1", "1.5", "x", "٣", "9" * 5000]),
        (words(","), {"a, b,": ("a", "b")}, []),
    ],
)
def test_kinds(kind: Kind[object], good: dict[str, object], bad: list[str]) -> None:
    assert {text: kind.parse(text) for text in good} == good
    for text in bad:
        with pytest.raises(ValueError):
            kind.parse(text)


def test_a_wrong_value_is_named() -> None:
    with pytest.raises(VariableError) as caught:
        TORCH_NEURONX_NKI_LINT.get({"TORCH_NEURONX_NKI_LINT": " loud "})
    assert str(caught.value) == (
        "TORCH_NEURONX_NKI_LINT='loud' is not valid; allowed: off, warn, strict. Change it, or "
        "unset it."
    )
    found = (caught.value.variable, caught.value.given, caught.value.allowed)
    assert found == ("TORCH_NEURONX_NKI_LINT", "loud", "off, warn, strict")


def test_values() -> None:
    assert NEURON_RT_ROOT_COMM_ID.get({"NEURON_RT_ROOT_COMM_ID": "[::1]:80"}) == ("::1", 80)
    of_one = {"NEURON_RT_LOG_LEVEL": "INFO", "NEURON_RT_LOG_LEVEL_NRT": "debug"}
    assert NEURON_RT_LOG_LEVEL.get(of_one, "NRT") == "debug"
    assert NEURON_RT_LOG_LEVEL.get(of_one, "TDRV") == NEURON_RT_LOG_LEVEL.get(of_one) == "info"


def test_changes_end(monkeypatch: pytest.MonkeyPatch) -> None:
    lint = TORCH_NEURONX_NKI_LINT
    monkeypatch.delenv(lint.name, raising=False)
    with changed({lint.name: "warn"}):
        assert lint.get() == "warn"
        before = lint.set("strict")
        assert (before, lint.get()) == ("warn", "strict")
    assert lint.text() == ""
    assert lint.set(None) is None


def test_what_is_set_is_printed() -> None:
    environ = {
        "NKI_SIMULATOR": "1",
        "TORCH_NEURONX_EXECUTOR": "gpu",
        "TORCH_NEURONX_EXECUTER": "native",
        "NEURON_SOMETHING": "1",
        "NEURON_DUMP": "dump",
        "SHELL": "sh",
    }
    text = page.report(environ)
    assert "NKI_SIMULATOR=1\n    Changes nothing here. Accepted: " in text
    assert (
        "TORCH_NEURONX_EXECUTOR=gpu\n    WRONG: allowed: native, program, reference, device\n"
        "    What" in text
    )
    assert "EXECUTER=native\n    UNKNOWN: did you mean TORCH_NEURONX_EXECUTOR?" in text
    assert "NEURON_SOMETHING=1\n    UNKNOWN: TorchNeuron does not read it" in text
    assert "See docs/compiler.md (default: unset; device)" in " ".join(text.split())
    assert "SHELL" not in text
    assert [error.variable for error in page.wrong(environ)] == ["TORCH_NEURONX_EXECUTOR"]
    assert set(unknown(environ)) == {"TORCH_NEURONX_EXECUTER", "NEURON_SOMETHING"}
    assert page.report({}) == "No variable of TorchNeuron is set."
