"""The compiler's backend for the device: graphs of tensor IR as instructions of a NeuronCore.

`lower` makes a :class:`DeviceProgram` of a graph: sections of recorded instructions, the same form
that NKI kernels have, so that one performance model times both and one executor runs both.
See docs/device_programs.md.
"""

from nki.device.exchanges import Job
from nki.device.prediction import ProgramPrediction, SectionTime
from nki.device.program import DeviceProgram
from nki.device.record import InstructionLimitError, lower
from nki.device.sections import Section

__all__ = [
    "DeviceProgram",
    "InstructionLimitError",
    "Job",
    "ProgramPrediction",
    "Section",
    "SectionTime",
    "lower",
]
