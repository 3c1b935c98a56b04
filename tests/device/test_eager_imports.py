"""What fused mode imports, when, and in whose thread."""

from __future__ import annotations

import pytest

from tests.device.conftest import RunPython


@pytest.mark.slow
def test_threads_that_compile_import_nothing_that_imports_in_a_circle(
    run_python: RunPython,
) -> None:
    """Who imports Dynamo meanwhile would see half of its modules."""
    found = run_python(
        """
import sys, time, torch
from torch_neuronx import _C
_C.set_region_worth(0)
_C.set_direct_elements(0)
torch.neuron.set_eager_mode("fused")
layer = torch.nn.LayerNorm(300).to("neuron")
x = torch.ones(300, 300, device="neuron")
before = set(sys.modules)
while not torch.neuron.eager_stats()["fused"]["regions"]:
    ((layer(x) * 2).exp() - 1).softmax(-1).sum(-1).cpu()
    time.sleep(0.02)
print(sorted(name for name in set(sys.modules) - before if not name.startswith("neuronxcc.")))
""",
        new=True,
    )
    assert found == "[]\n"


@pytest.mark.slow
def test_modes_of_the_environment_import_nothing_before_the_device_is_used(
    run_python: RunPython,
) -> None:
    found = run_python(
        """
import sys, torch
for _ in range(2):
    print(torch.neuron.get_eager_mode(), "torch._dynamo" in sys.modules)
    torch.ones(1, device="neuron")
""",
        new=True,
        TORCH_NEURONX_EAGER_MODE="fused",
    )
    assert found == "fused False\nfused True\n"
