"""Machines as people have them: containers, other users, read-only and missing directories.

Each test starts a new interpreter, which has its own mounts where the kernel allows that.
"""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What every machine must run: operators, a product that is measured first, a compiled function
# whose code is cached, a kernel, memory that processes share.
PROGRAM = """
import torch
x = torch.arange(64.0, device="neuron").reshape(8, 8)
assert torch.equal((x @ x).cpu(), x.cpu() @ x.cpu())
y = torch.compile(lambda t: (t * 2 + 1).relu().sum(1), backend="neuron")(x)
assert torch.equal(y.cpu(), (x.cpu() * 2 + 1).relu().sum(1))
big = torch.ones(64 << 20, dtype=torch.uint8, device="neuron")
assert int(big.sum()) == 64 << 20
print("computed")
"""
RANKS = """
import torch
import torch.distributed as dist
dist.init_process_group()
x = torch.full((1 << 20,), float(dist.get_rank() + 1), device="neuron")
dist.all_reduce(x)  # 4 MB, four times what is mounted
assert x.eq(3).all()
dist.destroy_process_group()
print("reduced\\n", end="")  # one write, or lines of two ranks mix
"""


def environment(**variables: str | None) -> dict[str, str]:
    """That of this process without settings of the machine; None removes a variable."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("NEURON_", "TORCH", "LOCAL_RANK", "XDG_"))
    }
    changed = kept | {"OMP_NUM_THREADS": "1"} | variables
    return {name: value for name, value in changed.items() if value is not None}


def run(command: list[str], **variables: str | None) -> str:
    """Run a command of which nothing may be said on stderr but its failure; returns its output."""
    done = subprocess.run(
        command,
        env=environment(**variables),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def python(*options: str, code: str = PROGRAM) -> list[str]:
    return [sys.executable, "-W", "error", *options, "-c", code]


@functools.cache
def can_unshare(*options: str) -> bool:
    if (unshare := shutil.which("unshare")) is None:
        return False
    done = subprocess.run([unshare, *options, "true"], check=False, capture_output=True)
    return done.returncode == 0


def mounted(preparation: str, command: list[str]) -> list[str]:
    """Let a shell command change the mounts that a command sees, and nobody else."""
    if not can_unshare("--mount"):
        pytest.skip("this user may not have mounts of its own")
    return ["unshare", "--mount", "sh", "-ec", f"{preparation}; exec {shlex.join(command)}"]


@pytest.mark.slow
@pytest.mark.every(3)
@pytest.mark.parametrize("home", [None, "/proc", "/nowhere/at/all"])
def test_no_home_to_write_in(home: str | None) -> None:
    assert run(python(), HOME=home) == "computed"


@pytest.mark.slow
def test_a_home_that_is_read_only(tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o ro,mode=0755 none {shlex.quote(str(tmp_path))}"
    assert run(mounted(mount, python()), HOME=str(tmp_path)) == "computed"


SHARED = {
    "64 MB": "mount -t tmpfs -o size=64m none /dev/shm",  # what a container has
    "1 MB": "mount -t tmpfs -o size=1m none /dev/shm",
    "read-only": "mount -t tmpfs -o ro none /dev/shm",
}


@pytest.mark.slow
@pytest.mark.every(2)
@pytest.mark.parametrize("size", ["64 MB", "1 MB", "read-only"])
def test_shared_memory_of(size: str) -> None:
    assert run(mounted(SHARED[size], python())) == "computed"


@pytest.mark.slow
def test_ranks_with_little_shared_memory() -> None:
    program = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    wrapped = mounted(SHARED["1 MB"], [*program, "--no-python", *python(code=RANKS)])
    assert run(wrapped).split() == ["reduced"] * 2


@pytest.mark.slow
def test_no_root() -> None:
    options = ("--user", "--map-user=1000")
    if not can_unshare(*options):
        pytest.skip("this user may not make a user namespace")
    code = "import os\nassert os.getuid() == 1000\n" + PROGRAM
    assert run(["unshare", *options, *python(code=code)]) == "computed"


@pytest.mark.slow
@pytest.mark.every(2)
@pytest.mark.parametrize("options", [("-O",), ("-OO",), ("-X", "dev"), ("-s", "-P")])
def test_options_of_python(options: tuple[str, ...]) -> None:
    assert run(python(*options)) == "computed"


def limits(directory: Path, **files: str) -> str:
    """Write the files of a container's limits; returns where they are."""
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(text)
    return str(directory)


THREADS = "import torch; print(torch.get_num_threads())"


@pytest.mark.slow
def test_processors_of_a_container(tmp_path: Path) -> None:
    half = limits(tmp_path, cpu__max="50000 100000")
    assert run(python(code=THREADS), TORCH_NEURONX_CGROUP_ROOT=half, OMP_NUM_THREADS=None) == "1"


@pytest.mark.slow
def test_the_user_says_how_many_threads(tmp_path: Path) -> None:
    half = limits(tmp_path, cpu__max="50000 100000")
    # oneMKL, which PyTorch asks, takes no more than there are.
    told = str(min(2, os.cpu_count() or 1))
    assert run(python(code=THREADS), TORCH_NEURONX_CGROUP_ROOT=half, OMP_NUM_THREADS=told) == told
    later = python(code=f"import torch; torch.set_num_threads(3); {THREADS}")
    assert run(later, TORCH_NEURONX_CGROUP_ROOT=half, OMP_NUM_THREADS=None) == "3"


MEMORY = """
import torch
from torch_neuronx import _C
kept = torch.ones(128 << 20, dtype=torch.uint8, device="neuron")
print(_C.host_available_bytes())
try:
    torch.empty(1 << 30, dtype=torch.uint8, device="neuron")
except torch.OutOfMemoryError as error:
    print("this machine has only 0.875 GiB of memory left" in str(error) or str(error))
"""


@pytest.mark.slow
def test_memory_of_a_container(tmp_path: Path) -> None:
    # 1 GiB, of which 256 MiB are used, half of these for files that can be read again.
    root = limits(
        tmp_path,
        memory__max=str(1 << 30),
        memory__current=str(256 << 20),
        memory__stat=f"anon 1\ninactive_file {128 << 20}\nactive_file 2\n",
    )
    left = str((1 << 30) - (128 << 20))
    assert run(python(code=MEMORY), TORCH_NEURONX_CGROUP_ROOT=root).split() == [left, "True"]


@pytest.mark.slow
def test_more_threads_than_processors() -> None:
    code = """
import torch
torch.set_num_threads(64)
assert torch.get_num_threads() == 64
torch.manual_seed(0)
x = torch.randn(515, 1030)
n = x.to("neuron")
exact = x.double() @ x.double().T
rounding = torch.finfo(torch.float32).eps * 1030 ** 0.5 * exact.abs().max()
assert ((n @ n.T).cpu() - exact).abs().max() < rounding
torch.testing.assert_close(n.softmax(1).cpu(), x.softmax(1))
torch.testing.assert_close(n.exp().sum(0).cpu(), x.exp().sum(0))
print("computed")
"""
    assert run(python(code=code)) == "computed"


FIRST_CALLS = """
import os
import torch
x = torch.rand(1 << 19, dtype=torch.float64)
wrong = 0
for _ in range(200):
    if (child := os.fork()) == 0:
        torch.set_num_threads(256)
        os._exit(not torch.equal(x.exp(), x.exp()))
    wrong += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(wrong)
"""


@pytest.mark.exhaustive
def test_the_first_exponentials_of_many_threads() -> None:
    """The second call's are oneMKL's accurate ones; about 1 in 100 of the first calls differed."""
    assert run(python(code=FIRST_CALLS)) == "0"


CELLS = """
import warnings
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell()
def cell(text):
    shell.run_cell(text, store_history=True).raise_error()
cell("import torch; x = torch.ones(4, device='neuron')")
cell("x")
cell("def double(t):\\n    return t * 2 + 1")
cell("y = torch.compile(double, backend='neuron')(x); assert y.eq(3).all()")
cell('''
import nki, nki.isa as nisa, nki.language as nl
@nki.jit
def twice(a):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=a)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=out, src=tile)
    return out
''')
cell("assert twice(torch.ones(128, 4, device='neuron')).eq(2).all()")
print("computed")
"""


@pytest.mark.slow
def test_ipython(tmp_path: Path) -> None:
    # IPython's own warnings, of a place that it cannot write to and the like, are not ours.
    command = [sys.executable, "-c", CELLS]
    assert run(command, IPYTHONDIR=str(tmp_path)).splitlines()[-1] == "computed"
