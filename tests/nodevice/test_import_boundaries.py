"""Imports go one way: nrtpy -> torch_neuronx -> nki -> neuronxcc.

Only `neuronxcc.nki`, which kernels of the first generation import by this name, builds on nki.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FORBIDDEN = {
    "neuronxcc": {"torch", "torch_neuronx", "nki", "nrtpy", "neuron_tools"},
    "nki": {"torch", "torch_neuronx", "nrtpy", "neuron_tools"},
    "neuron_dtypes": {"torch", "torch_neuronx", "neuronxcc"},
    "neuron_tools": {"torch", "nki"},
    "nrtpy": {"torch", "nki", "neuron_tools"},
}
COMPATIBILITY = ROOT / "neuronxcc" / "nki"
FILES = [
    (package, path) for package in FORBIDDEN for path in sorted((ROOT / package).rglob("*.py"))
]


def modules(path: Path) -> set[str]:
    """Return the names of all modules that a file imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@pytest.mark.parametrize(
    ("package", "path"), FILES, ids=lambda value: value if isinstance(value, str) else value.name
)
def test_package_imports_only_what_is_below_it(package: str, path: Path) -> None:
    forbidden = FORBIDDEN[package]
    if path.is_relative_to(COMPATIBILITY):
        forbidden = FORBIDDEN["nki"]
    assert not {name.partition(".")[0] for name in modules(path)} & forbidden


@pytest.mark.parametrize(
    "path",
    [path for _, path in FILES if not path.is_relative_to(COMPATIBILITY)],
    ids=lambda path: path.name,
)
def test_nothing_below_it_imports_the_compatibility_package(path: Path) -> None:
    assert not [name for name in modules(path) if f"{name}.".startswith("neuronxcc.nki.")]


def test_there_is_something_to_check() -> None:
    assert {package for package, _ in FILES} == set(FORBIDDEN)
