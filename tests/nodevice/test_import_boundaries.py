"""Imports go one way: torch_neuronx -> nki -> neuronxcc."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FORBIDDEN = {
    "neuronxcc": {"torch", "torch_neuronx", "nki"},
    "nki": {"torch", "torch_neuronx"},
    "neuron_dtypes": {"torch", "torch_neuronx", "neuronxcc"},
}
FILES = [
    (package, path) for package in FORBIDDEN for path in sorted((ROOT / package).rglob("*.py"))
]


def imported(path: Path) -> set[str]:
    """Return the top-level names of all modules that a file imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.parametrize(
    ("package", "path"), FILES, ids=lambda value: value if isinstance(value, str) else value.name
)
def test_package_imports_only_what_is_below_it(package: str, path: Path) -> None:
    assert not imported(path) & FORBIDDEN[package]


def test_there_is_something_to_check() -> None:
    assert {package for package, _ in FILES} == set(FORBIDDEN)
