"""What goes wrong in a kernel, as exceptions: a stable code, the user's line, and what to do.

Every code is listed in :data:`CODES`, the one table. Its hundreds say whom it concerns:

- 0xx: data types, memory, tensors and views (this package's base)
- 1xx: operands and attributes of instructions (``nki.isa``)
- 2xx: running kernels (``nki.jit``, ``nki.simulate``)
- 3xx: collectives
"""

import contextlib
import os
import sys
from types import FrameType

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
    "NKI101": "an argument of an instruction that is missing, unknown or given twice",
    "NKI102": "an operand of the wrong kind",
    "NKI103": "an operand with more partitions than an engine has lanes",
    "NKI104": "a size that an instruction does not take",
    "NKI105": "operands whose partitions do not agree",
    "NKI106": "operands whose elements per partition do not agree",
    "NKI107": "a data type that an operand does not take",
    "NKI108": "operands whose data types do not agree",
    "NKI109": "an operand in a memory that the instruction does not reach",
    "NKI110": "two operands in PSUM",
    "NKI111": "PSUM accessed by GpSimd",
    "NKI112": "an instruction that the target does not have",
    "NKI113": "an engine that cannot run the instruction",
    "NKI114": "an operator that the instruction does not take",
    "NKI115": "bitvec and arithmetic operators in one instruction",
    "NKI116": "an attribute with a value that the instruction does not take",
    "NKI117": "an operand at a partition where no access can start",
    "NKI118": "an operand with too many dimensions",
    "NKI119": "tensor indirection where it is not supported",
    "NKI120": "a matrix product whose contractions differ",
    "NKI121": "a stationary tensor that is too wide",
    "NKI122": "a moving tensor that is too long",
    "NKI123": "a tile of the systolic array that does not exist",
    "NKI124": "a performance mode that does not apply",
    "NKI125": "a destination that has not the shape of the result",
    "NKI126": "an accumulation in PSUM that hardware does not define",
    "NKI127": "accumulator registers used without what they need",
    "NKI128": "a tensor without the documented layout",
    "NKI129": "a scale tensor that does not hold the scales",
    "NKI130": "a shuffle mask that reads outside of its source",
    "NKI131": "a pattern of another size than its destination",
    "NKI132": "an index out of bounds while the kernel runs",
    "NKI133": "axes that the instruction cannot reduce or permute",
    "NKI134": "a descriptor generation mode that does not apply",
    "NKI135": "a limit of the DMA engines",
    "NKI136": "a register without a value, or one that cannot be written",
    "NKI137": "a register access of more than one element",
    "NKI138": "an exchange between cores that does not fit",
    "NKI139": "a register used as a number of Python",
    "NKI140": "a constant that the data type does not take",
    "NKI141": "a transpose by matmul without an identity",
    "NKI142": "inputs outside of the documented range of an activation function",
    "NKI143": "an instruction outside of a kernel",
    "NKI200": "a step of a loop on the device that is no positive integer",
    "NKI201": "a while_loop whose body returns no register",
    "NKI202": "a bound of a loop on the device that is no integer or register",
    "NKI203": "an axis that the launch grid does not have",
    "NKI204": "memory that is read before anything has written it",
    "NKI205": "a value that is asked for inside of a loop on the device",
    "NKI206": "a value that is asked for while only shapes are known",
    "NKI207": "an argument of a kernel of a kind that kernels do not take",
    "NKI208": "a result of a kernel that is not in shared HBM",
    "NKI209": "a launch with a number of cores that does not exist",
    "NKI220": "tensors that together do not fit a partition of SBUF",
    "NKI221": "tensors that together do not fit the banks of PSUM",
    "NKI222": "explicit addresses that overlap while both tensors are in use",
    "NKI223": "tensors that a compiler would spill, because they do not fit together",
    "NKI300": "shared tensors of the two cores that differ",
    "NKI301": "control flow that differs between cores",
    "NKI302": "an exchange that waits for ever",
    "NKI303": "an exchange whose two sides do not fit",
    "NKI304": "a race between the two cores",
    "NKI305": "a value that depends on another core, asked for while a kernel is recorded",
    "NKI310": "a replica group that is malformed",
    "NKI311": "a rank that does not take part",
    "NKI312": "lists of tensors that do not fit a collective",
    "NKI313": "a tensor in a memory that a collective does not reach",
    "NKI314": "a tensor that has not the shape that a collective needs",
    "NKI315": "a dimension that a collective does not work along",
    "NKI316": "channels that do not exist",
    "NKI317": "pairs of ranks that are no permutation",
    "NKI318": "a metadata tensor without the documented layout",
    "NKI319": "ranks that call different collectives",
    "NKI320": "a chunk out of bounds while a collective runs",
    "NKI321": "displacements of received chunks where they are not supported",
    "NKI322": "a collective beyond what is documented to be supported",
    "NKI323": "a launch on ranks that cannot be",
    "NKI240": "an argument of a language function that it does not take",
    "NKI241": "tiles whose shapes differ where nothing is broadcast",
    "NKI242": "axes that a function cannot work along",
    "NKI243": "a function that hardware does not have",
    "NKI244": "an operator of Python on a tensor",
    "NKI245": "a loop on the device that cannot be",
    "NKI246": "a question about the kernel outside of one",
    "NKI247": "a setting that is none",
    "NKI250": "a statement that the NKI compiler does not take",
    "NKI251": "an expression that the NKI compiler does not take",
    "NKI252": "a signature that the NKI compiler does not take",
    "NKI253": "a class that the NKI compiler does not take",
    "NKI254": "an argument of a kernel that the NKI compiler does not take",
    "NKI255": "a loop on the device that the NKI compiler does not take",
    "NKI256": "a name of NKI 0.1 that is gone",
    "NKI257": "a construct that is deprecated",
    "NKI258": "state outside of a kernel",
    "NKI259": "a function whose source cannot be read",
    "NKI260": "an index expression that no access pattern of a first-generation kernel shows",
    "NKI261": "a tile, a mask or an index expression as a condition of Python",
    "NKI262": "a mask that does not fit its tile, or that the instruction cannot keep",
    "NKI263": "a function of the first generation outside of its kernels",
    "NKI264": "block dimensions where one tile is needed",
    "NKI265": "an index tile that no dynamic access shows",
    "NKI266": "a tile of another shape, or no tile, in a kernel of the first generation",
    "NKI267": "a write that only another function of the first generation makes",
    "NKI268": "an argument or option that a function of the first generation does not take",
    "NKI269": "a launch grid that does not fit its kernel",
    "NKI270": "a call of a kernel that this process does not have",
    "NKI271": "a kernel that looks at values while PyTorch traces it",
    "NKI272": "tensors of one call in several places, or beside other arrays",
    "NKI273": "an operator that writes an argument without saying so",
    "NKI274": "shapes or types that one of the library's kernels does not take",
    "NKI275": "an array of JAX that a kernel writes and does not return",
    "NKI280": "a schedule that is no list of edges",
    "NKI281": "an edge of a schedule to no instruction, or to several",
    "NKI282": "instructions of a schedule that wait for each other",
    "NKI276": "a gradient through a kernel that has none",
}

# No pathlib: this is imported by everything.
_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep  # noqa: PTH100, PTH120

# Frames of these are none of the user's: loops on the device are contexts.
_INNER = (_PACKAGE, contextlib.__file__)


# PyTorch's compiler stands between a framework's functions and those they call.
_WRAPPER = os.path.join("torch", "_dynamo", "")  # noqa: PTH118


def is_own(file: str) -> bool:
    """Whether a source file belongs to this package."""
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
    """Whether a source file is one whose lines errors name."""
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
