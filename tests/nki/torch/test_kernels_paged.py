"""Attention over paged caches: the operators and the kernels of NKI, against float64.

The tolerance follows from how attention rounds. With u the unit roundoff of the type and v that of
float32: weights and results are rounded once each to the type, sums have at most n float32 terms,
and an error e of a score, at most (width + 2) v sum(|q| |k|) scale, is a relative one of its
weight. Kernels of the CPU may also round scores to the type, which adds u |score|.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nki.errors import NkiError
from torch_neuronx.dynamo.backend import CompiledGraph
from torch_neuronx.kernels import (
    paged_attention,
    paged_attention_nki,
    paged_attention_reference,
    write_pages,
    write_pages_nki,
    write_pages_reference,
)


@dataclass
class Case:
    """Queries of some sequences, whose keys lie in blocks anywhere in a cache."""

    query: Tensor
    key_cache: Tensor
    value_cache: Tensor
    block_table: Tensor
    lengths: Tensor
    query_starts: Tensor

    def arguments(self, place: str = "cpu") -> list[Tensor]:
        return [t.to(place) for t in vars(self).values()]

    def exact(self) -> tuple[Tensor, Tensor]:
        """The result in float64, and the largest error of each element."""
        q, k, v, *numbers = self.arguments()
        wide = [t.double() for t in (q, k, v)]
        want = paged_attention_reference(wide[0], wide[1], wide[2], *numbers)
        size = paged_attention_reference(wide[0], wide[1], wide[2].abs(), *numbers)
        width = q.shape[-1]
        # No product of absolute values in a score is larger than these norms'.
        norms = [max(t.norm(dim=-1).flatten().tolist(), default=0) for t in wide[:2]]
        reach = norms[0] * norms[1] * width**-0.5
        u, wide_u = torch.finfo(q.dtype).eps / 2, torch.finfo(torch.float32).eps / 2
        terms = int(self.lengths.max()) + 16
        relative = u * (4 + reach) + wide_u * (2 * (width + 2) * reach + terms)
        return want, relative * size + torch.finfo(q.dtype).smallest_normal


def case(
    sequences: list[tuple[int, int]],
    *,
    heads: tuple[int, int] = (2, 2),
    width: int = 16,
    size: int = 4,
    dtype: torch.dtype = torch.float32,
) -> Case:
    """(tokens, keys) of each sequence; heads of keys, and queries' heads for each of them."""
    g = torch.Generator().manual_seed(sum(map(sum, sequences)))
    most = max([-(-keys // size) for _, keys in sequences] + [1]) + 1
    blocks = most * len(sequences) + 1
    caches = [torch.randn(blocks, size, heads[0], width, generator=g).to(dtype) for _ in "kv"]
    tokens = [queries for queries, _ in sequences]
    return Case(
        torch.randn(sum(tokens), heads[0] * heads[1], width, generator=g).to(dtype),
        caches[0],
        caches[1],
        torch.randperm(blocks, generator=g)[1:].view(len(sequences), most).int(),
        torch.tensor([keys for _, keys in sequences]).int(),
        torch.tensor([sum(tokens[:i]) for i in range(len(tokens) + 1)]).int(),
    )


def check(found: Tensor, expected: tuple[Tensor, Tensor]) -> None:
    want, limit = expected
    assert ((found.cpu().double() - want).abs() <= limit).all()


SEQUENCES = st.integers(0, 70).flatmap(
    lambda keys: st.tuples(st.integers(0, min(keys, 20)), st.just(keys))
)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])


@settings(max_examples=60, deadline=None)
@given(
    sequences=st.lists(SEQUENCES, min_size=1, max_size=5),
    heads=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    width=st.sampled_from([8, 16, 64, 80]),
    size=st.sampled_from([1, 4, 16]),
    dtype=DTYPES,
    place=st.sampled_from(["cpu", "neuron"]),
)
def test_operator(
    sequences: list[tuple[int, int]], heads: tuple[int, int], width: int, size: int,
    dtype: torch.dtype, place: str,
) -> None:  # fmt: skip
    """Sequences that decode, that are in a prompt, that are new, and that have no query at all."""
    made = case(sequences, heads=heads, width=width, size=size, dtype=dtype)
    check(paged_attention(*made.arguments(place)), made.exact())


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    tokens=st.integers(1, 5),
    lengths=st.lists(st.integers(5, 300), min_size=1, max_size=3),
    heads=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    width=st.sampled_from([16, 128]),
    dtype=DTYPES,
    place=st.sampled_from(["cpu", "neuron"]),
)
def test_kernel(
    tokens: int, lengths: list[int], heads: tuple[int, int], width: int, dtype: torch.dtype,
    place: str,
) -> None:  # fmt: skip
    made = case([(tokens, n) for n in lengths], heads=heads, width=width, size=8, dtype=dtype)
    query, keys, values, table, *_ = made.arguments(place)
    positions = made.lengths[:, None] - tokens + torch.arange(tokens)
    query = query.unflatten(0, (-1, tokens))
    found = paged_attention_nki(query, keys, values, table, positions.int().to(place))
    check(found.flatten(0, 1), made.exact())


def test_kernel_with_more_rows_than_partitions() -> None:
    made = case([(150, 200)], heads=(1, 1))
    query, keys, values, table, *_ = made.arguments("neuron")
    positions = torch.arange(50, 200).int().to("neuron")
    check(paged_attention_nki(query[None], keys, values, table, positions[None])[0], made.exact())


WRITES: list[tuple[Callable[..., None], torch.dtype]] = [
    (write_pages, torch.int64),
    (write_pages_nki, torch.int32),
]


@pytest.mark.parametrize("place", ["cpu", "neuron"])
@pytest.mark.parametrize(("write", "integer"), WRITES, ids=["operator", "kernel"])
def test_write(write: Callable[..., None], integer: torch.dtype, place: str) -> None:
    """More tokens than the kernel takes at a time, over what is there."""
    key, value = (torch.randn(140, 2, 8) for _ in "kv")
    caches = [torch.randn(60, 4, 2, 8) for _ in "kv"]
    slots = torch.randperm(240)[:140]
    found = [c.clone().to(place) for c in caches]
    write(key.to(place), value.to(place), *found, slots.to(integer).to(place))
    write_pages_reference(key, value, caches[0], caches[1], slots)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(found, caches, strict=True))


def step(
    key: Tensor, caches: list[Tensor], slots: Tensor, query: Tensor, numbers: list[Tensor]
) -> Tensor:
    write_pages(key * 2, key + 1, caches[0], caches[1], slots)
    return paged_attention(query * 1, caches[0], caches[1], *numbers) + 1


def test_compiled(graphs: list[CompiledGraph]) -> None:
    """One graph, which writes the caches in place: none of their size is allocated."""
    made = case([(1, 9), (1, 4)])
    query, keys, values, *numbers = made.arguments("neuron")
    big = [
        torch.cat([t, torch.zeros(50_000, *t.shape[1:], device="neuron")]) for t in (keys, values)
    ]
    key, slots = torch.randn(2, 2, 16, device="neuron"), torch.tensor([3, 8], device="neuron")
    compiled = torch.compile(step, backend="neuron", fullgraph=True)
    with torch.no_grad():
        want = step(key, [keys, values], slots, query, numbers)
        compiled(key, big, slots, query, numbers)
        torch.accelerator.reset_peak_memory_stats()
        before = torch.accelerator.memory_allocated()
        found = compiled(key, big, slots, query, numbers)
        torch.accelerator.synchronize()
    assert torch.accelerator.max_memory_allocated() - before < big[0].nbytes // 100
    torch.testing.assert_close(found, want)
    assert torch.equal(big[0][: len(keys)], keys)
    assert len(graphs) == 1


def test_kernels_compiled(graphs: list[CompiledGraph]) -> None:
    made = case([(1, 9), (1, 4)])
    query, keys, values, table, lengths, _ = made.arguments("neuron")
    key, slots = torch.randn(2, 2, 16, device="neuron"), torch.tensor([3, 8], device="neuron")

    last = (lengths - 1)[:, None]

    def kernels(caches: list[Tensor]) -> Tensor:
        write_pages_nki(key, key, caches[0], caches[1], slots.int())
        return paged_attention_nki(query[:, None], caches[0], caches[1], table, last)

    copies = [keys.clone(), values.clone()]
    want = kernels(copies)
    found = torch.compile(kernels, backend="neuron", fullgraph=True)([keys, values])
    torch.testing.assert_close(found, want)
    assert torch.equal(keys, copies[0])
    assert len(graphs) == 1


def altered(**changes: Tensor) -> list[Tensor]:
    return list((vars(case([(2, 5), (1, 9)])) | changes).values())


REFUSED: list[tuple[list[Tensor], str]] = [
    (altered(key_cache=torch.zeros(3, 4, 2)), r"the caches must both be \[blocks, block size"),
    (altered(query=torch.zeros(3, 5, 16)), r"a multiple of 2 heads, 16\], got \(3, 5, 16\)"),
    (altered(query=torch.zeros(3, 2, 16).half()), "query and caches must have one dtype"),
    (altered(lengths=torch.zeros(2).long()), "lengths and query_starts must be int32"),
    (altered(lengths=torch.zeros(3).int()), r"\[sequences \+ 1\], got \(2, 4\), \(3,\) and \(3,\)"),
]


@pytest.mark.parametrize("place", ["cpu", "neuron", "meta"])
@pytest.mark.parametrize(("arguments", "text"), REFUSED)
def test_refused(arguments: list[Tensor], text: str, place: str) -> None:
    with pytest.raises(ValueError, match=text):
        paged_attention(*(t.to(place) for t in arguments))


@pytest.mark.parametrize("place", ["cpu", "neuron"])
@pytest.mark.parametrize("block", [-1, 99])
def test_blocks_outside_of_the_cache(block: int, place: str) -> None:
    made = case([(1, 9)])
    made.block_table[0, 1] = block
    with pytest.raises(IndexError):
        paged_attention(*made.arguments(place))
    made.block_table = made.block_table[:, :1]
    with pytest.raises(RuntimeError, match="9 keys do not fit into 1"):
        paged_attention(*made.arguments(place))


@pytest.mark.parametrize("place", ["cpu", "neuron"])
def test_refused_writes(place: str) -> None:
    key, cache = torch.zeros(2, 2, 8, device=place), torch.zeros(4, 4, 2, 8, device=place)
    slots = torch.tensor([0, 16], device=place)
    with pytest.raises(IndexError):
        write_pages(key, key, cache, cache.clone(), slots)
    with pytest.raises(ValueError, match=r"slots must be int64 \[tokens\], got torch.int32"):
        write_pages(key, key, cache, cache, slots.int())
    with pytest.raises(ValueError, match=r"value must be torch.float32 \(2, 2, 8\), got"):
        write_pages(key, key[:1], cache, cache, slots)
    with pytest.raises(ValueError, match="the caches must be contiguous"):
        write_pages(key, key, cache.transpose(0, 1), cache.transpose(0, 1), slots)


def test_no_gradients() -> None:
    made = case([(1, 9)])
    made.query.requires_grad_()
    with pytest.raises(NotImplementedError, match="paged_attention has no gradients"):
        paged_attention(*made.arguments())


def test_kernel_refuses() -> None:
    made = case([(1, 9)], width=160)
    query, keys, values, table, lengths, _ = made.arguments("neuron")
    with pytest.raises(NkiError, match="NKI274") as error:
        paged_attention_nki(query[:, None], keys, values, table, (lengths - 1)[:, None])
    assert "use torch_neuronx.kernels.paged_attention" in str(error.value)
