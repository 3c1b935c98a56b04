"""Every step, broken so that it would touch memory that is not its program's: refused twice.

`check_program` refuses it when a file is read, and the native core, which is given the same program
without that check, refuses it on its own. Samples are made of programs that are right: each place
of a step that names memory is replaced, one at a time, by every wrong one of its kind.
"""

from __future__ import annotations

import dataclasses
import re
import traceback
from collections.abc import Callable, Iterator
from typing import Any, get_args

import pytest

from neuronxcc.codegen import build
from neuronxcc.codegen.errors import CodegenUnsupported
from neuronxcc.codegen.loop import Access, Dim, Kernel, Slot, Store
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Literal
from neuronxcc.ir.op import Op
from neuronxcc.program.check import check_program
from neuronxcc.program.errors import NeffError
from neuronxcc.program.memory import Register, View
from neuronxcc.program.program import AnyStep, ForStep, Program, WhileStep, all_steps
from neuronxcc.program.steps.collective import CollectiveStep, WaitStep
from neuronxcc.program.steps.gemm import GemmStep
from neuronxcc.program.steps.made import Made
from neuronxcc.program.steps.printing import PrintStep
from neuronxcc.program.steps.tape import TapeStep, instructions
from neuronxcc.program.tape_functions import TapeLoop, TapeNative, TapeProduct
from neuronxcc.program.tape_writer import TapeWriter
from tests.compiler.conv_programs import Case
from tests.compiler.conv_programs import program as convolution
from tests.compiler.executable_programs import Maker, operators
from tests.compiler.tape_programs import clamped, on_tapes
from tests.compiler.test_executable_errors import SAMPLE
from torch_neuronx.program.executable import Executable

FAR = 1 << 20  # elements, bytes: no buffer here has so many
NOWHERE = (-1, 1000)  # numbers of buffers that there are not
Change = tuple[str, Any]  # what was done, and the value with it done


# ---- wrong places


def changed(value: Any, **fields: Any) -> Iterator[Change]:
    """The record with one field replaced, by each of several values."""
    for name, candidates in fields.items():
        for candidate in candidates:
            yield f"{name}={candidate}", dataclasses.replace(value, **{name: candidate})


def each(items: tuple[int, ...], wrong: int, moving: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """One item replaced by a wrong one, at every place where the extent says that it counts."""
    for at, extent in enumerate(moving):
        if extent > 1:
            yield (*items[:at], wrong, *items[at + 1 :])


def of_view(view: View) -> Iterator[Change]:
    grown = list(each(view.shape, FAR, view.shape))
    far, back = (each(view.strides, stride, view.shape) for stride in (FAR, -FAR))
    yield from changed(view, buffer=NOWHERE, offset=(-1, FAR), shape=grown, strides=[*far, *back])


def of_access(access: Access, dims: tuple[Dim, ...]) -> Iterator[Change]:
    extents = tuple(dim.extent for dim in dims)
    far, back = (each(access.strides, stride, extents) for stride in (FAR, -FAR))
    yield from changed(access, offset=(-1, FAR), strides=[*far, *back])


def of_kernel(kernel: Kernel) -> Iterator[Change]:
    """What it stores to; what it loads from has the same bounds."""
    for number, store in enumerate(kernel.stores):
        for text, access in of_access(store.access, kernel.dims):
            stores = list(kernel.stores)
            stores[number] = dataclasses.replace(store, access=access)
            yield f"store {text}", dataclasses.replace(kernel, stores=tuple(stores))
    for number, dim in enumerate(kernel.dims):
        dims = list(kernel.dims)
        dims[number] = dataclasses.replace(dim, extent=FAR)
        yield f"dim {number}", dataclasses.replace(kernel, dims=tuple(dims))


def of_pairs(pairs: tuple[tuple[int, int], ...]) -> Iterator[Change]:
    """Buffers and offsets, one for each slot of a kernel."""
    for at, (buffer, offset) in enumerate(pairs):
        wrong = [(number, offset) for number in NOWHERE] + [(buffer, -1), (buffer, FAR)]
        for pair in wrong:
            yield f"slot {at} at {pair}", (*pairs[:at], pair, *pairs[at + 1 :])


def of_tape(tape: TapeStep) -> Iterator[Change]:
    code = tape.code.array
    for start, number in zip(*instructions(tape)[:2], strict=True):
        for slot in range(tape.functions[number].slot_count()):
            word = start + 2 + 2 * slot
            for at, wrong in ((word, NOWHERE), (word + 1, (-1, FAR))):
                for value in wrong:
                    copy = code.copy()
                    copy[at] = value
                    yield f"word {at}={value}", dataclasses.replace(tape, code=Literal(copy))


def of_product(product: TapeProduct) -> Iterator[Change]:
    wrong = ((FAR, 1), (1, FAR), (-1, 1), (1, -1))
    yield from changed(product, m=(FAR,), n=(FAR,), k=(FAR,), out_strides=wrong, a_strides=wrong,
                       b_strides=wrong)  # fmt: skip


def of_advance(loop: TapeLoop) -> Iterator[Change]:
    yield from changed(loop, advance=each(loop.advance, FAR, (2,) * len(loop.advance)))


# Parts whose wrong versions are made at once, and those that are also gone through field by field.
WHOLE: dict[type, Callable[[Any], Iterator[Change]]] = {
    View: of_view,
    Register: lambda register: changed(register, buffer=NOWHERE, element=(-1, FAR)),
    Kernel: of_kernel,
    TapeProduct: of_product,
    TapeNative: lambda native: changed(native, params=each(native.params, FAR, (2, 2))),
    WaitStep: lambda wait: changed(wait, start=(-1, 1000)),
    # A body's steps are broken where they stand in a program of their own.
    Program: lambda _: iter(()),
}
MORE: dict[type, Callable[[Any], Iterator[Change]]] = {TapeStep: of_tape, TapeLoop: of_advance}
PAIRS = {"operands", "epilogue_operands"}


def broken(value: Any) -> Iterator[Change]:
    """The value, a part of a step, with one place in it that is wrong."""
    if type(value) in WHOLE:
        yield from WHOLE[type(value)](value)
    elif isinstance(value, tuple):
        for at, item in enumerate(value):
            for text, new in broken(item):
                yield f"{at}: {text}", (*value[:at], new, *value[at + 1 :])
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            part = getattr(value, field.name)
            pairs = field.name in PAIRS and not any(isinstance(item, View) for item in part)
            for text, new in of_pairs(part) if pairs else broken(part):
                yield f"{field.name} {text}", dataclasses.replace(value, **{field.name: new})  # type: ignore[type-var]
        yield from MORE.get(type(value), lambda _: iter(()))(value)


# ---- programs that are right


def tape_loops() -> Program:
    """Loops around a tape with functions of all kinds, and a print."""
    writer = TapeWriter()
    line = writer.location("user.py:1")
    kernel = clamped(Op.ADD, 8, 8, 40)
    add = writer.function(TapeLoop(kernel, lanes=True, advance=(8 * 40 * 4,) * 3))
    writer.group(4)
    writer.add(add, line, (0, 32, 0, 64, 0, 0))
    writer.group(0)
    product = TapeProduct(4, 5, 6, DType.F32, DType.F32, (40, 1), (40, 1), (40, 1))
    writer.add(writer.function(product), line, (0, 0, 0, 32, 0, 64))
    writer.add(writer.function(TapeNative("check_index", (2, 1, 5))), line, (1, 0))
    shown = PrintStep("", View(0, DType.F32, (4, 5), (40, 1)))
    first, second = Register(1, 0), Register(1, 3)
    body = (writer.step(), shown)
    return on_tapes(
        8,
        ForStep((first, second), first, second, 1, body),
        WhileStep((first,), first, second, body),
    )


def collectives() -> Program:
    maker = Maker("collectives")
    x, out = maker.view(maker.buffer("input", (4,))), maker.view(maker.buffer("output", (4,)))
    start = CollectiveStep("all_reduce", "0", ((0, 1),), (x,), (out,), "add")
    maker.steps += [start, WaitStep(0)]
    return maker.program()


def made_operand() -> Program:
    """A product whose left operand is computed while it is read."""
    maker = Maker("made")
    x, y, out = (
        maker.buffer(kind, shape)
        for kind, shape in (("input", (2, 3, 4)), ("input", (2, 4, 3)), ("output", (2, 3, 3)))
    )
    rows = (12, 4, 1)
    store = Store(Access(0, rows), build.op(Op.NEGATE, build.load(DType.F32, 1, rows)))
    slots = (Slot(DType.F32, tile=True), Slot(DType.F32))
    kernel = Kernel("made", (Dim(2), Dim(3), Dim(4)), slots, (store,))
    left = Made(kernel, ((x, 0),), DType.F32, (2, 3, 4))
    maker.steps.append(GemmStep(left, maker.view(y), maker.view(out)))
    return maker.program()


GOOD = {
    "every plain step": SAMPLE,
    "made operand": made_operand(),
    "convolution": convolution(Case((1, 4, 5, 6), (6, 2, 3, 3), groups=2)),
    "fused convolution": convolution(Case((1, 4, 5, 6), (6, 4, 3, 3), extras=frozenset({"shift"}))),
    "loops": tape_loops(),
    "collectives": collectives(),
}


def samples(program: Program) -> Iterator[tuple[str, Program]]:
    for number, step in enumerate(program.steps):
        for text, wrong in broken(step):
            steps = (*program.steps[:number], wrong, *program.steps[number + 1 :])
            what = f"step {number} ({type(step).__name__}): {text}"
            yield what, dataclasses.replace(program, steps=steps)


def refused_by(program: Program) -> str:
    """Who refuses a program that nobody has checked: the native "core", the "loader" before it."""
    try:
        Executable(program, "neuron", operators(program))
    except (ValueError, CodegenUnsupported) as error:
        source = error.__cause__ or error
        last = traceback.extract_tb(source.__traceback__)[-1]
        return "core" if "_C." in (last.line or "") else "loader"
    return "nobody"


# ---- the tests


@pytest.mark.parametrize("name", GOOD)
def test_what_is_broken_here_was_right(name: str) -> None:
    check_program(GOOD[name])
    assert refused_by(GOOD[name]) == "nobody"


def test_every_kind_of_step_is_broken() -> None:
    kinds = {type(step) for program in GOOD.values() for step in all_steps(program.steps)}
    assert kinds == set(get_args(AnyStep))


# These the loader refuses before there is anything to hand to the core: sizes that do not fit each
# other, and kernels, whose machine code has no checks. All else the core must refuse.
BY_LOADER = re.compile(r"shape=|kernel |epilogue dim|_strides=\(.*-1")


@pytest.mark.parametrize("name", GOOD)
def test_memory_of_others_is_refused_by_the_check_and_by_the_core(name: str) -> None:
    wrong = []
    for what, program in samples(GOOD[name]):
        try:
            check_program(program)
            wrong.append(f"{what}: the check accepts it")
        except NeffError:
            pass
        who = refused_by(program)
        if who != "core" and not (who == "loader" and BY_LOADER.search(what)):
            wrong.append(f"{what}: refused by {who}")
    assert not wrong, "\n".join(wrong)
