"""Graphs that were collected to be compiled later: entries of the cache without a program.

    <root>/neuronxcc-0.1.0/MODULE_<graph>+<flags>/
        model.hlo_module.pb   the graph as an HLO module, for any compiler of HLO
        graph.txt             the graph as our own text, where HLO says it in other operators
        compile_flags.json    the options, a list of words
        request.json          what else a program depends on, and the key
        model.failed          why it could not be compiled, if it was tried
        model.neff            the program, from then on

A training script collects (NEURON_EXTRACT_GRAPHS_ONLY), `neuron_parallel_compile` compiles. The key
says whether what is compiled is what was collected: it is computed again from what was read, so a
damaged file, or one of another version, is refused and never gets a program that isn't its own.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from neuronxcc.cache.cache import CompileCache
from neuronxcc.cache.key import CacheKey, Part, layouts_of, make_key
from neuronxcc.cache.local import (
    FAILED_NAME,
    FLAGS_NAME,
    MOST_TEXT_BYTES,
    NEFF_NAME,
    LocalStore,
)
from neuronxcc.cache.messages import warn
from neuronxcc.compiler import compile_graph
from neuronxcc.environment.compilation import NEURON_RT_STOCHASTIC_ROUNDING_EN
from neuronxcc.files import read_regular
from neuronxcc.frontends.hlo import import_hlo
from neuronxcc.frontends.hlo.exporter import export_hlo
from neuronxcc.ir.graph import Graph
from neuronxcc.ir.text import parse as parse_text
from neuronxcc.ir.text import to_text
from neuronxcc.neff.container import MOST_NEFF_BYTES
from neuronxcc.options import Options, parse

HLO_NAME = "model.hlo_module.pb"
TEXT_NAME = "graph.txt"
REQUEST_NAME = "request.json"

Strides = Sequence[tuple[int, ...]]


class CollectedError(ValueError):
    """A collected graph is damaged, or of another version of the compiler."""


@dataclass(frozen=True, slots=True)
class Request:
    """A graph to be compiled.

    Attributes:
        graph: The graph.
        options: Of the compilation.
        key: Of its entry in the cache.
        name: Of the model, for people.
        param_strides: As for `compile_graph`, like the next two.
        result_strides: Strides of the results.
        constant_params: Parameters that are weights.
    """

    graph: Graph
    options: Options
    key: CacheKey
    name: str
    param_strides: Strides
    result_strides: Strides
    constant_params: Collection[int] | None


def collect(store: LocalStore, request: Request) -> Path:
    """Keep a graph to be compiled later, unless it is there, compiled or not.

    Returns:
        Its `model.hlo_module.pb`.

    Raises:
        OSError: The cache cannot be written to.
    """
    folder = store.path(request.key).parent
    path = folder / HLO_NAME
    if all((folder / name).is_file() for name in (HLO_NAME, REQUEST_NAME)):
        return path
    module = export_hlo(request.graph)
    constant = request.constant_params
    facts = {
        "name": request.name,
        "digest": request.key.digest,
        "parts": {label: part.hash for label, part in request.key.parts.items()},
        "param_strides": request.param_strides,
        "result_strides": request.result_strides,
        "constant_params": None if constant is None else sorted(constant),
        "stochastic_rounding": request.options.stochastic_rounding,
    }
    files = {
        HLO_NAME: module,
        FLAGS_NAME: json.dumps(request.options.flags()).encode(),
        REQUEST_NAME: json.dumps(facts, indent=1).encode(),
    }
    if _without_places(import_hlo(module).graph) != _without_places(request.graph):
        files = {TEXT_NAME: to_text(request.graph).encode(), **files}
    store.put(request.key, files)
    return path


def read(folder: Path) -> Request:
    """Read a collected graph and check that it is the one that its key was made from.

    Raises:
        CollectedError: It is not, or the files are damaged.
        OSError: A file cannot be read.
    """
    try:
        return _read(folder)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, CollectedError):
            raise
        raise CollectedError(f"{folder}: {type(error).__name__}: {error}") from error


def _read(folder: Path) -> Request:
    facts = json.loads(read_regular(folder / REQUEST_NAME, MOST_TEXT_BYTES))
    flags = json.loads(read_regular(folder / FLAGS_NAME, MOST_TEXT_BYTES))
    options = parse(
        flags,
        environ={NEURON_RT_STOCHASTIC_ROUNDING_EN.name: "1"}
        if facts["stochastic_rounding"]
        else {},
    )
    key = CacheKey.of_parts({str(k): Part(str(v), None) for k, v in sorted(facts["parts"].items())})
    try:
        text = read_regular(folder / TEXT_NAME, MOST_NEFF_BYTES)
    except FileNotFoundError:
        graph = import_hlo(read_regular(folder / HLO_NAME, MOST_NEFF_BYTES)).graph
    else:
        graph = parse_text(text.decode())
    param_strides, result_strides = (_strides(facts[f"{n}_strides"]) for n in ("param", "result"))
    constant = facts["constant_params"]
    request = Request(
        graph, options, key, str(facts["name"]), param_strides, result_strides,
        None if constant is None else frozenset(map(int, constant)),
    )  # fmt: skip
    if (key.digest, key.folder) != (facts["digest"], folder.name):
        raise CollectedError(f"{folder}: {REQUEST_NAME} is of another entry")
    _check(request, folder)
    return request


def _check(request: Request, folder: Path) -> None:
    """The key of what was read must be the one that was collected."""
    layouts = layouts_of(request.param_strides, request.result_strides, request.constant_params)
    mine = make_key(request.graph, request.options, layouts=layouts).parts
    theirs = request.key.parts
    wrong = [label for label, part in mine.items() if theirs.get(label, part).hash != part.hash]
    wrong += sorted(mine.keys() - theirs.keys())
    versions = [label.removeprefix("version.") for label in wrong if label.startswith("version.")]
    if versions:
        raise CollectedError(
            f"{folder} was collected with another version of {', '.join(versions)}; collect again"
        )
    if wrong:
        raise CollectedError(
            f"{folder} is damaged: its {', '.join(wrong)} is not what its key says"
        )


def _strides(value: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(map(int, strides)) for strides in value)


def _without_places(graph: Graph) -> str:
    return to_text(replace(graph, name="", locs={}))


def entries(store: LocalStore) -> list[Path]:
    """Folders of all graphs that were collected by this version, in the order of their names."""
    return sorted(path.parent for path in store.home.glob(f"MODULE_*/{REQUEST_NAME}"))


def is_done(folder: Path) -> bool:
    """Return whether there is a program."""
    return (folder / NEFF_NAME).is_file()


def failure(folder: Path) -> str:
    """Why it could not be compiled; "" if it was not tried, or not in vain."""
    try:
        return read_regular(folder / FAILED_NAME, MOST_TEXT_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        warn(f"{folder.name} is tried again: {error}")
        return ""


def compile_entry(folder: Path, cache: CompileCache) -> bool:
    """Compile a collected graph into its entry, or wait for who does.

    Returns:
        Whether it was there already.

    Raises:
        CollectedError: The graph can't be used.
        LoweringUnsupportedError: Nothing can run it.
        OSError: The entry cannot be read or written.
    """
    request = read(folder)
    compiled = cache.compile(
        request.key,
        lambda: compile_graph(
            request.graph,
            request.options,
            request.param_strides,
            request.result_strides,
            constant_params=request.constant_params,
        ),
        request.options,
        name=request.name,
    )
    if compiled.path is None:
        raise OSError(f"the program of {folder.name} could not be kept")
    return compiled.hit
