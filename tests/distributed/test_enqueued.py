"""Collectives in strict mode: they take their place in the queue, and the host goes on."""

from __future__ import annotations

import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _SymmetricMemory
from torch.distributed import _functional_collectives as funcol
from torch.distributed import _symmetric_memory as symmetric_memory
from torch.distributed import distributed_c10d
from torch.distributed.fsdp import fully_shard

import torch_neuronx
from tests.device.enqueued import everything_enqueued
from tests.distributed.ranks import run_ranks

N = torch_neuronx.neuron
_C = torch_neuronx._C


def _busy() -> None:
    x = torch.randn(512, 512, device="neuron")
    _ = x @ x
    N.synchronize()
    for _ in range(30):
        _ = x @ x


def goes_on(rank: int, world: int) -> dict[str, bool]:
    """Issue collectives between operators; what they read is written before, and read after."""
    N.set_eager_mode("strict")
    _C.set_direct_elements(0)
    waited: dict[str, bool] = {}
    for turn in range(3):
        x = torch.full((1000,), float(rank), device="neuron")
        parts = torch.empty(world * 1000, device="neuron")
        _busy()
        y = x + 1
        dist.all_reduce(y)
        work = dist.all_gather_into_tensor(parts, y * 2 + rank, async_op=True)
        assert work is not None
        work.wait()
        total = parts.sum() + y.sum()
        if turn > 0:  # the first of their kind wait
            waited[f"turn {turn}"] = not _C.queue_busy()
        one = sum(range(1, world + 1))
        expected = 1000 * (one + sum(2 * one + other for other in range(world)))
        assert total.item() == expected
    _busy()
    dist.barrier()
    waited["barrier"] = not _C.queue_busy()
    return waited


@pytest.mark.parametrize("world", [2, 3])
def test_the_host_goes_on(world: int) -> None:
    for waited in run_ranks(world, goes_on):
        assert waited == {"turn 1": False, "turn 2": False, "barrier": True}


def ends_at_once(rank: int, world: int) -> float:
    """Leave with collectives in the queue that nobody has waited for."""
    del world
    N.set_eager_mode("strict")
    _C.set_direct_elements(0)
    x = torch.full((1000,), float(rank), device="neuron")
    _busy()
    for _ in range(3):
        dist.all_reduce(x)
    dist.destroy_process_group()
    return x[0].item()


def test_a_group_ends_after_what_is_enqueued() -> None:
    assert run_ranks(2, ends_at_once) == [4.0, 4.0]


def fails_later(rank: int, world: int, behind: int) -> str:
    """One rank gives another size: all are told where they wait, whatever is enqueued behind."""
    del world
    N.set_eager_mode("strict")
    _C.set_direct_elements(0)
    x = torch.ones(10 + rank, device="neuron")
    y = torch.ones(10, device="neuron")
    _busy()
    dist.all_reduce(x)
    for _ in range(behind):
        dist.all_reduce(y)
    time.sleep(0.5)  # the threads of collectives learn of it first, and are not who is to be told
    with pytest.raises(dist.DistBackendError) as caught:
        N.synchronize()
    return str(caught.value)


@pytest.mark.parametrize("behind", [0, 1, 40])
def test_a_failure_is_told_where_somebody_waits(behind: int) -> None:
    for text in run_ranks(2, fails_later, behind):
        assert "all_reduce" in text
        assert "an error of waiting for a collective or another core" in text


def reduces_many(rank: int, world: int) -> None:
    """More tensors than a rank's slot lists, whose list must not lie in memory that calls which
    were enqueued behind use, though it was freed when the collective begins."""
    N.set_eager_mode("strict")
    _C.set_direct_elements(0)
    tensors = [torch.full((50,), float(i + rank), device="neuron") for i in range(100)]
    expected = torch.tensor([float(world * i + sum(range(world))) for i in range(100)])
    for _ in range(10):
        mine = [t.clone() for t in tensors]
        _busy()
        with distributed_c10d._coalescing_manager(
            device=torch.device("neuron"), async_ops=True
        ) as manager:
            for t in mine:
                dist.all_reduce(t)
        for _ in range(40):  # as large as the list
            _ = torch.full((600,), 7.0, device="neuron") + 1
        manager.wait()
        assert torch.equal(torch.stack([t[-1] for t in mine]).cpu(), expected)


def test_a_long_list_of_tensors_is_not_written_over() -> None:
    run_ranks(2, reduces_many)


def test_symmetric_memory_waits_for_calls_that_still_use_it() -> None:
    """Its signal pad is cleared at the call, where a tensor was that enqueued calls read."""
    pad = _SymmetricMemory.signal_pad_size
    with everything_enqueued("strict"):
        # The first shares the core's memory, and waits for that reason.
        symmetric_memory.empty([8], dtype=torch.float32, device=torch.device("neuron"))
        t = torch.full(((1 << 20) + pad // 4,), 7.0, device="neuron")
        _ = t + 1  # the first call of its kind waits
        N.synchronize()
        _busy()
        more = t + 1
        del t
        made = symmetric_memory.empty([1 << 20], dtype=torch.float32, device=torch.device("neuron"))
        assert made.numel() == 1 << 20
        assert torch.equal(more.cpu(), torch.full(more.shape, 8.0))


def _sharded_steps(rank: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        *[torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU()) for _ in range(3)]
    ).to("neuron")
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    source = torch.Generator().manual_seed(rank)
    for _ in range(6):
        x = torch.randn(256, 256, generator=source).to("neuron")
        loss = ((model(x) * 2 + 1).relu() * x + 0.5).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.full_tensor().cpu() for parameter in model.parameters()]  # type: ignore[attr-defined]


def differ_in_mode(rank: int, world: int) -> bool:
    """Train sharded: one rank joins what waits, one runs it apart, another at the call."""
    del world
    N.set_eager_mode(("fused", "strict", "debug")[rank])
    _C.set_direct_elements(0)
    found = _sharded_steps(rank)
    N.set_eager_mode("debug")
    expected = _sharded_steps(rank)
    return all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_in_different_modes_train_alike(world: int) -> None:
    assert run_ranks(world, differ_in_mode) == [True] * world


def passes_on(rank: int, world: int) -> list[float]:
    """Send what is not computed yet; the host and other streams go on."""
    N.set_eager_mode("strict")
    _C.set_direct_elements(0)
    x = torch.full((100_000,), float(rank + 1), device="neuron")
    x = x * 2 + 1
    N.synchronize()
    ahead, behind = (rank + 1) % world, (rank - 1) % world
    waited = []
    totals = []
    side = N.Stream()
    for turn in range(4):
        held = _C.TestCompletion()
        held.add_to(N.current_stream())
        y = x * 2 + 1 if turn % 2 else (x * 2 + 1)[:50]
        received = torch.empty_like(y)
        N.reset_eager_stats()
        works = [dist.isend(y, ahead), dist.irecv(received, behind)]
        for work in works:
            assert work is not None
            work.wait()
        waited.append(N.eager_stats()["waits"])
        with N.stream(side):  # which waits for none of that
            assert (x * 2 + 1)[0].item() == 2 * (2 * (rank + 1) + 1) + 1
        held.set()
        totals.append((received * 2 + 1)[0].item())
    assert waited[2:] == [0, 0]
    return totals


@pytest.mark.parametrize("world", [2, 3])
def test_messages_wait_in_the_queue(world: int) -> None:
    for rank, totals in enumerate(run_ranks(world, passes_on)):
        sent = 2 * (2 * ((rank - 1) % world + 1) + 1) + 1
        assert totals == [2 * sent + 1] * 4


def on_two_streams(rank: int, world: int) -> list[float]:
    """Issue messages and collectives on two streams, of which one waits: all in one order."""
    N.set_eager_mode("strict")
    _C.set_direct_elements(0)
    x = torch.full((1000,), float(rank + 1), device="neuron") * 1.0
    other = 1 - rank if world == 2 else None
    assert other is not None
    side = N.Stream()
    side.wait_stream(N.current_stream())
    found = []
    for turn in range(5):
        held = _C.TestCompletion()
        timer = threading.Timer(0.02 * ((turn + rank) % 3), held.set)
        held.add_to(N.current_stream() if turn % 2 else side)
        timer.start()
        results = []
        for more, stream in enumerate((side, N.default_stream())):
            with N.stream(stream):
                into = torch.zeros_like(x)
                results.append(into)
                y = x * float(turn + 1 + more)
                works = [dist.isend(y, other), dist.irecv(into, other)]
                total = y + 1
                dist.all_reduce(total)
                for work in works:
                    assert work is not None
                    work.wait()
                into.add_(total)
        timer.join()
        N.synchronize()
        found += [result[0].item() for result in results]
    return found


def test_what_ranks_exchange_on_several_streams_has_one_order() -> None:
    for rank, found in enumerate(run_ranks(2, on_two_streams)):
        theirs = 2.0 - rank
        expected = [
            theirs * factor + 3 * factor + 2 for turn in range(5) for factor in (turn + 1, turn + 2)
        ]
        assert found == expected


def compiled(rank: int, world: int) -> dict[str, bool]:
    """Enqueue programs that reduce over ranks, on two streams and among collectives of the host."""
    group = dist.group.WORLD
    assert group is not None

    @torch.compile(backend="neuron")
    def summed(x: torch.Tensor) -> torch.Tensor:
        reduced: torch.Tensor = funcol.all_reduce(x * 2, "sum", group)
        return reduced + 1

    x = torch.full((500,), float(rank + 1), device="neuron")
    one = sum(range(1, world + 1))
    N.set_eager_mode("debug")
    side = N.Stream()
    with N.stream(side):
        assert summed(x)[0].item() == 2 * one + 1
    N.set_eager_mode("strict")
    _C.set_direct_elements(0)
    summed(x)
    N.synchronize()
    went_on = {}
    for turn in range(3):
        side.wait_stream(N.current_stream())
        held = _C.TestCompletion()
        held.add_to(N.current_stream())
        y = summed(x)
        went_on[f"turn {turn}"] = not N.current_stream().query()
        held.set()
        z = torch.full((500,), 1.0, device="neuron")
        dist.all_reduce(z)
        with N.stream(side):
            w = summed(x)
        side.synchronize()
        assert (y + z + w)[0].item() == 2 * (2 * one + 1) + world
    return went_on


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_programs_that_exchange_data_wait_in_the_queue(world: int) -> None:
    for went_on in run_ranks(world, compiled):
        assert all(went_on.values())
