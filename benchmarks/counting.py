"""What it costs that every execution is counted for the tools.

Run it as ``python -m benchmarks.counting [--other DIR] [--rounds N]``: it prints the nanoseconds of
calls so small that the counting could show. Two builds are compared by naming the other one's
folder: each is measured by processes of its own, in turn, and the least of all is printed.
With ``--registry`` it compares a process that keeps no file, one that does, and one that also
counts predicted times, for the build in this folder.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

# Runs in either build, so it imports nothing of this folder.
PROGRAM = """
import json, time, torch
torch.set_num_threads(1)
x, y = torch.ones(16, device="neuron"), torch.ones(16, device="neuron")
small = torch.ones(4, 4, device="neuron")
compiled = torch.compile(lambda a, b: a + b * 2, backend="neuron")
compiled(x, y)
calls = {
    "add, 16 elements": lambda: torch.add(x, y),
    "add_, 16 elements": lambda: x.add_(y),
    "view, 16 elements": lambda: x.view(4, 4),
    "empty, 16 elements": lambda: torch.empty(16, device="neuron"),
    "mm, 4 x 4": lambda: torch.mm(small, small),
    "cumsum, 16 elements (boxed)": lambda: torch.cumsum(x, 0),
    "compiled, 16 elements": lambda: compiled(x, y),
}
found = {}
for name, call in calls.items():
    times = []
    for _ in range(60):
        start = time.perf_counter()
        for _ in range(500):
            call()
        times.append((time.perf_counter() - start) / 500)
    found[name] = min(times) * 1e9
print(json.dumps(found))
"""


# What processes are told, by what the column is called.
AS_IT_IS: dict[str, dict[str, str]] = {"": {}}
REGISTRY = {
    "no file": {"TORCH_NEURONX_REGISTRY_DIR": "off"},
    "a file": {"TORCH_NEURONX_CLOCK": "host"},
    "and predictions": {"TORCH_NEURONX_CLOCK": "model"},
}


def measure(folder: Path, environ: dict[str, str]) -> dict[str, float]:
    """Nanoseconds of each call, in a process of its own with the build in a folder."""
    python = folder / ".venv" / "bin" / "python"
    done = subprocess.run(  # noqa: S603
        [str(python if python.exists() else sys.executable), "-c", PROGRAM],
        cwd=folder,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--other", type=Path, help="folder of the build to compare with")
    parser.add_argument(
        "--registry", action="store_true", help="compare with and without a file, and predictions"
    )
    parser.add_argument("--rounds", type=int, default=5, help="processes of each build")
    options = parser.parse_args()
    other = options.other
    here = Path(__file__).parents[1]
    folders = [here] if other is None else [other, here]
    columns = [
        (folder, told, environ)
        for folder in folders
        for told, environ in (REGISTRY if options.registry else AS_IT_IS).items()
    ]
    best: list[dict[str, float]] = [{} for _ in columns]
    for _ in range(options.rounds):
        for known, (folder, _told, environ) in zip(best, columns, strict=True):
            for name, time in measure(folder, environ).items():
                known[name] = min(time, known.get(name, time))
    if options.registry:
        print(" " * 30, *(f"{told:>17}" for _, told, _ in columns))
    for name in best[0]:
        print(f"{name:<30}", *(f"{known[name]:14.0f} ns" for known in best))


if __name__ == "__main__":
    main()
