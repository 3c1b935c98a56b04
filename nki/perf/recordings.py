"""The time of a recorded kernel: :func:`predict_recording`."""

from __future__ import annotations

from neuronxcc.perf import Parameters, Prediction
from neuronxcc.perf import predict as predict_stream
from neuronxcc.targets import Target, get_target
from nki.perf.streams import stream_of
from nki.perf.trips import Shape
from nki.recording import Recording

__all__ = ["predict_recording"]


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
