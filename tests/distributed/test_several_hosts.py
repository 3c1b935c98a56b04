"""Groups over several hosts: processes of this computer that are told to be on different ones."""

from __future__ import annotations

import functools
import itertools
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d

from tests.distributed.ranks import RankError, run_ranks
from torch_neuronx import neuron

if TYPE_CHECKING:
    from collections.abc import Callable

Tensor = torch.Tensor
REDUCTIONS: dict[Any, Any] = {
    dist.ReduceOp.SUM: torch.add,
    dist.ReduceOp.PRODUCT: torch.mul,
    dist.ReduceOp.MIN: torch.minimum,
    dist.ReduceOp.MAX: torch.maximum,
}
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.float8_e5m2]
COUNTS = [3, 1000, 70_001]


def join(layout: str, rank: int, store: str, timeout: float = 20) -> None:
    """A group whose rank r is on host ``layout[r]``."""
    os.environ["TORCH_NEURONX_HOST_ID"] = layout[rank]
    dist.init_process_group(
        "neuron",
        store=c10d.FileStore(store, len(layout)),
        rank=rank,
        world_size=len(layout),
        timeout=timedelta(seconds=timeout),
    )


def small(rank: int, count: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Whole numbers whose sums and products every dtype here has exactly."""
    generator = torch.Generator().manual_seed(seed * 100 + rank)
    return torch.randint(-1, 2, (count,), generator=generator).to(dtype)


def same(got: Tensor, expected: Tensor) -> None:
    assert got.dtype == expected.dtype
    assert torch.equal(got.cpu().to(torch.float64), expected.to(torch.float64)), (got, expected)


def fold(op: Any, parts: list[Tensor]) -> Tensor:
    return functools.reduce(REDUCTIONS[op], [p.double() for p in parts]).to(parts[0].dtype)


def check_reductions(rank: int, n: int, dtype: torch.dtype, count: int) -> None:
    parts = [small(r, count, dtype) for r in range(n)]
    for op in REDUCTIONS:
        tensor = parts[rank].to("neuron")
        dist.all_reduce(tensor, op)
        same(tensor, fold(op, parts))
    root = count % n
    tensor = parts[rank].to("neuron")
    dist.reduce(tensor, root)
    same(tensor, fold(dist.ReduceOp.SUM, parts) if rank == root else parts[rank])
    whole = [small(r, n * count, dtype, 1) for r in range(n)]
    expected = fold(dist.ReduceOp.SUM, whole).chunk(n)[rank]
    out = torch.empty(count, dtype=dtype, device="neuron")
    dist.reduce_scatter_tensor(out, whole[rank].to("neuron"))
    same(out, expected)
    dist.reduce_scatter(out.zero_(), [t.to("neuron") for t in whole[rank].chunk(n)])
    same(out, expected)


def check_scales(rank: int, n: int) -> None:
    tensor = torch.full((5000,), float(rank), device="neuron")
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    same(tensor, torch.full((5000,), sum(range(n)) / n))
    tensor = torch.full((50_000,), float(rank), device="neuron")
    dist.all_reduce(tensor, c10d._make_nccl_premul_sum(0.5))
    same(tensor, torch.full((50_000,), sum(range(n)) * 0.5))
    half = torch.full((9,), 60_000.0, dtype=torch.float16, device="neuron")
    dist.all_reduce(half, dist.ReduceOp.AVG)  # a sum of two would be infinite
    same(half, torch.full((9,), 60_000.0, dtype=torch.float16))
    bits = torch.tensor([1 << rank, 7], device="neuron")
    dist.all_reduce(bits, dist.ReduceOp.BXOR)
    same(bits, torch.tensor([(1 << n) - 1, 7 * (n % 2)]))


def check_copies(rank: int, n: int, dtype: torch.dtype, count: int) -> None:
    parts = [small(r, count, dtype) for r in range(n)]
    for root in range(n):
        tensor = parts[rank].to("neuron")
        dist.broadcast(tensor, root)
        same(tensor, parts[root])
    out = torch.empty(n * count, dtype=dtype, device="neuron")
    dist.all_gather_into_tensor(out, parts[rank].to("neuron"))
    same(out, torch.cat(parts))
    outs = [torch.empty(count, dtype=dtype, device="neuron") for _ in range(n)]
    dist.all_gather(outs, parts[rank].to("neuron"))
    same(torch.cat(outs), torch.cat(parts))
    root = (count + 1) % n
    outs = [torch.empty(count, dtype=dtype, device="neuron") for _ in range(n)]
    dist.gather(parts[rank].to("neuron"), outs if rank == root else None, dst=root)
    if rank == root:
        same(torch.cat(outs), torch.cat(parts))
    one = torch.empty(count, dtype=dtype, device="neuron")
    dist.scatter(one, [p.to("neuron") for p in parts] if rank == root else None, src=root)
    same(one, parts[rank])
    # Rank a sends (a + b) % 3 rows to rank b.
    rows = [[(a + b) % 3 for b in range(n)] for a in range(n)]
    sent = [small(a, sum(rows[a]) * 10, dtype, 2).view(-1, 10) for a in range(n)]
    back = [rows[a][rank] for a in range(n)]
    out = torch.empty(sum(back), 10, dtype=dtype, device="neuron")
    dist.all_to_all_single(out, sent[rank].to("neuron"), back, rows[rank])
    same(out, torch.cat([sent[a].split(rows[a])[rank] for a in range(n)]))
    between = [[small(n * a + b, count, dtype, 3) for b in range(n)] for a in range(n)]
    outs = [torch.empty(count, dtype=dtype, device="neuron") for _ in range(n)]
    dist.all_to_all(outs, [t.to("neuron") for t in between[rank]])
    same(torch.cat(outs), torch.cat([between[a][rank] for a in range(n)]))


def check_asynchronous(rank: int, n: int) -> None:
    tensors = [torch.full((40_000,), float(i + rank), device="neuron") for i in range(8)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    for i, (tensor, work) in enumerate(zip(tensors, works, strict=True)):
        assert work is not None
        work.wait()
        same(tensor, torch.full((40_000,), float(n * i + sum(range(n)))))
    with distributed_c10d._coalescing_manager(device=torch.device("neuron")):
        for t in tensors:
            dist.all_reduce(t)
    same(tensors[0], torch.full((40_000,), float(n * sum(range(n)))))


def check_subgroups(rank: int, n: int) -> None:
    """Groups within a host, across hosts, and of one rank."""
    for ranks in ([0, n - 1], [n - 1, 0], list(range(1, n)), [n - 1]):
        group = dist.new_group(ranks, backend="neuron")
        if rank in ranks:
            tensor = torch.full((20_000,), float(rank), device="neuron")
            dist.all_reduce(tensor, group=group)
            same(tensor, torch.full((20_000,), float(sum(ranks))))
            dist.barrier(group)


def error_of(call: Callable[[], Any]) -> tuple[str, float]:
    """The error that a collective raises, and after how many seconds; enqueued ones do when the
    host waits."""

    def waited() -> None:
        call()
        neuron.synchronize()

    start = time.monotonic()
    with pytest.raises(dist.DistBackendError) as caught:
        waited()
    return str(caught.value).split("\n")[0], time.monotonic() - start


def contains(text: str, part: str) -> None:
    assert part in text, f"{part!r} is not in {text!r}"


def content(source: int, to: int, size: int, number: int) -> Tensor:
    return (torch.arange(size) + 7 * source + 13 * to + 31 * number) % 113


def empty(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.int64, device="neuron")


def check_messages(rank: int, n: int) -> None:
    """Between all pairs, of all lengths, in order."""
    sizes = [0, 5, 896, 897, 3000, 300_000]

    sent, received = [], []
    for number, size in enumerate(sizes * 2):
        tag = (0, 2**31 - 1)[number % 2]
        for peer in range(n):
            if peer != rank:
                sent.append(
                    dist.isend(content(rank, peer, size, number).to("neuron"), peer, tag=tag)
                )
                out = empty(size)
                received.append((out, dist.irecv(out, peer, tag=tag), peer, size, number))
    for out, work, peer, size, number in reversed(received):
        assert work is not None
        work.wait()
        same(out, content(peer, rank, size, number))
    for each in sent:
        assert each is not None
        each.wait()

    # A ring, as pipelines have it.
    out = empty(1000)
    operations = [
        dist.P2POp(dist.isend, content(rank, 0, 1000, 0).to("neuron"), (rank + 1) % n),
        dist.P2POp(dist.irecv, out, (rank - 1) % n),
    ]
    for each in dist.batch_isend_irecv(operations):
        each.wait()
    same(out, content((rank - 1) % n, 0, 1000, 0))


def check_messages_from_any(rank: int, n: int) -> None:
    for root, size in itertools.product(range(n), (10, 40_000)):
        dist.barrier()
        if rank != root:
            dist.send(content(rank, root, size, 0).to("neuron"), root, tag=3)
            continue
        sources = []
        for _ in range(n - 1):
            out = empty(size)
            sources.append(dist.recv(out, None, tag=3))
            same(out, content(sources[-1], root, size, 0))
        assert sorted([*sources, root]) == list(range(n))


def check_message_errors(rank: int, n: int) -> None:
    """Between the first rank and the last, which are on different hosts."""
    group = dist.new_group(list(range(n)), backend="neuron", timeout=timedelta(seconds=2))
    for size in (10, 10_000):
        if rank == 0:
            work = dist.isend(torch.ones(size, device="neuron"), n - 1, group=group)
            assert work is not None
            if size > 10:
                text, _ = error_of(work.wait)
                contains(text, "does not fit: rank 3 (host b) wants 28 bytes")
        if rank == n - 1:
            out = torch.empty(7, device="neuron")
            text, _ = error_of(lambda out=out: dist.recv(out, 0, group=group))  # type: ignore[misc]
            contains(text, "receive from rank 0 (host a)")
            contains(text, f"does not fit: rank 0 (host a) sent {4 * size} bytes")
    if rank == n - 1:  # nobody sends
        text, _ = error_of(lambda: dist.recv(torch.empty(7, device="neuron"), 0, group=group))
        contains(text, "timed out")
    dist.barrier()


def everything(rank: int, n: int, layout: str, store: str) -> None:
    join(layout, rank, store)
    for dtype in DTYPES:
        for count in COUNTS if dtype == torch.float32 else COUNTS[:2]:
            check_reductions(rank, n, dtype, count)
            check_copies(rank, n, dtype, count)
    check_scales(rank, n)
    check_asynchronous(rank, n)
    check_subgroups(rank, n)
    check_messages(rank, n)
    check_messages_from_any(rank, n)


@pytest.mark.parametrize(
    ("layout", "mode"),
    [
        ("ab", "strict"),
        ("aaab", "debug"),
        pytest.param("ab", "debug", marks=pytest.mark.exhaustive),
        pytest.param("aaab", "strict", marks=pytest.mark.exhaustive),
        pytest.param("abab", "strict", marks=pytest.mark.exhaustive),
        pytest.param("abab", "debug", marks=pytest.mark.exhaustive),
    ],
)
def test_collectives(layout: str, mode: str, tmp_path: Path) -> None:
    run_ranks(
        len(layout),
        everything,
        layout,
        str(tmp_path / "store"),
        env={} if mode == "debug" else {"TORCH_NEURONX_EAGER_MODE": mode},
        backend="none",
        timeout=150,
    )


def faults(rank: int, n: int, layout: str, store: str, victim: int, report: str) -> None:
    join(layout, rank, store)
    everybody = list(range(n))
    sizes, kinds, late = (
        dist.new_group(everybody, backend="neuron", timeout=timedelta(seconds=s))
        for s in (20, 20, 2)
    )
    here = layout[rank]
    check_message_errors(rank, n)

    # Other sizes on the other host; small, and so large that ranks talk lane by lane.
    t = torch.ones(500_000 if here == "a" else 3, device="neuron")
    text, seconds = error_of(lambda: dist.all_reduce(t, group=sizes))
    contains(text, "disagree: rank 0 (host a) called all_reduce 1 (sum, ")
    contains(text, "[500000]), but rank 2 (host b) called all_reduce 1 (sum, ")
    contains(text, "[NRT_INVALID(2)]")
    assert seconds < 20
    # The group stays unusable, and says why.
    text, _ = error_of(lambda: dist.all_reduce(t, group=sizes))
    contains(text, "can't be used any more")
    contains(text, "[500000]")

    t = torch.ones(3, device="neuron")
    if here == "a":
        text, _ = error_of(lambda: dist.all_reduce(t, group=kinds))
    else:
        text, _ = error_of(lambda: dist.broadcast(t, 0, group=kinds))
    contains(text, "rank 0 (host a) called all_reduce 1 (sum, ")
    contains(text, "rank 2 (host b) called broadcast 1 (root 0, ")

    if rank != victim:
        text, seconds = error_of(
            lambda: dist.all_reduce(torch.ones(9, device="neuron"), group=late)
        )
        contains(text, "all_reduce 1 (sum, ")
        contains(text, "timed out")
        assert 1.5 < seconds < 20
    else:
        time.sleep(4)

    t = torch.ones(3_000_000, device="neuron")
    dist.all_reduce(t)
    if rank == victim:
        dist.all_reduce(t, async_op=True)
        os.kill(os.getpid(), signal.SIGKILL)
    text, seconds = error_of(lambda: [dist.all_reduce(t) for _ in range(100)])
    Path(report, str(rank)).write_text(f"{seconds:.1f} {text}")
    os._exit(0)  # the group cannot be destroyed in order any more


@pytest.mark.parametrize("victim", [3, pytest.param(0, marks=pytest.mark.exhaustive)])
def test_faults_are_told_on_every_rank(victim: int, tmp_path: Path) -> None:
    arguments = ("aabb", str(tmp_path / "store"), victim, str(tmp_path))
    with pytest.raises(RankError, match=rf"rank {victim}:\nended with exit code -9"):
        run_ranks(4, faults, *arguments, backend="none", timeout=150)
    host = "aabb"[victim]
    for rank in sorted({0, 1, 2, 3} - {victim}):
        seconds, text = (tmp_path / str(rank)).read_text().split(" ", 1)
        assert float(seconds) < 20
        contains(text, "all_reduce")
        assert f"rank {victim}" in text, text
        assert "NRT_" in text, (text, host)
