"""Programs as data: round trips, and every wrong document is an error that says what is wrong."""

import copy
import dataclasses
import json
import math
import pickle
import re
import typing
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronxcc.codegen.loop import Access, Dim, Kernel, Scalar, Slot, Store
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Literal
from neuronxcc.ir.op import Op
from neuronxcc.neff import codec
from neuronxcc.program.errors import NeffError
from neuronxcc.program.memory import Buffer, View
from neuronxcc.program.program import Program
from neuronxcc.program.steps.copy import CopyStep
from neuronxcc.program.steps.loop import LoopStep
from neuronxcc.program.steps.operator import AtenStep
from tests.compiler.neff_programs import large_program, literal, programs, same

F32 = DType.F32


@given(programs())
def test_round_trip(program: Program) -> None:
    encoded = codec.encode(program)
    decoded = codec.decode(encoded.document, encoded.contents)
    assert same(program, decoded)
    assert codec.encode(decoded) == encoded


def test_large_program_shares_its_scalars() -> None:
    program = large_program(layers=2)
    encoded = codec.encode(program)
    assert same(codec.decode(encoded.document, encoded.contents), program)
    document = json.loads(encoded.document)
    assert len(document["kernels"]) == 20
    assert len(document["scalars"]) == 20 * 60 + 1  # the load is the same in all


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_literals_of_every_type(dtype: DType, shape: tuple[int, ...]) -> None:
    value = literal(dtype, shape, 1)
    strides = (3, 1)[: len(shape)]
    constant = Buffer("constant", dtype, shape, strides, literal=value)
    output = Buffer("output", dtype, shape, strides, 0)
    step = CopyStep(View(0, dtype, shape, strides), View(1, dtype, shape, strides))
    program = Program("p", (constant, output), (step,), (1,))
    encoded = codec.encode(program)
    read = codec.decode(encoded.document, encoded.contents).buffers[0].literal
    assert read == value
    assert read is not None
    assert read.array.dtype == dtype.numpy


@pytest.mark.parametrize(
    "value", [0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, 0.1, 1.7976931348623157e308]
)
def test_floats_are_exact(value: float) -> None:
    program = _program(value)
    encoded = codec.encode(program)
    step = codec.decode(encoded.document, encoded.contents).steps[0]
    assert isinstance(step, AtenStep)
    assert repr(step.args[1]) == repr(value)


def test_what_cannot_be_stored_is_refused() -> None:
    for bad in (np.float32(1), {1: 2}, {"a": object()}, Op.ADD, 1 << 63, b"x", {1}):
        with pytest.raises(NeffError, match=r"^expected .*, found "):
            codec.encode(_program(bad))
    deep: Any = ()
    for _ in range(100_000):
        deep = (deep,)
    with pytest.raises(NeffError, match="nested too deeply"):
        codec.encode(_program(deep))


def test_every_annotation_of_a_program_is_known() -> None:
    # The codec derives itself from the dataclasses; a new field of an unknown type shows here.
    document = json.loads(codec.encode(large_program(1)).document)
    names = document["schema"]
    for kind in (Program, Buffer, View, LoopStep, AtenStep, Kernel, Access, Store):
        assert names[kind.__name__] == [f.name for f in dataclasses.fields(kind)]
    assert set(names["Scalar"]) == {n for n in typing.get_type_hints(Scalar) if n[0] != "_"}


def _program(argument: Any = None) -> Program:
    value = Scalar.make("load", F32, access=Access(0, (1,)))
    value = Scalar.make("op", F32, (value, value), op=Op.ADD)
    kernel = Kernel("k", (Dim(4),), (Slot(F32), Slot(F32)), (Store(Access(1, (1,)), value),))
    view = View(0, F32, (4,), (1,))
    return Program(
        "p",
        (
            Buffer("input", F32, (4,), (1,), 0),
            Buffer("output", F32, (4,), (1,), 0),
            Buffer("constant", F32, (), (), literal=Literal(np.array(1, np.float32))),
        ),
        (
            AtenStep("aten::neg", (view, argument), {}, (View(1, F32, (4,), (1,)),)),
            LoopStep(kernel, ((0, 0), (1, 0))),
        ),
        (1,),
    )


def _edited(edit: str) -> bytes:
    """The document of `_program` after an assignment in it, `d` being the document."""
    document = json.loads(codec.encode(_program()).document)
    exec(edit, {"d": document, "program": document["programs"][0]})  # noqa: S102
    return json.dumps(document).encode()


# Positions in the lists are those of the fields: program[1] is buffers, [2] steps, [3] results.
@pytest.mark.parametrize(
    ("edit", "text"),
    [
        ("d['format'] = 2", "program format 2; this version reads 1"),
        ("d['schema']['View'][0] = 'x'", "written by another version of TorchNeuron"),
        ("d['code'] = 'print(1)'", "unknown table 'code'"),
        ("d['scalars'] = {}", "expected the table 'scalars', found {}"),
        ("d['programs'] = []", "there is no program"),
        ("d['literals'] = []", "programs[0]: literal 0 does not exist before this row"),
        (
            "d['literals'].append(['f32', []])",
            "literals[1]: its content has not the 4 bytes of",
        ),
        ("d['literals'][0][1] = [2]", "literals[0]: its content has not the 8 bytes of its shape"),
        ("d['literals'][0][1] = [-1]", "literals[0]: negative extent -1"),
        ("d['literals'][0][1] = [1 << 40, 1 << 40]", "is larger than any memory"),
        ("d['literals'][0][1] = [1] * 65", "65 dimensions, more than 64"),
        ("d['literals'][0][0] = 'f33'", "literals[0]: expected a DType, found 'f33'"),
        ("d['scalars'][0][0] = 'system'", "scalars[0]: unknown kind of scalar 'system'"),
        ("d['scalars'][1][2] = [1, 0]", "scalars[1]: scalar 1 does not exist before this row"),
        ("d['scalars'][1][2] = [-1, 0]", "scalars[1]: scalar -1 does not exist before this row"),
        ("d['scalars'][1][2] = [True, 0]", "scalars[1]: scalar True does not exist before"),
        ("d['scalars'][1][2] = [0]", "scalars[1]: add of 1 operands in a loop kernel"),
        ("d['scalars'][1][3] = 'sort'", "scalars[1]: sort of 2 operands in a loop kernel"),
        ("d['scalars'][1][3] = 'compare'", "scalars[1]: compare with direction ''"),
        ("d['scalars'][1][5] = 3", "scalars[1]: a 'op' with parts that it cannot have"),
        ("d['scalars'][0][6] = 'x'", "scalars[0]: expected a scalar expression, found"),
        ("d['kernels'][0][1][0][0] = -4", "negative extent -4"),
        ("d['kernels'][0][1][0][0] = 1.5", "kernels[0]: expected a 64-bit integer, found 1.5"),
        ("d['kernels'][0][1][0][0] = 1 << 63", "kernels[0]: expected a 64-bit integer, found 922"),
        ("d['kernels'][0][1][0][0] = 5", "elements 0 to 4 of f32 are not all in the 16 bytes of"),
        ("d['kernels'][0][3][0][0][0] = 2", "kernel 'k': slot 2 of 2"),
        ("d['kernels'][0][3][0][0][1] = []", "an access with 0 strides in 1 dims"),
        ("d['kernels'][0][2][0][0] = 's32'", "slot 0 is s32, accessed as f32"),
        ("program[1][0][0] = 'file'", "program 'p', buffer 0: unknown kind 'file'"),
        ("program[1][0][3] = [-1]", "program 'p', buffer 0: negative stride in [-1]"),
        ("program[1][0][3] = []", "program 'p', buffer 0: 1 extents but 0 strides"),
        ("program[1][0][0] = 'temp'", "16 bytes at -1 are not in the scratchpad of 0"),
        ("program[1][2][6] = None", "constants, and nothing else, have a literal"),
        ("program[1][2][1] = 'f64'", "program 'p', buffer 2: its literal is f32[]"),
        (
            "program[2][0][0] = 'Eval'",
            "expected one of AtenStep, CallStep, CollectiveStep, ConvStep",
        ),
        ("program[2][0][1][0] = 'os.system'", "step 0 (AtenStep): 'os.system' is no name of an"),
        ("program[2][0][1][1][0]['View'][0] = 9", "step 0 (AtenStep): buffer 9 of 3"),
        ("program[2][0][1][1][0]['View'][4] = 1", "elements 1 to 4 of f32 are not all in the 16"),
        ("program[2][0][1][3][0][0] = 2", "elements 0 to 3 of f32 are not all in the 4 bytes of"),
        ("program[2][0][1][1] = [{'eval': 'x'}]", "expected a value that a NEFF can hold, found"),
        ("program[2][0][1][1] = [{'float': '1'}]", "expected a hexadecimal float, found '1'"),
        ("program[2][1][1][1][0] = [2, 0]", "elements 0 to 3 of f32 are not all in the 4 bytes"),
        ("program[2][1][1][1][0] = [0, -1]", "elements -1 to 2 of f32 are not all in the 16"),
        ("program[2][1][1][1].pop()", "step 1 (LoopStep): 1 operands for 2 slots"),
        ("program[3] = [2]", "the results: buffer 2, a constant, is no result"),
        ("program[3] = [7]", "the results: buffer 7 of 3"),
        ("program[4] = -1", "a scratchpad of -1 bytes"),
        ("program[0] = None", "programs[0]: expected text, found None"),
        ("program.append(0)", "programs[0]: expected Program, a list of 6, found"),
    ],
)
def test_wrong_documents(edit: str, text: str) -> None:
    contents = codec.encode(_program()).contents
    with pytest.raises(NeffError, match=re.escape(text)):
        codec.decode(_edited(edit), contents)


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (b"", "the document is no JSON: Expecting value"),
        (b"{", "the document is no JSON: Expecting property name"),
        (b"\xff", "the document is no text"),
        (b"[" * 100_000, "too deep or too large: RecursionError"),
        (b"9" * 10_000, "the document is no JSON: Exceeds the limit"),
        (b"null", "program format None; this version reads 1"),
        (b"[]", "program format []"),
        (pickle.dumps(_program), "the document is no"),
    ],
)
def test_what_is_no_document(document: bytes, text: str) -> None:
    with pytest.raises(NeffError, match=re.escape(text)):
        codec.decode(document, ())


def test_a_truth_value_is_zero_or_one() -> None:
    document = _edited("d['literals'][0][0] = 'pred'")
    with pytest.raises(NeffError, match="neither 0 nor 1"):
        codec.decode(document, [b"\x02"])
    with pytest.raises(NeffError, match="1 literals, but 2 contents"):
        codec.decode(_edited(""), [*codec.encode(_program()).contents, b""])


def _mutants(value: Any) -> st.SearchStrategy[Any]:
    """Any JSON value, for the place of this one."""
    small = st.none() | st.booleans() | st.integers(-3, 1 << 65) | st.text(max_size=3)
    return small | st.lists(small, max_size=3) | st.just(value)


@given(st.data(), programs())
def test_mutated_documents_are_errors_or_programs(data: Any, program: Program) -> None:
    encoded = codec.encode(program)
    document = json.loads(encoded.document)
    node, key = {"root": copy.deepcopy(document)}, "root"
    root: Any = node
    container: Any = node
    # Walk to a random place and put something else there.
    while True:
        inner = container[key]
        if not isinstance(inner, list | dict) or not inner or data.draw(st.integers(0, 4)) == 0:
            break
        container = inner
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        key = data.draw(st.sampled_from(keys))
    container[key] = data.draw(_mutants(container[key]))
    try:
        changed = codec.decode(json.dumps(root["root"]).encode(), encoded.contents)
    except NeffError:
        return
    codec.encode(changed)
