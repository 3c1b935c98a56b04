"""Errors carry a code, the user's line and a remedy, and survive pickling."""

import pickle
import re
from pathlib import Path

import pytest

from neuronxcc.nki_codes import NKI_CODES, page
from nki.errors import (
    CODES,
    NkiError,
    NkiIndexError,
    NkiTypeError,
    NkiValidationError,
    user_location,
)

ROOT = Path(__file__).parents[2]
PACKAGES = ("nki", "neuronxcc", "torch_neuronx", "nrtpy")


def test_text_says_what_where_and_what_to_do() -> None:
    with pytest.raises(NkiError) as caught:
        raise NkiError("NKI010", "index 4 is outside 0..3", "use a smaller index")
    error = caught.value
    line = re.escape(__file__)
    assert re.fullmatch(
        rf"index 4 is outside 0..3; {line}:\d+; use a smaller index \[NKI010\]", str(error)
    )
    assert (error.code, error.where[0]) == ("NKI010", __file__)


def test_location_is_the_caller_outside_the_package() -> None:
    def line_of_this() -> int:
        return user_location()[1]

    assert user_location()[0] == __file__
    assert line_of_this() == line_of_this()


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (NkiError, ValueError),
        (NkiIndexError, IndexError),
        (NkiTypeError, TypeError),
        (NkiValidationError, AssertionError),
    ],
)
def test_classes_are_the_builtin_ones_too(kind: type[NkiError], builtin: type[Exception]) -> None:
    error = kind("NKI010", "what", "remedy", ("kernel.py", 7))
    assert isinstance(error, builtin)
    assert isinstance(error, NkiError)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert type(again) is kind
    assert str(again) == str(error) == "what; kernel.py:7; remedy [NKI010]"


def test_every_code_in_the_source_is_in_the_table() -> None:
    used = {
        code
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if path.name != "nki_codes.py"
        for code in re.findall(r'"(NKI\d{3})"', path.read_text(encoding="utf-8"))
    }
    assert used == set(CODES)


def test_every_code_says_what_to_do() -> None:
    for code, row in NKI_CODES.items():
        assert re.fullmatch(r"NKI[0-3]\d\d", code)
        assert re.fullmatch(r"[^\n|]{10,100}[^.\s]", row.meaning), code
        assert re.fullmatch(r"[^\n|]{10,100}[^.\s]", row.remedy), code
    assert list(NKI_CODES) == sorted(NKI_CODES)


def test_the_page_is_that_of_the_table() -> None:
    """Write it again: python -c 'from neuronxcc.nki_codes import page; print(page(), end="")'."""
    assert (ROOT / "docs" / "nki-codes.md").read_text() == page()
