"""Collectives of several hosts: every layout of ranks, as threads of this process.

What runs between hosts is gloo over the loopback interface, as between computers; what runs within
a host is the memory of this process. test_several_hosts.py does the same with processes.
"""

import datetime as dt
import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._C import _distributed_c10d as c10d

from torch_neuronx import _C

NARROW = [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]
FLOATS = [torch.float32, torch.float64, *NARROW]
WHOLE = [torch.int64, torch.int32, torch.int8, torch.uint8]


class Group:
    """Ranks on hosts: ``"aab"`` is two ranks on host a and one on b."""

    def __init__(self, layout: str, timeout: float = 60) -> None:
        self.layout, self.size = layout, len(layout)
        self.hosts = [h for h, _ in itertools.groupby(sorted(layout, key=layout.index))]
        store = c10d.HashStore()
        host_of = {h: _C.ThreadHost(layout.count(h)) for h in self.hosts}
        self.gloo: list[Any] = [None] * self.size
        self.ranks: list[Any] = [None] * self.size

        def join(rank: int) -> None:
            options = c10d.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            options._devices = [c10d.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
            options._threads = 1
            options._timeout = dt.timedelta(seconds=30)
            self.gloo[rank] = c10d.ProcessGroupGloo(store, rank, self.size, options)
            self.ranks[rank] = _C.TwoLevelRank(
                self.gloo[rank], store, rank, list(layout), host_of[layout[rank]]
            )
            self.ranks[rank].set_timeout(timeout)

        raise_first(self.run(join))

    def run(self, function: Callable[[int], Any], ranks: Sequence[int] | None = None) -> list[Any]:
        """Calls ``function(rank)`` in one thread per rank; its results, or exceptions."""
        results: list[Any] = [None] * self.size

        def call(rank: int) -> None:
            try:
                results[rank] = function(rank)
            except Exception as error:  # noqa: BLE001 (given back)
                results[rank] = error

        chosen = range(self.size) if ranks is None else ranks
        threads = [threading.Thread(target=call, args=(r,)) for r in chosen]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def fold(self, parts: Sequence[torch.Tensor], op: str, scales: tuple[float, float]) -> Any:
        """The reference: over the ranks of a host, over hosts, rounded once."""
        dtype = parts[0].dtype
        wide = torch.float32 if dtype in NARROW else dtype
        pairs: dict[str, Any] = {
            "sum": torch.add,
            "product": torch.mul,
            "min": torch.minimum,
            "max": torch.maximum,
        }
        scaled = [p.to(wide) * wide_scalar(scales[0], wide) for p in parts]
        partial = [
            functools.reduce(
                pairs[op], [s for s, at in zip(scaled, self.layout, strict=True) if at == h]
            )
            for h in self.hosts
        ]
        whole = functools.reduce(pairs[op], partial)
        if scales[1] != 1:
            n = round(1 / scales[1])
            whole = whole / n if wide.is_floating_point else whole.div(n, rounding_mode="trunc")
        return whole.to(dtype)


def wide_scalar(value: float, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64).to(dtype)


def assert_same(result: torch.Tensor, expected: torch.Tensor) -> None:
    wide = torch.float32 if result.dtype in NARROW else result.dtype
    torch.testing.assert_close(result.to(wide), expected.to(wide), rtol=0, atol=0, equal_nan=True)


def raise_first(results: Sequence[Any]) -> None:
    for result in results:
        if isinstance(result, Exception):
            raise result


@functools.cache
def group(layout: str) -> Group:
    return Group(layout)


@pytest.fixture(scope="module", autouse=True)
def _forget() -> Iterator[None]:
    yield
    group.cache_clear()


LAYOUTS = ["ab", "aabb", "aaab", "abab", "abbcccc", "abc"]


def values(seed: int, rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype.is_floating_point:
        return torch.randn(count, generator=generator).to(dtype)
    return torch.randint(-5 if dtype.is_signed else 0, 5, (count,), generator=generator).to(dtype)


cases = given(
    layout=st.sampled_from(LAYOUTS),
    count=st.one_of(st.integers(0, 40), st.integers(5000, 90000)),
    dtype=st.sampled_from(FLOATS + WHOLE),
    op=st.sampled_from(["sum", "product", "min", "max"]),
    seed=st.integers(0, 99),
    data=st.data(),
)


def scales_of(data: st.DataObject, dtype: torch.dtype, op: str, size: int) -> tuple[float, float]:
    if op != "sum":
        return 1.0, 1.0
    pre = data.draw(st.sampled_from([1.0, 2.0, 0.3] if dtype.is_floating_point else [1.0, 3.0]))
    return pre, data.draw(st.sampled_from([1.0, 1.0 / size]))


@settings(max_examples=40)
@cases
def test_all_reduce(
    layout: str, count: int, dtype: torch.dtype, op: str, seed: int, data: st.DataObject
) -> None:
    g = group(layout)
    inputs = [values(seed, r, count, dtype) for r in range(g.size)]
    scales = scales_of(data, dtype, op, g.size)
    expected = g.fold(inputs, op, scales)
    outputs = [t.clone() for t in inputs]
    if data.draw(st.booleans(), "in place"):
        inputs = outputs
    raise_first(
        g.run(lambda r: g.ranks[r].all_reduce("sum", op, inputs[r], outputs[r], scales=scales))
    )
    for out in outputs:
        assert_same(out, expected)


@settings(max_examples=30)
@cases
def test_reduce_scatter(
    layout: str, count: int, dtype: torch.dtype, op: str, seed: int, data: st.DataObject
) -> None:
    g = group(layout)
    scales = scales_of(data, dtype, op, g.size)
    if data.draw(st.booleans(), "to one rank"):
        counts = [0] * g.size
        counts[data.draw(st.integers(0, g.size - 1))] = count
    else:
        counts = [data.draw(st.integers(0, 2)) * count // 2 for _ in range(g.size)]
    inputs = [values(seed, r, sum(counts), dtype) for r in range(g.size)]
    expected = g.fold(inputs, op, scales).split(counts)
    outputs = [torch.zeros(counts[r], dtype=dtype) for r in range(g.size)]
    listed = data.draw(st.booleans(), "list")
    given_inputs = [[part.clone() for part in t.split(counts)] if listed else [t] for t in inputs]
    raise_first(
        g.run(
            lambda r: g.ranks[r].reduce_scatter(
                "sum", op, given_inputs[r], outputs[r], counts, scales=scales
            )
        )
    )
    for out, want in zip(outputs, expected, strict=True):
        assert_same(out, want)


@settings(max_examples=30)
@given(
    layout=st.sampled_from(LAYOUTS),
    size=st.one_of(st.integers(0, 100), st.integers(10_000, 3_000_000)),
    data=st.data(),
)
def test_all_gather(layout: str, size: int, data: st.DataObject) -> None:
    g = group(layout)
    if data.draw(st.booleans(), "broadcast"):
        sizes = [0] * g.size
        sizes[data.draw(st.integers(0, g.size - 1))] = size
    else:
        sizes = [data.draw(st.integers(0, 2)) * size // 2 for _ in range(g.size)]
    inputs = [values(1, r, sizes[r], torch.uint8) for r in range(g.size)]
    listed = data.draw(st.booleans(), "list")
    whole = [torch.zeros(sum(sizes), dtype=torch.uint8) for _ in range(g.size)]
    outputs = [
        [torch.zeros(s, dtype=torch.uint8) for s in sizes] if listed else [whole[r]]
        for r in range(g.size)
    ]
    raise_first(g.run(lambda r: g.ranks[r].all_gather("x", sizes, inputs[r], outputs[r])))
    for out in outputs:
        assert torch.equal(torch.cat(out), torch.cat(inputs))


@settings(max_examples=30)
@given(
    layout=st.sampled_from(LAYOUTS),
    root=st.integers(-1, 6),
    size=st.sampled_from([1, 7, 20_000]),
    data=st.data(),
)
def test_exchange(layout: str, root: int, size: int, data: st.DataObject) -> None:
    g = group(layout)
    n = g.size
    root = min(root, n - 1)
    scatter = data.draw(st.booleans())
    sizes = [
        [
            data.draw(st.integers(0, 2)) * size if root < 0 or (a if scatter else b) == root else 0
            for b in range(n)
        ]
        for a in range(n)
    ]
    to = [[values(n * a + b, 0, sizes[a][b], torch.uint8) for b in range(n)] for a in range(n)]
    source = [[torch.zeros(sizes[a][b], dtype=torch.uint8) for a in range(n)] for b in range(n)]
    raise_first(g.run(lambda r: g.ranks[r].exchange("x", to[r], source[r], root=root)))
    for a, b in itertools.product(range(n), repeat=2):
        assert torch.equal(source[b][a], to[a][b])


@given(
    layout=st.text("abc", min_size=1, max_size=9),
    minimum=st.integers(1, 20),
    chunk=st.integers(1, 30),
    data=st.data(),
)
def test_blocks_are_split_evenly(
    layout: str, minimum: int, chunk: int, data: st.DataObject
) -> None:
    blocks = [data.draw(st.integers(0, 60)) for _ in layout]
    names = list(dict.fromkeys(layout))  # hosts are numbered by their lowest rank
    owners, carriers = (data.draw(st.integers(0, len(names) - 1)) for _ in range(2))
    pieces = _C.distributed_split_blocks(list(layout), blocks, owners, carriers, minimum, chunk)
    # In order, every element of the owners' blocks is in one piece.
    found = [(owner, i) for owner, _, begin, end in pieces for i in range(begin, end)]
    own = [r for r, name in enumerate(layout) if name == names[owners]]
    assert found == [(r, i) for r in own for i in range(blocks[r])]
    assert all(begin // chunk == (end - 1) // chunk for _, _, begin, end in pieces)
    # Carriers are ranks of the host, in order, with equal parts.
    ranks = [r for r, name in enumerate(layout) if name == names[carriers]]
    carried = [sum(end - begin for _, c, begin, end in pieces if c == rank) for rank in ranks]
    part = max(-(-len(found) // len(ranks)), minimum)
    assert carried == [min(max(len(found) - i * part, 0), part) for i in range(len(ranks))]


def test_hosts_with_as_many_ranks_talk_lane_by_lane() -> None:
    pieces = _C.distributed_split_blocks(list("aabb"), [100] * 4, 0, 1, 1, 1000)
    assert pieces == [(0, 2, 0, 100), (1, 3, 0, 100)]


def test_partial_sums_of_halves_neither_overflow_nor_round() -> None:
    g = group("aabb")
    t = [torch.full((8,), 40_000.0, dtype=torch.float16) for _ in range(4)]
    t[3][1] = 2.0**-10  # below half a unit in the last place of the sum of the others
    raise_first(g.run(lambda r: g.ranks[r].all_reduce("x", "sum", t[r], t[r], scales=(1.0, 0.25))))
    for out in t:
        assert out.tolist() == [40_000.0, 30_000.0] + [40_000.0] * 6


def test_barrier_waits_for_every_rank() -> None:
    g = group("aabb")
    came: list[int] = []

    def visit(rank: int) -> int:
        threading.Event().wait(0.05 * rank)
        came.append(rank)
        g.ranks[rank].barrier()
        return len(came)

    for _ in range(3):
        came.clear()
        assert g.run(visit) == [4] * 4


def texts(results: Sequence[Any]) -> list[str]:
    assert all(isinstance(result, dist.DistBackendError) for result in results), results
    return [str(result).split("\n")[0] for result in results]


def test_different_collectives_are_named_on_every_rank() -> None:
    g = Group("aabb")

    def call(rank: int) -> None:
        t = torch.ones(1000 if rank < 2 else 500_000)
        g.ranks[rank].all_reduce(f"all_reduce of {t.numel()} float32", "sum", t, t)

    expected = (
        "neuron: ranks of group 0 disagree: rank 0 (host a) called all_reduce of 1000 float32 1, "
        "but rank 2 (host b) called all_reduce of 500000 float32 1 [NRT_INVALID(2)]"
    )
    assert texts(g.run(call)) == [expected] * 4


@pytest.mark.parametrize("lengths", [(10, 20), (20, 10), (0, 10), (10, 0)])
def test_lengths_that_do_not_fit_together(lengths: tuple[int, int]) -> None:
    g = Group("aab")
    none = torch.zeros(0, dtype=torch.uint8)
    to = [[none] * 3 for _ in range(3)]
    source = [[none] * 3 for _ in range(3)]
    to[1][2] = torch.zeros(lengths[0], dtype=torch.uint8)
    source[2][1] = torch.zeros(lengths[1], dtype=torch.uint8)
    results = g.run(lambda r: g.ranks[r].exchange("x", to[r], source[r]))
    # Who sends nothing and got what it wanted has finished before the other complains.
    found = texts([result for result in results if result is not None])
    assert results[2] is not None
    assert len(found) == 3 or lengths[0] == 0
    expected = (
        f"neuron: x 1 of group 0: rank 2 (host b) expects {lengths[1]} bytes from rank 1 (host a), "
        f"which has {lengths[0]} for it [NRT_INVALID(2)]"
    )
    assert set(found) == {expected}


def test_a_rank_that_does_not_come_is_a_timeout_everywhere() -> None:
    g = Group("aabb", timeout=1)
    t = [torch.ones(100_000) for _ in range(4)]
    ranks = [0, 1, 2]  # rank 3 doesn't come
    found = g.run(lambda r: g.ranks[r].all_reduce("sum", "sum", t[r], t[r]), ranks)
    for text in texts([found[r] for r in ranks]):
        assert "timed out" in text or "a neighbour is missing" in text
        assert text.endswith(" [NRT_TIMEOUT(5)]")


def test_a_lost_rank_is_named_on_every_rank() -> None:
    g = Group("aabb")
    t = [torch.ones(100_000) for _ in range(4)]
    g.ranks[3] = g.gloo[3] = None  # its connections close
    ranks = [0, 1, 2]

    def call(rank: int) -> None:
        if rank == 2:  # its neighbour would see by itself that rank 3 is gone
            threading.Event().wait(2)
        g.ranks[rank].all_reduce("sum", "sum", t[rank], t[rank])

    results = g.run(call, ranks)
    found = texts([results[r] for r in ranks])
    assert len(set(found)) == 1
    assert found[0].startswith(
        "neuron: sum 1 of group 0 can't finish: rank 1 (host a) lost the connection to "
        "rank 3 (host b); "
    )
    assert found[0].endswith(" [NRT_EXEC_HW_ERR_COLLECTIVES(1200)]")
