"""The compile cache between processes: one builds, the others wait, a killed one harms nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from neuronxcc.cache import locks
from neuronxcc.cache.cache import VERSION_FOLDER, CompileCache
from neuronxcc.cache.key import CacheKey
from neuronxcc.cache.local import LocalStore
from neuronxcc.cache.locks import file_lock
from neuronxcc.options import Options
from tests.compiler.neff_programs import large_program, same

ROOT = Path(__file__).parents[2]
OPTIONS = Options()
KEY = CacheKey.of({"graph": "g"})  # not of the sources, which may change while a test runs
PROGRAM = large_program(layers=1)

# A process that compiles KEY in the cache of its first argument. `build` leaves a file of its own,
# and does what the second argument says.
CHILD = """
import os, sys, time
from pathlib import Path
from tests.compiler.test_cache_processes import KEY, OPTIONS, PROGRAM, open_at

root, what = Path(sys.argv[1]), sys.argv[2]

def build():
    (root.parent / f"built-{os.getpid()}").touch()
    time.sleep(60 if what == "hang in build" else 0.2)
    return PROGRAM

if what == "hang in write":
    def write(descriptor, data):
        written = os.pwrite(descriptor, data[:100], 0)
        (root.parent / f"written-{os.getpid()}").touch()
        time.sleep(60)
        return written
    os.write = write

compiled = open_at(root).compile(KEY, build, OPTIONS)
os._exit(10 if compiled.hit else 11)
"""


def open_at(root: Path) -> CompileCache:
    return CompileCache(LocalStore(root, VERSION_FOLDER))


def child(root: Path, what: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CHILD, str(root), what], cwd=ROOT)


def wait_for(folder: Path, pattern: str) -> None:
    deadline = time.monotonic() + 60
    while not list(folder.glob(pattern)):
        assert time.monotonic() < deadline, f"no {pattern}"
        time.sleep(0.01)


def temporary(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.name.startswith(".tmp-")]


def test_several_processes_build_once(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    children = [child(root, "") for _ in range(3)]
    codes = sorted(process.wait(60) for process in children)
    assert codes == [10, 10, 11]
    assert len(list(tmp_path.glob("built-*"))) == 1
    assert open_at(root).compile(KEY, pytest.fail, OPTIONS).hit


@pytest.mark.parametrize("what", ["hang in build", "hang in write"])
def test_a_killed_writer(tmp_path: Path, what: str) -> None:
    root = tmp_path / "cache"
    process = child(root, what)
    wait_for(tmp_path, "built-*" if what == "hang in build" else "written-*")
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    assert len(temporary(root)) == (what == "hang in write")
    cache = open_at(root)
    assert cache.lookup(KEY) is None
    start = time.monotonic()
    compiled = cache.compile(KEY, lambda: PROGRAM, OPTIONS)
    assert time.monotonic() - start < locks.PATIENCE_SECONDS  # the lock died with its holder
    assert not compiled.hit
    assert same(compiled.program, PROGRAM)
    assert not temporary(root)
    assert cache.compile(KEY, pytest.fail, OPTIONS).hit


def test_a_writer_killed_while_others_wait(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    first = child(root, "hang in build")
    wait_for(tmp_path, "built-*")
    second = child(root, "")
    time.sleep(0.5)
    first.kill()
    assert second.wait(30) == 11
    first.wait(10)


def test_who_waits_is_told_for_whom(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "PATIENCE_SECONDS", 0.1)
    root = tmp_path / "cache"
    process = child(root, "hang in build")
    wait_for(tmp_path, "built-*")
    threading.Timer(0.5, process.kill).start()
    assert not open_at(root).compile(KEY, lambda: PROGRAM, OPTIONS).hit
    assert capfd.readouterr().err.splitlines() == [
        (
            f"[neuron cache] waiting for process {process.pid}, which is compiling the same graph "
            f"({KEY.folder})"
        )
    ]
    process.wait(10)


FORK = """
import os, signal, sys, time
from pathlib import Path
from neuronxcc.cache.locks import file_lock

path = Path(sys.argv[1])
with file_lock(path, sys.exit):
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
start = time.monotonic()
with file_lock(path, sys.exit):
    waited = time.monotonic() - start
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
assert waited < 1, waited
"""


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", FORK, str(tmp_path / "lock")], cwd=ROOT, check=True)


def test_a_lock_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError), file_lock(tmp_path, pytest.fail):
        pytest.fail("locked")
