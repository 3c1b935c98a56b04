"""Tapes in the native executor against NumPy, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from neuronxcc.codegen import build
from neuronxcc.codegen.llvm.host import Host
from neuronxcc.codegen.loop import Access, Dim, Kernel, Slot, Store
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Literal
from neuronxcc.ir.op import Op
from neuronxcc.neff import NeffError, NeffInfo, codec, read_neff, write_neff
from neuronxcc.program.check import check_program
from neuronxcc.program.memory import View
from neuronxcc.program.program import CallStep, Program
from neuronxcc.program.reference import run_program
from neuronxcc.program.steps.tape import TapeStep, instructions
from neuronxcc.program.tape_functions import TapeFunction, TapeLoop, TapeNative, TapeProduct
from neuronxcc.program.tape_writer import TapeWriter
from neuronxcc.program.text import program_to_text
from tests.compiler.neff_programs import same
from tests.compiler.tape_programs import (
    F32,
    S32,
    both,
    clamped,
    flat,
    memory_of,
    on_tapes,
    program,
    tapes,
)
from torch_neuronx.program.executable import Executable


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.slow
@settings(max_examples=40)
@given(tape=tapes(8), seed=st.integers(0, 100))
def test_small_tapes(tape: TapeStep, seed: int) -> None:
    made = on_tapes(8, tape)
    wanted, found = both(made, *memory_of(8, seed))
    assert np.array_equal(wanted[0], found[0])
    encoded = codec.encode(made)
    assert same(codec.decode(encoded.document, encoded.contents), made)
    assert program_to_text(made)


@pytest.mark.usefixtures("threads")
def test_large_tapes_on_threads() -> None:
    @settings(max_examples=12)
    @given(tape=tapes(600), seed=st.integers(0, 100))
    def run(tape: TapeStep, seed: int) -> None:
        wanted, found = both(on_tapes(600, tape), *memory_of(600, seed))
        assert np.array_equal(wanted[0], found[0])

    run()


def adding(chunks: int = 4, rows: int = 8) -> tuple[TapeWriter, int, int]:
    """A tape with a group, the number of an addition of [rows, 8] in it, and a line."""
    writer = TapeWriter()
    pitch = rows * 40 * 4
    kernel = writer.function(
        TapeLoop(clamped(Op.ADD, rows, 8, 40), lanes=True, advance=(pitch,) * 3)
    )
    line = writer.location("user.py:7")
    if chunks >= 0:
        writer.group(chunks)
    return writer, kernel, line


def test_a_tape_in_a_neff_and_in_a_body() -> None:
    writer, kernel, line = adding()
    writer.add(kernel, line, (0, 0, 0, 32, 0, 64))
    body = on_tapes(8, writer.step())
    data, rows = memory_of(8, 1)
    neff = read_neff(write_neff(body, NeffInfo("tape", "trn2"))).program
    assert same(neff, body)
    views = tuple(View(n, b.dtype, b.shape, b.strides) for n, b in enumerate(body.buffers))
    call = CallStep("call", (neff,), views, (views[0],))
    wanted, found = both(on_tapes(8, call), data, rows)
    assert np.array_equal(wanted[0], found[0])
    assert not np.array_equal(found[0], data)
    assert Executable(body, "neuron").memory.inputs == data.nbytes + rows.nbytes


def test_what_an_instruction_names_is_found_again() -> None:
    writer, kernel, line = adding()
    writer.add(kernel, line, (0, 0, 0, 32, 0, 64))
    writer.add(kernel, line, (0, 0, 0, 32, 0, 96))
    writer.group(0)
    writer.add(writer.function(TapeNative("check_index", (1, 1, 5))), line, (1, 0))
    step = writer.step()
    found = instructions(step)
    assert found.starts.tolist() == [2, 10, 20]
    assert (found.functions.tolist(), found.chunks.tolist(), found.groups.tolist()) == (
        [0, 0, 1],
        [4, 4, 0],
        [0, 0, 1],
    )
    assert "group of 4 chunks\n      f0(%0, %0+32, %0+64)  // user.py:7" in program_to_text(
        on_tapes(8, step)
    )


def test_a_million_instructions_load_in_a_moment() -> None:
    writer, kernel, line = adding()
    writer.add(kernel, line, (0, 0, 0, 32, 0, 64))
    code = np.tile(writer.step().code.array, 200_000)
    made = on_tapes(8, replace(writer.step(), code=Literal(code)))
    check_program(made)
    run = Executable(made, "cpu")
    data, rows = memory_of(8, 1)
    assert np.array_equal(
        run((torch.from_numpy(data.copy()), torch.from_numpy(rows)))[0].numpy(),
        run_program(on_tapes(8, writer.step()), (data, rows))[0],
    )


def test_large_results_are_written_past_the_caches() -> None:
    """Piece by piece, so no kernel knows how large the whole is. Unaligned pieces go through."""
    rows = 64
    count = Host.detect().cache_bytes // 8 // (rows * 16) * (rows * 16)  # of float32: half of it
    by = (16 * 4, 16 * 4)
    store = Store(Access(1, (16, 1)), build.load(F32, 0, (16, 1)))
    kernel = Kernel("copy", (Dim(1), Dim(16)), (Slot(F32),) * 2, (store,))
    writer = TapeWriter()
    number = writer.function(TapeLoop(kernel, lanes=True, advance=by))
    line = writer.location("user.py:1")
    for start in range(0, count, rows * 16):
        writer.group(rows)
        place = start * 4
        for odd in (4, 0) if start < count // 2 else (0,):  # an address that is no line's
            writer.add(number, line, (0, place + odd, 1, place + odd))
    step = writer.step()
    made = program((step,), flat("input", F32, count + 1, 0), flat("output", F32, count + 1, 0))
    assert tuple(step.codes(np.array([True, True]))) == ((kernel, frozenset({1})),)
    assert tuple(step.codes(np.array([True, False]))) == ((kernel, frozenset()),)
    data = np.arange(count + 1, dtype=np.float32)
    (found,) = Executable(made, "neuron")((torch.from_numpy(data),))
    assert np.array_equal(found.cpu().numpy()[:count], data[:count])


# ---- native functions that stop the program


def checking(values: list[int], bound: int, loops: int = 1) -> Program:
    writer = TapeWriter()
    check = writer.function(TapeNative("check_index", (len(values), 1, bound)))
    for number in range(loops):
        writer.group(0)
        writer.add(check, writer.location(f"user.py:{number + 3}"), (0, 0))
    return program((writer.step(),), flat("input", S32, len(values), 0), flat("output", S32, 1, 0))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("values", [[0, 5, 3], [-1, 0, 9], [7]])
def test_an_index_out_of_bounds_stops_the_program(values: list[int]) -> None:
    made = checking(values, 5, loops=2)
    data = np.array(values, np.int32)
    bad = next(value for value in values if not 0 <= value < 5)
    text = (
        f"index {bad} is out of bounds: it must be from 0 to below 5; user.py:3; keep it in "
        "bounds, or ask for oob_mode.skip where the instruction has it [NKI132]"
    )
    with pytest.raises(IndexError) as wanted:
        run_program(made, [data])
    assert str(wanted.value) == text
    run = Executable(made, "cpu")
    with pytest.raises(IndexError) as found:
        run((torch.from_numpy(data),))
    assert str(found.value).startswith(text)
    run((torch.from_numpy(np.zeros_like(data)),))  # it can be called again


@pytest.mark.usefixtures("threads")
def test_the_first_of_several_failures_is_told() -> None:
    """Chunks fail on several threads; the first instruction, then the first chunk counts."""
    writer, _, line = adding(-1)
    by = (8 * 40 * 4,) * 3
    heavy = writer.function(TapeLoop(clamped(Op.ADD, 8, 8, 40), lanes=True, advance=by))
    writer.group(4)
    for _ in range(40):  # enough for threads
        writer.add(heavy, line, (0, 0, 0, 32, 0, 64))
    for place in ("first.py:1", "second.py:2"):
        check = TapeNative("check_index", (2, 1, 3), lanes=True, advance=(8,))
        writer.add(writer.function(check), writer.location(place), (1, 0))
    made = on_tapes(8, writer.step())
    data, _ = memory_of(8, 3)
    rows = np.array([0, 0, 1, 7, 2, 8, 9, 9], np.int32)
    with pytest.raises(IndexError, match=r"index (7|8) is out of bounds.*; first.py:1; "):
        Executable(made, "cpu")((torch.from_numpy(data), torch.from_numpy(rows)))


# ---- refusals


def refused(made: Program, by_check: str, by_executor: str) -> None:
    with pytest.raises(NeffError, match=by_check):
        check_program(made)
    with pytest.raises(ValueError, match=by_executor):
        Executable(made, "cpu")


@pytest.mark.parametrize(
    ("places", "chunks", "by_check", "by_executor"),
    [
        ((9, 0, 0, 0, 0, 0), 4, "slot 0 is in a buffer that is not there", "there is no buffer 9"),
        ((-1, 0, 0, 0, 0, 0), 4, "slot 0 is in a buffer that is not", "there is no buffer -1"),
        ((0, 0, 0, 1 << 60, 0, 0), 4, "slot 1 has an offset outside", "slot 1 reaches beyond buf"),
        ((0, 0, 0, -4, 0, 0), 4, "slot 1 has an offset outside of", "slot 1 reaches beyond buf"),
        ((0, 0, 0, 132, 0, 0), 4, "slot 1 reaches beyond its buffer", "slot 1 reaches beyond buf"),
        ((0, 0, 0, 0, 0, 0), 5, "slot 0 reaches beyond its buffer", "slot 0 reaches beyond buffer"),
        ((0, 0, 0, 0, 0, 0), 0, "a group that it is not made for", "group that it is not made for"),
        ((0, 0, 0, 0, 0, 0), 1 << 40, "begins a group with", "does not begin a group"),
        ((0, 0, 0, 0, 0, 0), -1, "begins a group with", "does not begin a group"),
    ],
)
def test_places_outside_of_memory(
    places: tuple[int, ...], chunks: int, by_check: str, by_executor: str
) -> None:
    writer, kernel, line = adding(-1)
    writer.group(chunks)
    writer.add(kernel, line, places)
    refused(on_tapes(8, writer.step()), by_check, by_executor)


def test_a_refusal_names_the_line() -> None:
    writer, kernel, line = adding()
    writer.add(kernel, line, (0, 0, 0, 0, 0, 0))
    writer.add(kernel, line, (0, 0, 0, 200, 0, 0))
    made = on_tapes(8, writer.step())
    refused(made, r"instruction 1 \(function 0, user.py:7\): slot 1 reac", "add at word 10 of a ta")
    constants = replace(
        made, buffers=(replace(flat("constant", F32, 1280), literal=Literal(memory_of(8, 0)[0])),
                       *made.buffers), results=(1,))  # fmt: skip
    writer, kernel, line = adding()
    writer.add(kernel, line, (1, 0, 1, 0, 0, 0))
    made = replace(constants, steps=(writer.step(),))
    refused(made, "slot 2 is written to, but it is a constant", "constant 0 is written to")


def test_functions_that_do_not_fit() -> None:
    kernel = clamped(Op.ADD, 8, 8, 40)
    lanes = partial(TapeLoop, kernel, True)  # noqa: FBT003
    cases: list[tuple[TapeFunction, str, str]] = [
        (lanes((0, 0)), "3 slots and 2 advances", "3 slots and 2 advances"),
        (TapeLoop(kernel, advance=(0, 0, 0)), "3 slots and 3 advances", "3 slots and 3 advances"),
        (lanes((0, 0, 1 << 50)), "beyond any memory", "beyond any memory"),
        (TapeNative("no_such"), "there is no native function 'no_such'", "no native function"),
        (TapeNative("check_index", (1,)), r"\[1\] are no \(count, stride, bound\)", r"are no \(co"),
        (TapeNative("check_index", (-1, 1, 1)), "are no", "are no"),
        (TapeNative("check_index", (1 << 39, 1 << 39, 1)), "beyond any", "beyond any memory"),
        (product(m=0), "a product of 0 x 4 x 4", "a product of 0 x 4 x 4"),
        (product(dtype=DType.S32), "a product of s32 to f32", "a product of s32 to f32"),
        (product(out_dtype=DType.F16), "a product of f32 to f16", "a product of f32 to f16"),
        (product(out_strides=(0, 1)), "several elements to one place", "several elements to one"),
        (product(a_strides=(-1, 1)), r"strides of \[-1, 1\]", r"strides of \[-1, 1\]"),
    ]
    for function, by_check, by_executor in cases:
        tape = TapeStep((function,), Literal(np.empty(0, np.int64)), ())
        refused(on_tapes(8, tape), by_check, by_executor)
    store = Store(Access(1, (8, 8, 1)), build.load(F32, 0, (8, 8, 1)))
    dims, slots = (Dim(1), Dim(8), Dim(8)), (Slot(F32, tile=True), Slot(F32))
    tile = TapeLoop(Kernel("tile", dims, slots, (store,)))
    tape = TapeStep((tile,), Literal(np.empty(0, np.int64)), ())
    refused(on_tapes(8, tape), "has a tile", "has a tile")
    tape = replace(tape, functions=(), code=Literal(np.zeros(2, np.int32)))
    with pytest.raises(NeffError, match=r"the code of a tape is s32\[2\], not one row of s64"):
        check_program(on_tapes(8, tape))


def product(**changes: object) -> TapeProduct:
    return replace(TapeProduct(4, 4, 4, F32, F32, (4, 1), (4, 1), (4, 1)), **changes)  # type: ignore[arg-type]


NUMBERS = st.sampled_from(
    [-(1 << 63), -(1 << 48), -2, -1, 0, 1, 2, 3, 4, 64, 1 << 20, 1 << 31, 1 << 48, (1 << 63) - 1]
)


@settings(max_examples=100)
@given(
    tape=tapes(8),
    changes=st.lists(st.tuples(st.integers(0, 10_000), NUMBERS), max_size=3),
    cut=st.integers(0, 3),
)
@example(tape=TapeStep((), Literal(np.array([1, 0, 0, 0], np.int64)), ()), changes=[], cut=0)
def test_hostile_code_is_refused_or_runs(
    tape: TapeStep, changes: list[tuple[int, int]], cut: int
) -> None:
    code = tape.code.array[: len(tape.code.array) - cut].copy()
    for place, number in changes:
        if len(code):
            code[place % len(code)] = number
    made = on_tapes(8, replace(tape, code=Literal(code)))
    try:
        check_program(made)
    except NeffError:
        with pytest.raises(ValueError, match=r"tape"):
            Executable(made, "cpu")
        return
    run = Executable(made, "cpu")
    data, rows = memory_of(8, 0)
    try:
        run((torch.from_numpy(data), torch.from_numpy(rows)))
    except IndexError as error:
        # A check of values in the code may fail, as it may in a kernel that nobody changed.
        if "[NKI132]" not in str(error):
            raise
