"""torch.neuron.utilization and list_gpu_processes: the tools' numbers from within a process."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests import interpreter
from tests.neuron_tools.test_live import process

_PROCESS = re.compile(r"process +(\d+) uses +(\d+\.\d{3}) MB GPU memory")


def asked(code: str, folder: Path | str, **environ: str) -> str:
    """What a new process prints."""
    env = {**os.environ, "TORCH_NEURONX_REGISTRY_DIR": str(folder), **environ}
    done = interpreter.run(["-c", f"import json, os, time, torch\n{code}"], env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_processes_of_a_core(folder: Path) -> None:
    """Those of this core alone: of a process that sees cores 2 and 3 and has used the first."""
    code = """
x = torch.ones(3 << 20, device="neuron")
print(os.getpid())
print(json.dumps([torch.neuron.list_gpu_processes(i) for i in range(3)]))
print(torch.neuron.memory_reserved(0))
"""
    with process("work", folder=folder, NEURON_RT_VISIBLE_CORES="2-3") as other:
        pid, said, reserved = asked(code, folder, NEURON_RT_VISIBLE_CORES="1-3").splitlines()
    first, second, third = json.loads(said)
    name, line = first.splitlines()
    assert name == "GPU:1"
    found = _PROCESS.fullmatch(line)
    assert found is not None
    assert found[1] == pid
    assert float(found[2]) == round(int(reserved) / 2**20, 3)
    name, line = second.splitlines()
    assert name == "GPU:2"
    found = _PROCESS.fullmatch(line)
    assert found is not None
    assert int(found[1]) == other.pid
    assert float(found[2]) > 0
    assert third == "GPU:3\nno processes are running"


def test_a_core_that_is_used_and_one_that_is_not(folder: Path) -> None:
    """Of what has passed since the last call; the rest of the time the process slept."""
    code = """
x = torch.ones(1 << 20, device="neuron")
print(torch.neuron.utilization(), torch.neuron.utilization("neuron:1"))
begin = time.monotonic()
while time.monotonic() < begin + 0.5:
    torch.add(x, x)
torch.neuron.synchronize()
print(torch.neuron.utilization(0), torch.neuron.utilization(1))
time.sleep(0.5)
print(torch.neuron.utilization(0))
"""
    first, used, slept = asked(code, folder).splitlines()
    assert first == "0 0"  # both calls waited, and nothing ran meanwhile
    assert used.split()[1] == "0"
    assert 5 < int(used.split()[0]) <= 100
    assert slept == "0"


def test_without_a_file_nobody_counts() -> None:
    code = """
for ask in (torch.neuron.utilization, torch.neuron.list_gpu_processes):
    try:
        ask()
    except RuntimeError as error:
        print(error)
"""
    first, second = asked(code, "off").splitlines()
    assert first == second
    assert first.startswith("nobody counts what uses the device: TORCH_NEURONX_REGISTRY_DIR is off")


@pytest.mark.parametrize("name", ["temperature", "power_draw", "clock_rate", "memory_usage"])
def test_what_nobody_measures_is_not_there(name: str) -> None:
    code = f"""
try:
    torch.neuron.{name}
except AttributeError as error:
    print(error)
"""
    assert "torch.neuron.utilization" in asked(code, "off")
