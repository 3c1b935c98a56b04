"""Graphs of a trial run, kept for `neuron_parallel_compile` instead of being compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from neuronxcc import collected
from neuronxcc.cache.cache import CompileCache
from neuronxcc.cache.messages import LOG, set_log_level
from neuronxcc.ir import build
from neuronxcc.ir.graph import Graph
from neuronxcc.options import Options
from torch_neuronx._compile_only import CompileOnlyError
from torch_neuronx.dynamo.importer import Imported
from torch_neuronx.dynamo.keys import key_of
from torch_neuronx.neuron_dynamo_backend import program_name


def collect(
    imported: Imported,
    settings: Options,
    cache: CompileCache,
    parts: Mapping[str, str] | None = None,
) -> None:
    """Keep a graph in the cache to be compiled later.

    Args:
        imported: The graph.
        settings: Options of the compilation.
        cache: Where to.
        parts: Further parts of its key, as for `compile_imported`.

    Raises:
        CompileOnlyError: There is no cache.
        OSError: It cannot be written to.
    """
    if not settings.wrapper.log_level:
        set_log_level("INFO")  # a trial run is watched
    key = key_of(imported, settings, parts)
    if cache.local is None:
        raise CompileOnlyError(
            "graphs are to be collected, but there is no cache to keep them in: "
            "remove --no_cache from NEURON_CC_FLAGS"
        )
    request = collected.Request(
        imported.graph,
        settings,
        key,
        program_name(imported.graph.name, settings),
        imported.param_strides,
        imported.result_strides,
        imported.constant_params,
    )
    if cache.path(key) is not None:
        LOG.info(
            "Using a cached neff at %s. Exiting with a successfully compiled graph.",
            cache.path(key),
        )
        return
    with cache.local.lock(key, lambda _holder: None):
        path = collected.collect(cache.local, request)
    LOG.info(
        "Extracting graphs (%s) for ahead-of-time parallel compilation. No compilation was done.",
        path,
    )


def hollow(imported: Imported) -> Imported:
    """A graph of the same parameters and results that computes nothing.

    Results are zeros; those that would update a parameter are that parameter.
    """
    graph = imported.graph
    results = tuple(
        graph.params[graph.aliases[number]]
        if number in graph.aliases
        else build.splat(0, result.type)
        for number, result in enumerate(graph.results)
    )
    return replace(
        imported, graph=Graph(graph.name, graph.params, results, graph.aliases), host_calls=()
    )
