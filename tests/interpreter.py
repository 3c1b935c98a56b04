"""Processes for tests that need one of their own, but not the start of an interpreter.

To import PyTorch takes 1.5 s of a processor, its compiler 2 s more, and the tests start hundreds of
processes. `run` takes `subprocess.run`'s place: a server that has imported both, and nothing of
ours, forks for each. The child has the environment, the folder and the files that it is given, runs
its code as `__main__`, and ends with its threads, what `atexit` has and the right code. What is
about the start (options, environment variables that PyTorch or OpenMP read, what imports what) or
about the taking down of modules and objects at the end (a second of its own) needs `new=True`.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import types
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn

ROOT = Path(__file__).parents[1]
# The server's OpenMP has read how many threads there are.
THREADS = "1"


def run(
    words: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | str = ROOT,
    stdout: int | None = None,
    stderr: int | None = None,
    timeout: float = 120,
    strict: bool = False,
    new: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run ``python WORDS``, which are ``-c CODE``, ``-m MODULE`` or a path, and arguments.

    Args:
        words: what follows `python` on a command line; no options of the interpreter.
        env: all environment variables of the process, by default those of this one.
        cwd: its directory, also the first of its path of modules.
        stdout: a file descriptor for what it prints; by default the result has it as text.
        stderr: the same of what it prints to standard error.
        timeout: seconds after which it is killed.
        strict: warnings are errors, as by `python -W error`.
        new: start an interpreter, for what depends on the start.

    Raises:
        subprocess.TimeoutExpired: it took longer.
    """
    environ = {**(os.environ if env is None else env)}
    if new:
        return subprocess.run(
            [sys.executable, *(["-W", "error"] if strict else []), *words],
            env=environ,
            cwd=cwd,
            stdout=subprocess.PIPE if stdout is None else stdout,
            stderr=subprocess.PIPE if stderr is None else stderr,
            text=True,
            timeout=timeout,
            check=False,
        )
    if environ.setdefault("OMP_NUM_THREADS", THREADS) != THREADS:
        raise ValueError(f"OMP_NUM_THREADS is {THREADS} here; start a new interpreter")
    with TemporaryFile() as out, TemporaryFile() as err:
        descriptors = [out.fileno() if stdout is None else stdout]
        descriptors.append(err.fileno() if stderr is None else stderr)
        request = {"words": list(words), "env": environ, "cwd": str(cwd), "strict": strict}
        code = _server().run(json.dumps(request).encode(), descriptors, timeout)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    if code is None:
        raise subprocess.TimeoutExpired(list(words), timeout, *texts)
    return subprocess.CompletedProcess(list(words), code, *texts)


class _Server:
    """The client's side: one server for each process that starts others."""

    def __init__(self) -> None:
        self.connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.interpreter", str(theirs.fileno())],
                cwd=ROOT,
                env={**_plain(), "OMP_NUM_THREADS": THREADS, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.end)

    def end(self) -> None:
        self.connection.close()
        self.process.wait()

    def run(self, request: bytes, descriptors: Sequence[int], timeout: float) -> int | None:
        """The exit code as `subprocess` has it; None after the time is up."""
        self.connection.settimeout(None)
        socket.send_fds(self.connection, [request], list(descriptors))
        child = int(self._answer())
        self.connection.settimeout(timeout)
        try:
            return int(self._answer())
        except TimeoutError:
            os.kill(child, signal.SIGKILL)
            self.connection.settimeout(None)
            self._answer()
            return None

    def _answer(self) -> bytes:
        answer = self.connection.recv(64)
        if not answer:
            raise RuntimeError(f"the server of processes has ended with {self.process.wait()}")
        return answer


def _plain() -> dict[str, str]:
    """This environment without what would change the server: `_become` adds what is asked for."""
    kept = os.environ.items()
    return {k: v for k, v in kept if not k.startswith(("NEURON_", "TORCH", "PYTHON"))}


@cache
def _server() -> _Server:
    return _Server()


def _next_request(connection: socket.socket) -> dict[str, Any]:
    """Serve until there is a request, which is returned in the child that is to do it."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 2)
        if not message:
            os._exit(0)  # the client has ended
        child = os.fork()
        if child == 0:
            connection.close()
            for mine, given in enumerate(descriptors, start=1):
                os.dup2(given, mine)
                os.close(given)
            request: dict[str, Any] = json.loads(message)
            return request
        for given in descriptors:
            os.close(given)
        connection.send(b"%d" % child)
        _, status = os.waitpid(child, 0)
        connection.send(b"%d" % os.waitstatus_to_exitcode(status))


def _become(words: list[str], env: dict[str, str], cwd: str, *, strict: bool) -> None:
    """Be a new interpreter with these words, as far as that can be seen."""
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.path[0] = cwd
    sys.path[1:1] = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    if env.get("PYTHONUNBUFFERED"):
        for name, descriptor in (("stdout", 1), ("stderr", 2)):
            raw = io.FileIO(descriptor, "w", closefd=False)
            setattr(sys, name, io.TextIOWrapper(raw, encoding="utf-8", write_through=True))
    if strict:
        warnings.simplefilter("error")
    if env.get("TORCH_DEVICE_BACKEND_AUTOLOAD") != "0":
        import torch  # noqa: PLC0415 - the server has not loaded it before

        torch._import_device_backends()  # as `import torch` does

    kind, *rest = words
    if kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)  # noqa: S102
    else:
        sys.argv = words
        runpy.run_path(kind, run_name="__main__")


def _end(error: BaseException | None) -> NoReturn:
    """End as an interpreter does, up to where it takes its modules down."""
    code: object = None
    if isinstance(error, SystemExit):
        code = error.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)  # noqa: T201
            code = 1
    elif error is not None:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError as failure:
        print(f"{type(failure).__name__}: {failure}", file=sys.stderr)  # noqa: T201
        code = 120
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0)


def _child(request: dict[str, Any]) -> NoReturn:
    error: BaseException | None = None
    try:
        _become(**request)
    except BaseException as raised:  # noqa: BLE001 - told by the exit code
        error = raised
    _end(error)


if __name__ == "__main__":
    import gc

    import llvmlite.binding  # noqa: F401
    import ml_dtypes  # noqa: F401
    import torch
    import torch._dynamo.convert_frame
    import torch._functorch.aot_autograd
    import torch._inductor.compile_fx  # noqa: F401 - what compiling takes

    gc.collect()
    gc.freeze()  # what is there is not copied because somebody looks for circles
    _child(_next_request(socket.socket(fileno=int(sys.argv[1]))))
