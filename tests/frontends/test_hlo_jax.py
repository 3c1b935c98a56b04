"""What JAX lowers, imported, evaluated by the reference and run as a program, against XLA."""

from __future__ import annotations

import io
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
import torch

from neuronxcc.compiler import compile_graph
from neuronxcc.frontends.hlo import Imported, import_hlo
from neuronxcc.frontends.stablehlo import to_hlo
from neuronxcc.ir.reference import evaluate
from neuronxcc.ir.verify import verify
from neuronxcc.options import parse
from tests.frontends.programs import PROGRAMS, JaxProgram
from torch_neuronx.program.executable import Executable

_EPS = float(np.finfo(np.float32).eps)


def lowered(program: JaxProgram) -> Any:
    return jax.jit(program.function).lower(*program.args)


def imported(program: JaxProgram) -> Imported:
    module = lowered(program).compiler_ir("hlo")
    result = import_hlo(module.as_serialized_hlo_module_proto())
    verify(result.graph)
    return result


def arguments(program: JaxProgram) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(program.args)]


def compare(program: JaxProgram, results: list[np.ndarray]) -> None:
    expected = [
        np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(program.function)(*program.args))
    ]
    for got, want in zip(results, expected, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        if want.dtype.kind not in "fc":
            np.testing.assert_array_equal(got, want)
            continue
        finite = np.abs(want[np.isfinite(want)])
        largest = float(finite.max()) if finite.size else 0.0
        np.testing.assert_allclose(got, want, rtol=0, atol=program.ulps * _EPS * max(largest, 1e-3))


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_reference_gives_what_xla_gives(name: str) -> None:
    program = PROGRAMS[name]
    compare(program, evaluate(imported(program).graph, arguments(program)))


def tensors(arrays: list[np.ndarray]) -> list[torch.Tensor]:
    return [torch.from_numpy(np.array(array)) for array in arrays]


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_what_xla_gives(name: str) -> None:
    program = PROGRAMS[name]
    compiled = compile_graph(imported(program).graph, parse("", environ={}))
    results = Executable(compiled, "cpu")(tensors(arguments(program)))
    compare(program, [to_numpy(result) for result in results])


@pytest.mark.parametrize("form", ["text", "bytecode"])
def test_stablehlo_is_the_same_program(form: str) -> None:
    program = PROGRAMS["mlp"]
    module = lowered(program).compiler_ir("stablehlo")
    content = str(module).encode() if form == "text" else _bytecode(module)
    result = import_hlo(to_hlo(content))
    compare(program, evaluate(result.graph, arguments(program)))


def _bytecode(module: Any) -> bytes:
    stream = io.BytesIO()
    module.operation.write_bytecode(stream)
    return stream.getvalue()


def test_names_and_lines_of_the_user_are_kept() -> None:
    result = imported(PROGRAMS["mlp"])
    assert len(result.names) == 2
    assert [str(t) for t in result.params] == ["f32[4,6]", "f32[6,5]"]
    products = [w for n, w in result.where.items() if w.opcode == "dot"]
    assert products
    assert products[0].file.endswith("programs.py")
    assert products[0].line > 0


def test_donated_arguments_are_updated_in_place() -> None:
    x, y = np.ones((4, 6), np.float32), np.full((4, 6), 2, np.float32)
    donating = jax.jit(lambda x, y: (x + y, y * 2), donate_argnums=0)
    module: Any = donating.lower(x, y).compiler_ir("hlo")
    result = import_hlo(module.as_serialized_hlo_module_proto())
    assert result.graph.aliases == {0: 0}
    args = tensors([x, y])
    first = args[0]
    total, _ = Executable(compile_graph(result.graph, parse("", environ={})), "cpu")(list(args))
    assert total.data_ptr() == first.data_ptr()
    assert bool((total == 3).all())
