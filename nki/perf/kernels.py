"""The time of a kernel with arguments: :func:`predict`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from neuronxcc.perf import Parameters, Prediction
from neuronxcc.perf import predict as predict_stream
from neuronxcc.targets import Target, get_target
from nki.dtypes import info
from nki.frontends import frontend_of
from nki.kernel import Kernel, simulate
from nki.perf.streams import stream_of
from nki.perf.trips import Shape, depends, shape_of
from nki.recording import Recording

__all__ = ["predict", "predict_recording", "recorded"]


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


def predict_recording(
    recording: Recording,
    *,
    target: str | Target | None = None,
    parameters: Parameters | None = None,
    compiled: bool | None = None,
    shape: Shape | None = None,
) -> Prediction:
    """Return how long a recorded kernel would take.

    Args:
        recording: of a kernel.
        target: by default that which the kernel was recorded for.
        parameters: of the model.
        compiled: a compiler orders instructions and chooses engines; by default if the kernel is of
            the first generation.
        shape: how often the loops run, of `recorded`.

    Raises:
        NkiError: a value of the run says how often a loop runs, and no shape is given (NKI330).
    """
    if target is None:
        target = recording.target
    chip = get_target(target) if isinstance(target, str) else target
    compiles = recording.compiled if compiled is None else compiled
    stream = stream_of(recording, compiled=compiles, shape=shape)
    return predict_stream(stream, chip, parameters=parameters)
