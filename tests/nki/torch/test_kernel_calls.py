"""A program that somebody else lowered, as one step of a graph's program."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st

from neuronxcc.compiler import compile_graph
from neuronxcc.ir import build as b
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import parameter
from neuronxcc.ir.node import Node, Operand, TensorType
from neuronxcc.lowering.emission.kernel_calls import TARGET, Callee, body_of, callee_of, keep
from neuronxcc.options import Options
from neuronxcc.program.check import check_program
from neuronxcc.program.memory import Buffer, View
from neuronxcc.program.program import CallStep, Program
from neuronxcc.program.steps.copy import CopyStep
from torch_neuronx.program.executable import Executable

F32 = DType.F32
SHAPE = (2, 3)
DENSE = (3, 1)


def _swap() -> Callee:
    """Writes argument 1 to argument 0 and to the result; the result keeps argument 0's old one."""
    kinds = ("input", "input", "output")
    buffers = tuple(Buffer(kind, F32, SHAPE, DENSE, index=i % 2) for i, kind in enumerate(kinds))
    a, c, out = (View(i, F32, SHAPE, DENSE) for i in range(3))
    return Callee(Program("swap", buffers, (CopyStep(a, out), CopyStep(c, a)), (2,)), (0,))


def _call(x: Node, y: Node) -> tuple[Node, ...]:
    name = keep(_swap())
    args = ((Operand(0), Operand(1)), name)
    node = b.custom_call(TARGET, (x.type, x.type), (x, y), args=args)
    assert callee_of(node) is not None
    return b.results(node)


@given(
    st.permutations(range(2)).map(tuple),
    st.permutations(range(2)).map(tuple),
    st.tuples(st.booleans(), st.booleans()),
)
def test_body_writes_no_argument(
    first: tuple[int, ...], second: tuple[int, ...], used: tuple[bool, bool]
) -> None:
    def strided(order: Sequence[int]) -> tuple[int, ...]:
        return (3, 1) if tuple(order) == (0, 1) else (1, 2)

    type_ = TensorType(F32, SHAPE)
    strides = [strided(first), strided(second)]
    body = body_of(_swap(), strides, [type_, type_], [type_ if u else None for u in used])
    check_program(body)
    x, y = (
        torch.arange(6.0).mul(k).reshape(SHAPE).as_strided(SHAPE, s).clone(
            memory_format=torch.preserve_format
        )
        for k, s in zip((1, -1), strides, strict=True)
    )  # fmt: skip
    kept = x.clone()
    results = Executable(body, "cpu")((x, y))
    assert torch.equal(x, kept)
    expected = [t for t, u in zip((x, y), used, strict=True) if u]
    assert len(results) == len(expected)
    assert all(map(torch.equal, results, expected))


def test_undefined_arguments_are_no_inputs_of_the_body() -> None:
    type_ = TensorType(F32, SHAPE)
    body = body_of(_swap(), [None, DENSE], [None, type_], [None, type_])
    check_program(body)
    assert [b.index for b in body.buffers if b.kind == "input"] == [0]
    assert len(body.steps) == len(_swap().program.steps)
    y = torch.randn(SHAPE)
    (written,) = Executable(body, "cpu")((y,))
    assert torch.equal(written, y)


def test_call_is_one_step_between_fused_neighbours() -> None:
    x, y = (parameter(i, TensorType(F32, SHAPE), name) for i, name in enumerate("xy"))
    old, new = _call(b.add(x, 1.0), b.transpose(b.reshape(y, (3, 2)), (1, 0)))
    graph = b.graph("g", (x, y), (b.multiply(old, 2.0), b.exp(new)))
    program = compile_graph(graph, Options(), [DENSE, DENSE], [DENSE, DENSE], None)
    assert sum(isinstance(step, CallStep) for step in program.steps) == 1
    values = torch.randn(SHAPE), torch.randn(SHAPE)
    first, second = Executable(program, "cpu")(values)
    torch.testing.assert_close(first, (values[0] + 1) * 2)
    torch.testing.assert_close(second, values[1].reshape(3, 2).T.exp())


def test_names_say_what_is_called() -> None:
    one = keep(_swap())
    assert keep(_swap()) == one
    assert keep(Callee(_swap().program, ())) != one
    node = b.custom_call(TARGET, (TensorType(F32),), (), args=((), "unknown"))
    assert callee_of(node) is None
    other = b.custom_call("aten::sin", (TensorType(F32),), (), args=(one,))
    assert callee_of(other) is None
