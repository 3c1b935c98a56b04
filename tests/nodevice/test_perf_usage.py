"""What a timeline keeps busy: packets of DMA engines, rates, memory; and the advice from it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronxcc.perf import ENGINES, Prediction, Product, Stream, Transfer, Work, Writer, predict
from neuronxcc.perf.advice import advice_for
from neuronxcc.perf.estimate import complete
from neuronxcc.perf.usage import live_tiles, memory_steps, packets_of, rate_steps
from neuronxcc.targets import get_target
from tests.nodevice.perf_programs import LOAD, layered

TRN1, TRN2 = get_target("trn1"), get_target("trn2")


@st.composite
def transfers(draw: st.DrawFn) -> Prediction:
    made = Writer()
    for _ in range(draw(st.integers(1, 20))):
        row = draw(st.sampled_from((64, 2048, 8192)))
        moved = Transfer(row * draw(st.sampled_from((1, 5, 16, 128))), row)
        core = draw(st.integers(0, 1))
        cells = draw(st.sets(st.integers(0, 3), max_size=2))
        made.add(Work("dma_copy", LOAD, 0, core=core, transfer=moved), writes=cells)
    return predict(made.stream, draw(st.sampled_from((TRN1, TRN2))))


@given(transfers())
def test_packets_are_those_of_the_timeline(made: Prediction) -> None:
    packets = packets_of(made)
    ends = np.zeros(len(made.flat.work), np.int64)
    np.maximum.at(ends, packets.number, packets.end)
    # A queue's transfers end in order, so one may wait for the one before it.
    for core in (0, 1):
        mine = [i for i, w in enumerate(made.flat.work) if made.stream.works[w].core == core]
        assert np.maximum.accumulate(ends[mine]).tolist() == made.timeline.end[mine].tolist()
    # An engine does one thing at a time.
    for key in set(zip(packets.core.tolist(), packets.engine.tolist(), strict=True)):
        mine = (packets.core == key[0]) & (packets.engine == key[1])
        spans = sorted(zip(packets.start[mine], packets.end[mine], strict=True))
        assert all(a[1] <= b[0] for a, b in pairwise(spans))


@given(transfers())
def test_the_rate_moves_all_bytes_and_stays_below_the_limit(made: Prediction) -> None:
    packets = packets_of(made)
    moved = 0.0
    for core in range(made.cores):
        steps = rate_steps(made, core, packets)
        moved += float((steps.value[:-1] * np.diff(steps.time)).sum()) / 1e12
        limit = min(made.machine.dma_gbps, made.machine.hbm_gbps) * 1e9
        # Times are whole picoseconds, of 89 nanoseconds at the least.
        assert steps.value.max(initial=0) <= limit * (1 + 1e-5)
    assert moved == pytest.approx(made.moved_bytes, rel=1e-6)


def test_memory_is_what_the_tiles_take_that_are_in_use() -> None:
    made = predict(layered(12), TRN1)
    used, begin, end = live_tiles(made)
    assert used.tolist() == list(range(6))
    for memory in ("sbuf", "psum"):
        steps = memory_steps(made, 0, memory)
        for moment in np.linspace(0, made.timeline.total, 50).astype(int).tolist():
            at = np.searchsorted(steps.time, moment, "right") - 1
            expected = sum(
                made.stream.tiles[i].partitions * made.stream.tiles[i].row_bytes
                for i, a, b in zip(used.tolist(), begin, end, strict=True)
                if made.stream.tiles[i].memory == memory and a <= moment < b
            )
            assert (steps.value[at] if at >= 0 else 0) == expected
        assert steps.value[-1] == 0


def test_what_was_left_out_is_there_when_it_is_asked_for() -> None:
    made = Writer()
    load = Work("dma_copy", LOAD, 0, transfer=Transfer(1 << 18, 2048))
    with made.loop(30_000):
        made.add(load, writes=[0])
        made.add(Work("activation", ENGINES.index("scalar"), 512), reads=[0], writes=[1])
    short = predict(made.stream, TRN2)
    (skip,) = short.skipped
    assert skip.times * skip.period_us == pytest.approx(short.left_out_us)
    assert 0 < skip.at_us < short.device_us - short.left_out_us
    whole = complete(short)
    assert (whole.device_us, len(whole.flat.work)) == (short.device_us, 60_000)
    assert complete(whole) is whole


# --- advice --------------------------------------------------------------------------------------


def one(work: Work, count: int = 64, *, chained: bool = False) -> Stream:
    made = Writer()
    for number in range(count):
        made.add(work, reads=[number if chained else 0], writes=[number + 1])
    return made.stream


def product(rows: int, columns: int, *, dtype: str = "bfloat16", transpose: bool = False) -> Work:
    made = Product(rows, columns, 512, dtype, transpose)
    return Work("nc_matmul", ENGINES.index("tensor"), 512, flops=made.flops, product=made)


CASES: dict[str, Stream] = {
    "short rows": one(Work("dma_copy", LOAD, 0, transfer=Transfer(1 << 14, 128))),
    "transposes": one(product(128, 128, transpose=True)),
    "half the array": one(product(64, 64)),
    "float32 products": one(product(128, 128, dtype="float32")),
    "short instructions": one(Work("activation", ENGINES.index("scalar"), 64)),
    "waiting": one(Work("activation", ENGINES.index("scalar"), 64), chained=True),
    "descriptors": one(Work("dma_copy", LOAD, 0, transfer=Transfer(1 << 14, 2048, made="gpsimd"))),
    "spills": one(Work("dma_copy", LOAD, 0, transfer=Transfer(1 << 14, 2048, spill=True))),
    "Scalar is idle": one(Work("tensor_copy", ENGINES.index("vector"), 512)),
}


@pytest.mark.parametrize("rule", CASES)
def test_advice_is_given_where_its_rule_holds(rule: str) -> None:
    given_ = advice_for(predict(CASES[rule], TRN1))
    assert rule in [advice.rule for advice in given_]
    assert all(0 <= advice.share <= 1 for advice in given_)
    assert [a.share for a in given_] == sorted((a.share for a in given_), reverse=True)


def test_no_advice_without_a_reason() -> None:
    """Full products of bfloat16, back to back; and nothing at all."""
    assert advice_for(predict(one(product(128, 128)), TRN1)) == ()
    assert advice_for(predict(Stream(), TRN1)) == ()


def test_advice_names_amounts() -> None:
    (text,) = (a.text for a in advice_for(predict(layered(40), TRN1)) if a.rule == "spills")
    assert text.startswith("2.6 MB go to HBM")
