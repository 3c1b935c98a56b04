"""Which module of ours imports which, read from the sources: `test_import_boundaries` asks."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = ["PACKAGES", "Arrow", "arrows", "circles", "modules", "shortest"]

ROOT = Path(__file__).parents[2]
PACKAGES = ("nrtpy", "torch_neuronx", "nki", "neuronxcc", "neuron_tools", "neuron_dtypes")


class Arrow(NamedTuple):
    """An import.

    Attributes:
        name: the module that is named, or what is taken from it: `from a import b` is `a.b`.
        base: the module that it is taken from; the name itself in `import a`.
        where: file and line.
    """

    name: str
    base: str
    where: str


def modules() -> dict[str, Path]:
    """Return the files of all our modules, stubs of native ones included, by name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py*")):
            if path.suffix in (".py", ".pyi"):
                parts = path.relative_to(ROOT).with_suffix("").parts
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def arrows(module: str, path: Path) -> tuple[Arrow, ...]:
    """Return what a file imports, also within functions and for annotations alone.

    Names that are given to `importlib.import_module` are left out: registries load by name what is
    above them.
    """
    return tuple(_arrows(module, path))


def _arrows(module: str, path: Path) -> Iterator[Arrow]:
    short = path.relative_to(ROOT)
    package = module.split(".") if path.stem == "__init__" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Arrow(alias.name, alias.name, f"{short}:{node.lineno}")
        elif isinstance(node, ast.ImportFrom):
            outer = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*outer, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Arrow(f"{base}.{alias.name}", base, f"{short}:{node.lineno}")


def circles(graph: Mapping[str, set[str]]) -> list[frozenset[str]]:
    """Return the sets of nodes that reach each other, where there are several (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    found = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        path.append(node)
        for following in sorted(graph[node]):
            if following not in index:
                visit(following)
            if following in path:
                low[node] = min(low[node], low[following])
        if low[node] == index[node]:
            at = path.index(node)
            if len(path) - at > 1:
                found.append(frozenset(path[at:]))
            del path[at:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def shortest(graph: Mapping[str, set[str]], starts: Iterable[str]) -> list[str]:
    """Return the nodes of the shortest way from one of some nodes, each in a circle, to itself."""
    return min((_back(graph, start) for start in sorted(starts)), key=len)


def _back(graph: Mapping[str, set[str]], start: str) -> list[str]:
    ways = [[start]]
    seen: set[str] = set()
    for way in ways:  # which grows: the shorter ones stand first
        for following in sorted(graph[way[-1]] - seen):
            if following == start:
                return way
            seen.add(following)
            ways.append([*way, following])
    raise AssertionError(f"{start} is in no circle")
