"""Loops that the device decides, and prints, in the native executor against NumPy."""

from __future__ import annotations

import _thread
import signal
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronxcc.codegen import build
from neuronxcc.codegen.loop import Scalar
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Literal
from neuronxcc.ir.op import Op
from neuronxcc.neff import NeffError, codec
from neuronxcc.program.check import check_program
from neuronxcc.program.memory import Register, View
from neuronxcc.program.program import AnyStep, ForStep, Program, WhileStep
from neuronxcc.program.reference import run_program
from neuronxcc.program.steps.copy import CopyStep
from neuronxcc.program.steps.operator import AtenStep
from neuronxcc.program.steps.printing import PrintStep
from neuronxcc.program.steps.tape import TapeStep
from neuronxcc.program.tape_functions import TapeLoop
from neuronxcc.program.tape_writer import TapeWriter
from neuronxcc.program.text import program_to_text
from tests.compiler.neff_programs import same
from tests.compiler.tape_programs import F32, S32, both, clamped, copied, flat, program
from torch_neuronx.program.executable import Executable

COUNT = 6  # registers, in buffer 0


def one(value: Scalar, *places: int, slots: tuple[DType, ...] = ()) -> TapeStep:
    """A tape of one instruction that stores a value to its last place; slots are s32 registers."""
    writer = TapeWriter()
    slots = slots or (S32,) * (len(places) // 2)
    writer.group(0)
    kernel = writer.function(TapeLoop(copied(value, *slots)))
    writer.add(kernel, writer.location("user.py:1"), places)
    return writer.step()


def register(slot: int) -> Scalar:
    return build.load(S32, slot, (0,))


def registers(*steps: AnyStep) -> Program:
    """A program on registers, which are its argument and its result."""
    made = program(steps, flat("input", S32, COUNT, 0))
    return Program("control", made.buffers, steps, (0,))


def added(to: int, by: int) -> TapeStep:
    """Adds one register to another."""
    value = build.op(Op.ADD, register(0), register(1))
    return one(value, 0, 4 * to, 0, 4 * by, 0, 4 * to)


def wrapped(to: int, by: int) -> TapeStep:
    """The same, kept small: counts of loops that grew with every turn would never end."""
    value = build.op(Op.ADD, register(0), register(1))
    kept = build.op(
        Op.CLAMP, Scalar.make("const", S32, value=-6), value, Scalar.make("const", S32, value=6)
    )
    return one(kept, 0, 4 * to, 0, 4 * by, 0, 4 * to)


ENDS = st.integers(-3, 6) | st.integers(0, COUNT - 1).map(lambda number: Register(0, number))


@st.composite
def loops(draw: st.DrawFn, depth: int = 2) -> AnyStep:
    if depth == 0 or draw(st.booleans()):
        return wrapped(*draw(st.tuples(*[st.integers(0, COUNT - 1)] * 2)))
    body = tuple(draw(st.lists(loops(depth - 1), min_size=1, max_size=2)))
    counter = Register(0, draw(st.integers(0, COUNT - 1)))
    return ForStep((counter,), draw(ENDS), draw(ENDS), draw(st.integers(1, 3)), body)


@settings(max_examples=60)
@given(loops(), loops(), st.lists(st.integers(-2, 6), min_size=COUNT, max_size=COUNT))
def test_nested_loops(first: AnyStep, second: AnyStep, values: list[int]) -> None:
    made = registers(first, second)
    data = np.array(values, np.int32)
    wanted, found = both(made, data)
    assert np.array_equal(wanted[0], found[0])
    encoded = codec.encode(made)
    assert same(codec.decode(encoded.document, encoded.contents), made)


def test_what_the_counters_hold() -> None:
    loop = ForStep((Register(0, 1), Register(0, 2)), Register(0, 0), 9, 3, (added(3, 1),))
    _, found = both(registers(loop), np.array([2, 50, 50, 0, 0, 0], np.int32))
    assert found[0].tolist() == [2, 8, 8, 15, 0, 0]  # 2 + 5 + 8
    _, found = both(registers(loop), np.array([9, 50, 51, 0, 0, 0], np.int32))
    assert found[0].tolist() == [9, 50, 51, 0, 0, 0]
    # The end is read once.
    grows = ForStep((Register(0, 1),), 0, Register(0, 0), 1, (added(0, 4),))
    _, found = both(registers(grows), np.array([3, 0, 0, 0, 1, 0], np.int32))
    assert found[0].tolist() == [6, 2, 0, 0, 1, 0]
    # No counter beyond 32 bits: the last one before the end.
    far = ForStep((Register(0, 1),), (1 << 31) - 3, (1 << 31) - 1, 1 << 30, (added(2, 4),))
    _, found = both(registers(far), np.array([0, 0, 0, 0, 1, 0], np.int32))
    assert found[0].tolist() == [0, (1 << 31) - 3, 1, 0, 1, 0]


@pytest.mark.parametrize("start", [0, 1, 40])
def test_while(start: int) -> None:
    half = one(build.op(Op.DIVIDE, register(0), 2), 0, 4, 0, 8)
    loop = WhileStep((Register(0, 1),), Register(0, 0), Register(0, 2), (half, added(3, 1)))
    made = registers(loop)
    wanted, found = both(made, np.array([start, 7, 7, 0, 0, 0], np.int32))
    assert np.array_equal(wanted[0], found[0])
    total = sum(start >> shift for shift in range(7))
    assert found[0].tolist() == [start, 0, 0 if start else 7, total, 0, 0]
    text = program_to_text(made)
    assert "  while %0[1] from %0[0], then %0[2]\n    tape\n" in text


def test_a_place_that_a_counter_decides() -> None:
    """out[i] = 2 * x[i], element by element, on threads and in a loop around whole tapes."""
    place = build.op(Op.CLAMP, 0, register(1), 7)
    value = build.op(Op.MULTIPLY, 2.0, build.load(F32, 0, (0,), indices=[(place, 1)]))
    kernel = copied(value, F32, S32, F32)
    store = kernel.stores[0]
    access = type(store.access)(2, (0,), 0, ((place, 1),))
    moved = type(store)(access, value)
    writer = TapeWriter()
    writer.group(0)
    number = writer.function(TapeLoop(type(kernel)("k", kernel.dims, kernel.slots, (moved,))))
    writer.add(number, writer.location("user.py:1"), (1, 0, 0, 0, 2, 0))
    loop = ForStep((Register(0, 0),), 0, 8, 1, (writer.step(),))
    made = program((loop,), flat("temp", S32, 1, offset=0), flat("input", F32, 8, 0),
                   flat("output", F32, 8, 0))  # fmt: skip
    data = np.arange(8, dtype=np.float32)
    wanted, found = both(made, data, device="neuron")
    assert np.array_equal(found[0], 2 * data)
    assert np.array_equal(wanted[0], found[0])


def test_an_output_that_a_loop_does_not_get_to() -> None:
    """It is allocated all the same, also a large one."""
    for count in (4, 1 << 16):
        source = flat("input", F32, count, 0)
        out = flat("output", F32, count, 0)
        views = [View(n, F32, (count,), (1,)) for n in (0, 1)]
        for times in (0, 2):
            loop = ForStep((Register(2, 0),), 0, times, 1, (CopyStep(*views),))
            made = program((loop,), source, out, flat("temp", S32, 1, offset=0))
            data = np.arange(count, dtype=np.float32)
            (found,) = Executable(made, "neuron")((torch.from_numpy(data),))
            assert found.shape == (count,)
            assert not times or np.array_equal(found.cpu().numpy(), data)


def test_operators_in_loops_keep_their_results_in_place() -> None:
    """A temporary is read next time round through another one at the same place."""
    whole, other = (View(n, F32, (64,), (1,)) for n in (1, 2))
    step = AtenStep("aten::add.Tensor", (other, other), {}, (whole,))
    loop = ForStep((Register(4, 0),), 0, 3, 1, (step,))
    at, line = {"offset": 64}, ((64,), (1,))
    ends = CopyStep(View(0, F32, *line), whole), CopyStep(other, View(3, F32, *line))
    made = program(
        (ends[0], loop, ends[1]),
        flat("input", F32, 64, 0), flat("temp", F32, 64, **at), flat("temp", F32, 64, **at),
        flat("output", F32, 64, 0), flat("temp", S32, 1, offset=0),
    )  # fmt: skip
    data = np.arange(64, dtype=np.float32)
    (found,) = Executable(made, "cpu", frozenset({"aten::add.Tensor"}))((torch.from_numpy(data),))
    assert np.array_equal(found.numpy(), 8 * data)


def test_threads_in_loops() -> None:
    """Work for several threads within a loop, whose team outlives the tapes."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        by = (8 * 600 * 4,) * 3
        writer = TapeWriter()
        kernel = writer.function(TapeLoop(clamped(Op.ADD, 8, 600, 600), lanes=True, advance=by))
        writer.group(4)
        for _ in range(3):
            writer.add(kernel, writer.location("user.py:1"), (0, 0, 0, 0, 0, 0))
        inner = ForStep((Register(1, 1),), 0, 3, 1, (writer.step(), writer.step()))
        loop = ForStep((Register(1, 0),), 0, 2, 1, (inner, writer.step()))
        made = Program("threads", (flat("input", F32, 32 * 600, 0), flat("input", S32, 2, 1)),
                       (loop,), (0,))  # fmt: skip
        data = np.random.default_rng(0).random(32 * 600, np.float32) * 1e-6
        wanted, found = both(made, data, np.zeros(2, np.int32))
        assert np.array_equal(wanted[0], found[0])
    finally:
        torch.set_num_threads(before)


def test_print(capsys: pytest.CaptureFixture[str]) -> None:
    memory = np.arange(64, dtype=np.uint8)
    values = np.arange(6, dtype=np.float32).view(np.uint8)
    memory[8:32] = values
    views = [
        View(0, DType.F32, (2, 3), (3, 1), 2),
        View(0, DType.BF16, (2, 2), (1, 3), 5),
        View(0, DType.S32, (), (), 1),
        View(0, DType.U8, (0,), (1,)),
    ]
    steps = tuple(PrintStep(f"view {n}:", view, f"user.py:{n}") for n, view in enumerate(views))
    loop = ForStep((Register(0, 0),), 3, 5, 1, (PrintStep("i", View(0, S32, (1,), (1,)), "u:1"),))
    made = program((*steps, loop), flat("input", DType.U8, 64, 0), flat("output", F32, 1, 0))
    run_program(made, [memory])
    wanted = capsys.readouterr().out
    assert "view 0: [[0. 1. 2.]\n [3. 4. 5.]]\nview 1: [[0 " in wanted
    assert wanted.endswith("view 3: []\ni [3]\ni [4]\n")
    Executable(made, "cpu")((torch.from_numpy(memory.copy()),))
    assert capsys.readouterr().out == wanted
    encoded = codec.encode(made)
    assert same(codec.decode(encoded.document, encoded.contents), made)
    assert "print 'view 1:' %0+5:bf16[2,2]{1,3}  // user.py:1" in program_to_text(made)


def test_an_error_of_print_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed:
        def write(self, _: str) -> int:
            raise OSError("nobody listens")

    monkeypatch.setattr("sys.stdout", Closed())
    step = PrintStep("x", View(0, S32, (1,), (1,)), "user.py:5")
    made = program((step,), flat("input", S32, 1, 0), flat("output", S32, 1, 0))
    with pytest.raises(OSError, match="nobody listens") as error:
        Executable(made, "cpu")((torch.zeros(1, dtype=torch.int32),))
    assert "user.py:5" in "".join(error.value.__notes__)


def test_refusals() -> None:
    r = Register(0, 0)
    body = (added(0, 1),)
    cases: list[tuple[AnyStep, str, str]] = [
        (
            ForStep((Register(0, 6),), 0, 1, 1, body),
            "elements 6 to 6",
            "bytes 24 to 28 of buffer 0",
        ),
        (ForStep((Register(0, -1),), 0, 1, 1, body), "elements -1 to -1", "no register -1"),
        (ForStep((Register(7, 0),), 0, 1, 1, body), "buffer 7 of 1", "there is no buffer 7"),
        (ForStep((), 0, 1, 1, body), "a loop without a counter", "a loop without a counter"),
        (ForStep((r,), 0, 1, 0, body), "a loop with the step 0", "a loop has the step 0"),
        (ForStep((r,), 0, 1 << 31, 1, body), "no number of 32 bits", "a loop ends at 2147483648"),
        (WhileStep((r,), r, Register(0, 9), body), "elements 9 to 9", "bytes 36 to 40 of buffer"),
        (
            ForStep((r,), 0, 1, 1, (added(0, 9),)),
            r"step 0 \(TapeStep\) of its body: instruction 0",
            "slot 1 reaches beyond buffer 0",
        ),
        (PrintStep("", View(0, S32, (7,), (1,))), "elements 0 to 6", "bytes 0 to 28 of buffer 0"),
    ]
    for step, by_check, by_executor in cases:
        with pytest.raises(NeffError, match=by_check):
            check_program(registers(step))
        with pytest.raises(ValueError, match=by_executor):
            Executable(registers(step), "cpu")
    deep: AnyStep = added(0, 1)
    for _ in range(40):
        deep = ForStep((r,), 0, 1, 1, (deep,))
    with pytest.raises(ValueError, match="loops are nested more than 32 deep"):
        Executable(registers(deep), "cpu")
    constant = flat("constant", S32, 6)
    constant = type(constant)(
        **{
            **{name: getattr(constant, name) for name in constant.__slots__},
            "literal": Literal(np.zeros(6, np.int32)),
        }
    )
    loop = ForStep((r,), 0, 1, 1, ())
    made = Program("c", (constant, flat("output", S32, 1, 0)), (loop,), (1,))
    with pytest.raises(NeffError, match="writes to constant 0"):
        check_program(made)
    with pytest.raises(ValueError, match="constant 0 is written to"):
        Executable(made, "cpu")


def test_an_operator_in_a_loop_is_not_smuggled_in() -> None:
    """Loops hide no operator from the list of those that a file may name."""
    step = AtenStep("aten::add_.Tensor", (View(0, S32, (1,), (1,)), 1), {}, (None,))
    made = registers(ForStep((Register(0, 0),), 0, 1, 1, (step,)))
    with pytest.raises(NeffError, match="which writes to its argument"):
        Executable(made, "cpu")


@pytest.mark.parametrize("threads", [1, 2])
def test_a_loop_without_an_end_hears_ctrl_c(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    by = (8 * 600 * 4,) * 3
    writer = TapeWriter()
    kernel = writer.function(TapeLoop(clamped(Op.ADD, 8, 600, 600), lanes=True, advance=by))
    writer.group(4)  # enough for two threads, which must be let go
    writer.add(kernel, writer.location("user.py:1"), (0, 0, 0, 0, 0, 0))
    loop = WhileStep((Register(1, 1),), Register(1, 0), Register(1, 0), (writer.step(),))
    made = Program("endless", (flat("input", F32, 32 * 600, 0), flat("input", S32, 2, 1)),
                   (loop,), (0,))  # fmt: skip
    run = Executable(made, "cpu")
    data, forever = torch.zeros(32 * 600), torch.tensor([1, 0], dtype=torch.int32)
    timer = threading.Timer(0.2, _thread.interrupt_main)
    # A shell has its background jobs ignore the signal, and the tests may be one.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run((data, forever))
        run((data, torch.zeros(2, dtype=torch.int32)))
    finally:
        timer.join()
        signal.signal(signal.SIGINT, handler)
        torch.set_num_threads(before)
