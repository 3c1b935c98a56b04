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
    "STATED_ERROR_OF_TRAINING",
    "GraphParameters",
    "markdown",
]

#: Counts changes that change an estimate.
MODEL_VERSION: Final = 7
#: Targets whose measurements chose the parameters of this table. Of trn2 there is one row among 20.
CALIBRATED: Final[frozenset[str]] = frozenset({"trn1", "inf2"})
#: By what they were chosen.
CALIBRATED_ON: Final = (
    "fitted to 20 published times of models on trn1 and inf2, one of them on trn2"
)
#: An estimate of a forward may be off by this factor less 1, either way: 25 of the 27 published
#: times of forwards are within it when the fit has not seen their like, docs/accuracy.md.
STATED_ERROR: Final = 0.67
#: The same of training: one time is published, 1.15 times the estimate, which is too little to say
#: that training is better known than a forward.
STATED_ERROR_OF_TRAINING: Final = STATED_ERROR

GRAPH_PARAMETERS: Final[dict[str, Parameter]] = {
    "product_efficiency": Parameter(
        0.6,
        "of the peak",
        "fitted",
        "encoders and vision on trn1 and inf2, see docs/accuracy.md; 1 is the published peak",
    ),
    "section_gap": Parameter(
        1.3,
        "us",
        "fitted",
        "models on trn1 and inf2, see docs/accuracy.md; documented are 1.3 from a semaphore to the "
        "first byte of a transfer (nki-dma-bandwidth-guide.rst)",
    ),
    "collective_floor": Parameter(
        65.0,
        "us",
        "fitted",
        "times per token of decoders on trn1 and trn2, see docs/accuracy.md; documented are hops "
        "of 1 to 2 us alone (intranode-collective-comm.rst)",
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
