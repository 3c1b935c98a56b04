"""The time of a kernel with arguments: :func:`predict`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from neuronxcc.perf import Parameters, Prediction
from nki.dtypes import info
from nki.frontends import frontend_of
from nki.kernel import Kernel, simulate
from nki.perf.recordings import predict_recording
from nki.perf.trips import Shape, depends, shape_of
from nki.recording import Recording

__all__ = ["predict", "recorded"]


def predict(
    kernel: Callable[..., Any],
    *args: Any,
    parameters: Parameters | None = None,
    **kwargs: Any,
) -> Prediction:
    """Return how long a kernel would take on hardware; it is recorded for that, and not run.

    Args:
        kernel: a kernel of either generation, ``kernel[2]``, or a plain function.
        args: as in a call. Only shapes and types of arrays matter, unless the kernel looks at
            values, or a value says how often a loop runs: then it is run once in NumPy, on copies.
        parameters: of the model; by default those of `neuronxcc.perf.PARAMETERS`.
        kwargs: likewise.

    Returns:
        Times in microseconds and where they come from; `print` shows a summary. The target is that
        of a call: what ``NEURON_PLATFORM_TARGET_OVERRIDE`` names.

    Raises:
        NkiError: the kernel breaks a rule.
    """
    older = getattr(kernel, "today", None)
    made: Kernel = simulate(kernel) if older is None else older()
    recording, shape = recorded(made, args, kwargs)
    compiled = older is not None
    return predict_recording(recording, parameters=parameters, compiled=compiled, shape=shape)


def recorded(
    made: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Recording, Shape | None]:
    """Return what a call does, and how often its loops run if values say so; None if they don't."""
    launch, _, values = made.prepared([(args, kwargs)])
    recording = launch.recording
    if not depends(recording.body):
        return recording, None
    arrays = []
    for value, (_, dtype) in zip(values, launch.arguments, strict=True):
        owner = frontend_of(value)
        assert owner is not None
        arrays.append(np.array(owner.host(value), info(dtype).numpy, order="C"))
    return recording, shape_of(recording, arrays)
