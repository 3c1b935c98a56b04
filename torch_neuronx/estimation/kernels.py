"""NKI kernels that a graph calls: how long their instructions take."""

from __future__ import annotations

from neuronxcc.ir.node import Node
from neuronxcc.perf import Prediction
from neuronxcc.perf.graphs import Machine
from nki.errors import NkiError
from nki.perf import predict_recording
from nki.recording import Recording
from torch_neuronx.nki.launches import recording_of

__all__ = ["Kernels"]


class Kernels:
    """Times calls of kernels, each recording once.

    Attributes:
        notes: of kernels that have no time of their own.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.notes: set[str] = set()
        self._known: dict[int, tuple[Recording, Prediction | None]] = {}

    def __call__(self, call: Node) -> Prediction | None:
        """Return what a call's instructions take; None for what is no kernel or has no time.

        A kernel whose loops depend on values of the run has none.
        """
        recording = recording_of(call)
        if recording is None:
            return None
        found = self._known.get(id(recording))
        if found is None:
            found = self._known[id(recording)] = recording, self._timed(recording)
        return found[1]

    def _timed(self, recording: Recording) -> Prediction | None:
        chip, known = self.machine.target, self.machine.known
        try:
            return predict_recording(recording, target=chip, parameters=known)
        except NkiError as error:
            self.notes.add(f"kernel {recording.name} by its bytes alone: {error.what}")
            return None
