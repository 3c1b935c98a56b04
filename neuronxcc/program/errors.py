"""Errors of NEFF files."""

from __future__ import annotations

from neuronxcc.status import Status


class NeffError(ValueError):
    """Bytes that are no NEFF of ours, or a program that cannot be one. The message says what.

    Attributes:
        status: The Neuron runtime's status of the same mistake: 2 (NRT_INVALID) for damaged or
            contradictory content, 10 (NRT_UNSUPPORTED_NEFF_VERSION) for a file that is well formed
            but made for something else.
    """

    def __init__(self, message: str, status: int = 2) -> None:
        self.status = status
        super().__init__(message)

    def __reduce__(self) -> tuple[type[NeffError], tuple[str, int]]:
        return type(self), (str(self), self.status)


def unsupported(message: str) -> NeffError:
    """The error of status 10, in the runtime's words."""
    status = Status.UNSUPPORTED_NEFF_VERSION
    return NeffError(f"NRT_{status.name} (status {status.value}): {message}", status)
