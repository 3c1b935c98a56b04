"""Streams while calls are enqueued: each in its order, none held up by what another waits for."""

import random
import time
from collections.abc import Callable, Iterator

import pytest
import torch

import torch_neuronx
from tests.device.enqueued import everything_enqueued, held
from torch_neuronx import _C

N = torch_neuronx.neuron
PATIENCE = 20.0  # seconds; the machine may be busy


@pytest.fixture(autouse=True, params=["strict", "fused"])
def _everything_is_enqueued(request: pytest.FixtureRequest) -> Iterator[None]:
    with everything_enqueued(request.param):
        yield


def _known(x: torch.Tensor) -> None:
    """Run what the tests enqueue, so that it is known."""
    _ = (x + 1) * 2
    _ = x @ x
    N.synchronize()


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_stream_that_waits_holds_up_neither_the_host_nor_another() -> None:
    x = torch.randn(64, 64, device="neuron")
    _known(x)
    side, other = N.Stream(), N.Stream()
    with held(side) as work:
        with N.stream(side):
            result = (x + 1) * 2
        assert not side.query()
        assert other.query()
        with N.stream(other):
            assert torch.equal((x @ x).cpu(), (x @ x).cpu())
        free = x @ x
        N.current_stream().synchronize()
        assert free.sum().item() == pytest.approx((x @ x).sum().item())
        assert not side.query()
        work.set()
        side.synchronize()
    assert torch.equal(result.cpu(), (x.cpu() + 1) * 2)


def test_wait_event_makes_the_stream_wait_and_not_the_host() -> None:
    x = torch.ones(64, 64, device="neuron")
    _known(x)
    side, other = N.Stream(), N.Stream()
    with held(side) as work:
        with N.stream(side):
            y = x + 1
            event = side.record_event()
        other.wait_event(event)
        with N.stream(other):
            z = (y + 1) * 2
            after = other.record_event()
        assert not event.query()
        assert not after.query()
        N.current_stream().wait_stream(other)
        total = z + 1
        assert not N.current_stream().query()
        work.set()
        assert total.eq(7).all().item()
    assert after.query()


def test_elapsed_time_is_that_of_the_streams_work() -> None:
    x = torch.randn(64, 64, device="neuron")
    _known(x)
    side = N.Stream()
    start, end, free = (N.Event(enable_timing=True) for _ in range(3))
    with held(side) as work:
        with N.stream(side):
            _ = x + 1
            start.record()
            waits = _C.TestCompletion()
            waits.add_to(side)
            _ = x + 1
            end.record()
        free.record()
        _until(free.query)
        work.set()
        _until(start.query)
        assert not end.query()
        with pytest.raises(RuntimeError, match="must be completed"):
            start.elapsed_time(end)
        time.sleep(0.05)
        waits.set()
        end.synchronize()
    time.sleep(0.05)
    assert start.elapsed_time(end) >= 50
    assert start.elapsed_time(end) == start.elapsed_time(end)
    assert free.elapsed_time(start) > 0


def test_memory_that_a_waiting_stream_uses_has_no_next_owner() -> None:
    x = torch.randn(64, 64, device="neuron")
    _known(x)
    side = N.Stream()
    with held(side) as work:
        y = torch.full((64, 64), 3.0, device="neuron")
        side.wait_stream(N.current_stream())
        with N.stream(side):
            result = y + 1
        del y  # nobody called record_stream
        later = [torch.full((64, 64), 9.0, device="neuron") for _ in range(20)]
        big = [torch.full((300, 300), 9.0, device="neuron") for _ in range(20)]
        N.current_stream().synchronize()
        work.set()
        side.synchronize()
    assert result.eq(4).all().item()
    assert all(each.eq(9).all().item() for each in later + big)


def test_a_stream_has_what_it_freed_at_once() -> None:
    x = torch.randn(300, 300, device="neuron")
    side = N.Stream()
    with N.stream(side):
        for _ in range(3):
            y = x * 2 + 1
        del y
        N.synchronize()
        N.reset_peak_memory_stats()
        before = N.memory_allocated()
        y = x
        for _ in range(100):
            y = y * 0.5 + 1
        side.synchronize()
        each = 300 * 300 * 4
        assert N.max_memory_allocated() - before <= 4 * each
        reserved = N.memory_reserved()
        for _ in range(100):
            y = y * 0.5 + 1
        side.synchronize()
        assert N.memory_reserved() == reserved


def test_record_stream_keeps_memory_for_a_stream_that_nothing_was_enqueued_on() -> None:
    side = N.Stream()
    small = torch.ones(3, device="neuron")
    _ = small + 1
    N.synchronize()
    with held(side) as work:
        with N.stream(side):
            _ = small + 1
        x = torch.full((2000,), 5.0, device="neuron")
        N.current_stream().synchronize()
        address = x.data_ptr()
        x.record_stream(side)
        del x
        others = [torch.full((2000,), 1.0, device="neuron") for _ in range(50)]
        assert all(other.data_ptr() != address for other in others)
        del others
        work.set()
        side.synchronize()
        N.synchronize()
    addresses = set()
    kept = []
    for _ in range(200):
        kept.append(torch.full((2000,), 1.0, device="neuron"))
        addresses.add(kept[-1].data_ptr())
    assert address in addresses


def _fail(stream: torch.Stream) -> None:
    table = torch.randn(4, 3, device="neuron")
    _ = table.index_select(0, torch.tensor([1, 2], device="neuron"))
    wrong = torch.tensor([1, 9], device="neuron")
    N.synchronize()
    with N.stream(stream):
        table.index_select(0, wrong)


@pytest.mark.parametrize("where", ["own", "other", "device", "event", "other's event"])
def test_a_failure_of_a_stream_is_told_once_by_whoever_waits(where: str) -> None:
    x = torch.ones(64, 64, device="neuron")
    _known(x)
    side, other = N.Stream(), N.Stream()
    _fail(side)
    own = side.record_event()
    other.wait_event(own)
    with N.stream(other):
        _ = x + 1
        others = other.record_event()
    wait = {
        "own": side.synchronize,
        "other": other.synchronize,
        "device": N.synchronize,
        "event": own.synchronize,
        "other's event": others.synchronize,
    }[where]
    with pytest.raises(IndexError, match=r"(?s)index out of range.*an error of aten::index_select"):
        wait()
    for again in (side.synchronize, other.synchronize, N.synchronize):
        again()
    with N.stream(side):
        assert (x + 1).sum().item() == 2 * 64 * 64


def test_what_is_enqueued_when_a_failure_is_told_does_not_run() -> None:
    side = N.Stream()
    total = torch.zeros(5, device="neuron")
    total.add_(1)
    total.add_(1)
    N.synchronize()
    _fail(side)
    _until(side.record_event().query)  # nobody is told yet
    with held(side) as work:
        with N.stream(side):
            total.add_(1)
        with pytest.raises(IndexError):
            N.current_stream().synchronize()
        work.set()
        side.synchronize()
    assert total.tolist() == [2] * 5


def test_deferred_lists_run_on_the_stream_that_they_were_issued_on() -> None:
    parameters = [torch.zeros(50, device="neuron") for _ in range(3)]
    torch._foreach_add_(parameters, 1.0)
    N.synchronize()
    side = N.Stream()
    with held(side) as work:
        with N.stream(side):
            torch._foreach_add_(parameters, 1.0)
        others = [torch.zeros(50, device="neuron")]
        torch._foreach_add_(others, 5.0)
        N.current_stream().synchronize()
        assert others[0].eq(5).all().item()
        assert not side.query()
        work.set()
        side.synchronize()
    assert all(each.eq(2).all().item() for each in parameters)


def test_copies_from_pinned_memory_run_on_their_stream() -> None:
    host = torch.arange(1000.0).pin_memory()
    x = torch.zeros(1000, device="neuron")
    _ = x + torch.ones(1000, device="neuron")
    N.synchronize()
    side = N.Stream()
    with held(side) as work:
        with N.stream(side):
            x.copy_(host, non_blocking=True)
            done = side.record_event()
        assert not done.query()
        y = torch.ones(1000, device="neuron") + 1
        assert y.sum().item() == 2000
        N.current_stream().wait_event(done)
        z = x + y
        work.set()
    assert torch.equal(z.cpu(), host + 2)


def test_the_backward_pass_runs_on_the_streams_of_the_forward_pass() -> None:
    def gradient() -> torch.Tensor:
        side = N.Stream()
        x = torch.linspace(-1, 1, 4000, device="neuron").view(40, 100).requires_grad_()
        side.wait_stream(N.current_stream())
        with N.stream(side):
            y = (x * 2).tanh()
        N.current_stream().wait_stream(side)
        (y * y).sum().backward()
        assert x.grad is not None
        return x.grad.cpu()

    found = [gradient() for _ in range(3)]
    N.set_eager_mode("debug")
    expected = gradient()
    assert all(torch.equal(each, expected) for each in found)


def _made(kind: int, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    makers: list[Callable[[], torch.Tensor]] = [
        lambda: a * 0.5 + (b if a.shape == b.shape else 1.5),
        lambda: (a @ b.t()).tanh().sum(1, keepdim=True) + a * 0.25,
        lambda: a.mul_(0.5),
        lambda: torch._foreach_add([a], 1.0)[0],
        lambda: torch.cat([a[: len(a) // 2], a[len(a) // 2 :]]).relu() - 0.5,
        lambda: a.softmax(1) * 3,
    ]
    return makers[kind]()


class _Holds:
    """What streams wait for now and then, until somebody goes on.

    In debug mode that would be the host, for ever: then nobody waits.
    """

    def __init__(self, choose: random.Random, *, real: bool) -> None:
        self._choose, self._real = choose, real
        self._open: list[_C.TestCompletion] = []

    def maybe(self, stream: torch.Stream) -> None:
        if self._choose.random() < 0.1 and stream != N.default_stream():
            self._open.append(_C.TestCompletion())
            if self._real:
                self._open[-1].add_to(stream)
        if self._choose.random() < 0.1 and self._open:
            self._open.pop(0).set()

    def end(self) -> None:
        for each in self._open:
            each.set()


def _program(seed: int, *, hold: bool) -> list[torch.Tensor]:
    """Run operators on several streams, which wait for each other where they must."""
    choose = random.Random(seed)  # noqa: S311
    source = torch.Generator().manual_seed(seed)
    streams = [N.default_stream(), *(N.Stream() for _ in range(3))]
    holds = _Holds(choose, real=hold)
    # With each value the event behind the last that wrote or read it.
    values = []
    for _ in range(4):
        value = torch.randn(choose.choice([40, 200]), 200, generator=source).to("neuron")
        values.append((value, N.default_stream().record_event()))
    for _ in range(choose.randint(20, 60)):
        stream = choose.choice(streams)
        holds.maybe(stream)
        i, j = choose.randrange(len(values)), choose.randrange(len(values))
        (a, before), (b, other) = values[i], values[j]
        stream.wait_event(before)
        stream.wait_event(other)
        with N.stream(stream):
            made = _made(choose.randrange(6), a, b)
            event = stream.record_event()
        values[i], values[j] = (a, event), (b, event)
        if made is not a:
            values.append((made, event))
        if len(values) > 6:
            del values[choose.randrange(len(values))]  # its memory may still be in use
    holds.end()
    N.synchronize()
    return [value.cpu() for value, _ in values]


@pytest.mark.parametrize("seed", range(30))
def test_random_programs_on_several_streams_give_what_debug_mode_gives(seed: int) -> None:
    # The first call of a kind runs at once, so the host waits for its stream.
    found = [_program(seed, hold=hold) for hold in (False, True, True)]
    N.set_eager_mode("debug")
    for ours in found:
        for one, other in zip(ours, _program(seed, hold=False), strict=True):
            assert torch.equal(one, other)
