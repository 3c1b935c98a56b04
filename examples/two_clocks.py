"""How busy would a NeuronCore be? Eager training by this host's clock, and by the model's.

    python -m examples.two_clocks

The training runs here, on emulated cores. With `TORCH_NEURONX_CLOCK=model` the process also counts
what each of its operators is predicted to take on trn2, and neuron-monitor shows what its own
variable asks for; docs/tools.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

CLOCKS = ("host", "model")
SECONDS = 4.0  # of training that are watched, after all operators have their prediction
TRAINING = """
import sys, time
import torch
from torch_neuronx.program import operator_time

model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256))
model = model.to("neuron")
optimizer = torch.optim.AdamW(model.parameters())
x = torch.randn(128, 256, device="neuron")

def train(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        optimizer.zero_grad()
        (model(x) - x).square().mean().backward()
        optimizer.step()
        torch.neuron.synchronize()

train(0.5)
operator_time.settle()
print("ready", flush=True)
train(float(sys.argv[1]))
"""


def monitor(clock: str, file: Path, environ: dict[str, str]) -> subprocess.Popen[str]:
    """neuron-monitor by a clock, a document every second."""
    groups = [{"type": "neuroncore_counters"}, {"type": "execution_stats"}]
    file.write_text(json.dumps({"period": "1s", "neuron_runtimes": [{"metrics": groups}]}))
    return subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "neuron_tools.monitor.command", "-c", str(file)],
        env={**environ, "TORCH_NEURONX_CLOCK": clock},
        stdout=subprocess.PIPE,
        text=True,
    )


def second_of(watching: subprocess.Popen[str]) -> dict[str, Any]:
    """What a monitor says of the second that it has watched from its beginning to its end."""
    assert watching.stdout is not None
    watching.stdout.readline()  # the first second had begun before
    (runtime,) = json.loads(watching.stdout.readline())["neuron_runtime_data"]
    watching.terminate()
    watching.wait()
    watching.stdout.close()
    report: dict[str, Any] = runtime["report"]
    return report


def run() -> list[str]:
    """Print a row for each clock. Returns what went wrong, in words."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        # A registry of its own, so that no other process of yours is in the picture.
        environ = {**os.environ, "TORCH_NEURONX_REGISTRY_DIR": str(folder / "registry")}
        job = stack.enter_context(
            subprocess.Popen(  # noqa: S603
                [sys.executable, "-c", TRAINING, str(SECONDS)],
                env={**environ, "TORCH_NEURONX_CLOCK": "model", "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        assert job.stdout is not None
        started = time.monotonic()
        if job.stdout.readline() != "ready\n":
            return ["the training did not begin"]
        print(f"  every operator had its prediction after {time.monotonic() - started:.1f} s")
        watching = {clock: monitor(clock, folder / f"{clock}.json", environ) for clock in CLOCKS}
        found = {clock: second_of(watching[clock]) for clock in CLOCKS}
        if job.wait() != 0:
            return ["the training failed"]
    busy = {}
    for clock, report in found.items():
        ((_, core),) = report["neuroncore_counters"]["neuroncores_in_use"].items()
        latency = report["execution_stats"]["latency_stats"]["device_latency"]
        busy[clock] = core["neuroncore_utilization"]
        print(
            f"  TORCH_NEURONX_CLOCK={clock:5}  the core was in use for {busy[clock]:5.1f} % of the "
            f"second, half of the executions within {1e6 * latency['p50']:.0f} us"
        )
    return [] if 0 < busy["model"] < busy["host"] else [f"no core is slower than this host: {busy}"]


if __name__ == "__main__":
    failures = run()
    sys.exit("\n".join(failures) if failures else 0)
