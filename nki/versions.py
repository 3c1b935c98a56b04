"""Which version of NKI a program was written for, and what versions mean differently.

``TORCH_NEURONX_NKI_VERSION=0.4`` selects one; the newest is the default. Spellings of older
versions are accepted whatever is selected, as long as they can mean only one thing
(`nki.isa.spellings`); this table holds what the same program means differently.
"""

from types import MappingProxyType
from typing import Final, NamedTuple

from neuronxcc.environment.kernels import TORCH_NEURONX_NKI_VERSION
from nki.errors import NkiError

__all__ = [
    "DIFFERENCES",
    "NEWEST",
    "VERSIONS",
    "Difference",
    "Version",
    "selected",
    "since",
]

Version = tuple[int, int]
VERSIONS: Final[tuple[Version, ...]] = ((0, 2), (0, 3), (0, 4), (0, 5), (0, 6))
NEWEST: Final = VERSIONS[-1]
_GUIDE = "migration guide"
_NOTES = "release notes"


class Difference(NamedTuple):
    """A program that means something else from a version on.

    Attributes:
        since: the first version with the new meaning.
        before: the old meaning.
        after: the new one.
        source: where it is documented.
        selectable: the old meaning can be had here; else the new one is always in force, because
            the old one was undefined, a bug of a simulator, or an error that came later.
    """

    since: Version
    before: str
    after: str
    source: str
    selectable: bool


def _row(
    since: Version, before: str, after: str, source: str = _GUIDE, *, selectable: bool = False
) -> Difference:
    return Difference(since, before, after, source, selectable)


DIFFERENCES: Final = MappingProxyType(
    {
        "quantize_mx scale": _row(
            (0, 5),
            "the scale of the OCP sample algorithm, which clips the largest values",
            "twice that scale",
            _NOTES,
            selectable=True,
        ),
        "nl.rsqrt": _row(
            (0, 5),
            "Scalar Engine, tiles in sbuf and psum",
            "GpSimd, more precise, tiles in sbuf only",
            selectable=True,
        ),
        "nl.copy": _row(
            (0, 6),
            "Scalar Engine through float32, to the memory of its argument",
            "Vector Engine, bit by bit if the types agree, to sbuf",
            _NOTES,
            selectable=True,
        ),
        "NKI_PRECISE_FP": _row(
            (0, 4),
            "unset means 0: bfloat16 and float8 are simulated as float32",
            "unset means 1",
            selectable=True,
        ),
        "dynamic_range": _row(
            (0, 4),
            "the counter is no register: neither a scalar_offset nor in arithmetic",
            "a register",
            _NOTES,
        ),
        "num_programs": _row(
            (0, 3),
            "num_programs() counts all programs of the grid",
            "num_programs() counts those of axis 0; there is only one axis, so both are equal",
        ),
        "memset": _row(
            (0, 3),
            "a float for an integer tensor is cast",
            "an error",
            selectable=True,
        ),
        "outputs": _row(
            (0, 3), "results may lie in private_hbm", "results lie in shared_hbm", selectable=True
        ),
        "range_select": _row(
            (0, 3),
            "on_false_value and reduce_cmd are ignored: FP32_MIN and reset_reduce",
            "reduce_cmd counts, and on_false_value must be FP32_MIN",
            selectable=True,
        ),
        "tensor_reduce axis": _row(
            (0, 3),
            "axis=1 means the last dimension of tensors of 3 and 4 dimensions too",
            "axes are dimensions",
        ),
        "dma_copy from psum": _row((0, 3), "copies", "an error"),
        "dma_copy hwdge": _row((0, 3), "different types are undefined", "an error"),
        "dma_transpose rank": _row(
            (0, 4), "dst of a lower rank than src is padded", "an error: the shape is exact"
        ),
        "neuronxcc.nki in a kernel": _row((0, 4), "a warning", "an error"),
        "reshape": _row((0, 5), "another number of elements goes unnoticed", "an error"),
        "casts to integers": _row(
            (0, 6), "NumPy's, in the simulator", "to nearest even, saturated", _NOTES
        ),
        "nc_find_index8": _row(
            (0, 6), "a value not found gives 0, in the simulator", "all ones", _NOTES
        ),
    }
)


def selected() -> Version:
    """Return the version that the environment selects, as (0, 4); the newest if none.

    Raises:
        NkiError: there is no such version (NKI247).
    """
    text = TORCH_NEURONX_NKI_VERSION.get()
    if not text:
        return NEWEST
    parts = text.split(".")
    found = next((v for v in VERSIONS if [str(n) for n in v] == parts[:2]), None)
    if found is None:
        known = ", ".join(f"{a}.{b}" for a, b in VERSIONS)
        raise NkiError(
            "NKI247",
            f"{TORCH_NEURONX_NKI_VERSION.name}={text} names no version of NKI",
            f"use one of {known}; kernels of 0.1 import neuronxcc.nki",
        )
    return found


def since(name: str) -> bool:
    """Return whether the selected version has the new meaning of a row of `DIFFERENCES`."""
    row = DIFFERENCES[name]
    return not row.selectable or selected() >= row.since
