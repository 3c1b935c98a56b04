"""Notes that an instruction's importer leaves beside its value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Note:
    """Something about one instruction: a warning, or an error on some targets.

    Attributes:
        text: What it is.
        remedy: What to do.
        code: The documented code without brackets, "" where there is none.
        needs: A data type: an error on targets without it, whatever options allow, and nothing on
            others; "" for a warning on all.
    """

    text: str
    remedy: str
    code: str = ""
    needs: str = ""
