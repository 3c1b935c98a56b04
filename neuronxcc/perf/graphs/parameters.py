"""What the estimate by bytes and flops assumes beyond the chips' tables, with sources."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from neuronxcc.perf.parameters import Parameter

__all__ = [
    "CALIBRATED",
    "CALIBRATED_ON",
    "GRAPH_PARAMETERS",
    "MODEL_VERSION",
    "STATED_ERROR",
    "GraphParameters",
    "markdown",
]

#: Counts changes that change an estimate.
MODEL_VERSION: Final = 1
#: Targets whose measurements chose a parameter of this table.
CALIBRATED: Final[frozenset[str]] = frozenset()
#: By what they were chosen.
CALIBRATED_ON: Final = "nothing has been compared yet"
#: An estimate may be off by this factor less 1, either way.
STATED_ERROR: Final = 1.0

GRAPH_PARAMETERS: Final[dict[str, Parameter]] = {
    "product_efficiency": Parameter(
        1.0, "of the peak", "documented", "the published peak of the Tensor Engine"
    ),
    "section_gap": Parameter(
        1.3,
        "us",
        "documented",
        "between sections a result goes through a semaphore and a transfer: its 1300 ns "
        "(nki-dma-bandwidth-guide.rst)",
    ),
    "collective_floor": Parameter(
        0.0, "us", "documented", "nothing beyond bytes and hops (intranode-collective-comm.rst)"
    ),
    "resident": Parameter(
        0.5,
        "of SBUF",
        "assumed",
        "what one section leaves for the next stays on chip up to this share; the rest is for "
        "what is being loaded",
    ),
}


@dataclass(frozen=True, slots=True)
class GraphParameters:
    """One value for each row of the table, in its unit; by default the table's."""

    product_efficiency: float = GRAPH_PARAMETERS["product_efficiency"].value
    section_gap: float = GRAPH_PARAMETERS["section_gap"].value
    collective_floor: float = GRAPH_PARAMETERS["collective_floor"].value
    resident: float = GRAPH_PARAMETERS["resident"].value

    def __post_init__(self) -> None:
        """Check.

        Raises:
            ValueError: a value is negative, or the efficiency is not one.
        """
        for field in fields(self):
            if not getattr(self, field.name) >= 0:
                raise ValueError(f"{field.name} is {getattr(self, field.name)}: give 0 or more")
        if not 0 < self.product_efficiency <= 1:
            raise ValueError(
                f"product_efficiency is {self.product_efficiency}: give more than 0, at most 1"
            )


def markdown() -> str:
    """Return the table as the page docs/estimate.md has it."""
    lines = ["| Parameter | Value | Unit | Known | Source |", "|---|---|---|---|---|"]
    for name, row in GRAPH_PARAMETERS.items():
        lines.append(f"| `{name}` | {row.value:g} | {row.unit} | {row.known} | {row.source} |")
    return "\n".join(lines) + "\n"
