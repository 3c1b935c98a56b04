"""Who writes what, of a whole recording."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl
from neuronxcc.targets import get_target
from nki.checks.flow import written
from nki.recorder import Recorder


def test_what_is_written_is_told_of_lists_and_loops_and_not_of_registers() -> None:
    recorder = Recorder("kernel", get_target("trn2"))
    with recorder.active():
        given = [recorder.argument((128, 64), "float32", name) for name in "abcd"]
        registers = [nisa.register_alloc(i) for i in range(4)]
        tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=given[0])
        for _ in nl.dynamic_range(0, 2):
            nisa.dma_copy(dst=given[2][0:64], src=tile[0:64])
        assert len(registers) == 4
    numbers = [recorder.recording.inputs.index(n) for n in written(recorder.recording)
               if n in recorder.recording.inputs]  # fmt: skip
    assert numbers == [2]
