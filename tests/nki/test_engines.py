"""Engines have one list of names; the documented enumerations give them numbers."""

import pytest

from neuronxcc.targets import TARGETS, Engine
from nki.first_generation.isa import constants as first
from nki.isa import enums
from nki.isa.table import HIDDEN, TABLE

NAMES = {engine.value for engine in Engine}


def test_instructions_run_on_engines_that_there_are() -> None:
    rows = [*TABLE.values(), *HIDDEN.values()]
    allowed = {name for row in rows for names in row.engines.allowed.values() for name in names}
    assert allowed <= NAMES
    assert {member.name for member in enums.engine} - {"unknown"} == allowed


@pytest.mark.parametrize("name", ["engine", "reduce_cmd", "oob_mode", "nc_version"])
def test_the_first_generation_numbers_them_alike(name: str) -> None:
    today, before = getattr(enums, name), getattr(first, name)
    assert {m.name: m.value for m in before} == {m.name: m.value for m in today}


def test_a_core_knows_its_engines_by_name() -> None:
    for target in TARGETS:
        core = target.core
        compute = (Engine.TENSOR, Engine.VECTOR, Engine.SCALAR, Engine.GPSIMD)
        assert tuple(spec.name for spec in core.engines) == compute
        assert [getattr(core, name) for name in compute] == list(core.engines)
