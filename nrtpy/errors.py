"""Errors of nrtpy. Both are RuntimeErrors, as documented."""

from __future__ import annotations

from neuronxcc.status import Status


class NrtpyError(RuntimeError):
    """Found by nrtpy itself: a freed tensor, a runtime that is active or closed, a wrong array."""

    __module__ = "nrtpy"


class NrtError(RuntimeError):
    """The runtime answered with a status. "NRT Error NRT_FAILURE(1): Failed to load model ...".

    Attributes:
        status: The status, an integer with a name.
    """

    __module__ = "nrtpy"

    def __init__(self, status: int, text: str) -> None:
        """Make it.

        Args:
            status: One of `neuronxcc.status.Status`.
            text: What went wrong.
        """
        self.status = Status(status)
        self._text = text
        super().__init__(f"NRT Error {self.status.text}: {text}")

    def __reduce__(self) -> tuple[type[NrtError], tuple[int, str]]:
        return type(self), (int(self.status), self._text)
