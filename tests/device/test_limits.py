"""Programs larger than the tables they go through: each limit is crossed, and values count.

A full table forgets, waits, or takes a slower way, and none of these may be seen in results. Each
test names the limit that it crosses, and its file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import torch_neuronx
from tests.device.enqueued import everything_enqueued, held

N = torch_neuronx.neuron
MODES = ("debug", "strict", "fused")


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    with everything_enqueued(request.param):
        yield request.param


def _x(*shape: int) -> torch.Tensor:
    return torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape)


def _same(function: Callable[[str], torch.Tensor]) -> None:
    torch.testing.assert_close(function("neuron").cpu(), function("cpu"))


@pytest.mark.usefixtures("mode")
def test_more_shapes_of_one_operator_than_are_remembered() -> None:
    """512 kinds of calls, of 64 families (queue/settled.cpp, queue/shape_rule.cpp)."""
    for _ in range(2):
        made = [(n, torch.arange(n, device="neuron") * 2 + n) for n in range(1, 700)]
        assert all(int(t[-1]) == 2 * (n - 1) + n and len(t) == n for n, t in made)
        ranks = [
            torch.ones((1,) * n + (k,), device="neuron") for n in range(9) for k in range(1, 9)
        ]
        assert [int((t + t).sum()) for t in ranks] == [2 * k for _ in range(9) for k in range(1, 9)]


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("count", [249, 250, 251, 255, 256, 257, 1000])
def test_more_tensors_in_one_call_than_a_key_holds(count: int) -> None:
    """250 tensors (queue/call_key.cpp)."""

    def tensors(device: str) -> list[torch.Tensor]:
        return [torch.full((2,), float(k), device=device) for k in range(count)]

    _same(lambda device: torch.cat(tensors(device)))
    _same(lambda device: torch.stack(tensors(device), 1))
    _same(lambda device: torch.stack(list(torch.cat(tensors(device)).split(2)[::-1])))

    def added(device: str) -> torch.Tensor:
        made = tensors(device)
        torch._foreach_add_(made, made)
        torch._foreach_mul_(made, torch.tensor(0.5, device=device))
        return torch.cat(made)

    _same(added)
    # One tensor, given as often as that, and one that all are views of.
    one, base = _x(3).to("neuron"), _x(count, 2).to("neuron")
    assert torch.equal(torch.cat([one] * count).cpu(), _x(3).repeat(count))
    assert torch.equal(torch.cat(list(base)).cpu(), _x(count, 2).flatten())


def test_more_calls_than_a_queue_holds(mode: str) -> None:
    """1,024 calls in a queue (queue/stream_queue.h): whoever issues more waits for room."""
    x = torch.zeros(64, 64, device="neuron")
    for _ in range(5000):
        x += 1
    y = torch.zeros(3, device="neuron")
    for k in range(3000):
        y = y + k
    assert x.unique().tolist() == [5000.0]
    assert y.tolist() == [3000 * 2999 / 2] * 3
    del mode


def test_a_full_queue_does_not_stop_other_streams() -> None:
    with everything_enqueued("strict"):
        one = torch.zeros(8, device="neuron")
        one = one + 1  # both kinds of calls are known then
        one += 1
        N.synchronize()
        first, second = N.Stream(), N.Stream()
        with held(first):
            with N.stream(first):
                a = one + 1
                for _ in range(900):
                    a += 1
            with N.stream(second):
                b = one + 2
                for _ in range(900):
                    b += 1
                assert b.tolist() == [904.0] * 8
        first.synchronize()
        assert a.tolist() == [903.0] * 8


@pytest.mark.usefixtures("mode")
def test_more_streams_and_events_than_there_are_queues() -> None:
    """32 streams of each priority (device/stream.h): more share them."""
    base = torch.ones(16, device="neuron")
    N.synchronize()
    results, events = [], []
    for k in range(200):
        stream = N.Stream(priority=-(k % 2))
        with N.stream(stream):
            results.append(base * k + 1)
            events.append(stream.record_event())
    for event in events:
        N.current_stream().wait_event(event)
    total = torch.stack(results).sum(1)
    assert total.tolist() == [16.0 * (k + 1) for k in range(200)]


@pytest.mark.usefixtures("mode")
def test_more_weights_than_are_kept_packed() -> None:
    """4,096 weights (gemm/packed_b.cpp)."""
    x = _x(4, 8).to("neuron")
    weights = _x(4200, 16, 8).to("neuron")
    for _ in range(2):
        found = torch.stack([F.linear(x, w) for w in weights[::7]])
        torch.testing.assert_close(found.cpu(), _x(4, 8) @ _x(4200, 16, 8)[::7].mT)
    kept = [w.clone() for w in weights]
    found = torch.stack([F.linear(x, w) for w in kept])
    torch.testing.assert_close(found.cpu(), _x(4, 8) @ _x(4200, 16, 8).mT)


@pytest.mark.usefixtures("mode")
def test_more_steps_in_a_list_than_are_joined() -> None:
    """24 deferred steps, programs of 64 steps and 32 slots (dispatch/foreach.cpp)."""
    for count in (23, 24, 25, 63, 64, 65, 200):
        lists = {
            device: [
                [torch.full((5,), 1.0 + k, device=device) for k in range(3)] for _ in range(40)
            ]
            for device in ("cpu", "neuron")
        }
        for made in lists.values():
            for k in range(count):
                torch._foreach_add_(made[k % 40], made[(k + 1) % 40], alpha=0.5)
                torch._foreach_mul_(made[(k + 7) % 40], 0.9)
        for expected, found in zip(lists["cpu"], lists["neuron"], strict=True):
            torch.testing.assert_close([t.cpu() for t in found], expected)


@pytest.mark.parametrize("count", [23, 24, 25, 63, 64, 65, 300])
def test_longer_chains_than_a_region_or_a_tape(count: int, mode: str) -> None:
    """24 calls of a region, 64 slots of a tape (program/regions.cpp, program/tape.h)."""

    def chain(x: torch.Tensor) -> torch.Tensor:
        kept = []
        for k in range(count):
            x = x * 0.5 + k
            kept.append(x)
        for y in kept[::-1]:  # all live until here
            x = x + y
        return x

    x = _x(200, 300)
    for _ in range(3):
        torch.testing.assert_close(chain(x.to("neuron")).cpu(), chain(x))
    if mode == "debug" and count <= 65:
        torch.compiler.reset()
        compiled = torch.compile(chain, backend="neuron", fullgraph=True)
        torch.testing.assert_close(compiled(x.to("neuron")).cpu(), chain(x))


@pytest.mark.slow
def test_more_results_than_a_tape_has_slots() -> None:
    def many(x: torch.Tensor) -> list[torch.Tensor]:
        return [x * k + 1 for k in range(300)]

    torch.compiler.reset()
    x = _x(40, 50)
    found = torch.compile(many, backend="neuron", fullgraph=True)(x.to("neuron"))
    torch.testing.assert_close([t.cpu() for t in found], many(x))


@pytest.mark.slow
def test_more_inputs_than_a_tape_has_slots() -> None:
    def total(xs: list[torch.Tensor]) -> torch.Tensor:
        result = torch.zeros_like(xs[0])
        for k, x in enumerate(xs):
            result = result + x * (k + 1)
        return result

    torch.compiler.reset()
    xs = [_x(40, 50) + k for k in range(300)]
    found = torch.compile(total, backend="neuron", fullgraph=True)([x.to("neuron") for x in xs])
    torch.testing.assert_close(found.cpu(), total(xs))


@pytest.mark.usefixtures("mode")
def test_a_full_device_is_usable_after_it_said_so() -> None:
    """Memory: the error is raised at the call that is too much, and what is freed can be had."""
    free, _ = N.mem_get_info()
    N.synchronize()
    for _ in range(3):
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(free + (1 << 30), dtype=torch.uint8, device="neuron")
        x = torch.ones(1000, device="neuron") * 3
        assert x.sum().item() == 3000.0


def test_tables_of_several_dimensions() -> None:
    """64 dimensions are PyTorch's limit; what has fewer tables falls back, and is right."""
    for rank in (1, 5, 6, 7, 8, 9, 12, 16, 25):
        shape = (2,) * min(rank, 12) + (1,) * max(rank - 12, 0)

        def moved(device: str, shape: tuple[int, ...] = shape, rank: int = rank) -> torch.Tensor:
            x = _x(*shape).to(device)
            y = x.permute(*range(rank - 1, -1, -1)) * 2 + 1
            return y.flip(0).contiguous() + y.roll(1, 0)

        _same(moved)
