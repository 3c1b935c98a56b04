"""The natives of NKI instructions in C++ against their meanings in NumPy, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from neuronxcc.ir.dtypes import DType
from neuronxcc.program.errors import NeffError
from neuronxcc.program.memory import Buffer
from neuronxcc.program.natives import native
from neuronxcc.program.natives.alu import CUMULATIVE, SCANNED
from neuronxcc.program.program import Program
from neuronxcc.program.reference import run_program
from neuronxcc.program.tape_functions import TapeNative
from neuronxcc.program.tape_writer import TapeWriter
from tests.isas import ISAS, forced
from tests.nki.native_tools import run_natively

Array = npt.NDArray[Any]
Params = tuple[int, ...]
Sample = tuple[Params, list[Array]]  # the bytes of the slots


@pytest.fixture(params=ISAS, scope="module")
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run with one instruction set; shared by the examples of a test, which are many."""
    with forced(request.param):
        yield request.param


def program_of(name: str, params: Params, slots: Sequence[Array]) -> Program:
    """Return a program of one call that returns what is in its slots afterwards."""
    writer = TapeWriter()
    writer.group(0)
    places = [word for number in range(len(slots)) for word in (number, 0)]
    writer.add(writer.function(TapeNative(name, params)), writer.location("here"), places)
    buffers = tuple(
        Buffer("input", DType.U8, slot.shape, (1,), index=i) for i, slot in enumerate(slots)
    )
    return Program(name, buffers, (writer.step(),), tuple(range(len(slots))), 0)


class Draw:
    """Random parameters and contents."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def size(self, least: int, most: int) -> int:
        """Often a multiple of a vector, else anything."""
        if self.rng.random() < 0.3:
            return max(least, min(most, 16 * int(self.rng.integers(1, 4))))
        return int(self.rng.integers(least, most, endpoint=True))

    def step(self, used: int) -> int:
        """Bytes from row to row."""
        return used + 4 * int(self.rng.integers(0, 3))

    def floats(self, name: str, params: Params, slot: int) -> Array:
        """Numbers with ties, NaN, infinities and zeros of both signs."""
        count = native(name).declare(params)[slot].high // 4
        values = self.rng.integers(-6, 7, count) * 0.5
        special = self.rng.choice([np.nan, np.inf, -np.inf, -0.0, 1e-40], count)
        return np.where(self.rng.random(count) < 0.15, special, values).astype(np.float32)

    def words(self, name: str, params: Params, slot: int) -> Array:
        """Any bytes."""
        return self.rng.integers(0, 256, native(name).declare(params)[slot].high, np.uint8)


def _max8(draw: Draw) -> Sample:
    size = draw.size(8, 70)
    params = draw.size(1, 35), size, draw.step(32), draw.step(4 * size)
    return params, [draw.words("max8", params, 0), draw.floats("max8", params, 1)]


def _find(draw: Draw) -> Sample:
    size = draw.size(1, 70)
    params = draw.size(1, 6), size, draw.step(32), draw.step(4 * size), draw.step(32)
    name = "find_index8"
    return params, [draw.words(name, params, 0), *(draw.floats(name, params, i) for i in (1, 2))]


def _replace(draw: Draw) -> Sample:
    size = draw.size(1, 70)
    steps = [draw.step(used) for used in (4 * size, 32, 4 * size, 32)]
    params = (draw.size(1, 6), size, *steps)
    name = "match_replace8"
    return params, [
        *(draw.words(name, params, i) for i in (0, 1)),
        *(draw.floats(name, params, i) for i in (2, 3, 4)),
    ]


def _topk(draw: Draw) -> Sample:
    n = draw.size(1, 300)
    k, columns = int(draw.rng.integers(1, n, endpoint=True)), -(-n // 16)
    steps = [draw.step(used) for used in (2 * k, 4 * k, 2 * columns)]
    params = (16 * int(draw.rng.integers(1, 3)), k, n, *steps)
    few = draw.rng.integers(0, 1 << 16, 40, np.uint16)
    few[:6] = 0, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0xFFC1
    source = draw.rng.choice(few, native("topk").declare(params)[2].high // 2)
    return params, [*(draw.words("topk", params, i) for i in (0, 1)), source]


def _nonzero(draw: Draw) -> Sample:
    size = draw.size(1, 70)
    mask = int(draw.rng.choice([0x7FFFFFFF, 0xFFFFFFFF]))
    offset, padding = (int(n) for n in draw.rng.integers(-(1 << 31), 1 << 31, 2))
    steps = draw.step(4 * size + 4), draw.step(4 * size)
    params = (draw.size(1, 40), 16, size, mask, offset, padding, *steps)
    count = native("nonzero_with_count").declare(params)[1].high // 4
    source = draw.rng.choice(np.array([0, 0, 1, 1 << 31], np.uint32), count)
    return params, [draw.words("nonzero_with_count", params, 0), source]


def _gather(draw: Draw) -> Sample:
    group, index_size = (int(n) for n in draw.rng.choice([[1, 4], [16, 2], [16, 4]]))
    count, width = draw.size(1, 70), int(draw.rng.choice([1, 1, 2, 8]))
    itemsize, bound = int(draw.rng.choice([1, 2, 4])), width + draw.size(0, 50)
    used = count * width * itemsize, bound * itemsize, -(-count // group) * index_size
    steps = [draw.step(each) for each in used]
    sizes = (group * int(draw.rng.integers(1, 3)), group, count, width, bound)
    params = (*sizes, itemsize, index_size, *steps)
    words = native("gather").declare(params)[2].high // index_size
    index = draw.rng.integers(0, bound - width, words, f"u{index_size}", endpoint=True)
    return params, [*(draw.words("gather", params, i) for i in (0, 1)), index]


def _shuffle(draw: Draw) -> Sample:
    size, rows = draw.size(1, 70), draw.size(1, 70)
    mask = draw.rng.choice([*range(32), 255, 255, 255], 32)
    params = (rows, size, draw.step(size), draw.step(size), *(int(n) for n in mask))
    return params, [draw.words("shuffle", params, i) for i in (0, 1)]


def _bounds(draw: Draw) -> Sample:
    size, is_float = draw.size(1, 70), int(draw.rng.integers(2))
    segments = np.repeat(draw.rng.integers(0, 3, size), draw.rng.integers(1, 5, size))[:size]
    made = segments.astype(np.float32 if is_float else np.int32)
    if is_float and draw.rng.integers(2):
        made[draw.rng.random(size) < 0.2] = np.nan
    params = size, is_float, draw.step(4 * size)
    return params, [draw.words("sequence_bounds", params, 0), made]


def _scan(draw: Draw) -> Sample:
    size, rows = draw.size(1, 40), draw.size(1, 35)
    op0, op1 = (int(n) for n in draw.rng.integers(0, len(SCANNED), 2))
    steps = [draw.step(4 * size) for _ in range(3)]
    initial = int(draw.rng.choice([0, 4, 12]))
    reverse = draw.rng.integers(2, size=2)
    params = (rows, size, op0, int(reverse[0]), op1, int(reverse[1]), *steps, initial)
    return params, [
        draw.words("scan", params, 0),
        *(draw.floats("scan", params, i) for i in (1, 2, 3)),
    ]


def _cumulate(draw: Draw) -> Sample:
    size, op = draw.size(1, 40), int(draw.rng.integers(0, CUMULATIVE))
    steps = draw.step(4 * size), 4, draw.step(4 * size), int(draw.rng.choice([0, 4]))
    params = (draw.size(1, 35), size, op, *steps)
    name = "cumulate"
    return params, [
        *(draw.words(name, params, i) for i in (0, 1)),
        *(draw.floats(name, params, i) for i in (2, 3)),
    ]


def _xorwow(draw: Draw) -> Sample:
    size, itemsize = draw.size(1, 150), int(draw.rng.choice([1, 2, 4]))
    states = int(draw.rng.choice([1, 4]))
    params = draw.size(1, 20), size, states, itemsize, draw.step(itemsize * size)
    return params, [draw.words("xorwow", params, i) for i in (0, 1)]


def _seed(draw: Draw) -> Sample:
    params = (draw.size(1, 60),)
    return params, [draw.words("seed", params, i) for i in (0, 1)]


def _counted(draw: Draw) -> Sample:
    size, dst, src = int(draw.rng.choice([1, 2, 4])), draw.size(1, 40), draw.size(1, 40)
    most = int(draw.rng.integers(0, min(dst, src), endpoint=True))
    count = int(draw.rng.integers(0, most, endpoint=True))
    starts = [int(draw.rng.integers(0, n - count, endpoint=True)) for n in (src, dst)]
    params = size, dst, src, most
    return params, [
        *(draw.words("counted_copy", params, i) for i in (0, 1)),
        *(np.array([number], np.uint32) for number in (count, *starts)),
    ]


SAMPLES: dict[str, Callable[[Draw], Sample]] = {
    "max8": _max8,
    "find_index8": _find,
    "match_replace8": _replace,
    "topk": _topk,
    "nonzero_with_count": _nonzero,
    "gather": _gather,
    "shuffle": _shuffle,
    "sequence_bounds": _bounds,
    "scan": _scan,
    "cumulate": _cumulate,
    "xorwow": _xorwow,
    "seed": _seed,
    "counted_copy": _counted,
}
# What float32 slots are compared as: NaNs are equal, and zeros of both signs. In an ordering of
# numbers, and where one of two equal numbers is taken, nobody says which zero it is.
_FLOATS = {"max8": (0,), "scan": (0,), "cumulate": (0, 1)}


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("name", SAMPLES)
@settings(max_examples=25)
@given(seed=st.integers(0, 1 << 32))
# For scan: a power of the larger one of 0.0 and -0.0.
@example(seed=31512)
def test_native_is_its_meaning(name: str, seed: int) -> None:
    params, contents = SAMPLES[name](Draw(seed))
    slots = [content.view(np.uint8) for content in contents]
    program = program_of(name, params, slots)
    wanted = run_program(program, slots)
    for number, (got, want) in enumerate(zip(run_natively(program, slots), wanted, strict=True)):
        if number in _FLOATS.get(name, ()):
            ulps = 1 if "power" in _operators(name, params) else 0
            np.testing.assert_array_max_ulp(_numbers(got), _numbers(want), ulps)
        else:
            np.testing.assert_array_equal(got, want, err_msg=f"{name}{params} slot {number}")


def _operators(name: str, params: Params) -> list[str]:
    return [SCANNED[params[2]], SCANNED[params[4]]] if name == "scan" else []


def _numbers(data: Array) -> Array:
    values = data[: data.size // 4 * 4].view(np.float32)
    with np.errstate(invalid="ignore"):  # what lies between rows may be anything
        return np.where(np.isnan(values), np.float32(1e30), values + np.float32(0))


@pytest.mark.parametrize(
    ("name", "params", "text"),
    [
        ("max8", (1, 7, 0, 0), r"are no \(rows, size"),
        ("topk", (8, 1, 1, 0, 0, 0), r"are no \(rows, k"),
        ("topk", (24, 1, 1, 0, 0, 0), "topk of 1 out of 1 in 24 rows"),
        ("gather", (8, 16, 1, 1, 1, 4, 2, 0, 0, 0), "gather|are no"),
        ("gather", (16, 16, 1, 1, 1, 3, 2, 0, 0, 0), "gather|are no"),
        ("shuffle", (1, 4, 4, 4, *[40] * 32), "shuffle|are no"),
        ("scan", (1, 1, 17, 0, 0, 0, 0, 0, 0, 0), "scan|are no"),
        ("cumulate", (1, 1, 5, 0, 0, 0, 0), "cumulate|are no"),
        ("xorwow", (1, 1, 2, 4, 4), "xorwow|are no"),
        ("sequence_bounds", (4, 2, 16), "is_float|are no"),
        ("nonzero_with_count", (1, 1, 1, 1 << 33, 0, 0, 0, 0), "32 bits|are no"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(name: str, params: Params, text: str) -> None:
    with pytest.raises(NeffError, match=text):
        native(name).declare(params)
    slots = [np.zeros(4096, np.uint8)] * 5
    for count in range(1, 6):
        with pytest.raises(ValueError, match=f"{text}|slots|parameters"):
            run_natively(program_of(name, params, slots[:count]), slots[:count])


def test_an_index_out_of_bounds_stops_the_program() -> None:
    params = (16, 16, 17, 2, 10, 4, 2, 136, 40, 4)
    data, index = np.zeros(640, np.uint8), np.zeros(32, np.uint16)
    index[1] = 9  # number 16 of the group: in the first row
    slots = [np.zeros(16 * 136, np.uint8), data, index.view(np.uint8)]
    program = program_of("gather", params, slots)
    text = r"index 10 is out of bounds: it must be from 0 to below 10; here; keep .* \[NKI132\]"
    with pytest.raises(IndexError, match=text):
        run_program(program, slots)
    with pytest.raises(IndexError, match=text):
        run_natively(program, slots)
