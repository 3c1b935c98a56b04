"""Kernels on the performance model: what a recording says, and what the time of a kernel keeps."""

from __future__ import annotations

from array import array
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import neuronxcc.nki as first_nki
import neuronxcc.nki.isa as first_nisa
import neuronxcc.nki.language as first_nl
import nki
import nki.isa as nisa
import nki.language as nl
from neuronxcc.perf import QUEUES, Parameters, Prediction, Stream, model_of
from neuronxcc.targets import get_target
from nki.access import overlap
from nki.context import use
from nki.core import Core
from nki.errors import NkiError
from nki.forms import Forms
from nki.launch import Slot, record
from nki.perf import predict, predict_recording, stream_of
from nki.perf.cells import Boxes, boxes_of, cells_of, pitch_of
from nki.recording import Recording
from nki.tensor import NkiTensor, create
from tests.nki.first_kernels import spilling

TRN1, TRN2 = get_target("trn1"), get_target("trn2")


def recorded(kernel: Any, *shapes: tuple[int, ...], target: Any = TRN2) -> Recording:
    slots = tuple(Slot(i, f"a{i}", shape, "float32") for i, shape in enumerate(shapes))
    return record(kernel, [(slots, {})], target=target, grid=())


def tile(shape: tuple[int, ...], buffer: Any = nl.sbuf) -> Any:
    return nl.ndarray(shape, dtype=nl.float32, buffer=buffer)


def names(stream: Stream) -> list[str]:
    return [stream.works[i].name for i in stream.body.work.tolist()]


def work_named(stream: Stream, name: str) -> Any:
    (found,) = (work for work in stream.works if work.name == name)
    return found


def add(a: Any, b: Any, columns: int = 512) -> Any:
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    for i in range(a.shape[0] // 128):
        for j in range(a.shape[1] // columns):
            here = nl.ds(i * 128, 128), nl.ds(j * columns, columns)
            x, y = tile((128, columns)), tile((128, columns))
            nisa.dma_copy(dst=x, src=a[here])
            nisa.dma_copy(dst=y, src=b[here])
            nisa.tensor_tensor(dst=x, data1=x, data2=y, op=nl.add)
            nisa.dma_copy(dst=out[here], src=x)
    return out


def test_what_a_recording_becomes() -> None:
    stream = stream_of(recorded(add, (128, 1024), (128, 1024)))
    assert names(stream) == ["dma_copy", "dma_copy", "tensor_tensor", "dma_copy"] * 2
    queues = [QUEUES[stream.works[i].queue] for i in stream.body.work.tolist()]
    assert queues == ["load", "load", "vector", "store"] * 2
    (load, store) = (w for w in stream.works if w.name == "dma_copy")
    assert load.transfer is not None
    assert store.transfer == load.transfer._replace(source="sbuf", dest="hbm")
    assert load.sides == ("hbm", "sbuf")
    assert (load.transfer.nbytes, load.transfer.row, load.transfer.hbm) == (128 * 2048, 2048, 1)
    assert [line for _, line in stream.lines] == sorted({line for _, line in stream.lines})
    assert len(stream.lines) == 4


def test_the_time_is_bounded_by_the_dma_engines() -> None:
    def wide(a: Any, b: Any) -> Any:
        return add(a, b, columns=1024)

    for target in (TRN1, TRN2, get_target("trn3")):
        found = predict_recording(recorded(wide, (2048, 2048), (2048, 2048), target=target))
        rate = found.hbm_bytes / found.device_us / 1e3
        limit = min(model_of(target).dma_gbps, model_of(target).hbm_gbps)
        assert 0.9 * limit < rate <= limit
        assert found.bound_by == "dma"


def test_larger_is_slower_and_wide_rows_are_faster() -> None:
    times = [
        predict_recording(recorded(add, (128 * n, 1024), (128 * n, 1024))).device_us
        for n in (1, 2, 4, 8)
    ]
    assert times == sorted(set(times))

    def narrow(a: Any, b: Any) -> Any:
        return add(a, b, columns=64)

    slow = predict_recording(recorded(narrow, (1024, 1024), (1024, 1024)))
    assert slow.device_us > 2 * times[-1]
    assert slow.hbm_bytes == 3 * 4 << 20


def test_small_instructions_take_64_cycles() -> None:
    """The floor that 65,536 small `tensor_tensor` of a public measurement show: 65.6 cycles."""

    def small(a: Any) -> Any:
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        x, y = tile((128, 8)), tile((128, 8))
        nisa.dma_copy(dst=x, src=a)
        for _ in range(4096):
            nisa.tensor_tensor(dst=y, data1=x, data2=x, op=nl.add)
        nisa.dma_copy(dst=out, src=y)
        return out

    found = predict_recording(recorded(small, (128, 8), target=TRN1))
    cycles = found.busy_us["vector"] * 1e3 * TRN1.core.vector.clock_ghz / 4096
    # The first one waits for its data.
    assert cycles == pytest.approx(64, rel=1e-3)
    # Besides, one transfer in and one out, of less than 3 microseconds.
    assert 0 < found.device_us - found.busy_us["vector"] < 2 * 3


def dependent(count: int, *, chained: bool) -> Prediction:
    def kernel(a: Any) -> Any:
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        x, y = tile(a.shape), tile(a.shape)
        nisa.dma_copy(dst=x, src=a)
        for i in range(count):
            source, to = (x, y) if i % 2 == 0 or not chained else (y, x)
            nisa.activation(dst=to, op=nl.exp, data=source)
        nisa.dma_copy(dst=out, src=y)
        return out

    return predict_recording(recorded(kernel, (128, 8), target=TRN1))


def test_small_dependent_instructions_take_what_is_documented() -> None:
    step = (dependent(120, chained=True).device_us - dependent(20, chained=True).device_us) / 100
    assert step * 1e3 == pytest.approx(189, rel=0.01)
    apart = dependent(120, chained=False).device_us - dependent(20, chained=False).device_us
    assert apart * 1e3 / 100 == pytest.approx(64 / 1.4, rel=0.01)


def test_products_add_up_back_to_back() -> None:
    def product(a: Any, b: Any) -> Any:
        out = nl.ndarray((128, 512), dtype=a.dtype, buffer=nl.shared_hbm)
        left, right = tile((128, 128)), tile((128, 512))
        nisa.dma_copy(dst=left, src=a)
        nisa.dma_copy(dst=right, src=b)
        total = tile((128, 512), nl.psum)
        for _ in range(256):
            nisa.nc_matmul(dst=total, stationary=left, moving=right)
        nisa.tensor_copy(dst=right, src=total)
        nisa.dma_copy(dst=out, src=right)
        return out

    found = predict_recording(recorded(product, (128, 128), (128, 512), target=TRN1))
    assert found.bound_by == "tensor"
    assert found.busy_us["tensor"] == pytest.approx(256 * 4 * 512 / 2.8e3, rel=2e-3)
    assert found.device_us < 1.1 * found.busy_us["tensor"]
    assert found.flops == 256 * 2 * 128 * 128 * 512


def test_a_loop_of_the_device_runs_as_often_as_it_does() -> None:
    def kernel(a: Any) -> Any:
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        for i in nl.dynamic_range(0, a.shape[0], 128):
            x = tile((128, a.shape[1]))
            nisa.dma_copy(dst=x, src=a[nl.ds(i, 128)])
            nisa.activation(dst=x, op=nl.exp, data=x)
            nisa.dma_copy(dst=out[nl.ds(i, 128)], src=x)
        return out

    found = predict_recording(recorded(kernel, (1 << 20, 8)))
    assert found.hbm_bytes == 2 * 4 * 8 << 20
    assert found.left_out_us > 0
    half = predict_recording(recorded(kernel, (1 << 19, 8)))
    assert found.device_us == pytest.approx(2 * half.device_us, rel=1e-3)


def test_a_loop_that_a_value_ends_is_refused_with_its_line() -> None:
    def kernel(a: Any) -> Any:
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        x = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.memset(dst=x, value=3)
        upper = nisa.register_alloc()
        nisa.register_load(upper, x)
        for _ in nl.dynamic_range(0, upper):
            nisa.dma_copy(dst=out, src=a)
        return out

    with pytest.raises(NkiError, match="how often a loop runs depends on a value") as caught:
        predict_recording(recorded(kernel, (128, 8)))
    assert caught.value.code == "NKI330"
    assert caught.value.where[0] == __file__


def buffered(columns: int) -> Prediction:
    def kernel(a: Any) -> Any:
        return add(a, a, columns=columns)

    return predict_recording(recorded(kernel, (1024, 16384)))


def test_tiles_that_do_not_fit_side_by_side_wait_for_each_other() -> None:
    """224 KiB of a partition hold two pairs of 64 KiB less than two pairs of 8 KiB."""
    small, large = buffered(2048), buffered(16384)
    assert small.hbm_bytes == large.hbm_bytes
    assert large.device_us > 1.05 * small.device_us


def test_two_cores_have_engines_of_their_own() -> None:
    def halves(a: Any) -> Any:
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        count = a.shape[0] // 128 // nl.num_programs(0)
        for i in range(count):
            here = nl.ds((nl.program_id(0) * count + i) * 128, 128)
            x = tile((128, a.shape[1]))
            nisa.dma_copy(dst=x, src=a[here])
            nisa.activation(dst=x, op=nl.exp, data=x)
            nisa.dma_copy(dst=out[here], src=x)
        return out

    a = np.zeros((2048, 1024), np.float32)
    one, two = predict(nki.jit(halves), a), predict(nki.jit(halves)[2], a)
    assert (one.cores, two.cores) == (1, 2)
    assert two.hbm_bytes == one.hbm_bytes
    assert two.device_us < 0.6 * one.device_us
    assert any("meeting costs nothing" in note for note in two.notes)


def test_nothing_runs_and_the_time_is_the_same_each_time() -> None:
    a = np.full((128, 512), np.nan, ml_dtypes.bfloat16)
    kernel = nki.jit(add)
    first, second = (predict(kernel, a, a) for _ in range(2))
    assert first.device_us == second.device_us
    assert first.target == "trn3"  # what `nki.simulate` is documented to take


# --- what a compiler of the first generation does -------------------------------------------------


def scaled_rows(rows: int, width: int, kept: int) -> Any:
    """Multiply blocks of rows by the same factors, which are loaded for each block."""

    def kernel(a: Any, factors: Any) -> Any:
        out = first_nl.ndarray(a.shape, dtype=a.dtype, buffer=first_nl.shared_hbm)
        for row in range(rows):
            here = slice(row * 128, (row + 1) * 128)
            tile = first_nl.load(a[here])
            others = [first_nl.load(factors[:, i * width : (i + 1) * width]) for i in range(kept)]
            for other in others:
                tile = first_nl.multiply(tile, other)
            first_nl.store(out[here], tile)
        return out

    return first_nki.jit(kernel, platform_target="trn1")


# What does not fit is told when the kernel is recorded.
SPILLS = pytest.mark.filterwarnings("ignore:.*NKI223:nki.errors.NkiWarning")


@SPILLS
@pytest.mark.parametrize(("kept", "loads"), [(4, 1), (24, 6)])
def test_what_is_loaded_again_and_again_stays_if_there_is_room(kept: int, loads: int) -> None:
    """24 tiles of 16 KiB per partition are more than 192 KiB, 4 are not."""
    rows, width = 6, 4096
    kernel = scaled_rows(rows, width, kept)
    a = np.zeros((rows * 128, width), np.float32)
    factors = np.zeros((128, kept * width), np.float32)
    assert kernel.predict(a, factors).hbm_bytes == 2 * a.nbytes + loads * factors.nbytes


@SPILLS
def test_what_does_not_fit_is_loaded_again() -> None:
    """All factors are loaded once and used in each round; 12 tiles of 16 KiB fill SBUF."""
    width = 4096

    def rounds(kept: int) -> Any:
        def kernel(a: Any, factors: Any) -> Any:
            out = first_nl.ndarray(a.shape, dtype=a.dtype, buffer=first_nl.shared_hbm)
            others = [first_nl.load(factors[:, i * width : (i + 1) * width]) for i in range(kept)]
            for row in range(5):
                here = slice(row * 128, (row + 1) * 128)
                tile = first_nl.load(a[here])
                for other in others:
                    tile = first_nl.multiply(tile, other)
                first_nl.store(out[here], tile)
            return out

        a = np.zeros((5 * 128, width), np.float32)
        factors = np.zeros((128, kept * width), np.float32)
        made = first_nki.jit(kernel, platform_target="trn1").predict(a, factors)
        return (made.hbm_bytes - 2 * a.nbytes) / factors.nbytes

    assert rounds(8) == 1
    # Of 16 some 11 stay in each round after the first: those that are used soonest.
    assert 1 + 4 * 5 / 16 <= rounds(16) < 3


def test_engines_that_are_left_open_are_the_less_busy_ones() -> None:
    @first_nki.jit(platform_target="trn1")
    def kernel(a: Any) -> Any:
        out = first_nl.ndarray(a.shape, dtype=a.dtype, buffer=first_nl.shared_hbm)
        tile = first_nl.load(a)
        for i in range(64):
            first_nl.store(out, first_nisa.tensor_scalar(tile, np.multiply, float(i)))
        return out

    busy = kernel.predict(np.zeros((128, 512), np.float32)).busy_us
    assert busy["vector"] > 0
    assert busy["scalar"] == pytest.approx(busy["vector"], rel=0.3)


def test_a_row_is_spread_by_the_tensor_engine() -> None:
    @first_nki.jit(platform_target="trn1")
    def kernel(a: Any) -> Any:
        out = first_nl.ndarray((128, 512), dtype=a.dtype, buffer=first_nl.shared_hbm)
        first_nl.store(out, first_nl.load(a).broadcast_to((128, 512)))
        return out

    busy = kernel.predict(np.zeros((1, 512), np.float32)).busy_us
    assert busy["vector"] == 0
    waiting = Parameters().wait / 1e3
    assert busy["tensor"] == pytest.approx(4 * 512 / 2.8e3 + waiting, rel=1e-3)


# --- cells ---------------------------------------------------------------------------------------


@st.composite
def slices(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[slice, ...]:
    found = []
    for size in shape:
        low = draw(st.integers(0, size - 1))
        found.append(slice(low, draw(st.integers(low + 1, size))))
    return tuple(found)


@given(st.data(), st.booleans())
def test_views_share_cells_exactly_where_they_share_bytes(
    data: st.DataObject, on_chip: bool
) -> None:
    shape = (8, 6)
    with use(core=Core(TRN2)):
        whole = create(shape, "float32", nl.sbuf if on_chip else nl.private_hbm, "x")
        views: list[NkiTensor] = data.draw(
            st.lists(slices(shape).map(lambda found: whole[found]), min_size=1, max_size=6)
        )
        forms = Forms()
        rows = []
        for view in views:
            place = forms_place(forms, view)
            storage = np.array([place[0]])
            box = boxes_of(
                forms.layout(view).form,
                storage,
                np.array([place[1]]),
                np.array([pitch_of(whole.storage)]),
                np.array([whole.storage.nbytes]),
            )
            rows.append([0, *(int(edge[0]) for edge in box)])
        different = sorted({tuple(row) for row in rows})
        cells = cells_of(Boxes(*np.array(different, np.int64).T))
        of = {
            row: set(cells.cell[cells.first[i] : cells.first[i + 1]].tolist())
            for i, row in enumerate(different)
        }
        for a, row in zip(views, rows, strict=True):
            for b, other in zip(views, rows, strict=True):
                assert bool(of[tuple(row)] & of[tuple(other)]) == overlap(a, b)


def forms_place(forms: Forms, view: NkiTensor) -> tuple[int, int]:
    places = array("q")
    forms.tile(view, places)
    return places[0], places[1]


@SPILLS
def test_what_is_computed_and_does_not_fit_is_spilled_and_counted() -> None:
    """16 tiles of 16 KiB are computed, then all are used: 12 fit."""
    width, count = 4096, 16

    kernel = first_nki.jit(platform_target="trn1")(spilling(count))
    a = np.zeros((128, width), np.float32)
    made = kernel.predict(a)
    # Those go that are used last; each that goes comes back once.
    assert 2 * (count - 12) * a.nbytes <= made.spilled_bytes <= 2 * count * a.nbytes
    assert made.hbm_bytes == 2 * a.nbytes + made.spilled_bytes
    assert "spilled" in str(made)
    assert made.notes == ()


def counted_loop(a: Any, counts: Any) -> Any:
    """Square the rows of a, block after block, each as often as a number says."""
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    upper = nisa.register_alloc()
    number = nl.ndarray((1, counts.shape[1]), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=number, src=counts)
    for block in range(counts.shape[1]):
        x = tile((128, a.shape[1]))
        nisa.dma_copy(dst=x, src=a[nl.ds(128 * block, 128)])
        nisa.register_load(upper, number[:, block : block + 1])
        for _ in nl.dynamic_range(0, upper):
            nisa.activation(dst=x, op=nl.square, data=x)
        nisa.dma_copy(dst=out[nl.ds(128 * block, 128)], src=x)
    return out


@given(st.lists(st.integers(0, 40), min_size=1, max_size=3))
def test_loops_take_the_values_of_the_run(counts: list[int]) -> None:
    """As many instructions as the kernel with these numbers written into it."""
    a = np.ones((128 * len(counts), 64), np.float32)
    made = predict(nki.jit(counted_loop), a, np.array([counts], np.int32))
    assert sum(n for w, n in zip(made.stream.works, made.counts, strict=True)
               if w.name == "activation") == sum(counts)  # fmt: skip
    assert made.instructions == sum(counts) + 1 + 3 * len(counts)


def test_loops_in_loops_take_the_values_of_the_run() -> None:
    @nki.jit
    def kernel(a: Any, counts: Any) -> Any:
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        x = tile(a.shape)
        nisa.dma_copy(dst=x, src=a)
        upper = nisa.register_alloc()
        for i in nl.dynamic_range(0, counts.shape[0]):
            number = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
            nisa.dma_copy(dst=number, src=counts[nl.ds(i, 1)])
            nisa.register_load(upper, number)
            for _ in nl.dynamic_range(0, upper):
                nisa.activation(dst=x, op=nl.square, data=x)
        nisa.dma_copy(dst=out, src=x)
        return out

    a, counts = np.ones((8, 16), np.float32), np.array([[3], [3], [0], [5]], np.int32)
    made = predict(kernel, a, counts)
    assert sum(n for w, n in zip(made.stream.works, made.counts, strict=True)
               if w.name == "activation") == 11  # fmt: skip
    # A longer run takes longer, and arguments are left alone.
    assert predict(kernel, a, counts * 20).device_us > made.device_us
    assert counts.sum() == 11
    assert (a == 1).all()


def test_what_a_loop_computes_again_is_computed_once() -> None:
    @first_nki.jit(platform_target="trn1")
    def kernel(a: Any, b: Any) -> Any:
        out = first_nl.ndarray(b.shape, dtype=a.dtype, buffer=first_nl.shared_hbm)
        tile = first_nl.load(a)
        for i in range(b.shape[0] // 128):
            root = first_nisa.activation(op=first_nl.sqrt, data=tile)
            here = slice(i * 128, (i + 1) * 128)
            first_nl.store(out[here], first_nl.multiply(root, first_nl.load(b[here])))
        return out

    made = kernel.predict(np.ones((128, 64), np.float32), np.ones((1024, 64), np.float32))
    counts = dict(zip((w.name for w in made.stream.works), made.counts.tolist(), strict=False))
    assert counts["activation"] == 1
    assert made.instructions == 1 + 1 + 8 + 8 + 8


def test_a_tile_that_changes_is_computed_again() -> None:
    @first_nki.jit(platform_target="trn1")
    def kernel(a: Any) -> Any:
        out = first_nl.ndarray(a.shape, dtype=a.dtype, buffer=first_nl.shared_hbm)
        tile = first_nl.load(a)
        for _ in range(4):
            root = first_nisa.activation(op=first_nl.sqrt, data=tile)
            tile[...] = first_nl.multiply(root, root)
        first_nl.store(out, tile)
        return out

    made = kernel.predict(np.ones((128, 64), np.float32))
    assert sum(n for w, n in zip(made.stream.works, made.counts, strict=True)
               if w.name == "activation") == 4  # fmt: skip


def test_rows_are_spread_once_for_a_loop_and_a_number_for_each_row_costs_no_operand() -> None:
    @first_nki.jit(platform_target="trn1")
    def kernel(a: Any, gain: Any) -> Any:
        out = first_nl.ndarray(a.shape, dtype=a.dtype, buffer=first_nl.shared_hbm)
        factors = first_nl.load(gain)
        for i in range(a.shape[0] // 128):
            here = slice(i * 128, (i + 1) * 128)
            tile = first_nl.load(a[here])
            moved = first_nl.subtract(tile, first_nl.max(tile, axis=[1]))
            scaled = first_nl.multiply(moved, factors.broadcast_to(moved.shape))
            first_nl.store(out[here], scaled)
        return out

    made = kernel.predict(np.ones((1024, 1024), np.float32), np.ones((1, 1024), np.float32))
    rows = [(w, n) for w, n in zip(made.stream.works, made.counts.tolist(), strict=True) if n]
    # A row goes to four times 32 partitions, and that once.
    assert sum(n for w, n in rows if w.name == "nc_stream_shuffle") == 4
    cycles = [(w.cycles, n) for w, n in rows if w.name == "tensor_tensor"]
    # Of the difference one operand is read, of the product two.
    assert sum(n for each, n in cycles if each == 1024) == 8
    assert sum(n for each, n in cycles if each == 2048) == 8


def test_an_engine_waits_for_each_instruction_of_another_once() -> None:
    def kernel(a: Any) -> Any:
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        x, y, z = tile(a.shape), tile(a.shape), tile(a.shape)
        nisa.dma_copy(dst=x, src=a)
        nisa.activation(dst=y, op=nl.exp, data=x)
        nisa.activation(dst=z, op=nl.square, data=x)
        nisa.tensor_tensor(dst=z, data1=z, data2=y, op=nl.add)
        nisa.tensor_tensor(dst=z, data1=z, data2=y, op=nl.add)
        nisa.dma_copy(dst=out, src=z)
        return out

    stream = stream_of(recorded(kernel, (128, 64)))
    waits = [stream.works[i].waits for i in stream.body.work.tolist()]
    # The load is waited for by the first, z by the first of Vector, which knows y then.
    assert waits == [False, True, False, True, False, False]


def copied(dtype: Any, *, step: int = 1, buffer: Any = nl.sbuf) -> Any:
    """Copy 2048 elements of each partition on Vector, each `step`-th of a tile."""

    def kernel() -> Any:
        out = nl.ndarray((128, 2048), dtype=dtype, buffer=nl.shared_hbm)
        x = nl.ndarray((128, 2048 * step), dtype=dtype, buffer=nl.sbuf)
        y = nl.ndarray((128, 2048), dtype=dtype, buffer=buffer)
        nisa.memset(dst=x, value=0)
        nisa.tensor_copy(dst=y, src=x[:, 0 : 2048 * step : step], engine=nisa.engine.vector)
        z = nl.ndarray((128, 2048), dtype=dtype, buffer=nl.sbuf)
        nisa.activation(dst=z, op=nl.copy, data=y)
        nisa.dma_copy(dst=out, src=z)
        return out

    return kernel


@pytest.mark.parametrize(
    ("target", "kernel", "expected"),
    [
        ("trn1", copied(nl.bfloat16), 2048),
        ("trn2", copied(nl.bfloat16), 512),
        ("trn2", copied(nl.float32), 1024),
        ("trn2", copied(nl.bfloat16, step=2), 1024),
        ("trn2", copied(nl.bfloat16, buffer=nl.psum), 1024),
        ("trn2", copied(nl.float32, buffer=nl.psum), 2048),
        ("trn3", copied(nl.float32, step=2), 2048),
    ],
)
def test_modes_of_vector_have_their_conditions(target: str, kernel: Any, expected: float) -> None:
    stream = stream_of(recorded(kernel, target=get_target(target)))
    (vector,) = {w.cycles for w in stream.works if (w.name, w.queue) == ("tensor_copy", 1)}
    assert vector == expected
