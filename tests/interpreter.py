"""Processes for tests that need one of their own, but not the start of an interpreter.

To import PyTorch takes 1.5 s of a processor, its compiler 2 s more, and the tests start hundreds of
processes. `run` takes `subprocess.run`'s place: a server that has imported both, and nothing of
ours, forks for each. The child has the environment, the folder and the files that it is given, runs
its code as `__main__`, and ends with its threads, what `atexit` has and the right code. What is
about the start (options, environment variables that PyTorch or OpenMP read, what imports what) or
about the taking down of modules and objects at the end (a second of its own) needs `new=True`.
`started` takes `subprocess.Popen`'s place for processes that a test talks to.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NoReturn

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
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if stdout is None else stdout,
            stderr=subprocess.PIPE if stderr is None else stderr,
            text=True,
            timeout=timeout,
            check=False,
        )
    environ = _of_one_thread(environ)
    with TemporaryFile() as nothing, TemporaryFile() as out, TemporaryFile() as err:
        given = ((None, nothing), (stdout, out), (stderr, err))
        descriptors = [file.fileno() if number is None else number for number, file in given]
        with _server() as server:
            server.begin(words, environ, cwd, strict=strict, descriptors=descriptors)
            code = server.end_of_process(timeout)
        texts = [_text(file) for file in (out, err)]
    if code is None:
        raise subprocess.TimeoutExpired(list(words), timeout, *texts)
    return subprocess.CompletedProcess(list(words), code, *texts)


def _of_one_thread(env: Mapping[str, str]) -> dict[str, str]:
    environ = {"OMP_NUM_THREADS": THREADS, **env}
    if environ["OMP_NUM_THREADS"] != THREADS:
        raise ValueError(f"OMP_NUM_THREADS is {THREADS} here; start a new interpreter")
    return environ


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


@dataclass
class Running:
    """A process that runs beside the test."""

    pid: int
    stdin: IO[str]
    stdout: IO[str]
    errors: IO[bytes]
    server: _Server
    returncode: int | None = None

    def communicate(self, words: str = "", timeout: float = 60) -> tuple[str, str]:
        """Let it read the words, then nothing, and end. Returns what it says, and its errors."""
        with suppress(BrokenPipeError), self.stdin:
            self.stdin.write(words)
        said = self.stdout.read()
        self.returncode = self.server.end_of_process(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired([str(self.pid)], timeout, said)
        return said, _text(self.errors)


@contextmanager
def started(words: Sequence[str], *, env: Mapping[str, str]) -> Iterator[Running]:
    """A process as of `run` that the test talks to; what has not ended is killed with the block."""
    with ExitStack() as stack:
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        to_it = stack.enter_context(os.fdopen(ours_in, "w"))
        of_it = stack.enter_context(os.fdopen(ours_out))
        errors = stack.enter_context(TemporaryFile())
        descriptors = [theirs_in, theirs_out, errors.fileno()]
        environ = _of_one_thread(env)
        server = stack.enter_context(_server())
        child = server.begin(words, environ, ROOT, strict=False, descriptors=descriptors)
        os.close(theirs_in)
        os.close(theirs_out)
        running = Running(child, to_it, of_it, errors, server)
        try:
            yield running
        finally:
            if running.returncode is None:
                running.returncode = server.end_of_process(0)


class _Server:
    """The client's side of a server, which has one process at a time."""

    def __init__(self) -> None:
        self.connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.interpreter", str(theirs.fileno())],
                cwd=ROOT,
                env={**_plain(), "OMP_NUM_THREADS": THREADS, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
                pass_fds=[theirs.fileno()],
            )
        self.child = 0
        atexit.register(self.close)

    def close(self) -> None:
        self.connection.close()
        self.process.wait()

    def begin(
        self,
        words: Sequence[str],
        env: Mapping[str, str],
        cwd: Path | str,
        *,
        strict: bool,
        descriptors: Sequence[int],
    ) -> int:
        """Begin a process that has these three files; returns its number."""
        request = {"words": list(words), "env": env, "cwd": str(cwd), "strict": strict}
        self.connection.settimeout(None)
        socket.send_fds(self.connection, [json.dumps(request).encode()], list(descriptors))
        self.child = int(self._answer())
        return self.child

    def end_of_process(self, timeout: float) -> int | None:
        """The exit code as `subprocess` has it; None if it was killed as the time is up."""
        self.connection.settimeout(timeout)
        try:
            return int(self._answer())
        except (TimeoutError, BlockingIOError):
            os.kill(self.child, signal.SIGKILL)
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


_IDLE: list[_Server] = []


@contextmanager
def _server() -> Iterator[_Server]:
    """A server that has no process; it has none either when the block ends."""
    server = _IDLE.pop() if _IDLE else _Server()
    yield server
    _IDLE.append(server)


def _next_request(connection: socket.socket) -> dict[str, Any]:
    """Serve until there is a request, which is returned in the child that is to do it."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        if not message:
            os._exit(0)  # the client has ended
        child = os.fork()
        if child == 0:
            connection.close()
            for mine, given in enumerate(descriptors):
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
