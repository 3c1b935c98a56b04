"""NEFF files, which hold programs."""

from neuronxcc.neff.container import Neff, NeffInfo, read_neff, write_neff
from neuronxcc.program.errors import NeffError
from neuronxcc.program.program import Program

__all__ = ["Neff", "NeffError", "NeffInfo", "Program", "read_neff", "write_neff"]
