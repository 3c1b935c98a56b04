"""The fit: three parameters of graphs, chosen from a grid by published times of models.

The objective at a point is the mean, over families of rows, of the mean square of the logarithms of
estimated over published time. What the fit is worth is told by leaving out each family, and each
model of decoders, in turn, and estimating its rows with what the others say.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from neuronxcc.perf.graphs.parameters import GraphParameters
from torch_neuronx.estimation.calibration.models import options, recorded
from torch_neuronx.estimation.calibration.rows import Row
from torch_neuronx.estimation.session import Recorded, time_of

__all__ = ["GRID", "PRIOR", "Line", "Point", "best", "left_out", "line", "tabulated"]

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
    "section_gap": (0.5, 1.0, 1.3, 1.6, 2.0, 2.5, 3.0, 4.0),
    "collective_floor": tuple(5.0 * i for i in range(25)),
}


class Line(NamedTuple):
    """The time of a row as a function of the parameters.

    Sections do not overlap, so that the gap between them is added as often as there are sections;
    and every collective of these rows is waited for, so that its floor is.

    Attributes:
        row: of the table.
        at: microseconds without gap and floor, by the efficiency of products.
        sections: by how much the time grows with the gap.
        collectives: by how much it grows with the floor.
    """

    row: Row
    at: Mapping[float, float]
    sections: float
    collectives: float

    def us(self, efficiency: float, gap: float, floor: float) -> float:
        """Microseconds at a point of the grid."""
        return self.at[efficiency] + self.sections * gap + self.collectives * floor


def line(row: Row, efficiencies: Sequence[float]) -> Line:
    """Estimate a row as often as its line needs."""
    program = recorded(row)

    def us(efficiency: float, gap: float = 0.0, floor: float = 0.0) -> float:
        graph = GraphParameters(
            product_efficiency=efficiency, section_gap=gap, collective_floor=floor
        )
        return estimated(row, program, graph)

    base = us(1.0)
    collectives = us(1.0, floor=1.0) - base if row.ranks > 1 else 0.0
    return Line(row, {e: us(e) for e in efficiencies}, us(1.0, gap=1.0) - base, collectives)


def estimated(
    row: Row, program: Recorded, graph: GraphParameters | None = None, *, programs: bool = False
) -> float:
    """Return the microseconds of a row: without the launch, which tables of throughput hide.

    The times of decoders are of a caller who waits for each token, and have it.
    """
    made = time_of(program, options=options(row), graph_parameters=graph, programs=programs)
    hidden = row.family in {"encoder", "vision", "training"}
    return made.device_us if hidden else made.step_us


def tabulated(
    lines: Sequence[Line], grid: Mapping[str, Sequence[float]] = GRID
) -> dict[Point, list[tuple[Row, float]]]:
    """Return for each point of the grid the logarithm of estimated over published of each row.

    Args:
        lines: of the rows that are compared.
        grid: values of each parameter; what the documents say is among them.
    """
    return {
        point: [(one.row, math.log(one.us(*point) / one.row.us)) for one in lines]
        for point in itertools.product(*grid.values())
    }


def best(table: Mapping[Point, Sequence[tuple[Row, float]]], without: str | None = None) -> Point:
    """Return the point with the least objective; what is `apart` by that name is left out."""
    return min(table, key=lambda point: (_objective(table[point], without), point))


def left_out(table: Mapping[Point, Sequence[tuple[Row, float]]]) -> dict[str, float]:
    """Return for each row its error if a fit has not seen what is `apart` with it."""
    first = next(iter(table.values()))
    points = {row.apart: best(table, row.apart) for row, _ in first}
    return {
        row.name: math.expm1({r.name: x for r, x in table[points[row.apart]]}[row.name])
        for row, _ in first
    }


def _objective(found: Sequence[tuple[Row, float]], without: str | None) -> float:
    families: dict[str, list[float]] = {}
    for row, error in found:
        if row.fitted and row.apart != without:
            families.setdefault(row.family, []).append(error * error)
    means = [sum(squares) / len(squares) for squares in families.values()]
    return sum(means) / len(means)
