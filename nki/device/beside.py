"""Collectives beside the computation: in which order they are asked for, and when.

All ranks must meet in the same order, or they wait for each other for ever. So the order depends on
what all ranks have alike: the collectives of the graph, their order in it and their sizes, and
which of them send nothing but weights. These are asked for early, before collectives that wait for
results. When a collective is asked for among other sections is each rank's own business: as soon as
what it sends is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from neuronxcc.ir.graph import Graph
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from nki.device.exchanges import COLLECTIVES
from nki.device.pointwise import POINTWISE
from nki.device.sections import Section
from nki.device.views import MOVES

__all__ = ["AHEAD", "hoisted"]

#: Bytes of results that may be there before anybody needs them, or one result if that is larger.
AHEAD: Final = 32 << 20
#: Sections that may run earlier than the program has them so that a collective can begin.
_BROUGHT: Final = frozenset({"rows", "move", "concatenate", "pad"})
_OF_WEIGHTS: Final = frozenset({*POINTWISE, *MOVES, Op.PARAMETER, Op.CONSTANT, Op.IOTA})


def hoisted(sections: Sequence[Section], graph: Graph) -> list[Section]:
    """Return the sections of a graph with collectives as early as may be."""
    return _Order(sections, graph).run()


class _Order:
    def __init__(self, sections: Sequence[Section], graph: Graph) -> None:
        self._sections = [section for section in sections if section.kind != "collective"]
        self._makes = {node: section for section in sections for node in section.outputs}
        self._free = _of_weights(graph)
        self._waiting = self._asked([s for s in sections if s.kind == "collective"])
        self._last: dict[Section, Section] = {}  # the last section that needs a collective
        for section in self._sections:
            for node in section.inputs:
                made = self._makes.get(node)
                if made is not None and made.kind == "collective":
                    self._last[made] = section
        self._found: list[Section] = []
        self._done: set[Section] = set()
        self._ahead: dict[Section, int] = {}  # bytes of collectives that somebody still needs

    def _asked(self, collectives: Sequence[Section]) -> list[Section]:
        """Return collectives in the order in which all ranks ask for them."""
        found: list[Section] = []
        left = list(collectives)
        while left:
            if not self._is_free(left[0]):
                # Before who waits for results, weights of what comes later.
                total = 0
                for section in [one for one in left if self._is_free(one)]:
                    total += _bytes(section)
                    if total > AHEAD:
                        break
                    left.remove(section)
                    found.append(section)
            found.append(left.pop(0))
        return found

    def _is_free(self, section: Section) -> bool:
        return section.nodes[0].srcs[0] in self._free

    def run(self) -> list[Section]:
        """Return all sections."""
        for section in self._sections:
            if section in self._done:
                continue
            self._ask(section)
            self._put(section)
        self._ask(None)
        return self._found

    def _needs(self, section: Section) -> list[Section]:
        """Return the sections that a section waits for and that are not there yet."""
        made = (self._makes[node] for node in section.inputs if node in self._makes)
        return [one for one in dict.fromkeys(made) if one not in self._done]

    def _ask(self, before: Section | None) -> None:
        """Ask for collectives before a section, or for all that are left."""
        needed = {one for one in self._needs(before) if one.kind == "collective"} if before else ()
        while self._waiting:
            first = self._waiting[0]
            must = before is None or any(one in needed for one in self._waiting)
            room = sum(self._ahead.values()) + _bytes(first) <= AHEAD or not self._ahead
            if not must and not room:
                return
            if not self._bring(first):
                assert not must, "what a collective sends comes behind who needs the collective"
                return
            self._waiting.pop(0)
            self._put(first)

    def _bring(self, section: Section) -> bool:
        """Let run what a collective sends; False if that is too much to be done early."""
        needs = self._needs(section)
        if any(one.kind not in _BROUGHT or not self._bring(one) for one in needs):
            return False
        for one in needs:
            self._put(one)
        return True

    def _put(self, section: Section) -> None:
        if section in self._done:
            return
        self._done.add(section)
        self._found.append(section)
        if section.kind == "collective":
            if section in self._last:
                self._ahead[section] = _bytes(section)
            return
        for made in [one for one in self._ahead if self._last[one] is section]:
            del self._ahead[made]


def _bytes(section: Section) -> int:
    return sum(t.nbytes for node in section.outputs for t in node.types)


def _of_weights(graph: Graph) -> set[Node]:
    """Return nodes that are made of arguments by pointwise work and movement alone."""
    found: set[Node] = set()
    for node in graph.nodes():
        if node.op in _OF_WEIGHTS and node.op not in COLLECTIVES and found.issuperset(node.srcs):
            found.add(node)
    return found
