"""What the importer of an instruction has to say beyond its value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Note:
    """Something about one instruction: a warning, or an error on some targets.

    Attributes:
        text: What it is.
        remedy: What to do.
        code: The documented code without brackets, "" where there is none.
        refused_before_trn3: An error on targets before trn3, whatever options allow; nothing on
            others.
    """

    text: str
    remedy: str
    code: str = ""
    refused_before_trn3: bool = False
