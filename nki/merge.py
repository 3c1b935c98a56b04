"""Several cores' recordings as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nki.errors import NkiError
from nki.recording import Recording

if TYPE_CHECKING:
    from nki.recorder import Recorder

__all__ = ["merge"]


def merge(recorders: Sequence[Recorder]) -> Recording:
    """Return what all the cores of a launch did, in an order that keeps their exchanges."""
    if len(recorders) != 1:
        raise NkiError("NKI209", f"{len(recorders)} cores", "launch on one core")
    return recorders[0].recording
