"""Random kernels of the first generation against NumPy, and on both executors, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from nki.isa.alu import fold, scan
from tests.fuzz.first_generation import check, draw
from tests.fuzz.first_operations import OPERATIONS

_COUNT, _GROUPS = 60, 6
# Seeds of programs that showed a mistake once.
_FOUND = (16, 25, 41, 84, 122, 188, 5490, 20287)


@pytest.mark.parametrize("group", range(_GROUPS))
def test_random_kernels(group: int) -> None:
    for seed in range(group, _COUNT, _GROUPS):
        check(draw(seed))


@pytest.mark.parametrize("seed", _FOUND)
def test_what_was_found_before(seed: int) -> None:
    check(draw(seed))


def test_the_programs_have_everything() -> None:
    programs = [draw(seed) for seed in range(_COUNT)]
    assert {step.name for p in programs for step in p.steps} == {None, *OPERATIONS}
    assert {p.style for p in programs} == {"arange", "mgrid", "slice"}
    for what in ("late", "looped", "summed", "turns"):
        assert any(getattr(p, what) for p in programs), what


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_zeros_of_both_signs_are_ordered(name: str) -> None:
    """A reduction at once and one element after the other agree in every bit."""
    rng = np.random.default_rng(0)
    choices = np.array([0.0, -0.0, 1, -1, np.inf], np.float32)
    x = rng.choice(choices, (500, 4), p=[0.35, 0.35, 0.1, 0.1, 0.1])
    one_by_one = scan(name, x[:, 0], x[:, 1:])[:, -1]
    np.testing.assert_array_equal(fold(name, x).view(np.uint32), one_by_one.view(np.uint32))
