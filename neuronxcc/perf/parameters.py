"""The parameters of the performance model: each with its unit, its source, and how it is known.

What the published tables of the chips say (clocks, engines, rates) is in `neuronxcc.targets`, and
what instructions cost in `nki.isa`. Here is the rest, in one table.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Literal, NamedTuple

__all__ = [
    "CALIBRATED",
    "MODEL_VERSION",
    "PARAMETERS",
    "STATED_ERROR",
    "Known",
    "Parameter",
    "Parameters",
    "markdown",
]

#: Counts changes of the model that change a prediction.
MODEL_VERSION: Final = 4

# Bytes of a row at which the DMA engines reach their published rate: NKI DMA bandwidth guide.
_FULL_ROW: Final = 4096

#: Targets whose measurements the fitted parameters were chosen by.
CALIBRATED: Final[frozenset[str]] = frozenset({"trn1"})
#: A prediction may be off by this factor less 1, either way. The worst of the public measurements
#: when the fit has seen none of its kernel's family is -22 %, a factor of 1.28; what the model
#: takes a compiler to do was chosen with them at hand, so that half as much again is stated. See
#: docs/accuracy.md.
STATED_ERROR: Final = 0.4

#: ``documented``: printed in a public document. ``fitted``: chosen so that predictions are near
#: published measurements. ``assumed``: neither, and chosen by us.
Known = Literal["documented", "fitted", "assumed"]

_PERF_GUIDE = "NKI performance guide (nki_perf_guide.rst)"
_DMA_GUIDE = "NKI DMA bandwidth guide (nki-dma-bandwidth-guide.rst)"


class Parameter(NamedTuple):
    """What is known of a parameter.

    Attributes:
        value: today's.
        unit: of the value.
        known: how.
        source: where it is printed, or why it was chosen.
    """

    value: float
    unit: str
    known: Known
    source: str


PARAMETERS: Final[dict[str, Parameter]] = {
    "scalar_latency": Parameter(
        200,
        "cycles",
        "documented",
        f"{_PERF_GUIDE}: 264 cycles (189 ns) between small dependent instructions of the Scalar "
        "Engine, 64 of which are the instruction",
    ),
    "vector_latency": Parameter(
        200, "cycles", "assumed", "that of the Scalar Engine; none is printed for Vector"
    ),
    "gpsimd_latency": Parameter(
        200, "cycles", "assumed", "that of the Scalar Engine; none is printed for GpSimd"
    ),
    "tensor_latency": Parameter(
        192,
        "cycles",
        "assumed",
        "128 rows that a result passes through, and the least length of an instruction, 64",
    ),
    "wait": Parameter(
        180,
        "ns",
        "fitted",
        "trn1, see docs/accuracy.md: what an instruction takes longer that waits for another "
        "engine or a transfer; documented are about 100 cycles besides what is computed (NKI "
        "performance guide)",
    ),
    "reciprocal_slope": Parameter(
        3.5,
        "cycles per element",
        "fitted",
        "trn1, see docs/accuracy.md; documented are 8 on the Vector Engine (nki.api.shared.rst), "
        "for which the profiles of trn1 leave no room",
    ),
    "semaphore": Parameter(
        50, "ns", "assumed", "from the end of one engine's instruction to another engine's start"
    ),
    "dma_start": Parameter(
        1300, "ns", "documented", f"{_DMA_GUIDE}: from the semaphore to the first byte"
    ),
    "dma_row": Parameter(
        512,
        "bytes",
        "assumed",
        f"{_DMA_GUIDE} tells of a curve: what a row costs besides its bytes, so that rows of 4 KiB "
        "reach the published rate, 2 KiB nine tenths of it, and 256 bytes three eighths",
    ),
    "dma_issue": Parameter(
        50, "ns", "assumed", "of the queue that starts a transfer whose descriptors are ready"
    ),
    "descriptors": Parameter(
        600,
        "ns",
        "documented",
        "nki-dma-overview.rst: a transfer whose descriptors are made while the kernel runs",
    ),
    "launch": Parameter(
        95,
        "us",
        "fitted",
        "latency minus device time of 6 public kernels on trn1, 85 to 131 us (AccelOpt, NKIBench)",
    ),
}


@dataclass(frozen=True, slots=True)
class Parameters:
    """One value for each row of the table, in its unit; by default the table's."""

    scalar_latency: float = PARAMETERS["scalar_latency"].value
    vector_latency: float = PARAMETERS["vector_latency"].value
    gpsimd_latency: float = PARAMETERS["gpsimd_latency"].value
    tensor_latency: float = PARAMETERS["tensor_latency"].value
    wait: float = PARAMETERS["wait"].value
    reciprocal_slope: float = PARAMETERS["reciprocal_slope"].value
    semaphore: float = PARAMETERS["semaphore"].value
    dma_start: float = PARAMETERS["dma_start"].value
    dma_row: float = PARAMETERS["dma_row"].value
    dma_issue: float = PARAMETERS["dma_issue"].value
    descriptors: float = PARAMETERS["descriptors"].value
    launch: float = PARAMETERS["launch"].value

    def __post_init__(self) -> None:
        """Check.

        Raises:
            ValueError: a value is negative.
        """
        for field in fields(self):
            if not getattr(self, field.name) >= 0:
                raise ValueError(f"{field.name} is {getattr(self, field.name)}: give 0 or more")

    def row_bytes(self, row: float) -> float:
        """Return what a row of a transfer costs, in bytes at the published rate.

        Every row costs some bytes besides its own; the published rate is that of long rows.
        """
        return max(row, (row + self.dma_row) / (1 + self.dma_row / _FULL_ROW))


def markdown() -> str:
    """Return the table as the page docs/performance.md has it."""
    lines = ["| Parameter | Value | Unit | Known | Source |", "|---|---|---|---|---|"]
    for name, row in PARAMETERS.items():
        lines.append(f"| `{name}` | {row.value:g} | {row.unit} | {row.known} | {row.source} |")
    return "\n".join(lines) + "\n"
