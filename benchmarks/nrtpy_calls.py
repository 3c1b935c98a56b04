"""What a call of a small NEFF costs through nrtpy, arrays in and out, against a traced model.

    python -m benchmarks.nrtpy_calls [--only REGEX] [--list]

Both run the program of tanh(x @ w) for x float32[4, 8] and w float32[8, 2], whose arithmetic takes
no time worth speaking of. Exit code: 0 when all targets are met, 1 when one is missed, 2 when the
machine was too busy to measure.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import nrtpy
import torch_neuronx
from benchmarks import quiet, suite
from benchmarks.harness import sample
from neuronxcc.cli import main as neuronx_cc

if TYPE_CHECKING:
    import argparse

Step = Callable[[], object]
X = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)
W = np.random.default_rng(2).standard_normal((8, 2)).astype(np.float32)
CALLS = 2000


@cache
def neff() -> nrtpy.NrtpyModel:
    """The program, compiled by neuronx-cc."""
    folder = Path(tempfile.mkdtemp())
    lowered: Any = jax.jit(lambda x, w: jnp.tanh(x @ w)).lower(X, W).compiler_ir("hlo")
    (folder / "model.pb").write_bytes(lowered.as_serialized_hlo_module_proto())
    words = ["--output", str(folder / "model.neff"), "--logfile", str(folder / "log")]
    if neuronx_cc(["compile", str(folder / "model.pb"), *words]):
        raise RuntimeError("neuronx-cc failed")
    return nrtpy.NrtpyModel.load_from_neff(folder / "model.neff")


@cache
def traced() -> torch.jit.ScriptModule:
    """The same, traced."""
    return torch_neuronx.trace(
        lambda x, w: torch.tanh(x @ w), (torch.from_numpy(X), torch.from_numpy(W))
    )


def placed() -> dict[str, nrtpy.NrtpyTensor]:
    """The arguments on the core."""
    names = neff().input_tensors_info
    return {n: nrtpy.NrtpyTensor.from_numpy(a, n) for n, a in zip(names, (X, W), strict=True)}


def nrtpy_on_core() -> Step:
    model, inputs = neff(), placed()
    return lambda: model(inputs)


def nrtpy_new_tensors() -> Step:
    model, inputs = neff(), placed()
    first, second = inputs
    weight = inputs[second]

    def step() -> object:
        outputs = model({first: nrtpy.NrtpyTensor.from_numpy(X), second: weight})
        assert outputs is not None
        return outputs["output_0"].numpy()

    return step


def nrtpy_kept_tensors() -> Step:
    model, inputs = neff(), placed()
    x = next(iter(inputs.values()))
    outputs = model(inputs)
    assert outputs is not None
    result = outputs["output_0"]

    def step() -> object:
        x.write_from_numpy(X)
        model(inputs, outputs)
        return result.numpy()

    return step


def traced_on_core() -> Step:
    model = traced()
    x, w = torch.from_numpy(X).to("neuron"), torch.from_numpy(W).to("neuron")
    return lambda: model(x, w)


def traced_from_numpy() -> Step:
    model, w = traced(), torch.from_numpy(W).to("neuron")
    return lambda: model(torch.from_numpy(X).to("neuron"), w).cpu().numpy()


@dataclass(frozen=True)
class Case:
    """A way to call nrtpy, the same with a traced model, and how many times its time is allowed."""

    name: str
    ours: Callable[[], Step]
    theirs: Callable[[], Step]
    most: float


@dataclass(frozen=True)
class Row:
    """Microseconds of a call."""

    name: str
    nrtpy_us: float
    traced_us: float
    most: float

    @property
    def ratio(self) -> float:
        return self.nrtpy_us / self.traced_us

    @property
    def met(self) -> bool:
        return self.ratio <= self.most


TABLE = [
    Case("tensors on the core", nrtpy_on_core, traced_on_core, 1.0),
    Case("an array in, an array out", nrtpy_new_tensors, traced_from_numpy, 1.2),
    Case("the same, tensors kept", nrtpy_kept_tensors, traced_from_numpy, 1.0),
]


def measure(case: Case, repeats: int) -> Row:
    """The fastest sample of each, in turn."""
    steps = [case.ours(), case.theirs()]
    for step in steps:
        sample(step, CALLS)
    rounds = [[sample(step, CALLS) for step in steps] for _ in range(repeats)]
    ours, theirs = (1e6 * min(column) for column in zip(*rounds, strict=True))
    return Row(case.name, ours, theirs, case.most)


def run(chosen: list[Case], options: argparse.Namespace, watch: quiet.Watch) -> int:
    rows = (measure(case, options.repeats) for case in chosen)
    header = f"{'call':<28}{'nrtpy us':>10}{'traced us':>11}{'ratio':>8}{'at most':>9}"
    return suite.tell(
        header,
        rows,
        lambda r: (
            f"{r.name:<28}{r.nrtpy_us:>10.2f}{r.traced_us:>11.2f}{r.ratio:>8.2f}{r.most:>9.2f}"
        ),
        options,
        watch,
    )


if __name__ == "__main__":
    # PyTorch deprecates TorchScript, which is how traced models are saved.
    warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
    sys.exit(suite.main(quiet.parser(__doc__, 15), TABLE, run))
