"""Forks groups of ranks and harms them: `python fault_server.py SCENARIO REPETITIONS SEED`.

Importing PyTorch takes longer than all that happens to a group here, so it is imported once, and
the ranks are forked before the device is used. Every scenario checks for itself and raises; at the
end no process and no memory file may be left.
"""

# ruff: noqa: S108, PTH115, PTH116, T201 - it looks at /tmp and links, and reports by printing
import faulthandler
import itertools
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore, Store

PATIENCE = 30.0  # seconds after which a rank that hasn't ended is a failure of the test
TIMEOUT = 10.0  # of the groups, unless a scenario has its own

Rank = Callable[[int], Any]


@dataclass
class Job:
    """The processes of one group; each sends what its function returned, as JSON."""

    pids: list[int]
    pipes: list[int]
    codes: dict[int, int] = field(default_factory=dict)
    answers: dict[int, Any] = field(default_factory=dict)

    def answer(self, rank: int) -> Any:
        """Wait until one rank has answered; None if it ended without an answer."""
        if rank not in self.answers:
            with os.fdopen(self.pipes[rank]) as stream:
                readable = _readable(self.pipes[rank], time.monotonic() + PATIENCE)
                text = stream.read() if readable else self.fail(rank)
            self.answers[rank] = json.loads(text) if text else None
        return self.answers[rank]

    def end(self) -> list[Any]:
        """Wait for all ranks and return their answers, None from those without one."""
        answers = [self.answer(rank) for rank in range(len(self.pids))]
        deadline = time.monotonic() + PATIENCE
        for rank, pid in enumerate(self.pids):
            while rank not in self.codes:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    self.codes[rank] = os.waitstatus_to_exitcode(status)
                elif time.monotonic() > deadline:
                    self.fail(rank)
                else:
                    time.sleep(0.002)
        return answers

    def end_well(self) -> list[Any]:
        """The same, of ranks that all leave as they should."""
        answers = self.end()
        wrong = {rank: _ending(code) for rank, code in self.codes.items() if code != 0}
        assert not wrong, f"of {len(self.pids)} ranks, these ended badly: {wrong}; {answers}"
        return answers

    def fail(self, rank: int) -> NoReturn:
        """Let all ranks print where they are, then kill them."""
        # Those that were waited for may have left their number to a stranger.
        pids = [pid for r, pid in enumerate(self.pids) if r not in self.codes]
        for pid in pids:
            os.kill(pid, signal.SIGUSR1)
        time.sleep(0.5)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        raise AssertionError(f"rank {rank} has not ended after {PATIENCE} s")

    def send(self, number: signal.Signals, *ranks: int) -> None:
        for rank in ranks:
            os.kill(self.pids[rank], number)


class Gate:
    """What processes forked later wait for, so that no scenario has to guess how long things take.

    A pipe: `open` writes a byte, `wait` reads as many as it is to wait for.
    """

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()

    def open(self) -> None:
        os.write(self.writer, b".")

    def wait(self, count: int = 1) -> None:
        deadline = time.monotonic() + PATIENCE
        for _ in range(count):
            assert _readable(self.reader, deadline), f"the gate stays shut for {PATIENCE} s"
            os.read(self.reader, 1)

    def close(self) -> None:
        os.close(self.reader)
        os.close(self.writer)


@contextmanager
def gate() -> Iterator[Gate]:
    made = Gate()
    try:
        yield made
    finally:
        made.close()


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def _readable(pipe: int, deadline: float) -> bool:
    import select  # noqa: PLC0415

    ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
    return bool(ready)


def start(
    world: int,
    function: Rank,
    *,
    timeout: float = TIMEOUT,
    leave: bool = False,
    refused: bool = False,
    layout: str | None = None,
) -> Job:
    """Fork ``world`` ranks that form a group and call ``function(rank)``.

    With ``leave`` a rank ends as a Python program does, without destroying its group; with
    ``refused`` an error of making the group is an answer too. Rank r believes to be on host
    ``layout[r]``.
    """
    store = tempfile.mktemp(dir=FOLDER)  # noqa: S306 - the store makes it
    job = Job([], [])
    for rank in range(world):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            if layout is not None:
                os.environ["TORCH_NEURONX_HOST_ID"] = layout[rank]
            part = Part(rank, world, function, store, timeout, writer)
            _be(part, leave=leave, refused=refused)
        os.close(writer)
        job.pids.append(pid)
        job.pipes.append(reader)
    return job


@dataclass
class Part:
    """What a forked rank is told."""

    rank: int
    world: int
    function: Rank
    store: str
    timeout: float
    writer: int

    def join(self) -> None:
        torch.accelerator.set_device_index(self.rank)
        dist.init_process_group(
            "neuron",
            store=FileStore(self.store, self.world),
            rank=self.rank,
            world_size=self.world,
            timeout=timedelta(seconds=self.timeout),
        )


def _be(part: Part, *, leave: bool, refused: bool) -> NoReturn:
    code = 1
    try:
        answer = None
        if refused:
            answer = outcome(part.join)
        else:
            part.join()
        if answer is None:
            answer = part.function(part.rank)
        with os.fdopen(part.writer, "w") as stream:
            json.dump(answer, stream)
        if leave:
            raise SystemExit(0)  # noqa: TRY301
        if dist.is_initialized():
            dist.destroy_process_group()
        code = 0
    except Exception:  # noqa: BLE001 - whatever it is, this process ends with it
        sys.excepthook(*sys.exc_info())
    sys.stderr.flush()
    os._exit(code)


def filled(value: float, *shape: int) -> torch.Tensor:
    return torch.full(shape, float(value), device="neuron")


def collectives(rank: int, world: int, count: int) -> None:
    """Small and large ones, one after the other, checked."""
    big, small = filled(rank + 1, world, 1 << 17), filled(rank + 1, 8)
    for _ in range(count):
        dist.all_reduce(small)
        assert small[0].item() == world * (world + 1) / 2
        small.fill_(rank + 1)
        gathered = torch.empty(world, *big.shape, device=big.device)
        dist.all_gather_into_tensor(gathered, big)
        part = torch.empty(1, big.shape[1], device=big.device)
        dist.reduce_scatter_tensor(part, big)
        exchanged = torch.empty_like(big)
        dist.all_to_all_single(exchanged, big)
        dist.broadcast(exchanged, 0)
        dist.barrier()


def outcome(call: Callable[[], Any]) -> dict[str, Any] | None:
    """Return what a call that may fail raised, and when."""
    try:
        call()
    except dist.DistBackendError as error:
        return {"error": str(error), "time": time.monotonic()}
    return None


def failing(call: Callable[[], Any]) -> dict[str, Any]:
    """The same of a call that must fail."""

    def call_and_wait() -> None:
        call()
        torch.accelerator.synchronize()  # where calls are enqueued it comes up here

    answer = outcome(call_and_wait)
    assert answer is not None, "the collective did not fail"
    return answer


def check_names(answer: dict[str, Any], rank: int, *texts: str) -> None:
    error = answer["error"]
    assert f"rank {rank}" in error, error
    for text in texts:
        assert text in error, error


def good_group(world: int) -> None:
    """A new group works, after whatever happened before."""
    start(world, lambda rank: collectives(rank, world, 2)).end_well()


def killed(rng: random.Random) -> None:
    """One rank is killed at a random moment of its collectives."""
    world = rng.choice([2, 3, 4])
    victim = rng.randrange(world)
    with gate() as begun:

        def rank_function(rank: int) -> Any:
            begun.open()
            return failing(lambda: collectives(rank, world, 10**9))

        job = start(world, rank_function)
        begun.wait(world)
        time.sleep(0.4 * rng.random())
        job.send(signal.SIGKILL, victim)
        moment = time.monotonic()
        answers = job.end()
    for rank, answer in enumerate(answers):
        if rank == victim:
            assert job.codes[rank] == -signal.SIGKILL
            continue
        check_names(answer, victim, "has ended", f"process {job.pids[victim]}")
        assert any(name in answer["error"] for name in NAMES), answer["error"]
        assert answer["time"] - moment < TIMEOUT
        assert job.codes[rank] == 0


def killed_early(rng: random.Random) -> None:
    """One rank is killed while the group is made: the others end with an error, in time."""
    world = rng.choice([2, 3, 4])
    victim = rng.randrange(world)
    job = start(
        world,
        lambda rank: failing(lambda: collectives(rank, world, 10**9)),
        timeout=2,
        refused=True,
    )
    time.sleep(0.2 * rng.random())
    job.send(signal.SIGKILL, victim)
    for rank, answer in enumerate(job.end()):
        if rank == victim:
            assert job.codes[rank] == -signal.SIGKILL
        else:
            check_names(answer, victim)
            assert job.codes[rank] == 0


NAMES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "barrier")


def all_killed(rng: random.Random) -> None:
    """Nothing of a group that was killed as a whole disturbs the next one."""
    world = rng.choice([2, 4])
    job = start(world, lambda rank: collectives(rank, world, 10**9))
    time.sleep(0.3 * rng.random())
    job.send(signal.SIGKILL, *range(world))
    job.end()
    assert set(job.codes.values()) == {-signal.SIGKILL}
    good_group(world)


def stopped(_: random.Random) -> None:
    """A rank that hangs is named when the time is up."""

    def rank_function(rank: int) -> Any:
        dist.all_reduce(filled(rank, 4))
        if rank == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        return failing(lambda: dist.all_reduce(filled(rank, 5)))

    job = start(3, rank_function, timeout=2)
    for rank in (1, 2):
        check_names(job.answer(rank), 0, "all_reduce", "timed out after")
    job.send(signal.SIGKILL, 0)
    job.end()


def aborted(_: random.Random) -> None:
    """`abort` from another thread ends a collective that waits for a rank."""

    def rank_function(rank: int) -> Any:
        dist.barrier()
        if rank == 1:
            return over.wait()
        group = dist.distributed_c10d._get_default_group()
        threading.Timer(0.2, group.abort).start()
        try:
            return failing(lambda: dist.all_reduce(filled(rank, 4)))
        finally:
            over.open()

    with gate() as over:
        answers = start(2, rank_function, leave=True).end_well()
    assert "abort" in answers[0]["error"], answers[0]


def outstanding(_: random.Random) -> None:
    """Groups with unfinished asynchronous work are destroyed, or simply left."""

    def rank_function(_rank: int) -> bool:
        big = filled(1, 1 << 20)
        works = [dist.all_reduce(big, async_op=True) for _ in range(3)]
        return len(works) == 3

    for leave in (False, True):
        answers = start(3, rank_function, leave=leave).end_well()
        assert answers == [True] * 3, answers


def interrupted(_: random.Random) -> None:
    """Ctrl-C reaches a rank that waits in a collective."""

    def rank_function(rank: int) -> Any:
        dist.barrier()
        if rank == 1:
            return over.wait()
        try:
            begun.open()
            dist.all_reduce(filled(rank, 4))
        except KeyboardInterrupt:
            return "interrupted"
        finally:
            over.open()
        return "not interrupted"

    with gate() as begun, gate() as over:
        job = start(2, rank_function, leave=True)
        begun.wait()
        time.sleep(0.2)  # most likely it waits in the collective by then
        job.send(signal.SIGINT, 0)
        answers = job.end_well()
    assert answers[0] == "interrupted", answers


class MuteError(Exception):
    """One that cannot say what it is about."""

    def __str__(self) -> str:
        raise ValueError


RAISED: dict[str, BaseException] = {
    "KeyboardInterrupt": KeyboardInterrupt(),
    "KeyboardInterrupt: enough": KeyboardInterrupt("enough"),
    "TimeoutError: too late": TimeoutError("too late\nfor this"),
    "MuteError": MuteError(),
    "SystemExit: 3": SystemExit(3),
}


def signal_in_collective(number: signal.Signals) -> None:
    """Send this process a signal when its main thread waits in `all_reduce`."""
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    while True:
        frame = sys._current_frames()[main_thread]
        if "all_reduce" in (at.f_code.co_name for at, _ in traceback.walk_stack(frame)):
            break
        time.sleep(0.01)
    time.sleep(0.2)  # PyTorch's own lines come before ours
    os.kill(os.getpid(), number)


def handed_on(_: random.Random) -> None:
    """What a handler of signals raises in a waiting rank is what the other ranks read."""
    for (text, raised), layout in itertools.product(RAISED.items(), ("aa", "ab")):
        number = signal.SIGINT if text == "KeyboardInterrupt" else signal.SIGUSR2

        def rank_function(
            rank: int,
            raised: BaseException = raised,
            number: signal.Signals = number,
        ) -> Any:
            def handler(*_: object) -> None:
                raise raised

            if number != signal.SIGINT:
                signal.signal(number, handler)
            dist.barrier()
            if rank == 0:
                threading.Thread(target=signal_in_collective, args=(number,)).start()
            else:
                told.wait()
            try:
                for _ in range(2):  # small values of the first are there already
                    dist.all_reduce(filled(rank, 4))
            except RuntimeError as error:
                return str(error)
            except BaseException as error:  # noqa: BLE001 - the one that was raised
                # PyTorch's wrapper of collectives asks for its text, which may fail.
                return type(error.__context__ or error).__name__
            finally:
                told.open()
            return "no error"

        with gate() as told:
            answers = start(2, rank_function, leave=True, layout=layout).end_well()
        assert answers[0] == type(raised).__name__, (layout, answers)
        reads = rf"all_reduce \d.* failed on rank 0( \(host a\))?: {re.escape(text)} \["
        assert re.search(reads, answers[1]), (layout, answers)


def foreign(_: random.Random) -> None:
    """Other users can't reach a group's memory, and a wrong token is noticed."""

    def rank_function(rank: int) -> Any:
        dist.all_reduce(filled(rank, 4))
        dist.barrier()
        if rank == 1:
            return None
        links = {
            link: os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.exists()
        }
        files = [link for link, target in links.items() if "memfd:" in target]
        assert len(files) >= 2  # the group's and the core's
        for link in files:
            assert os.stat(link).st_mode & 0o777 == 0o600
        if os.geteuid() != 0:
            return len(files)
        paths = [f"/proc/{os.getpid()}/fd/{link.name}" for link in files]
        pid = os.fork()
        if pid == 0:
            os.setgid(65534)
            os.setuid(65534)
            for path in paths:
                with suppress(PermissionError):
                    os.open(path, os.O_RDWR)
                    os._exit(1)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        return len(files)

    start(2, rank_function).end_well()


class Tampering(Store):
    """A store that tells where the group's memory is with another job's token."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store

    def get(self, key: str) -> bytes:
        value = self.store.get(key)
        return value[:-1] + bytes([value[-1] ^ 1]) if "segment/" in key else value

    def set(self, key: str, value: str) -> None:
        self.store.set(key, value)

    def wait(self, keys: list[str], timeout: timedelta = timedelta(seconds=TIMEOUT)) -> None:
        self.store.wait(keys, timeout)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return self.store.multi_get(keys)


def wrong_token(_: random.Random) -> None:
    """A rank of another job that finds this group's memory leaves it alone."""
    from torch_neuronx import _C  # noqa: PLC0415

    def rank_function(rank: int) -> Any:
        store = PrefixStore("other", dist.distributed_c10d._get_default_store())
        mine = Tampering(store) if rank else store
        limit = timedelta(seconds=2)
        return failing(lambda: _C.create_process_group(mine, rank, 2, "other", limit))

    first, second = start(2, rank_function).end_well()
    assert "the memory of group other belongs to another job" in second["error"]
    check_names(first, 1, "creation of the group")


def own_timeout(_: random.Random) -> None:
    """A timeout given to one operation counts for it, not the group's."""

    def rank_function(rank: int) -> Any:
        dist.barrier()
        if rank == 1:
            return over.wait()
        options = dist.AllreduceOptions()
        options.timeout = timedelta(seconds=0.3)
        group = dist.distributed_c10d._get_default_group()
        began = time.monotonic()
        try:
            answer = failing(lambda: group.allreduce([filled(rank, 4)], options).wait())
        finally:
            over.open()
        assert 0.25 < answer["time"] - began < TIMEOUT - 1, answer
        return answer

    with gate() as over:
        answers = start(2, rank_function, leave=True).end_well()
    check_names(answers[0], 1, "all_reduce", "timed out")


SCENARIOS: dict[str, Callable[[random.Random], None]] = {
    "killed": killed,
    "killed_early": killed_early,
    "all_killed": all_killed,
    "stopped": stopped,
    "aborted": aborted,
    "outstanding": outstanding,
    "interrupted": interrupted,
    "handed_on": handed_on,
    "own_timeout": own_timeout,
    "foreign": foreign,
    "wrong_token": wrong_token,
}


def left_behind() -> list[str]:
    """Return the other processes of this session, and what of ours is in file systems."""
    mine, found = os.getsid(0), []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            session = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[3])
            if session == mine:
                found.append(f"process {entry.name}: {(entry / 'cmdline').read_text()}")
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            if "memfd:" in os.readlink(link):
                found.append(f"{link}: {os.readlink(link)}")
    if "memfd:" in Path("/proc/self/maps").read_text():
        found.append("a mapping of a memory file")
    found += [
        str(p) for folder in ("/dev/shm", "/tmp") for p in Path(folder).glob("*neuron-group*")
    ]
    return found


def main() -> None:
    names, repetitions, seed = sys.argv[1].split(","), int(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)  # noqa: S311
    for _ in range(repetitions):
        for name in names:
            began = time.monotonic()
            SCENARIOS[name](rng)
            left = left_behind()
            assert not left, f"after {name}: {left}"
            print(f"{name}: {time.monotonic() - began:.2f} s", flush=True)


if __name__ == "__main__":
    # Of this process and the ranks that it forks: nothing ends without a word.
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    for number in (signal.SIGTERM, signal.SIGHUP):
        faulthandler.register(number, all_threads=True, chain=True)
    # A shell has its background jobs ignore it, and the tests may be one.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.getpid() != os.getpgid(0):
        os.setsid()  # so that the session is this program's alone, however it was started
    # Not a context manager: a forked rank that leaves as a program does would remove it.
    FOLDER, PARENT = tempfile.mkdtemp(), os.getpid()
    try:
        main()
    finally:
        if os.getpid() == PARENT:
            shutil.rmtree(FOLDER)
