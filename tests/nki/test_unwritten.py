"""What nothing has written holds 4 or NaN and is a finding, in both executors.

Tiles are partly written in all ways that leave something out, in memory that was in use before,
and then read or returned. What they hold is told by a model in NumPy that knows bytes only.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from nki.dtypes import NAMES, info
from tests.nki.conftest import EXECUTOR

pytestmark = pytest.mark.usefixtures("own_cache")

Array = npt.NDArray[Any]
ROWS, COLUMNS = 32, 8
DIRTY = 0x5A
OLD = [0x3C, 0x11]  # bytes that are written, one after the other
SENTINELS = {
    **{name: np.array(4, info(name).numpy).tobytes() for name in NAMES if not info(name).is_float},
    **{
        name: np.array(np.nan, info(name).numpy).tobytes()
        for name in NAMES
        if info(name).is_float and not info(name).is_packed
    },
    **{name: b"\xff" * info(name).itemsize for name in NAMES if info(name).is_packed},
    "float8_e8m0fnu": b"\xff",
}


class Model:
    """A tile as bytes, and which of them are written."""

    def __init__(self, dtype: str) -> None:
        item = np.frombuffer(SENTINELS[dtype], np.uint8)
        self.size = len(item)
        self.bytes = np.tile(item, (ROWS, COLUMNS))
        self.written = np.zeros(self.bytes.shape, bool)

    def write(self, rows: Any, columns: Any, value: int, *, known: bool = True) -> None:
        """Write bytes; `known` is false where a value of the run says which, then all may be."""
        self.bytes[rows, columns] = value
        self.written[(rows, columns) if known else ...] = True


Write = Callable[[Any, Any, Model, int, Any], None]
WRITES: dict[str, Write] = {}


def write(function: Write) -> Write:
    """Register a way to write a part of a tile: (draw, tile, model, byte, inputs)."""
    WRITES[function.__name__] = function
    return function


def clear(view: Any, value: int) -> None:
    """Set all bytes of a view whose last dimension is contiguous."""
    if view.buffer.on_chip:
        nisa.memset(view.view(nl.uint8), value)
    else:
        filled = nl.ndarray(view.view(nl.uint8).shape, nl.uint8)
        nisa.memset(filled, value)
        nisa.dma_copy(view.view(nl.uint8), filled)


def copy(dst: Any, src: Any) -> None:
    """Copy between any two memories."""
    on_chip = dst.buffer.on_chip and src.buffer.on_chip
    (nisa.tensor_copy if on_chip else nisa.dma_copy)(dst, src)


def some(draw: Any, size: int) -> slice:
    first = draw(st.integers(0, size - 1))
    return slice(first, draw(st.integers(first + 1, size)), draw(st.sampled_from([1, 1, 2, 3])))


@write
def rows(draw: Any, tile: Any, model: Model, value: int, _: Any) -> None:
    first = draw(st.sampled_from([0, 0, 32 * (ROWS // 64)]))
    last = draw(st.integers(first + 1, ROWS))
    clear(tile[first:last], value)
    model.write(slice(first, last), slice(None), value)


@write
def columns(draw: Any, tile: Any, model: Model, value: int, _: Any) -> None:
    first = draw(st.integers(0, COLUMNS - 1))
    last = draw(st.integers(first + 1, COLUMNS))
    clear(tile[:, first:last], value)
    model.write(slice(None), slice(first * model.size, last * model.size), value)


@write
def single_bytes(draw: Any, tile: Any, model: Model, value: int, _: Any) -> None:
    chosen = some(draw, COLUMNS * model.size)
    view = tile.view(nl.uint8)[:, chosen]
    filled = nl.ndarray(view.shape, nl.uint8)
    nisa.memset(filled, value)
    copy(view, filled)
    model.write(slice(None), chosen, value)


def _loop(tile: Any, model: Model, value: int, end: Any, count: int) -> None:
    raw = tile.view(nl.uint8)
    row = COLUMNS * model.size

    def body(i: Any) -> None:
        moved = raw.ap([[row, ROWS], [1, 1]], scalar_offset=i, indirect_dim=1)
        filled = nl.ndarray((ROWS, 1), nl.uint8)
        nisa.memset(filled, value)
        copy(moved, filled)

    nl.fori_loop(0, end, body)
    model.write(slice(None), slice(0, count), value, known=isinstance(end, int))


@write
def counted_columns(draw: Any, tile: Any, model: Model, value: int, _: Any) -> None:
    count = draw(st.integers(1, COLUMNS * model.size))
    _loop(tile, model, value, count, count)


@write
def columns_of_a_register(draw: Any, tile: Any, model: Model, value: int, inputs: Any) -> None:
    which = draw(st.integers(0, 1))
    end = nisa.register_alloc()
    nisa.register_load(end, inputs["numbers"][:1, which : which + 1])
    _loop(tile, model, value, end, which)  # the numbers are 0 and 1


@write
def in_a_loop_that_may_not_run(draw: Any, tile: Any, model: Model, value: int, inputs: Any) -> None:
    which = draw(st.integers(0, 1))
    end = nisa.register_alloc()
    nisa.register_load(end, inputs["numbers"][:1, which : which + 1])
    nl.fori_loop(0, end, lambda _: clear(tile, value))
    if which:
        model.write(slice(None), slice(None), value)
    model.written[...] = True


@write
def scattered(draw: Any, tile: Any, model: Model, value: int, inputs: Any) -> None:
    skip = draw(st.booleans())
    if tile.buffer.on_chip:
        return
    filled = nl.ndarray((4, COLUMNS * model.size), nl.uint8)
    nisa.memset(filled, value)
    # The indices are 3, 9, 30 and one that is out of bounds.
    count = 4 if skip else 3
    row = COLUMNS * model.size
    nisa.dma_copy(
        tile.view(nl.uint8).ap([[row, count], [1, row]], vector_offset=inputs["index"][:count]),
        filled[:count],
        oob_mode=nisa.oob_mode.skip if skip else nisa.oob_mode.error,
    )
    model.write([3, 9, 30], slice(None), value, known=False)


@write
def gathered_with_gaps(_: Any, tile: Any, model: Model, value: int, inputs: Any) -> None:
    row = COLUMNS * model.size
    source = nl.ndarray((31, row), nl.uint8, nl.private_hbm)
    clear(source, value)
    if tile.buffer.name == "psum":
        return
    nisa.dma_copy(
        tile.view(nl.uint8)[:4],
        source.ap([[row, 4], [1, row]], vector_offset=inputs["index"][:4]),
        oob_mode=nisa.oob_mode.skip,
    )
    model.write([0, 1, 2], slice(None), value)
    model.written[3] = True


@write
def predicated(_: Any, tile: Any, model: Model, value: int, inputs: Any) -> None:
    if not tile.buffer.on_chip:
        return
    row = COLUMNS * model.size
    chosen = nl.ndarray((ROWS, row), nl.uint8)
    nisa.dma_copy(chosen, inputs["chosen"][:, :row])
    filled = nl.ndarray((ROWS, row), nl.uint8)
    nisa.memset(filled, value)
    nisa.tensor_copy_predicated(tile.view(nl.uint8), filled, chosen)
    mask = chosen_bytes()[:, :row] != 0
    model.bytes[mask] = value
    model.written[...] = True


@write
def shuffled(draw: Any, tile: Any, model: Model, value: int, _: Any) -> None:
    if not tile.buffer.on_chip:
        return
    filled = nl.ndarray((ROWS, COLUMNS * model.size), nl.uint8)
    nisa.memset(filled, value)
    mask = draw(st.lists(st.sampled_from([0, 5, 255]), min_size=32, max_size=32))
    nisa.nc_stream_shuffle(tile.view(nl.uint8), filled, mask)
    model.write([i for i in range(ROWS) if mask[i] != 255], slice(None), value)


def chosen_bytes() -> Array:
    return np.random.default_rng(3).integers(0, 2, (ROWS, 4 * COLUMNS)).astype(np.uint8)


REGIONS = ["sbuf", "psum", "addressed", "private_hbm", "shared_hbm"]


@dataclass
class Case:
    """A tile that is written in some ways, and how it is looked at.

    Attributes:
        moved: it is read at an index.
        returned: it is the result.
        iterations: of the loop in which it is made, 0 for none.
        choices: what the ways to write drew.
        model: what the tile holds, once the kernel was recorded.
    """

    draw: Any
    dtype: str
    region: str
    ways: list[str]
    moved: bool
    returned: bool
    iterations: int
    choices: list[Any] = field(default_factory=list)
    model: Model = field(init=False)

    def inside(self, inputs: Any, out: Any) -> Any:
        """Write to a new tile and copy it to a tensor, if it is not returned."""
        row = COLUMNS * info(self.dtype).itemsize
        region = nl.sbuf if self.region == "addressed" else getattr(nl, self.region)
        before, after = nl.ndarray((ROWS, row), nl.uint8, region), nl.ndarray((ROWS, row), nl.uint8)
        clear(before, DIRTY)
        copy(after, before)
        address = (32, 1024) if self.region == "addressed" else None
        tile = nl.ndarray((ROWS, COLUMNS), self.dtype, region, address=address)
        self.model = Model(self.dtype)
        old = list(self.choices)

        def choose(strategy: Any) -> Any:
            if not old:
                self.choices.append(self.draw(strategy))
            return old.pop(0) if old else self.choices[-1]

        for name, value in zip(self.ways, OLD, strict=False):
            WRITES[name](choose, tile, self.model, value, inputs)
        source = tile.view(nl.uint8)
        if self.moved:
            zero = inputs["numbers"][:1, :1]
            source = source.ap([[row, ROWS], [1, row]], scalar_offset=zero)
        if not self.returned:
            copy(after, source)
            copy(out, after)
        return source

    def kernel(self, index: Any, numbers: Any, chosen: Any) -> Any:
        """As `nki.jit` takes it."""
        inputs = {"chosen": chosen}
        for name, array in (("index", index), ("numbers", numbers)):
            inputs[name] = nl.ndarray(array.shape, array.dtype)
            copy(inputs[name], array)
        out = nl.ndarray((ROWS, COLUMNS * info(self.dtype).itemsize), nl.uint8, nl.shared_hbm)
        if not self.iterations:
            made = self.inside(inputs, out)
            return made if self.returned else out

        def body(_: Any) -> None:
            self.inside(inputs, out)

        nl.fori_loop(0, self.iterations, body)
        return out

    def run(self, executor: str) -> tuple[Array, bool]:
        """Return the result and whether there was a finding."""
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as caught:
            patch.setenv(EXECUTOR, executor)
            warnings.simplefilter("always")
            result = nki.jit(self.kernel)(
                np.array([[3], [9], [30], [1000]], np.int32),
                np.array([[0, 1]], np.int32),
                chosen_bytes(),
            )
        return result, any("NKI204" in str(w.message) for w in caught)


@st.composite
def cases(draw: Any) -> Case:
    region = draw(st.sampled_from(REGIONS))
    returned = region == "shared_hbm" and draw(st.booleans())
    return Case(
        draw,
        draw(st.sampled_from(NAMES)),
        region,
        draw(st.lists(st.sampled_from(sorted(WRITES)), max_size=2)),
        moved=region.endswith("hbm") and not returned and draw(st.booleans()),
        returned=returned,
        iterations=0 if returned else draw(st.sampled_from([0, 0, 2])),
    )


@pytest.mark.slow
@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(case=cases())
def test_partly_written(case: Case) -> None:
    for executor in ("reference", "native"):
        result, found = case.run(executor)
        np.testing.assert_array_equal(result, case.model.bytes)
        # Of a part that an index chooses nobody knows, as long as anything is written.
        written = case.model.written
        assert found != (written.any() if case.moved else written.all())


@pytest.mark.parametrize("way", ["rows", "scattered", "skipped", "loop", "nothing"])
@pytest.mark.parametrize("executor", ["reference", "native"])
def test_shared_by_two_cores(way: str, executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EXECUTOR, executor)

    @nki.jit
    def kernel(x: Any, index: Any, number: Any) -> Any:
        dirty, out = (nl.ndarray((16, 4), nl.float32, nl.shared_hbm) for _ in range(2))
        core = nl.program_id(0)
        half = slice(8 * core, 8 * core + 8)
        tile, places = nl.ndarray((8, 4), nl.float32), nl.ndarray((2, 1), nl.int32)
        nisa.dma_copy(tile, x[half])
        nisa.dma_copy(places, index[2 * core : 2 * core + 2])
        nisa.dma_copy(dirty[half], tile)
        if way == "rows":
            nisa.dma_copy(out[8 * core : 8 * core + 3], tile[:3])
        elif way in ("scattered", "skipped"):
            mode = nisa.oob_mode.skip if way == "skipped" else nisa.oob_mode.error
            to = out.ap([[4, 2], [1, 4]], vector_offset=places)
            nisa.dma_copy(to, tile[:2], oob_mode=mode)
        elif way == "loop":
            zero, end = nl.ndarray((1, 1), nl.int32), nisa.register_alloc()
            nisa.dma_copy(zero, number)
            nisa.register_load(end, zero)

            def body(_: Any) -> None:
                nisa.dma_copy(out[half], tile)

            nl.fori_loop(0, end, body)
        return dirty, out

    x = np.arange(64, dtype=np.float32).reshape(16, 4)
    rows = [0, 5, 8, 99 if way == "skipped" else 9]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _, out = kernel[2](x, np.array(rows, np.int32)[:, None], np.zeros((1, 1), np.int32))
    wanted = np.full_like(x, np.nan)
    if way == "rows":
        wanted[:3], wanted[8:11] = x[:3], x[8:11]
    elif way in ("scattered", "skipped"):
        wanted[[0, 5, 8]] = x[[0, 1, 8]]
        wanted[rows[3] : rows[3] + 1] = x[9]
    np.testing.assert_array_equal(out, wanted)
    found = any("NKI204" in str(w.message) for w in caught)
    assert found == (way in ("rows", "nothing"))  # of the others nobody knows before
