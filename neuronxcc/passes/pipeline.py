"""The passes, in order. This is the list to read."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from neuronxcc.ir.graph import Graph
from neuronxcc.ir.text import to_text
from neuronxcc.ir.verify import verify
from neuronxcc.passes import (
    accumulate,
    algebraic,
    autocast,
    canonical,
    contract,
    fold,
    indices,
    stochastic,
)
from neuronxcc.passes.inline import inline
from neuronxcc.passes.prune import prune
from neuronxcc.passes.rules import RulePass


class PassOptions(Protocol):
    """The part of the compiler's options (`neuronxcc.options.Options`) that passes read."""

    @property
    def auto_cast(self) -> str:
        """Which float32 operations compute in a narrower type: "none", "matmult", "all"."""

    @property
    def auto_cast_type(self) -> str:
        """The type: "bf16", "fp16", "tf32", "fp8_e4m3"."""

    @property
    def optlevel(self) -> int:
        """1: what is quick; 2; 3: rules are applied until none fires."""

    @property
    def enable_mixed_precision_accumulation(self) -> bool:
        """Return whether reductions of 16-bit types accumulate in float32."""

    @property
    def stochastic_rounding(self) -> bool:
        """Return whether float32 results become 16-bit types by stochastic rounding."""


@dataclass(frozen=True, slots=True)
class PassRecord:
    """The record of one pass.

    Attributes:
        name: Of the pass, as in PIPELINE.
        seconds: It took, without verifying and printing.
        before: Nodes of the main graph before it.
        after: And after it.
        fired: How often each rule fired, for passes made of rules.
    """

    name: str
    seconds: float
    before: int
    after: int
    fired: Counter[str] = field(default_factory=Counter)


# Told of every stage: its name, and how to get its text.
Observer = Callable[[str, Callable[[], str]], None]
Pass = Callable[[Graph, PassOptions, Counter[str]], Graph]

_MOST_ROUNDS = 4
SIMPLIFY = (
    *canonical.RULES,
    *indices.RULES,
    *contract.RULES,
    *algebraic.RULES,
    *fold.RULES,
)


def _simplify(graph: Graph, _options: PassOptions, fired: Counter[str]) -> Graph:
    return RulePass(SIMPLIFY, fired)(graph)


def _simplify_again(graph: Graph, options: PassOptions, fired: Counter[str]) -> Graph:
    """Simplify what inlining and casting have laid open; at level 1 only casts are looked at."""
    if options.optlevel == 1 and options.auto_cast == "none":
        return graph
    graph = _simplify(graph, options, fired)
    for _ in range(_MOST_ROUNDS if options.optlevel == 3 else 0):
        before = fired.total()
        graph = _simplify(graph, options, fired)
        if fired.total() == before:
            break
    return graph


def _accumulate(graph: Graph, options: PassOptions, _fired: Counter[str]) -> Graph:
    return graph if options.enable_mixed_precision_accumulation else accumulate.in_own_type(graph)


def _inline(graph: Graph, _options: PassOptions, _fired: Counter[str]) -> Graph:
    return inline(graph)


def _prune(graph: Graph, _options: PassOptions, _fired: Counter[str]) -> Graph:
    return prune(graph)


def _autocast(graph: Graph, options: PassOptions, _fired: Counter[str]) -> Graph:
    return autocast.cast(graph, options.auto_cast, options.auto_cast_type)


def _stochastic(graph: Graph, options: PassOptions, _fired: Counter[str]) -> Graph:
    return stochastic.with_state(graph) if options.stochastic_rounding else graph


PIPELINE: tuple[tuple[str, Pass], ...] = (
    # Constants may decide which branch is taken, so they are folded before branches are inlined.
    ("simplify", _simplify),
    ("inline calls", _inline),
    ("drop dead results", _prune),
    ("auto-cast", _autocast),
    ("accumulate in 16 bits", _accumulate),
    ("simplify again", _simplify_again),
    # Last, so that what has been folded or removed is not rounded.
    ("stochastic rounding", _stochastic),
)


def run(
    graph: Graph,
    options: PassOptions,
    *,
    verify_all: bool = False,
    observe: Observer | None = None,
    records: list[PassRecord] | None = None,
) -> Graph:
    """Run all passes.

    Args:
        graph: As a front end made it; parameters, types of results and aliases stay. Stochastic
            rounding adds a last parameter (see `stochastic.with_state`).
        options: Of the compilation.
        verify_all: Verify the graph first and after every pass, which costs as much as a pass.
        observe: Told of the graph first and after every pass that changed it.
        records: Where a record of every pass is put.

    Raises:
        VerifierError: with `verify_all`, what is wrong.
    """
    if verify_all:
        verify(graph)
    if observe is not None:
        _show(observe, "input", graph)
    nodes = 0 if records is None else _count(graph)
    for name, transform in PIPELINE:
        fired: Counter[str] = Counter()
        before = graph
        start = time.perf_counter()
        graph = transform(graph, options, fired)
        seconds = time.perf_counter() - start
        if records is not None:
            # Equal results are made of equal nodes.
            now = nodes if graph.results == before.results else _count(graph)
            records.append(PassRecord(name, seconds, nodes, now, fired))
            nodes = now
        if verify_all:
            verify(graph)
        if observe is not None and graph.results != before.results:
            _show(observe, name, graph)
    return graph


def _show(observe: Observer, name: str, graph: Graph) -> None:
    observe(name, lambda: to_text(graph))


def _count(graph: Graph) -> int:
    return sum(1 for _ in graph.nodes())
