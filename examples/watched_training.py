"""A training job of several ranks, watched by all tools at once.

    python -m examples.watched_training            what each tool says of 4 ranks
    python -m examples.watched_training --keep 60  a minute to look with neuron-top

The parent imports no PyTorch: it starts the ranks with torchrun and asks the tools, as one would in
another terminal.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RANKS = 4
BUSY = 100  # executions a second: it trains, and does more than start
TRAINING = """
import sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group()
rank = dist.get_rank()
torch.accelerator.set_device_index(rank)
device = torch.device("neuron", rank)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
model = DistributedDataParallel(model.to(device))
optimizer = torch.optim.AdamW(model.parameters())
images, labels = torch.randn(64, 256, device=device), torch.randint(10, (64,), device=device)
end, steps = time.monotonic() + float(sys.argv[1]), 0
while True:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
    steps += 1
    stop = torch.tensor(float(time.monotonic() > end), device=device)
    dist.all_reduce(stop)  # all ranks stop after the same step
    if stop.item():
        break
if rank == 0:
    print("steps:", steps)
dist.destroy_process_group()
"""


def tool(module: str, *words: str) -> str:
    """Run a tool; `neuron-ls` is `python -m neuron_tools.ls`."""
    command = [sys.executable, "-m", f"neuron_tools.{module}", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603


def a_second_of_training() -> list[dict[str, Any]]:
    """What neuron-monitor says of the ranks, in the first second in which all of them train."""
    groups = [{"type": "neuroncore_counters"}, {"type": "execution_stats"}]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"period": "1s", "neuron_runtimes": [{"metrics": groups}]}, file)
        file.flush()
        monitor = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "neuron_tools.monitor.command", "-c", file.name],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert monitor.stdout is not None
        runtimes: list[dict[str, Any]] = []
        for line in itertools.islice(monitor.stdout, 60):
            runtimes = json.loads(line)["neuron_runtime_data"]
            stats = [r["report"].get("execution_stats") for r in runtimes]
            done = [s["execution_summary"]["completed"] for s in stats if s is not None]
            if len(done) == RANKS and min(done) > BUSY:
                break
        monitor.terminate()
        monitor.wait()
        monitor.stdout.close()
    return runtimes


def wait_for_ranks(job: subprocess.Popen[bytes]) -> None:
    """Wait until every rank uses its core."""
    for _ in range(600):
        users = {
            process["pid"]
            for device in json.loads(tool("ls", "-j"))
            for process in device["neuron_processes"]
        }
        if len(users) >= RANKS or job.poll() is not None:
            return
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--keep", type=float, default=20.0, help="seconds that the ranks train")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(TRAINING)
        # A registry of its own, so that no other process of yours is in the picture.
        os.environ["TORCH_NEURONX_REGISTRY_DIR"] = str(Path(folder) / "registry")
        environ = {**os.environ, "NEURON_PROCESS_TAG": "train", "OMP_NUM_THREADS": "1"}
        job = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={RANKS}",
             "--log-dir", folder, str(script), str(options.keep)],
            env=environ,
        )  # fmt: skip
        wait_for_ranks(job)
        print("$ neuron-ls -w")
        print(tool("ls", "-w"))
        print("$ neuron-monitor, one second of training:")
        for runtime in a_second_of_training():
            report = runtime["report"]
            stats = report["execution_stats"]
            for core, counters in report["neuroncore_counters"]["neuroncores_in_use"].items():
                latency = stats["latency_stats"]["device_latency"] or {"p50": 0.0}
                print(
                    f"  {runtime['neuron_runtime_tag']} core {core}: "
                    f"{counters['neuroncore_utilization']:5.1f} % of the time, "
                    f"{counters['flops'] / 1e9:7.2f} GFLOP/s, "
                    f"{stats['execution_summary']['completed']} executions, "
                    f"half of them within {latency['p50'] * 1e6:.0f} us"
                )
        root = Path(folder) / "sys"
        tool("sysfs.command", "--root", str(root))
        counter = root / "neuron0/neuron_core0/stats/other_info/flop_count/total"
        print(f"$ cat {counter.relative_to(folder)}\n{counter.read_text()}")
        if job.wait() != 0:
            sys.exit("the training failed")
        print("$ neuron-ls -j, when it is over:")
        print([device["neuron_processes"] for device in json.loads(tool("ls", "-j"))])
    words = "-r 64 -b 1MB -e 1GB -f 32 --predict trn2.48xlarge --predict-only allr"
    print(f"$ nccom-test {words}\n{tool('nccom.command', *words.split())}")


if __name__ == "__main__":
    main()
