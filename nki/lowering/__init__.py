"""Recordings of kernels as programs for the native executor.

`lower` makes a program of a recording; `work.py` says how an instruction is written, `program.py`
how instructions become tapes.
"""

from nki.lowering.program import lower

__all__ = ["lower"]
