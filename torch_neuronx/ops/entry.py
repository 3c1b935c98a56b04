"""The rows of the operator table, and the dtype sets they are written in.

A dtype set is an integer with bit `int(ScalarType)` set. The dispatch path of the native core tests
the same bits, so that nothing is translated when the table is handed over.

This is read during `import torch`, and named tuples are several times cheaper to define than
dataclasses. What only reports need is in lookup.py.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from neuronxcc.targets import Engine as Engine  # noqa: PLC0414 (rows name it from here)
from neuronxcc.targets import Target, get_target
from torch_neuronx.compat.operators import added_dtypes

if TYPE_CHECKING:
    from neuronxcc.error_codes import ErrorCode

# c10::ScalarType in its own order; the position is the number. A test compares this with the
# header of the installed torch.
DTYPE_NAMES: tuple[str, ...] = (
    "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64",
    "complex32", "complex64", "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16",
    "quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8", "bits16", "float8_e5m2",
    "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "uint16", "uint32", "uint64", "uint1",
    "uint2", "uint3", "uint4", "uint5", "uint6", "uint7", "int1", "int2", "int3", "int4", "int5",
    "int6", "int7", "float8_e8m0fnu", "float4_e2m1fn_x2", *added_dtypes(),
)  # fmt: skip
DTYPE_NUMBER: dict[str, int] = {name: number for number, name in enumerate(DTYPE_NAMES)}


def dtype_bits(names: str) -> int:
    """Bit mask of the dtypes in `names`, separated by blanks; KeyError for an unknown one."""
    mask = 0
    for name in names.split():
        mask |= 1 << DTYPE_NUMBER[name]
    return mask


def dtype_list(mask: int) -> list[str]:
    """Names of the dtypes in a bit mask, in ScalarType order."""
    return [name for number, name in enumerate(DTYPE_NAMES) if mask >> number & 1]


EVERY = (1 << len(DTYPE_NAMES)) - 1  # all that PyTorch has; only for work that reads no element
FLOATS = dtype_bits("float16 bfloat16 float32 float8_e5m2 float8_e4m3fn")
INTS = dtype_bits("uint8 int8 int16 int32 uint16 uint32")
WIDE_INTS = dtype_bits("int64 uint64")  # carried as 32 bits, see Status.CARRIED
BOOL = dtype_bits("bool")
COMPLEX = dtype_bits(" ".join(name for name in DTYPE_NAMES if "complex" in name))
ANY = FLOATS | INTS | WIDE_INTS | BOOL  # what some engine of some target computes with
INTEGRAL = INTS | WIDE_INTS | BOOL


class Mode(enum.IntEnum):
    """The portability modes of `modes` by the number that the native core takes."""

    PERMISSIVE = 0
    WARN = 1
    STRICT = 2


class Basis(enum.StrEnum):
    """How we know: AWS documents it, or it follows from what the documented operators express."""

    DOCUMENTED = "documented"
    DERIVED = "derived"


class Gap(NamedTuple):
    """A known limit: what is refused, why, and what to do about it.

    `code` is the documented compiler code without brackets ("EVRF035"), or "" where none exists.
    `says` and `advises` are more than the table of codes has (`neuronxcc.error_codes`), or "".
    `dtypes` is a bit mask, `on` says on which targets it holds (None: on all). A gap with a
    `when` depends on the arguments of the call, so it is explained but not enforced. `accept` names
    the item of `--implicit-integer-downcast` with which a user takes the loss on purpose.
    """

    code: str
    says: str = ""
    advises: str = ""
    dtypes: int = EVERY
    on: Callable[[Target], bool] | None = None
    when: str = ""
    accept: str = ""
    basis: Basis = Basis.DOCUMENTED

    @property
    def reason(self) -> str:
        """Why it is refused: what is known of this limit, else what the code says everywhere."""
        return self.says or _known(self.code).message

    @property
    def remedy(self) -> str:
        """The remedy, likewise."""
        return self.advises or _known(self.code).remedy

    def holds_on(self, target: str) -> bool:
        """Return whether the gap exists on `target`."""
        return self.on is None or self.on(get_target(target))


def _known(code: str) -> ErrorCode:
    # Only reports and errors ask: `import torch` does without the table.
    from neuronxcc.error_codes import CODES  # noqa: PLC0415

    return CODES[f"NCC_{code}"]


class Row(NamedTuple):
    """Operators of one family that share their classification.

    `names` are base names separated by blanks. `dtypes` is the set for which PyTorch defines the
    operators, as far as a NeuronCore has the dtypes at all. `composite` marks operators that
    PyTorch takes apart before a device sees them; their engine is that of the main part.
    """

    family: str
    engine: Engine
    names: str
    note: str
    dtypes: int = ANY
    basis: Basis = Basis.DERIVED
    gaps: tuple[Gap, ...] = ()
    composite: bool = False


def base_name(op: str) -> str:
    """Base name of an operator: "aten::add_.Tensor" -> "add".

    The namespace "aten::", the overload and one trailing in-place underscore go; names that end in
    two underscores (`__lshift__`) keep them, other namespaces stay ("quantized::mul").
    """
    name = op.removeprefix("aten::").partition(".")[0]
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name
