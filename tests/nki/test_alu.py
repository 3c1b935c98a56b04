"""The operators of the ALUs: their tables name the same ones, those of C++ in the same order."""

import re
from pathlib import Path

import numpy as np
import pytest

from neuronxcc.program.natives.alu import CUMULATIVE, MEANINGS, SCANNED
from nki.isa.alu import ALU
from nki.lowering.alu import EXPRESSIONS

CORE = Path(__file__).parents[2] / "torch_neuronx" / "csrc" / "nki"


def test_every_operator_has_a_meaning_and_an_expression() -> None:
    assert set(MEANINGS) == set(ALU) == set(EXPRESSIONS)


def test_the_core_numbers_operators_as_files_do() -> None:
    text = (CORE / "scan_impl.h").read_text(encoding="utf-8")
    (members,) = re.findall(r"enum class Alu : int64_t \{\n(.*?)\n\};", text, re.DOTALL)
    wanted = [f"k{name.title().replace('_', '')}" for name in SCANNED]
    assert re.findall(r"\w+", members) == [*wanted, "kCount"]
    # So does the table of functions that the number is an index of.
    (table,) = re.findall(r"Binary kTable\[\] = \{\n(.*?)\n  \};", text, re.DOTALL)
    assert re.findall(r"binary<Alu::(\w+),", table) == wanted
    (half,) = re.findall(r"Half kTable\[\] = \{(.*?)\};", text, re.DOTALL)
    assert re.findall(r"half<Alu::(\w+)>", half) == wanted[:CUMULATIVE]
    checks = (CORE / "native_scan.cpp").read_text(encoding="utf-8")
    counts = f"kOperators = {len(SCANNED)}, kCumulative = {CUMULATIVE};"
    assert counts in checks


@pytest.mark.parametrize(("name", "wanted"), [("maximum", 0.0), ("minimum", -0.0)])
def test_zero_is_greater_than_negative_zero(name: str, wanted: float) -> None:
    zeros = np.array([0.0, -0.0], np.float32)
    found = MEANINGS[name](zeros, zeros[::-1])
    assert np.signbit(found).tolist() == [bool(np.signbit(np.float32(wanted)))] * 2
