"""Send, receive and receive from any between the ranks of a host."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import Phase, given, settings

from tests.distributed.p2p_scripts import Script, scripts, serve
from tests.distributed.ranks import RankError, run_ranks

DEVICE = "neuron"


class Pool:
    """Ranks that execute one script after the other."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.failure: BaseException | None = None
        self.connections: dict[int, Connection] = {}
        self.folder = tempfile.TemporaryDirectory()
        address = str(Path(self.folder.name, "scripts"))
        self.listener = Listener(address, "AF_UNIX")
        self.thread = threading.Thread(target=self._run, args=(address,))
        self.thread.start()
        for _ in range(ranks):
            connection = self.listener.accept()
            self.connections[connection.recv()] = connection

    def _run(self, address: str) -> None:
        try:
            run_ranks(self.ranks, serve, address, timeout=300, group_timeout=10)
        except RankError as error:
            self.failure = error

    def execute(self, script: Script) -> list[str]:
        """What was wrong, of all ranks."""
        for connection in self.connections.values():
            connection.send(script)
        wrong = []
        for rank, connection in self.connections.items():
            try:
                wrong += [f"rank {rank}: {text}" for text in connection.recv()]
            except EOFError:
                wrong.append(f"rank {rank} has ended")
        return wrong

    def close(self) -> None:
        for connection in self.connections.values():
            if self.failure is None:
                connection.send(None)
        self.thread.join()
        self.listener.close()
        self.folder.cleanup()


@contextmanager
def pools() -> Iterator[Callable[[int], Pool]]:
    """Make a pool of ranks on demand, a new one after a failure; ends them all."""
    made: dict[int, Pool] = {}

    def pool_of(ranks: int) -> Pool:
        if ranks in made and made[ranks].failure is not None:
            made.pop(ranks).close()
        if ranks not in made:
            made[ranks] = Pool(ranks)
        return made[ranks]

    try:
        yield pool_of
    finally:
        for pool in made.values():
            pool.close()


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_random_scripts(ranks: int) -> None:
    with pools() as pool_of:
        # Not shrunk: after a failure the ranks have to be started anew.
        @settings(max_examples=40, database=None, phases=[Phase.generate])
        @given(scripts(ranks))
        def run(script: Script) -> None:
            pool = pool_of(ranks)
            wrong = pool.execute(script)
            if any("has ended" in text for text in wrong):
                pool.thread.join()
                raise AssertionError(f"{pool.failure}\n{script}")
            assert not wrong, f"{wrong}\n{script}"

        run()


def device_tensor(
    value: float, elements: int = 4, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    return torch.full((elements,), value, dtype=dtype, device=DEVICE)


def raises(error: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """The call, or waiting for its work, fails with a text that has `error`."""
    with pytest.raises((dist.DistBackendError, ValueError), match=error):  # noqa: PT012
        work = function(*args, **kwargs)
        if isinstance(work, dist.Work):
            work.wait()
        torch.accelerator.synchronize()  # where calls are enqueued it comes up here


def many(rank: int) -> None:
    """Thousands of messages with nobody receiving yet; more than rings and claims hold."""
    peer = 1 - rank
    for elements, count in ((4, 3000), (300, 4500)):
        sent = [dist.isend(device_tensor(i, elements), peer, tag=i % 3) for i in range(count)]
        got = [device_tensor(-1, elements) for _ in range(count)]
        order = sorted(range(count), key=lambda i: (-(i % 3), i))  # tags in another order
        works = [dist.irecv(got[i], peer, tag=i % 3) for i in order]
        for work in works + sent:
            work.wait()  # type: ignore[union-attr]
        assert all(bool((tensor == i).all()) for i, tensor in enumerate(got))


def not_held_up(rank: int) -> None:
    """A large message that nobody receives holds up no other tag, collective or way back."""
    peer = 1 - rank
    large = device_tensor(1, 500_000)
    held = [dist.isend(large, peer, tag=7) for _ in range(40)]
    small = device_tensor(rank)
    if rank == 0:
        dist.send(small, peer, tag=1)
        dist.recv(small, peer, tag=2)
    else:
        dist.recv(small, peer, tag=1)
        dist.send(small, peer, tag=2)
    dist.all_reduce(small)
    for work in [dist.irecv(torch.empty_like(large), peer, tag=7) for _ in range(40)] + held:
        work.wait()  # type: ignore[union-attr]


def batches(rank: int) -> None:
    peer = 1 - rank
    out, back = device_tensor(rank, 10_000), device_tensor(-1, 10_000)
    more, again = device_tensor(rank + 10), device_tensor(-1)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.irecv, back, peer),
            dist.P2POp(dist.isend, out, peer),
            dist.P2POp(dist.isend, more, peer),
            dist.P2POp(dist.irecv, again, peer),
        ]
    )
    for work in works:
        work.wait()
    assert bool((back == peer).all())
    assert bool((again == peer + 10).all())


def refused(rank: int) -> None:
    """What doesn't fit is an error of both, if the sender still waits."""
    peer = 1 - rank
    for elements in (4, 4000):
        mine = device_tensor(0, elements)
        if rank == 0:
            work = dist.isend(mine, peer, tag=5)
            if elements > 224:
                raises(
                    r"send to rank 1 \(tag 5, 16000 bytes, Float \[4000\]\).*does not fit: rank 1"
                    " receives 12 bytes of Int",
                    work.wait,  # type: ignore[union-attr]
                )
        else:
            raises(
                rf"receive from rank 0 \(tag 5, 12 bytes, Int \[3\]\) by rank 1 of group .* does "
                rf"not fit: rank 0 sent {4 * elements} bytes, Float \[{elements}\]",
                dist.recv,
                device_tensor(0, 3, torch.int32),
                peer,
                tag=5,
            )
    raises("contiguous", dist.irecv, torch.ones(4, 6, device=DEVICE).t(), peer)
    dist.barrier()
    dist.send(mine, peer) if rank == 0 else dist.recv(mine, peer)  # all goes on


def any_source(rank: int, ranks: int) -> None:
    """By arrival, in the order of a source's sending, beside receives that name their source."""
    if rank == 0:
        dist.barrier()
        dist.barrier()
        sources = []
        for _ in range(2 * (ranks - 1)):
            tensor = device_tensor(-1)
            source = dist.recv(tensor, tag=3)
            sources.append((source, int(tensor[0])))
        first, second = sources[: ranks - 1], sources[ranks - 1 :]
        assert sorted(first) == [(r, r) for r in range(1, ranks)], sources
        assert sorted(second) == [(r, r + 10) for r in range(1, ranks)], sources
        named, either = device_tensor(-1), device_tensor(-1)
        works = [dist.irecv(named, 1, tag=4), dist.irecv(either, tag=4)]
        dist.barrier()
        for work in works:
            work.wait()  # type: ignore[union-attr]
        assert (int(named[0]), int(either[0])) == (1, 2)
    else:
        dist.send(device_tensor(rank), 0, tag=3)
        dist.barrier()
        dist.send(device_tensor(rank + 10), 0, tag=3)
        dist.barrier()
        dist.barrier()
        if rank == 1:
            dist.send(device_tensor(1), 0, tag=4)
            dist.send(device_tensor(2), 0, tag=4)


def futures(rank: int) -> None:
    """Transfers that nobody waits for are done by a thread of the group."""

    def transfer(tensor: torch.Tensor) -> Any:
        return dist.isend(tensor, 1) if rank == 0 else dist.irecv(tensor, 0)

    tensor = device_tensor(rank, 100_000)
    work, deadline = transfer(tensor), time.monotonic() + 10
    while not work.is_completed():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert bool((tensor == 0).all())
    # A future stands for a place on a stream: its callback may come before the data has, but what
    # it issues waits. Another stream has to wait by itself.
    tensor = device_tensor(rank, 100_000)
    work = transfer(tensor)
    seen = work.get_future().then(lambda future: bool((future.value()[0] == 0).all()))
    work.wait()
    assert bool((tensor == 0).all())
    assert seen.wait()
    # The future of its result is set at the end.
    tensor, done = device_tensor(rank, 100_000), threading.Event()
    work = transfer(tensor)
    work.get_future_result().then(lambda _: done.set())
    assert done.wait(10)
    assert work.is_completed()
    assert bool((tensor == 0).all())
    with pytest.raises(dist.DistBackendError, match="not done after 50 ms"):
        dist.irecv(tensor, 1 - rank, tag=77).wait(timedelta(milliseconds=50))  # type: ignore[union-attr]
    dist.barrier()  # both have waited in vain
    dist.send(tensor, 1 - rank, tag=77)  # what is outstanding takes it


def two_ranks(rank: int, world_size: int) -> None:
    del world_size
    for check in (batches, not_held_up, many, refused, futures):
        check(rank)
        dist.barrier()


def test_two_ranks() -> None:
    run_ranks(2, two_ranks)


def test_any_source() -> None:
    run_ranks(3, any_source)


def times_out(rank: int, world_size: int) -> None:
    del world_size
    if rank == 0:
        raises(
            r"receive from rank 1 \(tag 9, 16 bytes, Float \[4\]\) by rank 0 of group .* timed out "
            r"after 1 s; rank 1 has entered collective \d+ and has 0 receives and 1 sends outstanding;"  # noqa: E501
            r" messages with other tags are here: (7 from rank 1, )?8 from rank 1.*NRT_TIMEOUT",
            dist.recv,
            device_tensor(0),
            1,
            tag=9,
        )
        raises(
            "can't be used any more: receive from rank 1.*timed out", dist.send, device_tensor(0), 1
        )
    else:
        dist.send(device_tensor(0), 0, tag=8)
        time.sleep(0.5)  # rank 0 is to be the first whose time is over
        raises(
            "send to rank 0.*(timed out|was ended: group .* timed out)",
            dist.isend(device_tensor(0, 5000), 0, tag=7).wait,  # type: ignore[union-attr]
        )


def test_a_timeout_names_the_peer() -> None:
    run_ranks(2, times_out, group_timeout=1)


def peer_dies(rank: int, world_size: int) -> list[str]:
    del world_size
    dist.barrier()
    if rank == 2:
        dist.send(device_tensor(5), 0, tag=1)  # arrives all the same
        dist.isend(device_tensor(6, 50_000), 0, tag=2)
        os.kill(os.getpid(), signal.SIGKILL)
    texts = []
    if rank == 0:
        tensor = device_tensor(0)
        dist.recv(tensor, 2, tag=1)
        assert int(tensor[0]) == 5
    started = time.monotonic()
    for call in (
        lambda: dist.recv(device_tensor(0), 2, tag=3),
        lambda: dist.recv(device_tensor(0), tag=4),
        lambda: dist.isend(device_tensor(0, 50_000), 2).wait(),  # type: ignore[union-attr]
    ):
        with pytest.raises(dist.DistBackendError) as caught:  # noqa: PT012
            call()
            torch.accelerator.synchronize()
        texts.append(str(caught.value))
    assert time.monotonic() - started < 5
    return texts


def test_a_rank_is_killed() -> None:
    with pytest.raises(RankError) as caught:
        run_ranks(3, checks_death)
    text = str(caught.value)
    assert "rank 2:\nended with exit code -9" in text
    assert "rank 0:" not in text, text
    assert "rank 1:" not in text, text


def checks_death(rank: int, world_size: int) -> None:
    texts = peer_dies(rank, world_size)
    for text, what in zip(
        texts, ("receive from rank 2", "receive from any rank", "send to rank 2"), strict=True
    ):
        assert what in text, text
        assert "rank 2 (process" in text, text
        assert "has ended [NRT_EXEC_HW_ERR_COLLECTIVES(1200)]" in text, text


def callback_waits(rank: int, world_size: int) -> None:
    """What is called back may wait for a later collective, as DDP's PowerSGD hook does."""
    del rank

    def sum_again(future: torch.futures.Future[list[torch.Tensor]]) -> float:
        again = future.value()[0].clone()
        dist.all_reduce(again, async_op=True).get_future().wait()
        return float(again[0])

    first = dist.all_reduce(device_tensor(1, 100_000), async_op=True).get_future()
    assert first.then(sum_again).wait() == world_size**2


def ends_wait(rank: int, world_size: int) -> None:
    """What is called when an operation has ended may wait for later ones of the same group."""
    del world_size
    peer, ended = 1 - rank, [threading.Event() for _ in range(3)]
    texts: list[str] = []

    def when_done(work: Any, event: threading.Event, *later: Any) -> None:
        def told(_: object) -> None:
            try:
                for each in later:
                    each.wait()
            except dist.DistBackendError as error:
                texts.append(str(error))
            event.set()

        work.get_future_result().then(told)

    sums = [device_tensor(1, 100_000) for _ in range(2)]
    got = [device_tensor(-1, elements) for elements in (4, 100_000, 4)]
    if rank == 1:
        time.sleep(0.3)  # rank 0 is to be told of all later than it asks
    reductions = [dist.all_reduce(each, async_op=True) for each in sums]
    when_done(reductions[0], ended[0], reductions[1])
    receives = [dist.irecv(tensor, peer, tag=i) for i, tensor in enumerate(got)]
    when_done(receives[0], ended[1], *receives[1:])
    when_done(receives[2], ended[2], receives[1], reductions[1])
    sends = [dist.isend(torch.ones_like(tensor), peer, tag=i) for i, tensor in enumerate(got)]
    for event in ended:
        assert event.wait(10), [each.is_set() for each in ended]
    assert not texts
    for tensor in (*got, *sums):
        assert bool((tensor == (2 if tensor is sums[0] or tensor is sums[1] else 1)).all())
    for send in sends:
        send.wait()  # type: ignore[union-attr]
    del reductions, receives
    # Told that a transfer failed because the process ends: no thread is left that asks for Python.
    dist.barrier()
    late = dist.irecv(device_tensor(-1), peer, tag=7)
    late.get_future_result().then(lambda _: ended[0].clear())  # type: ignore[union-attr]


def test_a_callback_waits_for_a_collective() -> None:
    run_ranks(2, callback_waits)


def test_what_is_told_of_an_end_may_wait() -> None:
    run_ranks(2, ends_wait)
