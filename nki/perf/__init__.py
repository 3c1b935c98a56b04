"""How long a kernel would take on a NeuronCore: :func:`predict`. See docs/performance.md."""

from nki.perf.kernels import predict
from nki.perf.profile import profile
from nki.perf.recordings import predict_recording
from nki.perf.streams import stream_of

__all__ = ["predict", "predict_recording", "profile", "stream_of"]
