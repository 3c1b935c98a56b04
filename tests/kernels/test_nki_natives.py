"""The two sides of the table of native functions: what they declare."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronxcc.neff import NeffError
from neuronxcc.program.natives import NATIVES, native
from neuronxcc.program.steps.tape import MOST_BYTES
from torch_neuronx import _C

NUMBERS = (
    st.integers(-1, 16)
    | st.sampled_from([32, 64, 128, 512, 4096, -(1 << 41)])
    | st.sampled_from([1 << 20, 1 << 31, 1 << 40, (1 << 40) + 1, (1 << 63) - 1])
)


def parameters(name: str) -> int:
    """How many parameters a function takes, from its refusal of none."""
    with pytest.raises(NeffError) as error:
        native(name).declare(())
    names = re.fullmatch(r"the parameters \[\] are no \((.*)\)", str(error.value))
    assert names is not None, str(error.value)
    return names[1].count(",") + 1


def by_python(name: str, params: tuple[int, ...]) -> list[tuple[int, int, bool]] | None:
    """What it touches; None if it does not take the parameters, or no memory is so large."""
    try:
        slots = native(name).declare(params)
    except NeffError:
        return None
    if any(max(-slot.low, slot.high) > MOST_BYTES for slot in slots):
        return None
    return [(slot.low, slot.high, slot.written) for slot in slots]


def by_executor(name: str, params: tuple[int, ...]) -> list[tuple[int, int, bool]] | None:
    try:
        slots = _C.native_slots(name, params)
    except ValueError:
        return None
    if any(max(-low, high) > MOST_BYTES for low, high, _ in slots):
        return None
    return slots


def test_both_sides_have_the_same_functions() -> None:
    assert sorted(_C.native_names()) == sorted(NATIVES)
    with pytest.raises(NeffError, match="there is no native function 'nothing'"):
        native("nothing")
    with pytest.raises(ValueError, match="there is no native function 'nothing'"):
        _C.native_slots("nothing", ())


@pytest.mark.parametrize("name", sorted(NATIVES))
def test_both_sides_declare_the_same(name: str) -> None:
    count = parameters(name)

    @settings(max_examples=60)
    @given(st.tuples(*[NUMBERS] * count))
    def compare(params: tuple[int, ...]) -> None:
        assert by_executor(name, params) == by_python(name, params)

    compare()
    assert by_executor(name, (0,) * (count + 1)) is None
    assert by_python(name, (0,) * (count + 1)) is None


def test_what_check_index_says_of_its_parameters() -> None:
    assert _C.native_slots("check_index", (3, 2, 5)) == [(0, 20, False)]
    with pytest.raises(ValueError, match=r"\[1, -1, 5\] are no \(count, stride, bound\)"):
        _C.native_slots("check_index", (1, -1, 5))
