"""The 18 data types and their spellings."""

import ml_dtypes
import numpy as np
import pytest

from nki.dtypes import NAMES, canonical, info
from nki.errors import NkiTypeError


@pytest.mark.parametrize("name", NAMES)
def test_info_agrees_with_itself(name: str) -> None:
    row = info(name)
    assert row.itemsize == row.numpy.itemsize
    assert row.is_packed == name.endswith("_x4") == (row.lanes == 4)
    assert row.is_float + row.is_int <= 1
    if row.loop is not None and name != "bool_":
        assert row.loop.numpy == row.numpy
        assert row.loop.is_float == row.is_float
    for spelling in (name, *row.aliases, row.name.upper(), f"torch.{name}"):
        assert canonical(spelling) == name


def test_there_are_eighteen() -> None:
    assert len(NAMES) == 18


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        (np.float32, "float32"),
        (np.dtype("int16"), "int16"),
        (np.bool_, "bool_"),
        (bool, "bool_"),
        (float, "float32"),
        (ml_dtypes.bfloat16, "bfloat16"),
        (np.dtype(ml_dtypes.float8_e4m3fn), "float8_e4m3fn"),
        ("float8e4", "float8_e4m3"),
        ("float8e5", "float8_e5m2"),
        ("nl.tfloat32", "tfloat32"),
    ],
)
def test_spellings(spelling: object, name: str) -> None:
    assert canonical(spelling) == name
    assert canonical(spelling) == name  # now from the table
    assert info(spelling).name == name


def test_packed_types_have_four_lanes_in_an_item() -> None:
    assert [(info(n).itemsize, info(n).lane) for n in NAMES if n.endswith("_x4")] == [
        (4, np.dtype(ml_dtypes.float8_e5m2)),
        (4, np.dtype(ml_dtypes.float8_e4m3fn)),
        (2, np.dtype(ml_dtypes.float4_e2m1fn)),
    ]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (np.float64, r"float64'> is no NKI data type; .*: convert to nl.float32 before the kernel"),
        ("int64", r"'int64' is no NKI data type; .*: convert to nl.int32 before the kernel"),
        ("float31", r"'float31' is no NKI data type; .*; use one of bool_, int8, .*\[NKI001\]"),
        ([], r"\[\] is no NKI data type"),
        (None, r"None is no NKI data type"),
    ],
)
def test_unknown_types_are_refused(given: object, text: str) -> None:
    with pytest.raises(NkiTypeError, match=text) as caught:
        canonical(given)
    assert caught.value.code == "NKI001"
