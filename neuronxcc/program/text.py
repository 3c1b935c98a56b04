"""Programs as text, for people and golden tests: a line per buffer, per step, per expression."""

from __future__ import annotations

from neuronxcc.program.program import Program


def program_to_text(program: Program, *, kernels: bool = True) -> str:
    """One line per buffer and per step, kernels below the step.

    Args:
        program: To print.
        kernels: Whether to print what loop kernels compute.
    """
    return "\n".join(program.lines(kernels=kernels)) + "\n"
