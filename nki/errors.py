"""Errors in kernels, as exceptions: a stable code, the user's line, and what to do.

Every code stands in `neuronxcc.nki_codes`, the one table.
"""

import contextlib
import os
import sys
from types import FrameType

from neuronxcc.nki_codes import NKI_CODES

__all__ = [
    "CODES",
    "NkiError",
    "NkiIndexError",
    "NkiTypeError",
    "NkiValidationError",
    "NkiWarning",
    "is_own",
    "is_users",
    "user_frame",
    "user_location",
]

#: Code -> what it means; `neuronxcc.nki_codes` is the table, with remedies.
CODES: dict[str, str] = {code: row.meaning for code, row in NKI_CODES.items()}

# No pathlib: this is imported by everything.
_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep  # noqa: PTH100, PTH120

# Frames of these are none of the user's: loops on the device are contexts.
_INNER = (_PACKAGE, contextlib.__file__)


# PyTorch's compiler stands between a framework's functions and those they call.
_WRAPPER = os.path.join("torch", "_dynamo", "")  # noqa: PTH118


def is_own(file: str) -> bool:
    """Return whether a source file belongs to this package."""
    return file.startswith(_INNER)


def user_location() -> tuple[str, int]:
    """Return file and line of the innermost caller outside this package and Python's contextlib.

    Where there is none, because the package calls itself, the outermost caller's is returned.
    """
    frame = user_frame(sys._getframe(1))  # noqa: SLF001 (`inspect` is 100 times slower)
    return frame.f_code.co_filename, frame.f_lineno


def user_frame(frame: FrameType) -> FrameType:
    """Return the innermost frame, from one on outwards, whose line `user_location` tells."""
    while not is_users(frame.f_code.co_filename):
        back = frame.f_back
        if back is None:
            break
        frame = back
    return frame


def is_users(file: str) -> bool:
    """Return whether a source file is one whose lines errors name."""
    return not file.startswith(_INNER) and _WRAPPER not in file


class NkiError(ValueError):
    """A kernel that cannot be built or run.

    The text reads "what; where; what to do [code]".

    Attributes:
        code: a key of :data:`CODES`; it never changes its meaning.
        what: what is wrong, with the numbers.
        remedy: what to do about it.
        where: the user's file and line.
    """

    def __init__(
        self, code: str, what: str, remedy: str, where: tuple[str, int] | None = None
    ) -> None:
        assert code in CODES, code
        self.code = code
        self.what = what
        self.remedy = remedy
        self.where = where or user_location()
        file, line = self.where
        super().__init__(f"{what}; {file}:{line}; {remedy} [{code}]")

    def __reduce__(self) -> tuple[type, tuple[str, str, str, tuple[str, int]]]:
        return type(self), (self.code, self.what, self.remedy, self.where)


class NkiWarning(UserWarning):
    """Something in a kernel that works here and is undefined or refused on hardware."""


class NkiIndexError(NkiError, IndexError):
    """An index beyond the end of a dimension."""


class NkiTypeError(NkiError, TypeError):
    """An argument of a kind that the interface does not take."""


class NkiValidationError(NkiError, AssertionError):
    """A rule of the hardware that an instruction breaks.

    It is an ``AssertionError`` too, which is what the documented simulator raises.
    """
