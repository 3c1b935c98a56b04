"""Programs of JAX, compiled by neuronx-cc and run from the NEFF through nrtpy, against JAX."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import nrtpy
from neuronxcc.frontends.hlo import import_hlo
from neuronxcc.ir.reference import evaluate
from tests.frontends.programs import PROGRAMS
from tests.frontends.test_hlo_jax import arguments, compare, lowered
from tests.nrtpy import neffs

CHOSEN = (
    "transformer and its gradient", "convnet and its gradient", "scan", "gradient of scan", "while",
    "branches", "sort", "top k", "gather", "scatter", "random bits",
    "integers", "threefry",
)  # fmt: skip
# float8_e4m3fn is trn3's; the emulation computes in it on every target if it is told to.
FLAGS = {"small floats": ("--experimental-unsafe-fp8e4m3fn-as-fp8e4m3",)}


@pytest.mark.parametrize("name", CHOSEN)
def test_a_neff_gives_what_jax_gives(name: str, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    content = lowered(program).compiler_ir("hlo").as_serialized_hlo_module_proto()
    path = neffs.compile_module(content, tmp_path / "model.neff", *FLAGS.get(name, ()))
    model = nrtpy.NrtpyModel.load_from_neff(path)
    compare(program, neffs.arrays_of(model, neffs.tensors_for(model, arguments(program))))


def _attention(x: Any, w: Any) -> Any:
    q, k, v = jnp.split(x @ w, 3, -1)
    return jax.nn.softmax(q @ k.T / 4) @ v


HALVES = [ml_dtypes.bfloat16, np.float16]


@pytest.mark.parametrize("dtype", HALVES, ids=["bfloat16", "float16"])
def test_types_of_16_bits(dtype: Any, tmp_path: Path) -> None:
    """Against the same function in float64 on arguments rounded to the type.

    Every one of five operators rounds once, relative to at most 1.5 * sqrt(16) of magnitude, and
    the softmax passes errors of its argument on with a factor of at most their size.
    """
    random = np.random.default_rng(5)
    x, w = (
        (0.5 * random.standard_normal(s)).astype(dtype).astype(np.float64)
        for s in ((12, 16), (16, 48))
    )
    with jax.enable_x64(True):  # noqa: FBT003 - JAX's own name
        want = np.asarray(_attention(x, w))
    given = [np.asarray(a, dtype) for a in (x, w)]
    path = neffs.compile_jax(tmp_path / "model.neff", _attention, *given)
    model = nrtpy.NrtpyModel.load_from_neff(path)
    (got,) = neffs.arrays_of(model, neffs.tensors_for(model, given))
    assert got.dtype == np.dtype(dtype)
    eps = {ml_dtypes.bfloat16: 2.0**-7, np.float16: 2.0**-10}[dtype]
    np.testing.assert_allclose(
        got.astype(np.float64), want, rtol=0, atol=16 * eps * abs(want).max()
    )


def test_complex_numbers(tmp_path: Path) -> None:
    x = np.array([[1 + 2j, -3j], [0.5, 2 - 1j]], np.complex64)
    path = neffs.compile_jax(tmp_path / "model.neff", lambda x, y: (x * y, x.real), x, x.T)
    model = nrtpy.NrtpyModel.load_from_neff(path)
    product, real = neffs.arrays_of(model, neffs.tensors_for(model, [x, x.T]))
    assert product.dtype == np.complex64
    np.testing.assert_array_equal(product, x * x.T)  # small integers and halves: exact
    np.testing.assert_array_equal(real, x.real)


def test_eight_bit_floats_go_in_and_out(tmp_path: Path) -> None:
    for dtype in (ml_dtypes.float8_e4m3, ml_dtypes.float8_e5m2):
        given = np.linspace(-3, 3, 24).astype(dtype).reshape(4, 6)
        path = neffs.compile_jax(tmp_path / "model.neff", lambda x: x[::-1], given)
        model = nrtpy.NrtpyModel.load_from_neff(path)
        (got,) = neffs.arrays_of(model, neffs.tensors_for(model, [given]))
        assert got.dtype == given.dtype
        assert got.tobytes() == given[::-1].tobytes()


def test_the_command_as_a_process(tmp_path: Path) -> None:
    program = PROGRAMS["mlp"]
    module = lowered(program).compiler_ir("hlo").as_serialized_hlo_module_proto()
    (tmp_path / "model.pb").write_bytes(module)
    command = [sys.executable, "-m", "neuronxcc", "compile", "model.pb", "--framework", "XLA"]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [*command, "--output", "model.neff"], cwd=tmp_path, env={"PYTHONPATH": str(root)},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "Compiler status PASS\n"
    model = nrtpy.NrtpyModel.load_from_neff(str(tmp_path / "model.neff"))
    assert model.name == "model"
    compare(program, neffs.arrays_of(model, neffs.tensors_for(model, arguments(program))))


def test_the_fast_way_is_what_the_reference_says(tmp_path: Path) -> None:
    program = PROGRAMS["reductions"]
    content = lowered(program).compiler_ir("hlo").as_serialized_hlo_module_proto()
    path = neffs.compile_module(content, tmp_path / "model.neff")
    model = nrtpy.NrtpyModel.load_from_neff(path)
    got = neffs.arrays_of(model, neffs.tensors_for(model, arguments(program)))
    want = evaluate(import_hlo(content).graph, arguments(program))
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=16 * float(np.finfo(np.float32).eps))


def test_donated_inputs_are_the_outputs(tmp_path: Path) -> None:
    x, y = np.ones((2, 3), np.float32), np.full((2, 3), 5, np.float32)
    donating: Any = jax.jit(lambda x, y: (y * 2, x + y), donate_argnums=0)
    module: Any = donating.lower(x, y)
    content = module.compiler_ir("hlo").as_serialized_hlo_module_proto()
    model = nrtpy.NrtpyModel.load_from_neff(neffs.compile_module(content, tmp_path / "d.neff"))
    inputs = neffs.tensors_for(model, [x, y])
    first = next(iter(inputs.values()))
    outputs = model(inputs)
    assert outputs is not None
    updated = [o for o in outputs.values() if o._ref is first._ref]
    assert len(updated) == 1
    np.testing.assert_array_equal(first.numpy(), updated[0].numpy())
    results = [o.numpy() for o in outputs.values()]
    np.testing.assert_array_equal(results, [y * 2, x + y])
    # Given outputs get the same values, whether or not they are that input.
    inputs = neffs.tensors_for(model, [x, y])
    given = {name: nrtpy.NrtpyTensor.from_numpy(0 * x, name) for name in model.output_tensors_info}
    assert model(inputs, given) is None
    np.testing.assert_array_equal([o.numpy() for o in given.values()], [y * 2, x + y])
