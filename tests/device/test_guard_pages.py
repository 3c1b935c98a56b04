"""Guard pages between the arena's blocks: who touches anything else is ended, with a trace."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from tests import interpreter

_PRELUDE = """
import ctypes, faulthandler, torch
faulthandler.enable()
def read(address):
    return ctypes.string_at(address, 1)
"""


def child(code: str, guards: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "TORCH_NEURONX_GUARD_PAGES": guards}
    return interpreter.run(["-c", _PRELUDE + code], env=environ)


@pytest.mark.parametrize("guards", ["after", "before"])
def test_a_read_outside_ends_the_process(guards: str) -> None:
    # Blocks begin at multiples of 64 bytes, so up to 63 bytes behind one are not out of reach.
    found = child(
        f"""
import os, signal
live = [torch.ones(n, device="neuron") for n in (1, 16, 1000, 100_000, 700_000)]
for t in live:
    first, size = t.data_ptr(), 4 * t.numel()
    assert first % 64 == 0 and t.sum().item() == t.numel()
    read(first), read(first + size - 1)
    outside = first + (size + 63) // 64 * 64 if {guards == "after"} else first - 1
    child = os.fork()
    if child == 0:
        read(outside)
        os._exit(0)
    assert os.waitpid(child, 0)[1] & 127 == signal.SIGSEGV, t.numel()
print("inside", flush=True)
read(outside)
print("outside", flush=True)
""",
        guards,
    )
    assert found.returncode == -signal.SIGSEGV, found
    assert found.stdout == "inside\n"
    assert "in read" in found.stderr  # the trace says where


@pytest.mark.parametrize("guards", ["after", "before"])
def test_a_write_beside_a_block_is_seen_when_it_is_freed(guards: str) -> None:
    found = child(
        """
t = torch.ones(3, device="neuron")
ctypes.memset(t.data_ptr() + 12, 7, 1)
print("written", flush=True)
del t
print("freed", flush=True)
""",
        guards,
    )
    assert found.returncode == -signal.SIGABRT, found
    assert found.stdout == "written\n"
    assert "something wrote beside a block of 12 bytes on neuron:0" in found.stderr


@pytest.mark.parametrize("guards", ["after", "before"])
def test_freed_memory_is_out_of_reach(guards: str) -> None:
    found = child(
        """
t = torch.ones(1000, device="neuron")
address = t.data_ptr()
del t
print("freed", flush=True)
read(address)
""",
        guards,
    )
    assert found.returncode == -signal.SIGSEGV, found
    assert found.stdout == "freed\n"


@pytest.mark.parametrize("guards", ["after", "before"])
def test_programs_run_as_ever(guards: str) -> None:
    found = child(
        """
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(33, 65), torch.nn.GELU(), torch.nn.Linear(65, 3))
x = torch.randn(7, 33)
expected = model(x)
expected.sum().backward()
wanted = [p.grad.clone() for p in model.parameters()]
model.zero_grad()
on_core = model.to("neuron")
for run in (on_core, torch.compile(on_core, backend="neuron")):
    on_core.zero_grad()
    got = run(x.to("neuron"))
    got.sum().backward()
    torch.testing.assert_close(got.cpu(), expected)
    for p, w in zip(model.parameters(), wanted):
        torch.testing.assert_close(p.grad.cpu(), w)
optimizer = torch.optim.AdamW(on_core.parameters())
optimizer.step()
before = torch.neuron.memory_allocated()
for n in range(1, 3000, 7):
    torch.empty(n, device="neuron").fill_(1)
torch.neuron.empty_cache()
assert torch.neuron.memory_allocated() == before
print("done")
""",
        guards,
    )
    assert found.returncode == 0, found
    assert found.stdout == "done\n"


def test_another_value_is_refused() -> None:
    found = child("torch.ones(1, device='neuron')", "yes")
    assert found.returncode == 1
    expected = "TORCH_NEURONX_GUARD_PAGES='yes' is not valid; allowed: after, before"
    assert expected in found.stderr
