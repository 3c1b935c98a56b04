"""torch.nn.attention.varlen on packed sequences, against attention sequence by sequence."""

import math
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.varlen import AuxRequest, varlen_attn, varlen_attn_out

from tests.device.enqueued import to_the_end


def visible(queries: int, keys: int, window: tuple[int, int]) -> Tensor:
    """Query i stands at key i + keys - queries and sees ``window`` to its left and right."""
    own = torch.arange(queries)[:, None] + keys - queries
    key = torch.arange(keys)[None, :]
    left, right = window
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if left >= 0:
        seen &= key >= own - left
    if right >= 0:
        seen &= key <= own + right
    return seen


def reference(
    q: Tensor, k: Tensor, v: Tensor, bounds: tuple[list[int], list[int]], window: tuple[int, int]
) -> Tensor:
    """Attention by its definition; zeros where a query sees no key."""
    share = q.shape[1] // k.shape[1]
    out = []
    for i in range(len(bounds[0]) - 1):
        mine = q[bounds[0][i] : bounds[0][i + 1]].transpose(0, 1)
        theirs = slice(bounds[1][i], bounds[1][i + 1])
        keys = k[theirs].transpose(0, 1).repeat_interleave(share, 0)
        values = v[theirs].transpose(0, 1).repeat_interleave(share, 0)
        seen = visible(mine.shape[1], keys.shape[1], window)
        scores = (mine @ keys.transpose(1, 2)) / math.sqrt(q.shape[-1])
        # A row of -inf has no softmax; its weights are zero, and so is their gradient.
        weights = scores.masked_fill(~seen, -1e30).softmax(-1) * seen
        out.append((weights @ values).transpose(0, 1))
    return torch.cat(out)


def cumulated(lengths: list[int]) -> list[int]:
    return [sum(lengths[:i]) for i in range(len(lengths) + 1)]


def laid_out(t: Tensor, layout: str) -> Tensor:
    """The same values, whose elements of a row lie as the layout says."""
    if layout == "spread":
        return torch.stack([t, t + 1], -1)[..., 0]
    if layout == "width first":
        return t.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    return t


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=4),
    same=st.booleans(),
    share=st.sampled_from([1, 2, 3]),
    width=st.sampled_from([8, 16, 33]),
    window=st.sampled_from([(-1, -1), (-1, 0), (3, 0), (2, 4), (0, -1)]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    layouts=st.tuples(*[st.sampled_from(["plain", "spread", "width first"])] * 4),
)
def test_sequences(
    *,
    lengths: list[tuple[int, int]],
    same: bool,
    share: int,
    width: int,
    window: tuple[int, int],
    dtype: torch.dtype,
    layouts: tuple[str, ...],
) -> None:
    if same:
        lengths = [(n, n) for n, _ in lengths]
    bounds = (cumulated([n for n, _ in lengths]), cumulated([n for _, n in lengths]))
    generator = torch.Generator().manual_seed(0)
    shapes = (
        (bounds[0][-1], 2 * share, width),
        (bounds[1][-1], 2, width),
        (bounds[1][-1], 2, width),
        (bounds[0][-1], 2 * share, width),
    )
    host = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    exact = [t.double().requires_grad_() for t in host[:3]]
    moved = [laid_out(t.to("neuron"), how) for t, how in zip(host, layouts, strict=True)]
    device = [t.requires_grad_() for t in moved[:3]]
    cu_q, cu_k = (torch.tensor(b, dtype=torch.int32, device="neuron") for b in bounds)
    got = varlen_attn(
        device[0],
        device[1],
        device[2],
        cu_q,
        cu_k,
        20,
        20,
        window_size=window,
        enable_gqa=share > 1,
    )
    expected = reference(exact[0], exact[1], exact[2], bounds, window)
    wanted = torch.autograd.grad(expected, exact, host[3].double())
    grads = torch.autograd.grad(got, device, moved[3])
    # Sums over at most 20 keys or queries (of up to three heads) or 33 features, of order one.
    eps = torch.finfo(dtype).eps
    bound = 16 * eps * math.sqrt(60)
    assert isinstance(got, Tensor)
    torch.testing.assert_close(got.cpu().double(), expected.detach(), rtol=8 * eps, atol=bound)
    for mine, theirs in zip(grads, wanted, strict=True):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine.cpu().double(), theirs, rtol=16 * eps, atol=bound)


def test_values_of_their_own_width_and_the_log_sum_exp() -> None:
    q, k, v = torch.randn(7, 2, 16), torch.randn(9, 2, 16), torch.randn(9, 2, 24)
    cu_q, cu_k = torch.tensor([0, 3, 7]).int(), torch.tensor([0, 4, 9]).int()
    q, k, v, cu_q, cu_k = (t.to("neuron") for t in (q, k, v, cu_q, cu_k))
    out, lse = varlen_attn(q, k, v, cu_q, cu_k, 4, 5, return_aux=AuxRequest(lse=True), scale=0.5)
    assert out.shape == (7, 2, 24)
    assert lse.shape == (2, 7)
    scores = 0.5 * q[3:].cpu().transpose(0, 1) @ k[4:].cpu().permute(1, 2, 0)
    torch.testing.assert_close(lse[:, 3:].cpu(), scores.logsumexp(-1))
    torch.testing.assert_close(
        out[3:].cpu(), (scores.softmax(-1) @ v[4:].cpu().transpose(0, 1)).transpose(0, 1)
    )


def test_pages_and_used_keys() -> None:
    """A paged cache holds the same keys as a packed tensor, in another order."""
    generator = torch.Generator().manual_seed(0)
    used, table = [5, 3], torch.tensor([[2, 0], [3, 1]]).int()
    pool_k, pool_v = (torch.randn(4, 4, 2, 8, generator=generator) for _ in range(2))
    q = torch.randn(3, 2, 8, generator=generator)
    packed_k, packed_v = (
        torch.cat(
            [pool[rows.long()].flatten(0, 1)[:n] for rows, n in zip(table, used, strict=True)]
        )
        for pool in (pool_k, pool_v)
    )
    cu_q = torch.tensor([0, 1, 3]).int()
    expected = reference(q, packed_k, packed_v, ([0, 1, 3], [0, 5, 8]), (-1, 0))
    to = [t.to("neuron") for t in (q, pool_k, pool_v, cu_q, table, torch.tensor(used).int())]
    paged = varlen_attn(
        to[0], to[1], to[2], to[3], None, 2, 8, window_size=(-1, 0), block_table=to[4],
        seqused_k=to[5],
    )  # fmt: skip
    assert isinstance(paged, Tensor)
    torch.testing.assert_close(paged.cpu(), expected)
    # Slots of 8 keys of which 5 and 3 are used.
    slots_k, slots_v = (pool[table.long()].flatten(0, 2).to("neuron") for pool in (pool_k, pool_v))
    cu_k, out = torch.tensor([0, 8, 16]).int().to("neuron"), torch.empty(3, 2, 8, device="neuron")
    varlen_attn_out(
        out, to[0], slots_k, slots_v, to[3], cu_k, 2, 8, window_size=(-1, 0), seqused_k=to[5]
    )
    torch.testing.assert_close(out.cpu(), expected)


def paged_case(
    lengths: list[tuple[int, int]], size: int, share: int, width: int, dtype: torch.dtype
) -> tuple[list[Tensor], list[Tensor]]:
    """Query, pages of keys and of values, and int32 numbers: bounds, block table, used keys."""
    generator = torch.Generator().manual_seed(0)
    most = max(-(-keys // size) for _, keys in lengths) + 1
    count = most * len(lengths) + 2
    query = torch.randn(sum(n for n, _ in lengths), 2 * share, width, generator=generator)
    pages = [torch.randn(count, size, 2, width, generator=generator) for _ in range(2)]
    table = torch.randperm(count, generator=generator)[:-2].view(len(lengths), most)
    numbers = [torch.tensor(cumulated([n for n, _ in lengths])), table]
    numbers.append(torch.tensor([n for _, n in lengths]))
    return [t.to(dtype) for t in (query, *pages)], [t.int() for t in numbers]


def pages_laid_out(pages: Tensor, layout: str) -> Tensor:
    if layout == "heads first":
        return pages.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "pages of all layers":
        return torch.stack([pages + 1, pages], 1)[:, 1]
    return laid_out(pages, layout) if layout == "spread" else pages


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 600)), min_size=1, max_size=3),
    few=st.booleans(),
    size=st.sampled_from([1, 3, 16, 100, 700]),
    share=st.sampled_from([1, 3]),
    width=st.sampled_from([16, 33, 64, 300]),
    window=st.sampled_from([(-1, -1), (-1, 0), (-1, 2), (7, 0)]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    layout=st.sampled_from(["plain", "spread", "heads first", "pages of all layers"]),
)
def test_pages_give_what_gathered_keys_give(
    *,
    lengths: list[tuple[int, int]],
    few: bool,
    size: int,
    share: int,
    width: int,
    window: tuple[int, int],
    dtype: torch.dtype,
    layout: str,
) -> None:
    """To the last bit: sums are taken in one order wherever the keys lie."""
    if few:
        lengths = [(n % 3, keys) for n, keys in lengths]
    (query, *pages), numbers = paged_case(lengths, size, share, width, dtype)
    bounds, table, used = (t.to("neuron") for t in numbers)
    packed = [
        torch.cat(
            [p[rows.long()].flatten(0, 1)[:n] for rows, n in zip(numbers[1], used, strict=True)]
        ).to("neuron")
        for p in pages
    ]
    cu_k = torch.tensor(cumulated(used.tolist())).int().to("neuron")
    want = varlen_attn(
        query.to("neuron"), packed[0], packed[1], bounds, cu_k, 40, 600, window_size=window,
        enable_gqa=share > 1,
    )  # fmt: skip
    moved = [pages_laid_out(p.to("neuron"), layout) for p in pages]
    found = varlen_attn(
        query.to("neuron"), moved[0], moved[1], bounds, None, 40, 600, window_size=window,
        enable_gqa=share > 1, block_table=table, seqused_k=used,
    )  # fmt: skip
    assert isinstance(found, Tensor)
    assert isinstance(want, Tensor)
    assert torch.equal(found, want)


@dataclass
class Paged:
    """A call that fits together: two sequences of 5 keys, in 6 pages of 4."""

    query: Tensor = field(default_factory=lambda: torch.zeros(2, 2, 8))
    key: Tensor = field(default_factory=lambda: torch.zeros(6, 4, 2, 8))
    value: Tensor = field(default_factory=lambda: torch.zeros(6, 4, 2, 8))
    bounds: Tensor = field(default_factory=lambda: torch.tensor([0, 1, 2]).int())
    table: Tensor = field(default_factory=lambda: torch.tensor([[0, 1, 2], [3, 4, 5]]).int())
    used: Tensor = field(default_factory=lambda: torch.tensor([5, 5]).int())

    def call(self) -> None:
        q, k, v, bounds, table, used = (t.to("neuron") for t in vars(self).values())
        flags = (0.0, True, False)  # dropout, causal, whether to return dropout's mask
        torch.ops.aten._flash_attention_forward(
            q, k, v, bounds, None, 2, 12, *flags, seqused_k=used, block_table=table
        )


def table_with(page: int) -> Tensor:
    return torch.tensor([[0, 1, 2], [page, 4, 5]]).int()


PAGES_REFUSED = [
    (Paged(table=table_with(6)), r"block_table\[1\]\[0\] is 6 of 6 pages", IndexError),
    (Paged(table=table_with(-1)), r"block_table\[1\]\[0\] is -1 of 6 pages", IndexError),
    (Paged(used=torch.tensor([5, 13]).int()), "13 keys do not fit into 3 pages", RuntimeError),
    (Paged(used=torch.tensor([5, -1]).int()), r"seqused_k\[1\] is -1", RuntimeError),
    (Paged(table=table_with(3).long()), "must be int32 .* got Long", RuntimeError),
    (Paged(used=torch.tensor([5, 5])), "must be int32 .* and Long", RuntimeError),
    (Paged(table=table_with(3)[:1]), r"got Int \[1, 3\] and Int \[2\]", RuntimeError),
    (Paged(used=torch.tensor([5]).int()), r"got Int \[2, 3\] and Int \[1\]", RuntimeError),
    (Paged(query=torch.zeros(2, 2, 8).half()), "the query must be .* got Half", RuntimeError),
    (Paged(key=torch.zeros(4, 2, 8)), r"key and value \[pages, page size, heads", RuntimeError),
    (Paged(query=torch.zeros(2, 3, 8)), "its heads a multiple of the key's", RuntimeError),
    (Paged(query=torch.zeros(2, 2, 7)), "of its dtype and width", RuntimeError),
    (Paged(value=torch.zeros(5, 4, 2, 8)), "with a block_table", RuntimeError),
]


@pytest.mark.parametrize(("wrong", "text", "error"), PAGES_REFUSED)
def test_pages_refused(wrong: Paged, text: str, error: type[Exception]) -> None:
    Paged().call()
    with pytest.raises(error, match=text):
        to_the_end(wrong.call)


def test_without_sequences_it_is_ordinary_attention() -> None:
    q, k, v = (torch.randn(2, 5, 3, 8, device="neuron") for _ in range(3))
    flags = (0.0, True, False)  # dropout, causal, whether to return dropout's mask
    out, lse, *_ = torch.ops.aten._flash_attention_forward(q, k, v, None, None, 5, 5, *flags)
    host = [t.cpu().transpose(1, 2) for t in (q, k, v)]
    attention = torch.nn.functional.scaled_dot_product_attention
    expected = attention(host[0], host[1], host[2], is_causal=True)
    torch.testing.assert_close(out.cpu().transpose(1, 2), expected)
    assert lse.shape == (2, 3, 5)


@pytest.mark.parametrize(
    ("bounds", "longest", "message"),
    [
        ([0, 4, 3], 4, "cum_seq_q must rise from 0 to at most 6, got 3 after 4"),
        ([0, 7], 7, "at most 6, got 7 after 0"),
        ([0, 6], 5, "a sequence of 6 tokens in cum_seq_q is longer than the stated maximum, 5"),
        ([0, 2, 6], 6, "cum_seq_q and cum_seq_k describe 2 and 1 sequences"),
    ],
)
def test_wrong_bounds(bounds: list[int], longest: int, message: str) -> None:
    q = torch.zeros(6, 1, 8, device="neuron")
    cu = torch.tensor(bounds, dtype=torch.int32, device="neuron")
    whole = torch.tensor([0, 6], dtype=torch.int32, device="neuron")
    with pytest.raises(RuntimeError, match=message):
        varlen_attn(q, q, q, cu, whole, longest, 6)


def test_wrong_shapes() -> None:
    q, k = torch.zeros(6, 3, 8, device="neuron"), torch.zeros(6, 2, 8, device="neuron")
    cu = torch.tensor([0, 6], dtype=torch.int32, device="neuron")
    with pytest.raises(RuntimeError, match="must be \\[tokens, heads, width\\] of one dtype"):
        torch.ops.torch_attn._varlen_attn(q, k, k, cu, cu, 6, 6)
    with pytest.raises(RuntimeError, match="cum_seq_k must be a vector of int32, got Long"):
        varlen_attn(q, q, q, cu, cu.long(), 6, 6)
