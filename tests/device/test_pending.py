"""Work that is pending on streams, as collectives are, and who waits for it."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import torch
from torch.distributed import DistBackendError

from torch_neuronx import _C, neuron

PATIENCE = 20.0  # seconds; the machine may be busy


@pytest.fixture(autouse=True)
def _debug_mode() -> Iterator[None]:
    """In strict mode the core waits and not the host: `tests/distributed/test_enqueued.py`."""
    with neuron.eager_mode("debug"):
        yield


@contextmanager
def waiting(completion: _C.TestCompletion, act: Callable[[], Any]) -> Iterator[list[Any]]:
    """Run `act` in a thread of its own; inside the block it waits for `completion`."""
    result: list[Any] = []

    def run() -> None:
        try:
            result.append(act())
        except Exception as error:  # noqa: BLE001 - handed to the test
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        deadline = time.monotonic() + PATIENCE
        while completion.waiters == 0:
            assert thread.is_alive(), f"didn't wait: {result}"
            assert time.monotonic() < deadline
            time.sleep(0.001)
        time.sleep(0.01)
        assert result == []
        yield result
    finally:
        thread.join(PATIENCE)
    assert not thread.is_alive()


def side() -> torch.Stream:
    stream = neuron.Stream()
    assert _C.pending_count(stream) == 0
    return stream


def on(stream: torch.Stream, act: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> Any:
        with neuron.stream(stream):
            return act()

    return run


def test_the_default_stream_waits_at_once() -> None:
    work = _C.TestCompletion()
    with waiting(work, lambda: work.add_to(neuron.default_stream())) as result:
        work.set()
    assert result == [None]
    assert _C.pending_count(neuron.default_stream()) == 0


def test_another_stream_remembers_and_nobody_else_waits() -> None:
    work, stream, other = _C.TestCompletion(), side(), side()
    work.add_to(stream)
    work.add_to(stream)  # counts once
    assert _C.pending_count(stream) == 1
    assert not stream.query()
    assert other.query()
    x = torch.ones(3, device="neuron") + 1  # neither the default stream
    with neuron.stream(other):  # nor a third
        assert (x * 2).tolist() == [4, 4, 4]
    other.synchronize()
    neuron.memory_stats()
    neuron.empty_cache()
    work.set()
    assert stream.query()
    assert _C.pending_count(stream) == 0


HOST = torch.arange(4.0)
ISSUED: dict[str, Callable[[torch.Tensor], Any]] = {
    "native": lambda x: x + 1,
    "boxed": lambda x: torch.logcumsumexp(x, 0),
    "item": lambda x: x[1].item(),
    "to host": lambda x: x.cpu(),
    "from host": lambda x: x.copy_(HOST),
    "foreach": lambda x: torch._foreach_add_([x], 1.0),
    "shrink": lambda x: x.untyped_storage().resize_(0),
    "compiled": torch.compile(lambda x: x * 2, backend="neuron"),
    "stream": lambda _: neuron.current_stream().synchronize(),
    "device": lambda _: neuron.synchronize(),
    "default waits": lambda _: neuron.default_stream().wait_stream(neuron.current_stream()),
}


@pytest.mark.parametrize("name", ISSUED)
def test_what_is_issued_on_the_stream_waits(name: str) -> None:
    x = torch.arange(4.0, device="neuron")
    if name == "compiled":
        ISSUED[name](x)
    stream, works = side(), [_C.TestCompletion() for _ in range(3)]
    for work in works:
        work.add_to(stream)
    with waiting(works[0], on(stream, lambda: ISSUED[name](x))) as result:
        works[2].set()
        works[1].set()
        works[0].set()
    assert len(result) == 1
    assert not isinstance(result[0], Exception)
    assert not any(work.held_python_lock for work in works)
    assert _C.pending_count(stream) == 0
    assert [work.kept_by for work in works] == [0, 0, 0]


def test_what_touches_no_memory_does_not_wait() -> None:
    x = torch.arange(12.0, device="neuron")
    fresh = torch.empty(0, device="neuron").untyped_storage()
    work, stream = _C.TestCompletion(), side()
    work.add_to(stream)
    with neuron.stream(stream):
        views = [x.view(3, 4), x[2:], torch.as_strided(x, (2, 2), (1, 3)), x.detach(), *x.split(5)]
        made = torch.empty(5, device="neuron"), x.new_empty(3), torch.empty_like(x)
        fresh.resize_(100)  # how FSDP makes room for a gathered parameter
        event = torch.Event(device="neuron")
        event.record()
        neuron.memory_stats()
        neuron.empty_cache()
    assert len(views) + len(made) == 10
    assert not event.query()
    assert _C.pending_count(stream) == 1
    work.set()
    assert event.query()


def test_device_synchronize_waits_for_every_stream_of_its_device() -> None:
    work, elsewhere = _C.TestCompletion(), _C.TestCompletion()
    far = neuron.Stream("neuron:1")
    work.add_to(side())
    elsewhere.add_to(far)
    with waiting(work, lambda: neuron.synchronize("neuron:0")):
        work.set()
    assert _C.pending_count(far) == 1
    elsewhere.set()
    far.synchronize()


def test_an_event_carries_what_its_stream_had_pending() -> None:
    first, second, stream, other = _C.TestCompletion(), _C.TestCompletion(), side(), side()
    first.add_to(stream)
    event = stream.record_event()
    second.add_to(stream)  # after the event
    assert not event.query()
    other.wait_event(event)  # doesn't wait itself
    assert _C.pending_count(other) == 1
    x = torch.ones(2, device="neuron")
    with waiting(first, on(other, lambda: x.add(1).tolist())) as result:
        first.set()
    assert result == [[2, 2]]
    assert event.query()
    event.synchronize()
    neuron.default_stream().wait_event(event)
    assert _C.pending_count(stream) == 1  # the second is still on its way
    second.set()
    assert stream.query()
    assert first.kept_by == second.kept_by == 0  # an event that is done keeps no memory


@pytest.mark.parametrize(
    "wait",
    [
        lambda event: event.synchronize(),
        lambda event: neuron.default_stream().wait_event(event),
        lambda event: event.wait(neuron.default_stream()),
    ],
    ids=["synchronize", "default stream", "event.wait"],
)
def test_waiting_for_an_event(wait: Callable[[torch.Event], None]) -> None:
    work, stream = _C.TestCompletion(), side()
    work.add_to(stream)
    event = stream.record_event()
    with waiting(work, lambda: wait(event)) as result:
        work.set()  # needs Python's lock, so the thread has let go of it
    assert result == [None]
    assert not work.held_python_lock


def test_pythons_lock_is_let_go_of_while_waiting() -> None:
    work = _C.TestCompletion()
    with waiting(work, lambda: work.add_to_holding_python(neuron.default_stream())) as result:
        work.set()
    assert result == [None]
    assert not work.held_python_lock


def test_an_event_recorded_anew_forgets_what_it_had() -> None:
    work, stream = _C.TestCompletion(), side()
    work.add_to(stream)
    event = torch.Event(device="neuron")
    event.record(stream)
    assert not event.query()
    event.record(neuron.default_stream())
    assert event.query()
    work.set()


def test_an_events_time_is_that_of_the_last_completion() -> None:
    start, end = (torch.Event(device="neuron", enable_timing=True) for _ in range(2))
    quick, slow, stream = _C.TestCompletion(), _C.TestCompletion(), side()
    slow.add_to(stream)
    quick.add_to(stream)
    begin = time.perf_counter()
    start.record()
    end.record(stream)
    time.sleep(0.02)
    quick.set()
    with pytest.raises(RuntimeError, match="must be completed before calculating elapsed time"):
        start.elapsed_time(end)
    time.sleep(0.03)
    slow.set()
    after = time.perf_counter()
    time.sleep(0.1)  # asked later, which must not show
    elapsed = start.elapsed_time(end)
    assert 50 <= elapsed <= 1e3 * (after - begin)
    assert elapsed == start.elapsed_time(end)


@pytest.mark.parametrize("known", [False, True], ids=["then", "before"])
def test_a_failure_is_told_to_every_waiter_once_and_as_it_is(known: bool) -> None:
    work, stream, other, third = _C.TestCompletion(), side(), side(), side()
    work.add_to(stream)
    event = stream.record_event()
    other.wait_event(event)
    x = torch.ones(2, device="neuron")
    text = "all_gather 7 of group 0: rank 1 is gone"

    def told(act: Callable[[], Any]) -> None:
        with pytest.raises(DistBackendError, match=text):
            act()

    if known:
        work.fail(text)
        told(on(stream, lambda: x + 1))
    else:
        with waiting(work, on(stream, lambda: x + 1)) as result:
            work.fail(text)
        assert isinstance(result[0], DistBackendError)
        assert text in str(result[0])
    with neuron.stream(stream):
        assert (x + 1).tolist() == [2, 2]  # told once
    told(on(other, lambda: x.mul(2)))
    other.synchronize()
    assert event.query()  # done, if badly
    told(event.synchronize)
    told(lambda: neuron.default_stream().wait_event(event))
    third.wait_event(event)
    told(third.synchronize)
    third.synchronize()
    assert (x + 1).tolist() == [2, 2]  # the default stream was never concerned


def test_a_failure_does_not_hide_what_else_is_pending() -> None:
    bad, good, stream = _C.TestCompletion(), _C.TestCompletion(), side()
    bad.add_to(stream)
    good.add_to(stream)
    bad.fail("broken")
    with waiting(good, stream.synchronize) as result:
        good.set()
    assert isinstance(result[0], DistBackendError)
    assert _C.pending_count(stream) == 0


def test_a_stream_that_only_collects_does_not_grow() -> None:
    stream = side()
    works = [_C.TestCompletion() for _ in range(100)]
    for work in works:
        work.add_to(stream)
        work.set()
    assert sum(work.kept_by for work in works) <= 1
    stream.synchronize()


def test_deferred_programs_wait_before_they_are_deferred() -> None:
    """Another stream runs the program, so nothing in it may be unfinished."""
    work, stream = _C.TestCompletion(), side()
    x = torch.zeros(1000, device="neuron")
    torch._foreach_add_([x], 1.0)
    work.add_to(stream)
    with waiting(work, on(stream, lambda: torch._foreach_add_([x], 2.0))):
        assert x.sum().item() == 1000
        work.set()
    assert x.sum().item() == 3000


def one_round(i: int, x: torch.Tensor, stream: torch.Stream, other: torch.Stream) -> str | None:
    """Pending work that ends within 2 ms, every fifth badly, and a waiter; what went wrong."""
    finished, work, bad = threading.Event(), _C.TestCompletion(), i % 5 == 0
    work.add_to(stream)
    event = stream.record_event()

    def finish() -> None:
        finished.set()
        work.fail("bad") if bad else work.set()

    timer = threading.Timer(0.0005 * (i % 4), finish)
    timer.start()
    told = False
    try:
        if i % 3 == 0:
            event.synchronize()
        else:
            if i % 3 == 1:
                other.wait_event(event)
            with neuron.stream(other if i % 3 == 1 else stream):
                x.add_(1)
    except DistBackendError:
        told = True
    early = not finished.is_set()
    timer.join()
    with suppress(DistBackendError):
        stream.synchronize()
    return "went on too early" if early else None if told == bad else f"was told: {told}"


def test_many_threads() -> None:
    """Producers, streams and waiters at once: nobody passes unfinished work, nothing is left."""
    failures: list[str] = []

    def run() -> None:
        stream, other = neuron.Stream(), neuron.Stream()
        x = torch.ones(4, device="neuron")
        failures.extend(filter(None, (one_round(i, x, stream, other) for i in range(40))))
        if _C.pending_count(stream) + _C.pending_count(other) > 0:
            failures.append("something is left")

    workers = [threading.Thread(target=run) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []
