"""An explanation of which enqueued operators ran as one program, and why not more of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch_neuronx import _C
from torch_neuronx.neuron import eager
from torch_neuronx.neuron.regions import TYPES_BY_NUMBER

_ENDS = {
    "full": "a region has no more operators",
    "idle": "nothing more was enqueued in time",
    "read": "somebody waited for the queue",
}


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of a region.

    Attributes:
        name: as ``add.Tensor``.
        result: type and shape of its result, as ``float32[4096, 4096]``.
        line: where it was called, "" if it was called before lines were kept.
        written: False where the program leaves its result out: nobody can read it any more.
    """

    name: str
    result: str
    line: str
    written: bool


@dataclass(frozen=True, slots=True)
class Region:
    """Operators that stood one behind the other in the queue of a core.

    Attributes:
        number: counts the regions of the process.
        core: of whose queue.
        state: "seen" (not often enough to be compiled), "compiling", "compiled", "given up".
        operators: in their order.
        runs: how often they ran as one program.
        separately: how often not: one by one, or only its first ones as a program.
        ended_by: what stood behind them, and how often: an operator that takes no part, "full" or
            "idle".
    """

    number: int
    core: int
    state: str
    operators: tuple[Operator, ...]
    runs: int
    separately: int
    ended_by: dict[str, int]

    def __str__(self) -> str:
        times = f"{self.runs} times as one program, {self.separately} times not"
        lines = [f"region {self.number} of neuron:{self.core}, {self.state}: {times}"]
        width = max(len(each.name) for each in self.operators)
        shape = max(len(each.result) for each in self.operators)
        for each in self.operators:
            fate = "" if each.written else "  not written"
            text = f"  {each.name:{width}}  {each.result:{shape}}  {each.line}{fate}"
            lines.append(text.rstrip())
        for what, count in self.ended_by.items():
            lines.append(f"  ended {count} times: {_ENDS.get(what, what)}")
        return "\n".join(lines)


@dataclass(slots=True)
class EagerReport:
    """The regions that came by, filled when the block of :func:`explain_eager` ends.

    Attributes:
        regions: of two and more operators, in the order in which they were first seen.
        stats: :func:`torch.neuron.eager_stats` of the block.
    """

    regions: list[Region] = field(default_factory=list)
    stats: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.stats:
            return "explain_eager: the block has not ended"
        fused = self.stats["fused"]
        head = (
            f"{self.stats['enqueued']} calls enqueued, {fused['operators']} of them in "
            f"{fused['regions']} regions that ran as one program; "
            f"{fused['unwritten']} results not written"
        )
        here = [
            f"  {name}: {times} times at the call, {reason}"
            for name, reasons in self.stats["at_the_call"].items()
            for reason, times in reasons.items()
        ]
        return "\n".join(
            [head, *map(str, self.regions), *(["not enqueued:"] if here else []), *here]
        )


def _region(seen: dict[str, Any]) -> Region:
    operators = tuple(
        Operator(
            name,
            f"{str(TYPES_BY_NUMBER[dtype]).removeprefix('torch.')}{list(sizes)}",
            line,
            index in seen["outputs"],
        )
        for index, (name, dtype, sizes, line) in enumerate(seen["calls"])
    )
    rest = {name: seen[name] for name in ("number", "core", "state", "runs", "separately")}
    return Region(operators=operators, ended_by=seen["ended_by"], **rest)


@contextmanager
def explain_eager() -> Iterator[EagerReport]:
    """Report which operators of a block ran as one program, with the lines that called them.

    The block runs in fused mode, unless ``NEURON_LAUNCH_BLOCKING=1`` forbids it. A region is
    compiled when it comes the second time, in a thread of its own: let the block repeat what it
    does. The counters of :func:`torch.neuron.eager_stats` begin anew, and calls keep their lines
    (about 3 us each), as with ``TORCH_NEURONX_ENABLE_STACK_TRACE=1``.

    Example::

        with torch_neuronx.explain_eager() as report:
            for _ in range(10):
                step()
        print(report)

    Yields:
        The report, which is empty until the block has ended.

    Raises:
        RuntimeError: enqueued work has failed (of any type that an operator raises).
    """
    report = EagerReport()
    with eager.eager_mode("fused"), eager.keep_lines():
        eager.reset_eager_stats()
        yield report
    # Leaving the mode has waited for what was enqueued.
    report.stats = eager.eager_stats()
    report.regions = [_region(seen) for seen in _C.regions_seen()]
