"""A copy of a process that has imported PyTorch is, for what tests look at, a new interpreter."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests import interpreter

pytest_plugins = ["pytester"]

#: Ways to use arguments, streams, the environment, and to end.
SCRIPTS = {
    "arguments": "import sys; print(sys.argv, sys.path[0] in ('', __import__('os').getcwd()))",
    "name": "print(__name__, __import__('sys').modules['__main__'].__dict__ is globals())",
    "environment": "import os; print({k: v for k, v in os.environ.items() if k[:2] == 'A_'})",
    "directory": "import os; print(os.getcwd())",
    "streams": "import sys; print('out'); print('error', file=sys.stderr)",
    "children": "import os; os.system('echo child; echo of it >&2')",
    "exit code": "raise SystemExit(3)",
    "exit text": "raise SystemExit('text')",
    "daemon": "import threading, time\n"
    "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "hook": "import sys; sys.excepthook = lambda *e: print(e[0]); 1 / 0",
    "signal": "import os; os.kill(os.getpid(), 9)",
    "end": "import atexit; atexit.register(print, 'last'); print('first')",
    "threads": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start(); print('main')",
    "warning": "import warnings; warnings.warn('careful')",
    "device": "import torch; print(torch.ones(2, device='neuron').sum().item())",
}


def both(
    tmp_path: Path, *words: str, strict: bool = False
) -> tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str]]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "A_B": "c"}
    copied, new = (
        interpreter.run(words, env=env, cwd=tmp_path, strict=strict, new=new)
        for new in (False, True)
    )
    return copied, new


@pytest.mark.every(7, "slow")
@pytest.mark.parametrize("name", SCRIPTS)
def test_what_can_be_seen_is_the_same(name: str, tmp_path: Path) -> None:
    copied, new = both(tmp_path, "-c", SCRIPTS[name], "word")
    assert (copied.returncode, copied.stdout) == (new.returncode, new.stdout)
    assert copied.stderr.splitlines()[-1:] == new.stderr.splitlines()[-1:]


def test_errors_end_as_they_do(tmp_path: Path) -> None:
    for strict, code in ((False, "1 / 0"), (True, SCRIPTS["warning"])):
        copied, new = both(tmp_path, "-c", code, strict=strict)
        assert copied.returncode == new.returncode == 1
        # Above the last two lines are frames of the server. Python 3.13 shows the text of `-c`,
        # which a copied interpreter has not.
        ends = [
            [line for line in process.stderr.splitlines() if not line.startswith("    ")][-2:]
            for process in (copied, new)
        ]
        assert ends[0] == ends[1]


def test_modules_and_files(tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text("import sys; print(__name__, sys.argv[1:])")
    for words in (("-m", "told", "a"), ("told.py", "a")):
        copied, new = both(tmp_path, *words)
        assert copied.stdout == new.stdout == "__main__ ['a']\n"


def test_streams_that_are_given(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    for unbuffered, code in (("", 120), ("1", 1)):
        env = {"PYTHONUNBUFFERED": unbuffered, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        done = interpreter.run(["-c", "print('to nobody')"], cwd=tmp_path, env=env, stdout=write)
        assert done.returncode == code
        assert "BrokenPipeError" in done.stderr
    os.close(write)


def test_too_slow() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        interpreter.run(["-c", "import time; time.sleep(60)"], timeout=0.5)
    assert interpreter.run(["-c", "print(1)"]).stdout == "1\n"


def test_other_numbers_of_threads_need_a_new_interpreter() -> None:
    with pytest.raises(ValueError, match="OMP_NUM_THREADS is 1 here"):
        interpreter.run(["-c", ""], env={"OMP_NUM_THREADS": "2"})


def test_one_case_of_n(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("from tests.conftest import pytest_collection_modifyitems")
    pytester.makeini("[pytest]\nmarkers = every(n): n\n exhaustive: rest\n")
    pytester.makepyfile(
        """
        import pytest
        @pytest.mark.every(3)
        @pytest.mark.parametrize("n", range(8))
        def test_many(n): pass
        @pytest.mark.parametrize("n", range(2))
        def test_few(n): pass
        """
    )
    chosen = pytester.inline_run("-m", "not exhaustive", "-p", "no:xdist")
    names = [call.item.name for call in chosen.getcalls("pytest_runtest_call")]
    assert names == ["test_many[0]", "test_many[3]", "test_many[6]", "test_few[0]", "test_few[1]"]
