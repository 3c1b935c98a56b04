"""What Python may call in the native core refuses what makes no sense, and never ends the process.

Whoever calls it is code of ours; but a mistake there must be an error with a place, not a process
that is gone.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from neuronxcc.compiler import compile_graph
from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, parameter
from neuronxcc.ir.node import TensorType
from neuronxcc.options import Options
from torch_neuronx import _C
from torch_neuronx.program.executable import Executable

from .bindings_sweep import EXCLUDED, functions

ROOT = Path(__file__).parents[2]
MOST = 2**63 - 1


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[list[str], str]]]:
    """By function: the arguments of each call, and its error or "returned"."""
    environ = {
        "OMP_NUM_THREADS": "1", "NEURON_RT_NUM_CORES": "2",
        "TORCH_NEURONX_REGISTRY_DIR": str(tmp_path_factory.mktemp("bindings") / "files"),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "tests.device.bindings_sweep"],
        cwd=ROOT, env={**os.environ, **environ}, capture_output=True, text=True, check=False,
        timeout=240,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, (lines[-1], done.stderr[-2000:])
    found = defaultdict(list)
    for (name, shown), outcome in zip(lines[::2], lines[1::2], strict=True):
        found[name].append((shown, outcome))
    return found


def test_every_function_was_called(outcomes: dict[str, list[tuple[list[str], str]]]) -> None:
    assert set(outcomes) == {name for name, _ in functions()}
    assert len(outcomes) > 100
    assert all(hasattr(_C, name) for name in EXCLUDED)


def test_objects_of_another_type_are_refused(
    outcomes: dict[str, list[tuple[list[str], str]]],
) -> None:
    kinds = {name: calls[0][1] for name, calls in outcomes.items()}
    assert {name for name, kind in kinds.items() if kind != "TypeError"} == set()


# Calls that must be refused, by the function; further than their types go.
REFUSED: list[tuple[str, tuple[Any, ...]]] = [
    *((name, (core,)) for core in (-1, 99, MOST) for name in (
        "memory_categories", "memory_holdings", "memory_fraction", "set_device",
        "set_default_device", "synchronize", "default_generator", "default_stream", "share_arena",
    )),
    *(("count_failure", (core, 1)) for core in (-1, 99)),
    *(("due_faults", (point, "aten::add")) for point in (-1, 99)),
    *(("set_memory_fraction", args) for args in ((0, -0.5), (0, 1.5), (0, math.nan), (99, 0.5))),
    *(("set_eager_mode", (mode,)) for mode in (-1, 3, 99)),
    *(("set_watch_waits", (watch,)) for watch in (-1, 3)),
    *(("set_portability", (mode, None)) for mode in (-1, 3)),
    ("set_direct_elements", (-1,)),
    ("start_recording", (-1, 1)),
    ("start_recording", (1, -1)),
    ("pending_count", (None,)),
    ("tally", (object(), [])),
    ("tally", (None, [(0, 1)])),
    ("keep_tallies", (b"12345678",)),  # nobody may write to it
    ("keep_tallies", (bytearray(16),)),  # numbers of 8 bits
    ("keep_tallies", (memoryview(bytearray(64)).cast("Q", (2, 4)),)),
    ("keep_tallies", (memoryview(bytearray(64)).cast("Q")[::2],)),
    ("predict_operator", (0, [(0, 1)])),  # of a kind that nobody asked for
    ("predict_operator", (MOST, None)),
    ("predict_operator", (-1, None)),
    ("finish_region", (MOST, None)),
    ("finish_region", (-1, None)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "args"), REFUSED, ids=[f"{name}-{n}" for n, (name, _) in enumerate(REFUSED)]
)
def test_what_makes_no_sense_is_refused(name: str, args: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, ValueError, RuntimeError, BufferError, IndexError)):
        getattr(_C, name)(*args)


def test_a_tally_is_a_place_in_the_memory() -> None:
    """Of a program that exists; this process keeps no memory for tallies."""
    x = parameter(0, TensorType(DType.F32, (4,)))
    program = compile_graph(Graph("twice", (x,), (build.add(x, x),)), Options())
    executable = Executable(program, torch.device("neuron", 0))
    for places in ([(0, 1)], [(MOST, 1)], [(2**64 - 1, 2**64 - 1)]):
        with pytest.raises(ValueError, match="there is no tally"):
            _C.tally(executable.run, places)
    for wrong in ([(-1, 1)], [(0, -1)], [(2**64, 1)], [0], [(0, 1, 2)], None):
        with pytest.raises(TypeError):
            _C.tally(executable.run, wrong)  # type: ignore[arg-type]
    given = torch.ones(4, device="neuron")
    (found,) = executable.run((given,))
    assert found.tolist() == [2.0] * 4
