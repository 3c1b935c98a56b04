"""What has written each byte of a PSUM tensor, against an array with a state for every byte."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import nki.language as nl
from nki.isa.state import MATMUL, OTHER, UNWRITTEN
from nki.psum import WrittenMap

_ROWS, _COLUMNS = 4, 6

Part = tuple[slice, slice]


@st.composite
def parts(draw: st.DrawFn) -> Part:
    """A part of a matrix, mostly with all of its rows."""

    def span(extent: int) -> slice:
        first = draw(st.integers(0, extent - 1))
        return slice(first, draw(st.integers(first + 1, extent)), draw(st.integers(1, 2)))

    rows = slice(0, _ROWS) if draw(st.integers(0, 3)) else span(_ROWS)
    return rows, span(_COLUMNS) if draw(st.booleans()) else slice(0, _COLUMNS)


@given(st.lists(st.tuples(parts(), st.sampled_from([MATMUL, OTHER]), parts()), max_size=8))
def test_states_are_those_of_every_byte(steps: list[tuple[Part, int, Part]]) -> None:
    tensor = nl.ndarray((_ROWS, _COLUMNS), dtype=nl.float32, buffer=nl.psum)
    states, model = WrittenMap(tensor.storage), np.full((_ROWS, _COLUMNS), UNWRITTEN, np.uint8)
    for written, state, looked_at in steps:
        states.put(tensor[written], state)
        model[written] = state
        found = np.broadcast_to(states.get(tensor[looked_at]), model[looked_at].shape)
        np.testing.assert_array_equal(found, model[looked_at])
