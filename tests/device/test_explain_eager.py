"""`torch_neuronx.explain_eager`, and the variables that say when operators are joined."""

import time
from collections.abc import Callable, Iterator

import pytest
import torch

import torch_neuronx
from tests.device.conftest import RunPython
from tests.device.enqueued import regions_soon

SIZE = 512


@pytest.fixture(autouse=True)
def soon() -> Iterator[None]:
    with regions_soon():
        yield


def chain(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y = y + 1
    return y.relu()


def repeated(block: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Runs `block` until a region has been compiled, with something in front of it to wait for."""
    big = torch.randn(1500, 1500, device="neuron")
    end = time.monotonic() + 60
    while True:
        _ = big @ big
        kept = block()
        torch_neuronx.neuron.synchronize()
        if torch_neuronx.neuron.eager_stats()["fused"]["regions"] > 2:
            return kept
        assert time.monotonic() < end, "nothing was joined within a minute"
        time.sleep(0.02)


def test_report_names_operators_lines_and_what_was_left_out() -> None:
    x = torch.randn(SIZE, SIZE, device="neuron")
    with torch_neuronx.explain_eager() as report:
        assert str(report) == "explain_eager: the block has not ended"
        y = repeated(lambda: chain(x))
    torch.testing.assert_close(y.cpu(), (x.cpu() * 2 + 1).relu(), rtol=0, atol=0)
    region = next(r for r in report.regions if r.runs and len(r.operators) == 3)
    assert [each.name for each in region.operators] == ["mul.Tensor", "add.Tensor", "relu"]
    assert [each.written for each in region.operators] == [False, False, True]
    assert region.state == "compiled"
    first = chain.__code__.co_firstlineno
    for offset, each in enumerate(region.operators, start=1):
        assert each.result == f"float32[{SIZE}, {SIZE}]"
        assert f"test_explain_eager.py:{first + offset}" in each.line
    assert sum(region.ended_by.values()) == region.runs + region.separately
    text = str(report)
    assert f"region {region.number} of neuron:0, compiled: {region.runs} times as one" in text
    assert text.count("  not written") >= 2
    assert f"{report.stats['fused']['regions']} regions that ran as one program" in text


def test_the_operator_that_ends_a_region_is_named() -> None:
    x = torch.randn(SIZE, SIZE, device="neuron")

    def block() -> torch.Tensor:
        y = chain(x)
        return y @ y

    with torch_neuronx.explain_eager() as report:
        repeated(block)
    ends = [r.ended_by for r in report.regions if len(r.operators) == 3]
    assert any(end.get("aten::mm", 0) > 0 for end in ends), ends


def test_the_report_counts_its_own_block_and_leaves_the_mode_as_it_was() -> None:
    before = torch_neuronx.neuron.get_eager_mode()
    x = torch.randn(SIZE, SIZE, device="neuron")
    with torch_neuronx.explain_eager() as report:
        repeated(lambda: chain(x))
    assert report.regions
    with torch_neuronx.explain_eager() as empty:
        pass
    assert torch_neuronx.neuron.get_eager_mode() == before
    assert empty.regions == []
    assert empty.stats["enqueued"] == 0


SCRIPT = """
import time, torch, torch_neuronx
torch_neuronx._C.set_region_worth(0)  # nanoseconds: joined however little time it saves
x = torch.randn(512, 512, device="neuron")
big = torch.randn(1500, 1500, device="neuron")
end = time.monotonic() + SECONDS
while time.monotonic() < end:
    big @ big
    y = ((x * 2) + 1).relu()
    torch.neuron.synchronize()
    fused = torch.neuron.eager_stats()["fused"]
    if fused["regions"]:
        break
    time.sleep(0.02)
# The product's memory is relu's next, so its result is not written in any case; the sum's is.
print(torch.neuron.get_eager_mode(), fused["regions"] > 0, fused["unwritten"] > fused["regions"])
"""


@pytest.mark.slow
@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, "debug False False"),
        ({"ENABLE_CONCATENATION": "1"}, "fused True True"),
        ({"ENABLE_CONCATENATION": "1", "EAGER_MODE": "strict"}, "strict False False"),
        ({"EAGER_MODE": "fused", "APPLY_SKIP_INTERMEDIATE": "0"}, "fused True False"),
        ({"EAGER_MODE": "fused", "CONCATENATION_QUEUE_LOW_THRESHOLD": "4"}, "fused False False"),
    ],
)
def test_documented_variables(run_python: RunPython, variables: dict[str, str], said: str) -> None:
    given = {"EAGER_MODE": ""} | variables
    # Compiling takes as long as the machine needs; what must not happen gets two seconds to happen.
    script = SCRIPT.replace("SECONDS", "60" if "fused True" in said else "2")
    printed = run_python(script, **{f"TORCH_NEURONX_{name}": text for name, text in given.items()})
    assert printed.strip() == said
