"""The fit: parameters that bring predictions near public measurements, and do not leave the known.

Every parameter is moved on its own, by steps that become smaller, as long as that lowers the
objective: the sum of squared logarithms of predicted over measured time, and for each parameter
that of its value over what the table said before the first fit, with a small weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from neuronxcc.perf import Parameters, Stream
from nki.perf.calibration.rows import Row, predicted

__all__ = ["FITTED", "HELD_OUT", "PRIOR", "errors", "fit"]

#: What the parameters that are fitted were before, by the documents. The fit is hardly sensitive to
#: the others (latencies, the semaphore), so that they stay as they are known.
PRIOR: Final[Mapping[str, float]] = {
    "tensor_tensor_slope": 2.0,
    "reciprocal_slope": 8.0,
}
#: What is fitted; clocks, rates and what DMA costs stay as they are documented.
FITTED: Final = tuple(PRIOR)
#: Kernels whose rows are not looked at by the fit.
HELD_OUT: Final = frozenset({"fused_mamba_v1", "fused_mamba_v2"})
_WEIGHT = 0.02  # of what is known before, against one measurement
_STEPS = (1.6, 1.25, 1.1, 1.04)


def errors(
    streams: Sequence[tuple[Row, Stream]], parameters: Parameters
) -> list[tuple[Row, float, float]]:
    """Return for each row the predicted time, and predicted over measured less 1."""
    found = []
    for row, stream in streams:
        made = row.comparable(predicted(row, stream, parameters))
        found.append((row, made, made / row.measured - 1))
    return found


def fit(
    streams: Sequence[tuple[Row, Stream]], say: Callable[[str], None] = lambda _: None
) -> Parameters:
    """Return parameters that fit the rows.

    Args:
        streams: rows and what their kernels do.
        say: is told of every improvement.
    """
    # What was measured is what is fitted; everything else is the table's.
    best = replace(Parameters(), **PRIOR)
    lowest = _objective(streams, best)
    for step in _STEPS:
        improved = True
        while improved:
            improved = False
            for name in FITTED:
                for factor in (step, 1 / step):
                    made = replace(best, **{name: getattr(best, name) * factor})
                    value = _objective(streams, made)
                    if value < lowest * (1 - 1e-6):
                        best, lowest, improved = made, value, True
                        say(f"{name} = {getattr(best, name):.3f}: {lowest:.4f}")
                        break
    return best


def _objective(streams: Sequence[tuple[Row, Stream]], parameters: Parameters) -> float:
    off = sum(math.log1p(error) ** 2 for _, _, error in errors(streams, parameters))
    known = sum(math.log(getattr(parameters, name) / PRIOR[name]) ** 2 for name in FITTED)
    return off + _WEIGHT * known
