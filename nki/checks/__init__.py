"""Checks of whole recordings: what no single instruction can tell."""

from __future__ import annotations

from nki.checks.addresses import check_addresses
from nki.checks.capacity import check_capacity
from nki.checks.flow import Times
from nki.recorder import Recorder

__all__ = ["check_core"]


def check_core(recorder: Recorder) -> None:
    """Check what one core does: capacities over lifetimes, and overlapping addresses.

    Raises:
        NkiError: SBUF or PSUM is too small (NKI220, NKI221). Overlaps are findings (NKI222).
    """
    recording = recorder.recording
    times = Times(recording, recorder.depth_of)
    check_capacity(recording, times, recorder.core.sbuf, recorder.core.psum)
    check_addresses(recording, times)
