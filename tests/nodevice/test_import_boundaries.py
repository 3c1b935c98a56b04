"""Imports go one way: nrtpy -> torch_neuronx -> nki -> neuronxcc, and no module reaches itself."""

import ast
from itertools import pairwise

from tests.nodevice.import_graph import PACKAGES, arrows, circles, modules, shortest

FORBIDDEN = {
    "neuronxcc": {"torch", "torch_neuronx", "nki", "nrtpy", "neuron_tools"},
    "nki": {"torch", "torch_neuronx", "nrtpy", "neuron_tools"},
    "neuron_dtypes": {"torch", "torch_neuronx", "neuronxcc"},
    "neuron_tools": {"torch", "nki"},
    "nrtpy": {"torch", "nki", "neuron_tools"},
    "torch_neuronx": {"nrtpy"},
}
# Kernels of the first generation import this package, which only names what is in nki.
NAMES = "neuronxcc.nki"
# The stages of lowering, in the order in which a graph passes through them: a stage may read what
# an earlier one made, and nothing of a later one.
LOWERING = "neuronxcc.lowering"
STAGES = ("geometry", "preparation", "fusion", "memory", "emission", "scheduling")


def within(name: str, package: str) -> bool:
    return f"{name}.".startswith(f"{package}.")


def test_packages_import_only_what_is_below_them() -> None:
    wrong, seen = [], set()
    for module, path in modules().items():
        package = module.partition(".")[0]
        seen.add(package)
        if within(module, NAMES):
            continue
        for name, _, where in arrows(module, path):
            if name.partition(".")[0] in FORBIDDEN[package]:
                wrong.append(f"{where}: {package} is below {name}")
            elif within(name, NAMES):
                wrong.append(f"{where}: {name} is for kernels: import nki.first_generation")
    assert seen == set(PACKAGES) == set(FORBIDDEN)
    assert not wrong, "\n".join(sorted(set(wrong)))


def test_stages_of_lowering_import_only_earlier_ones() -> None:
    wrong, seen = [], set()
    for module, path in modules().items():
        stage = next((s for s in STAGES if within(module, f"{LOWERING}.{s}")), None)
        if stage is None:
            continue
        seen.add(stage)
        later = STAGES[STAGES.index(stage) + 1 :]
        wrong += [
            f"{where}: {stage} comes before {name}"
            for name, _, where in arrows(module, path)
            if name == f"{LOWERING}.lower" or any(within(name, f"{LOWERING}.{s}") for s in later)
        ]
    assert seen == set(STAGES)
    assert not wrong, "\n".join(wrong)


def test_the_names_of_the_first_generation_are_imported_and_nothing_else() -> None:
    wrong = []
    for module, path in modules().items():
        if not within(module, NAMES):
            continue
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            docstring = isinstance(statement, ast.Expr)
            names = isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0])
            if not (docstring or names == "__all__" or isinstance(statement, ast.ImportFrom)):
                wrong.append(f"{path}:{statement.lineno}: {ast.unparse(statement)}")
        wrong += [
            f"{where}: {name} is not of the first generation"
            for name, _, where in arrows(module, path)
            if not name.startswith((f"{NAMES}.", "nki.first_generation.", "nki.typing."))
        ]
    assert not wrong, "\n".join(wrong)


def test_no_module_imports_itself_through_others() -> None:
    known = modules()
    graph: dict[str, set[str]] = {module: set() for module in known}
    places: dict[tuple[str, str], str] = {}
    for module, path in known.items():
        for name, base, where in arrows(module, path):
            target = name if name in known else base
            if target in known and target != module:
                graph[module].add(target)
                places.setdefault((module, target), where)
    problems = [
        " ".join(f"{places[a, b]}: {a} imports {b}." for a, b in pairwise((*way, way[0])))
        for circle in circles(graph)
        for way in [shortest(graph, circle)]
    ]
    assert not problems, "\n".join(problems)


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a", "f"}}
    assert circles(graph) == [frozenset("de"), frozenset("bc")]
    assert shortest(graph, frozenset("bc")) == ["b", "c"]
