"""Processes for tests that need one of their own, but not the start of an interpreter.

To import PyTorch takes 1.5 s of a processor, its compiler 2 s more, and the tests start hundreds of
processes. `run` takes `subprocess.run`'s place: a server that has imported both, and nothing of
ours, forks for each. The child has the environment, the folder and the files that it is given, runs
its code as `__main__` and ends as an interpreter does. What is about the start itself (options,
environment variables that PyTorch or OpenMP read, what imports what) needs a new interpreter.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import types
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile

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
    return {k: v for k, v in os.environ.items() if not k.startswith(("NEURON_", "TORCH"))}


@cache
def _server() -> _Server:
    return _Server()


def _next_request(connection: socket.socket) -> dict[str, object]:
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
            request: dict[str, object] = json.loads(message)
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
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
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


if __name__ == "__main__":
    import gc

    import torch
    import torch._dynamo.convert_frame
    import torch._functorch.aot_autograd
    import torch._inductor.compile_fx  # noqa: F401 - which Dynamo asks for

    gc.collect()
    gc.freeze()  # what is there stays, and is not copied because somebody counts it
    _become(**_next_request(socket.socket(fileno=int(sys.argv[1]))))  # type: ignore[arg-type]
