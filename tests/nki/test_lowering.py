"""What instructions are lowered to does what they mean, whatever the layouts of their operands."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.nki.lowering_cases import CASES, Maker
from tests.nki.lowering_tools import TARGETS, check


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_instruction(name: str, data: Any) -> None:
    case = CASES[name](Maker(data.draw))
    check(
        name.partition(":")[0],
        case.operands,
        case.attributes,
        ulps=case.ulps,
        least=case.least,
        target=data.draw(st.sampled_from(TARGETS)),
    )
