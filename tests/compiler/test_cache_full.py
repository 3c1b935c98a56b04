"""A disk that is full, or that can't be written to: one line per process, with a remedy."""

import errno
import os
from pathlib import Path

import pytest

from tests import interpreter

# Three programs with several kernels each, of which every file fails in the way that is asked for.
CODE = """
import errno, os, sys, warnings
import torch

number, failing, places = int(sys.argv[1]), sys.argv[2], tuple(sys.argv[3:])
real = {name: getattr(os, name) for name in ("open", "mkdir", "write", "pwrite")}
opened = {}

def within(path, folder):
    path = os.fspath(path)
    return path.startswith(places) if folder is None else opened.get(folder, False)

def fail(path):
    raise OSError(number, os.strerror(number), path)

def open_(path, flags, mode=0o777, *, dir_fd=None):
    inside = within(path, dir_fd)
    if inside and flags & os.O_CREAT and failing == "open":
        fail(path)
    descriptor = real["open"](path, flags, mode, dir_fd=dir_fd)
    opened[descriptor] = inside
    return descriptor

def mkdir(path, mode=0o777, *, dir_fd=None):
    if within(path, dir_fd) and failing == "mkdir":
        fail(path)
    return real["mkdir"](path, mode, dir_fd=dir_fd)

def write(descriptor, data):
    if opened.get(descriptor) and failing == "write":
        fail("")
    return real["write"](descriptor, data)

torch.zeros(1, device="neuron")
os.open, os.mkdir, os.write = open_, mkdir, write
warnings.simplefilter("always")
for scale in (2, 3, 4):
    def function(x):
        return ((x * scale).sum(0) + x.cumsum(0)).softmax(0)
    torch.compiler.reset()
    x = torch.ones(4, 3, device="neuron")
    assert torch.compile(function, backend="neuron")(x).shape == (4, 3)
"""

LASTING = {
    errno.ENOSPC: "No space left on device",
    errno.EDQUOT: "Disk quota exceeded",
    errno.EROFS: "Read-only file system",
}


def lines(number: int, failing: str, home: Path) -> list[str]:
    """What such a process says of it."""
    environ = {
        **os.environ,
        "XDG_CACHE_HOME": str(home / "kernels"),
        "TORCH_NEURONX_NEFF_CACHE_DIR": str(home / "programs"),
        "NEURON_CC_FLAGS": "",
    }
    process = interpreter.run(["-c", CODE, str(number), failing, str(home)], env=environ)
    assert process.returncode == 0, process.stderr
    return [line for line in process.stderr.splitlines() if os.strerror(number) in line]


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("number", "failing"),
    [
        (errno.ENOSPC, "open"),
        (errno.ENOSPC, "write"),
        (errno.ENOSPC, "mkdir"),
        (errno.EDQUOT, "write"),
        (errno.EROFS, "open"),
        (errno.EROFS, "mkdir"),
    ],
)
def test_a_process_says_it_once(number: int, failing: str, tmp_path: Path) -> None:
    (line,) = lines(number, failing, tmp_path)
    assert LASTING[number] in line
    assert "this process keeps nothing that it compiles while that lasts" in line
    assert "set TORCH_NEURONX_NEFF_CACHE_DIR (programs) and XDG_CACHE_HOME (machine code)" in line
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".tmp-")]


def test_what_may_pass_is_said_for_each_program(tmp_path: Path) -> None:
    assert len(lines(errno.EIO, "open", tmp_path)) >= 3
