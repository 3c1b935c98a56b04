"""NEFFs that earlier versions wrote keep loading, a file for each kind of step.

The files were written on 23 November 2026, before steps were classes with methods of their own; the
text beside each is what that version printed.
"""

from pathlib import Path

import pytest

from neuronxcc.neff import read_neff
from neuronxcc.neff.codec import encode
from neuronxcc.program.text import program_to_text

FILES = sorted((Path(__file__).parent / "golden").glob("*.neff"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_files_of_earlier_versions_keep_loading(path: Path) -> None:
    program, info = read_neff(path.read_bytes())
    assert info.name == "golden"
    assert program_to_text(program) == path.with_suffix(".txt").read_text(encoding="utf-8")
    assert encode(program).document  # and what was read can be written


def test_there_is_a_file_for_each_kind_of_step() -> None:
    assert {path.stem for path in FILES} == {
        *("loop", "gemm", "conv", "aten", "copy", "call", "for", "while", "collective")
    }  # tapes and prints stand in loops
