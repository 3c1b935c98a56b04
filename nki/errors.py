"""What goes wrong in a kernel, as exceptions: a stable code, the user's line, and what to do.

Every code is listed in :data:`CODES`, the one table. Its hundreds say whom it concerns:

- 0xx: data types, memory, tensors and views (this package's base)
- 1xx: operands and attributes of instructions (``nki.isa``)
- 2xx: running kernels (``nki.jit``, ``nki.simulate``)
- 3xx: collectives
"""

import os
import sys

__all__ = [
    "CODES",
    "NkiError",
    "NkiIndexError",
    "NkiTypeError",
    "NkiValidationError",
    "user_location",
]

CODES: dict[str, str] = {
    "NKI001": "a data type that NKI does not have",
    "NKI002": "a memory region that NKI does not have",
    "NKI003": "a shape that no tensor can have",
    "NKI004": "an on-chip tensor with more partitions than the core",
    "NKI005": "an on-chip tensor larger than a partition",
    "NKI006": "an explicit address where the memory has none",
    "NKI007": "a storage that does not fit the tensor",
    "NKI008": "a value that the data type cannot hold",
    "NKI010": "an index or dimension out of bounds",
    "NKI011": "an index of a kind that tensors do not take",
    "NKI012": "an empty or reversed slice",
    "NKI013": "more indices than dimensions",
    "NKI014": "dimensions that are no permutation",
    "NKI015": "the partition dimension of an on-chip tensor was to move or change",
    "NKI016": "a dimension that must have size 1",
    "NKI017": "a shape with another number of elements",
    "NKI018": "a layout in memory that the new view cannot express",
    "NKI019": "a rearrange pattern that cannot be understood",
    "NKI020": "a reinterpretation of elements that do not divide evenly",
    "NKI021": "an access pattern that is malformed",
    "NKI022": "an access pattern that leaves its tensor",
    "NKI023": "a partition step in an access pattern",
    "NKI024": "a second indirection, or a view of an indirect dimension",
    "NKI025": "an index tensor of the wrong kind",
    "NKI026": "indirect access where it is not supported",
    "NKI027": "assignment to part of a tensor",
    "NKI029": "a view with fewer dimensions than its memory allows",
    "NKI030": "a start partition that the engines cannot address",
    "NKI031": "more free dimensions than an engine addresses",
    "NKI032": "a dimension longer than an engine counts",
    "NKI033": "a stride wider than an engine steps",
    "NKI036": "an address that is not aligned",
}

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep  # noqa: PTH100, PTH120 (no pathlib: this is imported by everything)


def user_location() -> tuple[str, int]:
    """Return file and line of the innermost caller outside this package.

    Where there is none, because the package calls itself, the outermost caller's is returned.
    """
    frame = sys._getframe(1)  # noqa: SLF001 (the documented way; `inspect` is 100 times slower)
    while frame.f_code.co_filename.startswith(_PACKAGE):
        back = frame.f_back
        if back is None:
            break
        frame = back
    return frame.f_code.co_filename, frame.f_lineno


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


class NkiIndexError(NkiError, IndexError):
    """An index beyond the end of a dimension."""


class NkiTypeError(NkiError, TypeError):
    """An argument of a kind that the interface does not take."""


class NkiValidationError(NkiError, AssertionError):
    """A rule of the hardware that an instruction breaks.

    It is an ``AssertionError`` too, which is what the documented simulator raises.
    """
