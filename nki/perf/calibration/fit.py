"""The fit: two parameters, chosen from a grid by public measurements.

Every row is predicted at every point of the grid. The objective at a point is the mean, over
families of kernels, of the mean square of the logarithms of predicted over measured time: the rows
of the tutorial are one family, so that they do not outweigh the other kernels. What the fit is
worth is told by leaving out each family in turn and predicting its rows with what the others say.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from neuronxcc.perf import Parameters, Stream
from nki.perf.calibration.rows import Row, predicted

__all__ = ["GRID", "PRIOR", "Point", "best", "errors", "left_out", "tabulated"]

Point = tuple[float, ...]
#: What the parameters that are fitted were before, by the documents.
PRIOR: Final[Mapping[str, float]] = {"wait": 0.0, "reciprocal_slope": 8.0}
#: The points of the fit: what the documents say is among them.
GRID: Final[Mapping[str, tuple[float, ...]]] = {
    "wait": tuple(float(i) for i in range(0, 201, 20)),
    "reciprocal_slope": (2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0),
}


def errors(
    streams: Sequence[tuple[Row, Stream]], parameters: Parameters
) -> list[tuple[Row, float, float]]:
    """Return for each row the predicted time, and predicted over measured less 1."""
    found = []
    for row, stream in streams:
        made = row.comparable(predicted(row, stream, parameters))
        found.append((row, made, made / row.measured - 1))
    return found


def tabulated(
    streams: Sequence[tuple[Row, Stream]], say: Callable[[str], None] = lambda _: None
) -> dict[Point, list[tuple[Row, float]]]:
    """Return for each point of the grid the logarithm of predicted over measured of each row.

    Args:
        streams: rows and what their kernels do.
        say: is told of every row that is done.
    """
    found: dict[Point, list[tuple[Row, float]]] = {p: [] for p in itertools.product(*GRID.values())}
    for row, stream in streams:
        # A slope that no instruction has changes nothing.
        used = [any(work.slope == name or (name == "wait" and work.waits) for work in stream.works)
                for name in GRID]  # fmt: skip
        known: dict[Point, float] = {}
        for point, errors_at in found.items():
            key = tuple(value for value, has in zip(point, used, strict=True) if has)
            if key not in known:
                made = replace(Parameters(), **dict(zip(GRID, point, strict=True)))
                ((_, _, error),) = errors([(row, stream)], made)
                known[key] = math.log1p(error)
            errors_at.append((row, known[key]))
        say(row.name)
    return found


def best(table: Mapping[Point, Sequence[tuple[Row, float]]], without: str | None = None) -> Point:
    """Return the point with the least objective.

    Args:
        table: of `tabulated`.
        without: a family that is not looked at.
    """
    return min(table, key=lambda point: (_objective(table[point], without), point))


def left_out(table: Mapping[Point, Sequence[tuple[Row, float]]]) -> dict[str, float]:
    """Return for each row its error if its family is not looked at by the fit."""
    point = next(iter(table))
    families = {row.family: best(table, row.family) for row, _ in table[point]}
    return {
        row.name: math.expm1({r.name: x for r, x in table[families[row.family]]}[row.name])
        for row, _ in table[point]
    }


def _objective(found: Sequence[tuple[Row, float]], without: str | None) -> float:
    families: dict[str, list[float]] = {}
    for row, error in found:
        if row.family != without:
            families.setdefault(row.family, []).append(error * error)
    means = [sum(squares) / len(squares) for squares in families.values()]
    return sum(means) / len(means)
