"""Operators and types by release, compared with the PyTorch that is installed."""

import pytest
import torch

from torch_neuronx.compat.operators import absent, added_dtypes
from torch_neuronx.ops.coverage import cpu_operators
from torch_neuronx.ops.table import ROWS

OLD = {"cholesky", "qr"}
NEW_IN_14 = {
    *("linalg_matrix_sqrth", "linalg_polar", "_philox_key_fold_in", "_philox_key_split"),
    "shallow_copy_data",
}
NEW_IN_15 = {"_philox_randint", "_scaled_addmm"}


@pytest.mark.parametrize(
    ("release", "names", "dtypes"),
    [
        ("2.13.0+cpu", NEW_IN_14 | NEW_IN_15, ()),
        ("2.13.1", NEW_IN_14 | NEW_IN_15, ()),
        ("2.14.1+cu130", OLD | NEW_IN_15, ("bcomplex32",)),
        ("2.15.0+cu132", OLD, ("bcomplex32",)),
        ("2.100.0", OLD, ("bcomplex32",)),
    ],
)
def test_by_release(release: str, names: set[str], dtypes: tuple[str, ...]) -> None:
    assert absent(release) == names
    assert added_dtypes(release) == dtypes


def test_rows_are_those_of_this_release() -> None:
    names = {name for row in ROWS for name in row.names.split()}
    assert names.isdisjoint(absent())
    assert absent().isdisjoint(cpu_operators())
    assert (OLD | NEW_IN_14 | NEW_IN_15) - absent() <= names
    assert all(row.names for row in ROWS)


def test_types_are_those_of_this_release() -> None:
    for name in added_dtypes():
        assert isinstance(getattr(torch, name), torch.dtype)
    assert all(hasattr(torch, name) == (name in added_dtypes()) for name in added_dtypes("2.15.0"))
