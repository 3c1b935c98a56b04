"""The fit: three parameters of graphs, chosen from a grid by published times of models.

The objective at a point is the mean, over families of rows, of the mean square of the logarithms of
estimated over published time. What the fit is worth is told by leaving out each family in turn and
estimating its rows with what the others say.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from neuronxcc.perf.graphs.parameters import GraphParameters
from torch_neuronx.estimation.calibration.models import options, recorded
from torch_neuronx.estimation.calibration.rows import Row
from torch_neuronx.estimation.session import Recorded, time_of

__all__ = ["GRID", "PRIOR", "Point", "best", "estimated", "left_out", "tabulated"]

Point = tuple[float, ...]
#: What the parameters that are fitted were before, by the documents.
PRIOR: Final[Mapping[str, float]] = {
    "product_efficiency": 1.0,
    "section_gap": 1.3,
    "collective_floor": 0.0,
}
#: The points of the fit: what the documents say is among them.
GRID: Final[Mapping[str, tuple[float, ...]]] = {
    "product_efficiency": (0.4, 0.5, 0.6, 0.7, 0.85, 1.0),
    "section_gap": (0.5, 1.3, 2.0, 3.0, 4.5),
    "collective_floor": (0.0, 25.0, 40.0, 55.0, 70.0, 85.0, 100.0),
}


_MUCH = 100.0  # microseconds


def estimated(row: Row, program: Recorded, graph: GraphParameters) -> float:
    """Return the microseconds of a row: without the launch, which tables of throughput hide.

    The times of decoders are of a caller who waits for each token, and have it.
    """
    made = time_of(program, options=options(row), graph_parameters=graph)
    hidden = row.family in {"encoder", "vision", "training"}
    launch = sum(r.us for r in made.rows if r.engine == "host")
    return made.step_us - launch if hidden else made.step_us


def tabulated(
    rows: Sequence[Row],
    grid: Mapping[str, Sequence[float]] = GRID,
    say: Callable[[str], None] = lambda _: None,
) -> dict[Point, list[tuple[Row, float]]]:
    """Return for each point of the grid the logarithm of estimated over published of each row.

    Args:
        rows: those that are compared.
        grid: values of each parameter; what the documents say is among them.
        say: is told of every row that is done.
    """
    found: dict[Point, list[tuple[Row, float]]] = {p: [] for p in itertools.product(*grid.values())}
    for row in rows:
        program = recorded(row)
        known: dict[Point, float] = {}

        def at(point: Point) -> float:
            if point not in known:  # noqa: B023 - is called before the next row
                graph = GraphParameters(**dict(zip(grid, point, strict=True)))
                known[point] = estimated(row, program, graph)  # noqa: B023
            return known[point]  # noqa: B023

        for (*others, floor), logs in found.items():
            # Every collective of these rows is waited for, so that its floor is added.
            none, much = at((*others, 0.0)), 0.0
            if row.ranks > 1:
                much = (at((*others, _MUCH)) - none) / _MUCH
            logs.append((row, math.log((none + much * floor) / row.us)))
        *others, _ = PRIOR.values()
        say(f"{row.name}: {row.us:.0f} us, {at((*others, 0.0)):.0f} us as the documents say")
    return found


def best(table: Mapping[Point, Sequence[tuple[Row, float]]], without: str | None = None) -> Point:
    """Return the point with the least objective; a family is not looked at."""
    return min(table, key=lambda point: (_objective(table[point], without), point))


def left_out(table: Mapping[Point, Sequence[tuple[Row, float]]]) -> dict[str, float]:
    """Return for each row its error if its family is not looked at by the fit."""
    first = next(iter(table.values()))
    points = {row.family: best(table, row.family) for row, _ in first}
    return {
        row.name: math.expm1({r.name: x for r, x in table[points[row.family]]}[row.name])
        for row, _ in first
    }


def _objective(found: Sequence[tuple[Row, float]], without: str | None) -> float:
    families: dict[str, list[float]] = {}
    for row, error in found:
        if row.fitted and row.family != without:
            families.setdefault(row.family, []).append(error * error)
    means = [sum(squares) / len(squares) for squares in families.values()]
    return sum(means) / len(means)
