"""One sample of a first call, or of a step's memory, in a process that has done nothing before.

    python -m benchmarks.compiled.child compile CASE BACKEND [--threads N]   # one JSON line
    python -m benchmarks.compiled.child memory training BACKEND [--threads N]

`sample` starts it with caches in a directory of the caller's: an empty one makes it cold.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.compiled import functions

NEURON, INDUCTOR, EAGER = "neuron", "inductor", "eager"
MAKERS: dict[str, Callable[[torch.device], functions.Case]] = {}
WARM_UP = 3


@dataclass(frozen=True)
class Seconds:
    """Of a first call; each includes the next.

    Attributes:
        whole: From before `torch.compile` until the result is there, imports included.
        backend: What Dynamo waited for the backend, AOTAutograd included.
        ours: From where AOTAutograd hands its graph over to the loaded program.
    """

    whole: float
    backend: float
    ours: float


@dataclass(frozen=True)
class Peak:
    """Bytes of device memory over one training step, after a warm-up.

    Attributes:
        peak: The most that was allocated at once.
        before: Allocated between steps: parameters, gradients, the optimizer's state, data.
    """

    peak: int
    before: int


def small(device: torch.device) -> functions.Case:
    """RMSNorm of 64x64, then gelu."""
    generator = torch.Generator().manual_seed(1)
    x, weight = (torch.randn(*n, generator=generator).to(device) for n in ((64, 64), (64,)))

    def function(x: Tensor, weight: Tensor) -> Tensor:
        return functional.gelu(functions.rms_norm(x, weight))

    return functions.inference(function, x, weight)


def layered(device: torch.device, layers: int) -> functions.Case:
    """A GPT-2 of small width and so many layers: programs grow with these, not with that."""
    model = functions.gpt2_model(device, torch.float32, n_layer=layers, n_embd=192, n_head=3)
    ids = torch.arange(64, device=device).view(1, 64)

    def function(ids: Tensor) -> Tensor:
        logits: Tensor = model(ids, use_cache=False).logits
        return logits

    return functions.inference(function, ids)


MAKERS["small"] = small
MAKERS["gpt2"] = partial(functions.gpt2, batch=1, tokens=256, dtype=torch.float32)
for _layers in (12, 24, 48):
    MAKERS[f"layers{_layers}"] = partial(layered, layers=_layers)
MAKERS["training"] = functions.training


def first_call(case: str, backend: str) -> Seconds:
    """Compile a case and run it once."""
    made = MAKERS[case](torch.device(NEURON if backend == NEURON else "cpu"))
    torch.accelerator.synchronize()
    gc.collect()
    spent: list[float] = []
    start = time.perf_counter()
    made.call(torch.compile(made.function, backend=_timed(spent) if backend == NEURON else backend))
    torch.accelerator.synchronize()
    whole = time.perf_counter() - start
    # Dynamo's own clocks: seconds of every run of a phase. Its import is part of the whole.
    from torch._dynamo.utils import compilation_time_metrics as phases  # noqa: PLC0415

    if backend != NEURON:
        spent = phases.get("compile_fx.<locals>.fw_compiler_base", [])  # none: it was cached
    return Seconds(whole, sum(phases["OutputGraph.call_user_compiler"]), sum(spent))


def _timed(spent: list[float]) -> Callable[..., Any]:
    """Our backend, which appends the seconds of every graph; imported here as Dynamo would."""
    from torch_neuronx.dynamo import backend  # noqa: PLC0415 - part of what is measured

    def one(*args: Any, **kwargs: Any) -> backend.Compiled:
        start = time.perf_counter()
        compiled = backend.compile_graph(*args, **kwargs)
        spent.append(time.perf_counter() - start)
        return compiled

    def compiler(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> backend.Compiled:
        return backend.compile_static(gm, inputs, options={}, compile_one=one)

    return compiler


def step_memory(case: str, backend: str) -> Peak:
    """The memory of one step on the device; backend "eager" compiles nothing."""
    made = MAKERS[case](torch.device(NEURON))
    function = made.function if backend == EAGER else torch.compile(made.function, backend=backend)
    for _ in range(WARM_UP):
        made.call(function)
    gc.collect()
    torch.accelerator.synchronize()
    before = torch.accelerator.memory_allocated()
    torch.accelerator.reset_peak_memory_stats()
    made.call(function)
    torch.accelerator.synchronize()
    return Peak(torch.accelerator.max_memory_allocated(), before)


TASKS: dict[str, Callable[[str, str], Seconds | Peak]] = {
    "compile": first_call,
    "memory": step_memory,
}


def sample(caches: Path, task: str, case: str, backend: str, threads: int) -> dict[str, Any]:
    """The fields of what a new process found.

    Args:
        caches: Where everything that is kept on disk goes, ours and Inductor's.
        task: A key of TASKS.
        case: A key of MAKERS.
        backend: Of `torch.compile`; for memory also "eager".
        threads: Of the host.

    Raises:
        CalledProcessError: The process failed; it said why on the terminal.
    """
    # Bytecode is kept, as an installation has it; it is no cache of ours.
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    places = {
        "XDG_CACHE_HOME": str(caches / "user"),
        "TORCH_NEURONX_NEFF_CACHE_DIR": str(caches / "programs"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
    }
    command = [sys.executable, "-m", "benchmarks.compiled.child", task, case, backend]
    done = subprocess.run(  # noqa: S603 - our own interpreter and module
        [*command, "--threads", str(threads)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
        env={**inherited, **places},
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="One sample, as a line of JSON.")
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("case", choices=MAKERS)
    parser.add_argument("backend", choices=(NEURON, INDUCTOR, EAGER))
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(json.dumps(asdict(TASKS[options.task](options.case, options.backend))))


if __name__ == "__main__":
    main()
