"""The machine code of lowered kernels does what they mean."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kernels.lowering_native import native
from tests.nki.lowering_cases import CASES, Maker
from tests.nki.lowering_scenarios import SCENARIOS
from tests.nki.lowering_tools import TARGETS, check

SETTINGS = settings(max_examples=3, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("name", CASES)
@SETTINGS
@given(data=st.data())
def test_instruction(name: str, data: Any) -> None:
    case = CASES[name](Maker(data.draw))
    check(
        name.partition(":")[0], case.operands, case.attributes,
        ulps=case.ulps, least=case.least, runner=native,
        target=data.draw(st.sampled_from(TARGETS)),
    )  # fmt: skip


@pytest.mark.parametrize("name", SCENARIOS)
@SETTINGS
@given(data=st.data())
def test_kernel(name: str, data: Any) -> None:
    SCENARIOS[name](data.draw, native)
