"""Operators and types of tensors that releases of PyTorch added or took away.

The operator table (`torch_neuronx.ops`) has a row for every operator of every supported release.
What the release of this process lacks is left out of it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch._ops import OpOverload

from torch_neuronx.compat.release import minor

# Base names by the first release with a CPU kernel, and by the first without the operator. Found
# by asking 2.13.0, 2.14.1 and 2.15.0 for all their operators (ops.coverage.cpu_operators).
_ADDED: Mapping[str, str] = {
    "2.14": "linalg_matrix_sqrth linalg_polar _philox_key_fold_in _philox_key_split "
    "shallow_copy_data",
    "2.15": "_philox_randint _scaled_addmm",
}
_REMOVED: Mapping[str, str] = {"2.14": "cholesky qr"}
# Appended to c10::ScalarType, in its order.
_DTYPES: Mapping[str, str] = {"2.14": "bcomplex32"}


def _number(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in minor(release).split("."))


def _names(table: Mapping[str, str], present: str, *, since: bool) -> tuple[str, ...]:
    """Names of the releases up to this one (`since`), or of those after it."""
    return tuple(
        name
        for release, names in table.items()
        if (_number(release) <= _number(present)) == since
        for name in names.split()
    )


def absent(release: str = torch.__version__) -> frozenset[str]:
    """Return the base names of operators that the table has and `release` ("2.13.0+cpu") lacks."""
    return frozenset(
        (*_names(_ADDED, release, since=False), *_names(_REMOVED, release, since=True))
    )


def added_dtypes(release: str = torch.__version__) -> tuple[str, ...]:
    """Return the types that `release` has beyond those of 2.13, in the order of their numbers."""
    return _names(_DTYPES, release, since=True)


def replacing_memory() -> frozenset[OpOverload]:
    """Return the operators that give the first of two tensors the memory of the other.

    AOTAutograd writes `x.data = y` as the second of them since 2.14.
    """
    aten = torch.ops.aten
    found = [aten.set_.source_Tensor]
    if "shallow_copy_data" not in absent():
        found.append(aten.shallow_copy_data_.default)
    return frozenset(found)


def linspace_counts_wide(release: str = torch.__version__) -> bool:
    """Whether the CPU's `linspace` of a 16-bit type counts in float32, as it does since 2.15.

    Before, every step of the computation was rounded to the type.
    """
    return _number(release) >= (2, 15)
