"""A model of JAX to a NEFF by `neuronx-cc`, and the NEFF run on a NeuronCore by `nrtpy`.

    python -m examples.neff_from_jax
    neuron-packager info /tmp/neff_from_jax/model.neff

Nothing here imports PyTorch. On a machine with NeuronCores the same lines, with the vendor's
packages of these names, run on the hardware.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

import nrtpy

FOLDER = Path(tempfile.gettempdir()) / "neff_from_jax"


def loss(weights: list[Any], x: Any, y: Any) -> Any:
    hidden = jax.nn.gelu(x @ weights[0])
    return ((hidden @ weights[1] - y) ** 2).mean()


def step(weights: list[Any], x: Any, y: Any) -> Any:
    """One step of gradient descent: the loss and the new weights."""
    value, gradient = jax.value_and_grad(loss)(weights, x, y)
    return value, jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradient)


def compiled(*args: Any) -> Path:
    """The NEFF of `step`, made by the command."""
    FOLDER.mkdir(exist_ok=True)
    module: Any = jax.jit(step).lower(*args).compiler_ir("hlo")
    (FOLDER / "model.pb").write_bytes(module.as_serialized_hlo_module_proto())
    # In a shell: neuronx-cc compile model.pb --framework XLA --output model.neff
    command = [sys.executable, "-m", "neuronxcc", "compile", "model.pb", "--framework", "XLA"]
    subprocess.run([*command, "--output", "model.neff"], cwd=FOLDER, check=True)  # noqa: S603
    return FOLDER / "model.neff"


def main() -> None:
    random = np.random.default_rng(0)
    shapes = [(16, 64), (64, 4), (128, 16), (128, 4)]
    arrays = [random.standard_normal(shape).astype(np.float32) * 0.3 for shape in shapes]
    path = compiled(arrays[:2], *arrays[2:])

    model = nrtpy.NrtpyModel.load_from_neff(path)
    for name, info in model.input_tensors_info.items():
        print(f"input  {name:<14} {info.dtype} {info.shape}")
    names = list(model.input_tensors_info)
    inputs = {
        name: nrtpy.NrtpyTensor.from_numpy(array, name)
        for name, array in zip(names, arrays, strict=True)
    }
    weights: Any = arrays[:2]
    for number in range(5):
        outputs = model(inputs)
        assert outputs is not None
        value, *updated = outputs.values()
        inputs |= dict(zip(names, updated, strict=False))  # the weights stay on the core
        expected, weights = jax.jit(step)(weights, *arrays[2:])
        print(f"step {number}: loss {value.numpy():.6f}, in JAX {float(expected):.6f}")
        np.testing.assert_allclose(value.numpy(), expected, rtol=1e-5)

    times = model.benchmark(inputs, warmup_iter=5, benchmark_iter=100, mode="host")
    print(f"a call takes {times.mean_ms:.3f} ms here, which says nothing about a NeuronCore")


if __name__ == "__main__":
    main()
