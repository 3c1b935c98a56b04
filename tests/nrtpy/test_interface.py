"""What a loader is told of a program's inputs and outputs, also by a hostile file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neuronxcc.ir.dtypes import DType
from neuronxcc.neff import NeffError, read_neff, write_neff
from neuronxcc.program.interface import RANK, ROUNDING, SUPPLIED, interface, with_supplied
from neuronxcc.program.memory import Buffer
from neuronxcc.program.program import Program
from nrtpy import NrtError, NrtpyModel


def program(*inputs: tuple[str, DType, tuple[int, ...]], results: tuple[int, ...] = ()) -> Program:
    buffers = tuple(
        Buffer("input", dtype, shape, (1,) * len(shape), index, name=name)
        for index, (name, dtype, shape) in enumerate(inputs)
    )
    return Program("test", buffers, (), results)


F32 = ("x", DType.F32, (3,))
NUMBER = ("x", DType.S32, ())
STATE = ("s", DType.U32, (2,))


def test_names_are_unique() -> None:
    found = interface(
        program(F32, F32, ("", DType.F32, (3,)), ("input_1", *F32[1:]), results=(0, 0))
    )
    assert [info.name for info in found.inputs] == ["x", "input_1", "input_2", "input_3"]
    assert [(info.name, info.alias) for info in found.outputs] == [("output_0", 0), ("output_1", 0)]
    assert str(found.inputs[0]) == "float32[3]"
    assert found.inputs[0].nbytes == 12


def test_inputs_of_the_loader() -> None:
    made = with_supplied(program(F32, NUMBER, STATE), by_rank=True, rounding=True)
    assert made.meta[SUPPLIED] == {RANK: 1, ROUNDING: 2}
    found = interface(made)
    assert found.supplied == {1: RANK, 2: ROUNDING}
    assert [info.name for info in found.given] == ["x"]
    plain = program(NUMBER)
    assert with_supplied(plain, by_rank=False, rounding=False) is plain
    assert interface(plain).supplied == {}  # a caller may well have a number of that type


@pytest.mark.parametrize(
    "noted",
    [[], "rank", {RANK: 0}, {RANK: -1}, {RANK: 9}, {RANK: True}, {RANK: None}, {ROUNDING: 1},
     {"other": 1}, {RANK: 1, "more": 1}],
)  # fmt: skip
def test_wrong_notes(noted: Any) -> None:
    made = replace(program(F32, NUMBER), meta={SUPPLIED: noted})
    with pytest.raises(NeffError, match="are no inputs that a loader could fill"):
        interface(made)


def test_a_file_with_a_wrong_note(small: Path, tmp_path: Path) -> None:
    found, info = read_neff(small.read_bytes())
    path = tmp_path / "x.neff"
    path.write_bytes(write_neff(replace(found, meta={**found.meta, SUPPLIED: {RANK: 0}}), info))
    with pytest.raises(NrtError, match=r"NRT_INVALID\(2\).*no inputs that a loader could fill"):
        NrtpyModel.load_from_neff(path)
