"""How well Python and execution overlap: a step's time beside the larger of the two.

    python -m benchmarks.eager_steps [--only REGEX] [--repeats N] [--allow-load]

In strict and fused mode the step of each model of `benchmarks.eager_models` that enqueues fewer
calls than a queue takes is split in two: *Python*, the milliseconds to issue it while the core is
held; *execution*, those to do its work while Python waits. *step* is that of many steps, each
issued while the one before runs. A step that overlaps wholly takes the larger of the two; *ratio*
is step / larger, the goal 1.03. Where Python's time is not much smaller than execution's, both ask
for the same processors: execution uses `torch.get_num_threads()` of them, and Python one more.

Last, peak memory in each mode: of the same models, and of AdamW over 814 parameters.
"""

from __future__ import annotations

import gc
import re
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from benchmarks import eager_models, quiet
from benchmarks.harness import SAMPLE_SECONDS, Step
from torch_neuronx import _C, neuron

_MODES = ("strict", "fused")
_CAPACITY = 1000  # a little under that of a queue: a call that waits for room is no issuing


def _split(step: Step) -> tuple[float, float] | None:
    """Return milliseconds to issue a step and to do its work, one after the other.

    None if it reads values, or enqueues more than a queue takes: then it can't be held.
    """
    neuron.synchronize()
    neuron.reset_eager_stats()
    step()
    stats = neuron.eager_stats()
    neuron.synchronize()
    if stats["enqueued"] > _CAPACITY or stats["waits"] or stats["at_the_call"]:
        return None
    held = _C.TestCompletion()
    held.add_to(neuron.current_stream())
    start = time.perf_counter()
    step()
    issued = time.perf_counter()
    held.set()
    neuron.synchronize()
    return (issued - start) * 1e3, (time.perf_counter() - issued) * 1e3


def _together(step: Step, times: int) -> float:
    neuron.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        step()
    neuron.synchronize()
    return (time.perf_counter() - start) / times * 1e3


def measure(step: Step, mode: str, repeats: int) -> tuple[float, float, float] | None:
    """Return the fastest milliseconds of Python, execution and a step."""
    with neuron.eager_mode(mode):
        for _ in range(8):  # what comes again is compiled beside execution
            step()
            neuron.synchronize()
            time.sleep(0.1)
        times = max(2, round(SAMPLE_SECONDS * 1e3 / _together(step, 2)))
        found = []
        for _ in range(repeats):
            split = _split(step)
            if split is None:
                return None
            found.append((*split, _together(step, times)))
    return tuple(min(column) for column in zip(*found, strict=True))


def _adamw() -> Callable[[], None]:
    parameters = [nn.Parameter(torch.randn(64, 64, device="neuron")) for _ in range(814)]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)

    def step() -> None:
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        optimizer.zero_grad()

    return step


def peaks(make: Callable[[], Callable[[], object]]) -> dict[str, float]:
    """Return the MiB at most in use over a step, by mode."""
    found = {}
    for mode in ("debug", *_MODES):
        gc.collect()  # what earlier steps left in circles
        with neuron.eager_mode(mode):
            step = make()
            for _ in range(3):
                step()
            neuron.synchronize()
            neuron.reset_peak_memory_stats()
            for _ in range(3):
                step()
            neuron.synchronize()
            found[mode] = neuron.max_memory_allocated() / (1 << 20)
        del step
    return found


def main() -> int:
    """Measure and print both tables."""
    args = quiet.parser(__doc__, repeats=7).parse_args()

    def table(watch: quiet.Watch) -> int:
        print(f"{'ms':38} mode    Python  execution    step  ratio")
        for name, make in eager_models.WORK.items():
            if not re.search(args.only, name):
                continue
            step = make(torch.device("neuron"))
            for mode in _MODES:
                found = measure(step, mode, args.repeats)
                if found is None:
                    print(f"{name:38} {mode:6}  waits in its step, or enqueues too much")
                    continue
                python, execution, whole = found
                ratio = whole / max(python, execution)
                print(
                    f"{name:38} {mode:6} {python:7.2f} {execution:10.2f} {whole:7.2f} {ratio:6.3f}"
                )
        print(f"\n{'peak memory, MiB':38}   debug  strict   fused")
        work: dict[str, Callable[[], Callable[[], object]]] = {
            name: partial(make, torch.device("neuron")) for name, make in eager_models.WORK.items()
        }
        work["AdamW over 814 parameters"] = _adamw
        for name, make_step in work.items():
            if re.search(args.only, name):
                row = " ".join(f"{mib:7.1f}" for mib in peaks(make_step).values())
                print(f"{name:38} {row}")
        print(watch.facts())
        return 0

    return quiet.main(args, table)


if __name__ == "__main__":
    sys.exit(main())
