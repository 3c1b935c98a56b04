"""Whether an installed TorchNeuron works: `make wheel` runs this file in an environment of its own.

It may import nothing of this folder and find no compiler.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import torch

import nki
import nki.isa as nisa
import nki.language as nl
import torch_neuronx
from torch_neuronx.compat.release import built_for


@nki.jit
def double(x):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - as users write kernels
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=out, src=tile)
    return out


def main() -> None:
    """Open the doors: eager, compiled, kernels, the command."""
    here = Path(torch_neuronx.__file__)
    if not here.is_relative_to(sys.prefix):
        raise SystemExit(f"torch_neuronx was imported from {here}, not from {sys.prefix}")
    if compiler := shutil.which("c++") or shutil.which("cc"):
        raise SystemExit(f"there is a compiler, {compiler}: nothing would be shown")
    core = Path(sys.modules["torch_neuronx._C"].__file__ or "")
    if b"$ORIGIN/../torch/lib\0" not in core.read_bytes():
        raise SystemExit(f"{core} looks for PyTorch in folders of the computer that built it")
    if built_for() != torch.__version__.split("+")[0]:
        raise SystemExit(f"the wheel says it was built for PyTorch {built_for()!r}")
    x = torch.arange(12.0).reshape(3, 4)
    wanted = (x * x - 3).relu().sum(0)

    def function(t: torch.Tensor) -> torch.Tensor:
        return (t * t - 3).relu().sum(0)

    on_core = x.to("neuron")
    results = {
        "eager": function(on_core),
        "compiled": torch.compile(function, backend="neuron", fullgraph=True)(on_core),
        "kernel": function(double(on_core) / 2),
    }
    for door, result in results.items():
        if not torch.equal(result.cpu(), wanted):
            raise SystemExit(f"{door}: {result.cpu()}, expected {wanted}")
    subprocess.run([Path(sys.prefix, "bin", "neuronx-cc"), "--version"], check=True)
    print(f"{here.parent}: {', '.join(results)} and neuronx-cc work")  # noqa: T201


if __name__ == "__main__":
    main()
