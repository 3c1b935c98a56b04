"""Every architecture of the zoo, compiled: forward and backward equal to eager.

The bound comes from the arithmetic itself: the same model in float64 on the CPU is the reference,
and the distance from it, of the eager device and of the compiled program, may be four times that of
the CPU in the same type, plus 32 roundings of the largest value where the CPU happens to be exact.
"""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.shallow import shallow

from .zoo import ZOO, Entry, build, first_output, inputs

# transformers and torch.compile warn about missing fused kernels and the like.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.parametrize("entry", ZOO, ids=lambda entry: entry.name),
]

FACTOR, FLOOR = 4, 32


def results(
    entry: Entry, device: str, dtype: torch.dtype, wrap: Callable[[Any], Any]
) -> Mapping[str, Tensor]:
    """The main output of a model, and the gradients of its mean square, on the CPU in float64."""
    model: Any = build(entry).to(device, dtype)
    if dtype == torch.float64 and "expert" in str(entry.config):
        model.set_experts_implementation("eager")  # PyTorch's grouped products have no float64
    arguments = {
        name: value.to(device, dtype if value.is_floating_point() else None)
        for name, value in inputs(entry).items()
    }
    output = first_output(wrap(model)(**arguments))
    output.float().square().mean().backward()
    found = {"output": output}
    found |= {
        f"gradient of {name}": p.grad for name, p in model.named_parameters() if p.grad is not None
    }
    return {name: value.detach().cpu().double() for name, value in found.items()}


def compiled(entry: Entry) -> Callable[[Any], Any]:
    torch.compiler.reset()
    return lambda model: torch.compile(model, backend="neuron", fullgraph=entry.fullgraph)


@shallow
def check(entry: Entry, dtype: torch.dtype) -> None:
    exact = results(entry, "cpu", torch.float64, lambda model: model)
    host = results(entry, "cpu", dtype, lambda model: model)
    ours = {
        "eager": results(entry, "neuron", dtype, lambda model: model),
        "compiled": results(entry, "neuron", dtype, compiled(entry)),
    }
    for how, found in ours.items():
        assert host.keys() <= found.keys()
        for name, value in found.items():
            if name not in host:
                # AOTAutograd gives zeros where eager gives no gradient: the result isn't used.
                assert not value.any(), name
                continue
            scale = float(exact[name].abs().max())
            error = float((value - exact[name]).abs().max())
            theirs = float((host[name] - exact[name]).abs().max())
            bound = FACTOR * theirs + FLOOR * torch.finfo(dtype).eps * scale
            assert error <= bound, f"{how} {name}: {error:.3g} from float64, cpu {theirs:.3g}"


@pytest.mark.every(2)
def test_float32(entry: Entry) -> None:
    check(entry, torch.float32)
