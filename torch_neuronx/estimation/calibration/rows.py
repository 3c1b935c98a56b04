"""The published times of models: rows of `rows.csv`."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib import resources

__all__ = ["Row", "rows"]


@dataclass(frozen=True, slots=True)
class Row:
    """One published time.

    Attributes:
        name: of the row.
        family: rows of a family weigh as much as those of another.
        model: which.
        instance: type of the instance.
        ranks: of the job.
        batch: sequences or images.
        length: tokens of each, or pixels of an edge.
        cache: tokens that are kept of each.
        what: "forward", "training", "prefill" or "token".
        weights: their type.
        us: microseconds.
        source: where it is printed.
        reason: why it is not compared, "" if it is; or why it is compared and not fitted.
    """

    name: str
    family: str
    model: str
    instance: str
    ranks: int
    batch: int
    length: int
    cache: int
    what: str
    weights: str
    us: float
    source: str
    reason: str

    @property
    def compared(self) -> bool:
        """Return whether the row is compared with an estimate."""
        return not self.reason or "compared and never fitted" in self.reason

    @property
    def apart(self) -> str:
        """What is left out together: a family, or a model of decoders.

        No other family says anything about the floor of collectives.
        """
        return self.model if self.family == "decoder" else self.family

    @property
    def fitted(self) -> bool:
        """Return whether the row chooses parameters."""
        return not self.reason


def rows() -> tuple[Row, ...]:
    """Return all rows of the table."""
    text = resources.files(__package__).joinpath("rows.csv").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return tuple(
        Row(
            name=row["name"],
            family=row["family"],
            model=row["model"],
            instance=row["instance"],
            ranks=int(row["ranks"]),
            batch=int(row["batch"]),
            length=int(row["length"]),
            cache=int(row["cache"]),
            what=row["what"],
            weights=row["weights"],
            us=float(row["us"]),
            source=row["source"],
            reason=row["reason"],
        )
        for row in csv.DictReader(lines)
    )
