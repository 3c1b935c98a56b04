"""What the host adds: starting programs, changing between them, moving data, single operators."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from neuronxcc.perf.parameters import PARAMETERS, Parameter

__all__ = ["HOST_PARAMETERS", "HostParameters", "markdown"]

HOST_PARAMETERS: Final[dict[str, Parameter]] = {
    "launch": Parameter(
        PARAMETERS["launch"].value,
        "us",
        "fitted",
        "of a program that the host waits for; the same as of a kernel, docs/performance.md",
    ),
    "queued": Parameter(
        3.2,
        "us",
        "documented",
        "of a program behind another one in an asynchronous queue: the floor that the device's "
        "benchmark of the runtime for Python prints",
    ),
    "switch": Parameter(
        0.0,
        "us",
        "assumed",
        "between programs that are loaded; release notes name up to 500 us saved and not what "
        "is left",
    ),
    "dispatch": Parameter(
        58.0,
        "us",
        "documented",
        "of the host for an operator in eager mode that it does not wait for: the median of "
        "latency beyond the core's own of 18 runs on trn1, 40 to 91 us (autocomp)",
    ),
    "eager_wait": Parameter(
        1000.0,
        "us",
        "documented",
        "of an eager operator whose result the host waits for: about 1 ms (trnsci.dev)",
    ),
    "copy_gbps": Parameter(
        16.0,
        "GB/s",
        "assumed",
        "between the host's memory and a core's: four DMA engines of a device serve it, and no "
        "rate of theirs is published",
    ),
}


@dataclass(frozen=True, slots=True)
class HostParameters:
    """One value for each row of the table, in its unit; by default the table's."""

    launch: float = HOST_PARAMETERS["launch"].value
    queued: float = HOST_PARAMETERS["queued"].value
    switch: float = HOST_PARAMETERS["switch"].value
    dispatch: float = HOST_PARAMETERS["dispatch"].value
    eager_wait: float = HOST_PARAMETERS["eager_wait"].value
    copy_gbps: float = HOST_PARAMETERS["copy_gbps"].value

    def __post_init__(self) -> None:
        """Check.

        Raises:
            ValueError: a value is negative, or the rate of copies is not a rate.
        """
        for field in fields(self):
            if not getattr(self, field.name) >= 0:
                raise ValueError(f"{field.name} is {getattr(self, field.name)}: give 0 or more")
        if not self.copy_gbps:
            raise ValueError("copy_gbps is 0: give more")

    def copy_us(self, nbytes: int) -> float:
        """Microseconds between the host's memory and a core's."""
        return nbytes / self.copy_gbps / 1e3


def markdown() -> str:
    """Return the table as the page docs/estimate.md has it."""
    lines = ["| Parameter | Value | Unit | Known | Source |", "|---|---|---|---|---|"]
    for name, row in HOST_PARAMETERS.items():
        lines.append(f"| `{name}` | {row.value:g} | {row.unit} | {row.known} | {row.source} |")
    return "\n".join(lines) + "\n"
