"""Calls of sizes that are new are enqueued, where PyTorch's shape function says what they give."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import torch_neuronx
from tests.device.enqueued import everything_enqueued

N = torch_neuronx.neuron


@pytest.fixture(autouse=True)
def _everything_is_enqueued() -> Iterator[None]:
    with everything_enqueued("strict"):
        yield


def _firsts() -> dict[str, int]:
    reason = "it is the first of its kind"
    rows: dict[str, dict[str, int]] = N.eager_stats()["at_the_call"]
    return {name: row[reason] for name, row in rows.items() if reason in row}


def _decode(steps: int) -> list[torch.Tensor]:
    """Attend to a cache that grows by one token a step, written out and fused."""
    torch.manual_seed(0)
    heads, width = 4, 16
    keys = torch.randn(1, heads, 5, width).to("neuron")
    values = torch.randn(1, heads, 5, width).to("neuron")
    found = []
    for step in range(steps):
        if step == 3:
            N.reset_eager_stats()
        token = torch.full((1, heads, 1, width), 0.01 * step).to("neuron")
        keys = torch.cat([keys, token], dim=-2)
        values = torch.cat([values, token * 2], dim=-2)
        scores = (token @ keys.transpose(-2, -1)) * width**-0.5
        places = torch.arange(keys.shape[-2], device="neuron")
        scores = scores.masked_fill(places > step + 5, float("-inf"))
        scores = torch.where(places >= 0, scores, -1.0)
        found.append(torch.softmax(scores.float(), dim=-1).to(torch.float32) @ values)
        found.append(F.scaled_dot_product_attention(token, keys, values))
    return [each.cpu() for each in found]


def test_a_cache_that_grows_makes_no_call_wait() -> None:
    grown = _decode(12)
    stats = N.eager_stats()
    assert _firsts() == {}
    assert stats["ruled"] >= 9 * 8
    assert stats["enqueued"] >= 9 * 10
    N.set_eager_mode("debug")
    for one, other in zip(grown, _decode(12), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2), (3, 2, 1, 0)])
def test_attention_whose_operands_lie_in_another_order(order: tuple[int, ...]) -> None:
    """What is said of them is believed all the same, also of those that have no contiguous rows."""
    back = [order.index(d) for d in range(4)]
    for n in range(5, 12):
        sizes = [(2, 4, n, 16)[d] for d in order]
        q, k, v = (torch.randn(sizes).to("neuron").permute(back) for _ in range(3))
        if n == 8:
            N.reset_eager_stats()
        F.scaled_dot_product_attention(q, k, v)
    assert "aten::_scaled_dot_product_fused_attention_overrideable" not in _firsts()


def test_attention_to_a_handful_of_keys_has_its_sums_in_order() -> None:
    """PyTorch's kernel, which is taken there, gives sums whose heads are their last dimension."""
    for n_q, n_k in ((40, 40), (50, 60), (64, 70), (30, 3), (31, 2)):
        q, k, v = (torch.randn(2, 3, n, 64) for n in (n_q, n_k, n_k))
        wanted = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
        found = torch.ops.aten._scaled_dot_product_fused_attention_overrideable(
            q.to("neuron"), k.to("neuron"), v.to("neuron"), return_debug_mask=True
        )
        torch.testing.assert_close(found[0].cpu(), wanted[0])
        torch.testing.assert_close(found[1].cpu(), wanted[1])
    assert N.eager_stats()["ruled"] > 0


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x[1:].copy_(x[:-1]),
        lambda x: x[1:].add_(x[:-1]),
        lambda x: x[:1].expand(len(x)).copy_(x.clone()),
        lambda x: x[:1].expand(len(x)).mul_(x.clone()),
    ],
)
def test_memory_that_overlaps_is_refused_at_the_call(write: Callable[[torch.Tensor], Any]) -> None:
    for n in (5, 6, 7, 8):
        x = _x(n)
        for _ in range(2):  # others of its kind are known, and in order
            x.clone().copy_(x)
            x.clone().add_(x).mul_(x)
        with pytest.raises(RuntimeError, match=r"unsupported operation.*Please clone\(\)") as error:
            write(x)
        assert "ran after its call" not in str(error.value)


Call = Callable[[int], Any]


def _x(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    n = 1
    for size in sizes:
        n *= size
    return (torch.arange(n, device="neuron") % 7 - 3).view(sizes).to(dtype)


def _rows(n: int) -> torch.Tensor:
    return _x(n, dtype=torch.int64) + 3


def _three(
    n: int, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = _x(1, 2, n, 4, dtype=dtype)
    return x, x, x


CALLS: dict[str, Call] = {
    "add": lambda n: _x(n, 3) + _x(3),
    "add transposed": lambda n: _x(n, 3).t() + _x(3, n),
    "add in place": lambda n: _x(n, 3).add_(_x(n, 1)),
    "out": lambda n: torch.mul(_x(n, 3), 2, out=torch.empty(n, 3, device="neuron")),
    "comparison": lambda n: _x(n, 3) > _x(n, 1),
    "types": lambda n: _x(n, 3) + _x(n, 3, dtype=torch.int64),
    "cat": lambda n: torch.cat([_x(n, 2), _x(n, 3)], dim=1),
    "stack": lambda n: torch.stack([_x(n, 2), _x(n, 2)], dim=1),
    "matmul": lambda n: _x(n, 4) @ _x(4, 2 * n),
    "bmm": lambda n: torch.bmm(_x(2, n, 4), _x(2, 4, n)),
    "linear": lambda n: F.linear(_x(n, 4), _x(5, 4), _x(5)),
    "softmax": lambda n: _x(2, n).softmax(1),
    "sum": lambda n: _x(n, 3).sum(0, keepdim=True),
    "mean": lambda n: _x(3, n).mean(1),
    "max": lambda n: _x(n, 3).max(0),
    "sort": lambda n: _x(n, 3).sort(0),
    "topk": lambda n: _x(2, n).topk(3, dim=1),
    "cumsum": lambda n: _x(2, n).cumsum(1),
    "gather": lambda n: _x(3, n).gather(1, torch.zeros(3, n, dtype=torch.int64, device="neuron")),
    "index_select": lambda n: _x(9, 2).index_select(0, _rows(n)),
    "index": lambda n: _x(9, 2)[_rows(n)],
    "index_put": lambda n: _x(9, 2).index_put((_rows(n),), _x(n, 2)),
    "embedding": lambda n: F.embedding(_rows(n), _x(9, 2)),
    "layer_norm": lambda n: F.layer_norm(_x(n, 4), (4,), _x(4), _x(4)),
    "layer_norm float64": lambda n: F.layer_norm(_x(n, 4, dtype=torch.float64), (4,)),
    "rms_norm": lambda n: F.rms_norm(_x(n, 4), (4,), _x(4)),
    "gelu": lambda n: F.gelu(_x(n, 4)),
    "conv1d": lambda n: F.conv1d(_x(1, 2, n), _x(3, 2, 2)),
    "pool": lambda n: F.max_pool1d(_x(1, 2, n), 2, stride=2),
    "where": lambda n: torch.where(_x(n, 1) > 0, _x(n, 3), 0.0),
    "masked_fill": lambda n: _x(n, 3).masked_fill(_x(n, 1) > 0, 2.0),
    "tril": lambda n: _x(n, n).tril(),
    "clone": lambda n: _x(n, 3).t().clone(),
    "contiguous": lambda n: _x(n, 3).t().contiguous(),
    "half": lambda n: _x(n, 3).half(),
    "copy_": lambda n: torch.empty(n, 3, device="neuron").copy_(_x(n, 1)),
    "zeros": lambda n: torch.zeros(n, 2, device="neuron"),
    "full": lambda n: torch.full((n, 2), 3.0, device="neuron"),
    "repeat": lambda n: _x(n, 2).repeat(2, 3),
    "pad": lambda n: F.pad(_x(n, 3), (1, 2), value=1.0),
    "flip": lambda n: _x(n, 3).flip(0),
    "roll": lambda n: _x(n, 3).roll(1, 0),
    "unfold": lambda n: F.unfold(_x(1, 1, n, 4), (2, 2)),
    "interpolate": lambda n: F.interpolate(_x(1, 1, n, n), scale_factor=2.0),
    "attention": lambda n: F.scaled_dot_product_attention(*_three(n)),
    "fused attention float64": lambda n: (
        torch.ops.aten._scaled_dot_product_fused_attention_overrideable(*_three(n, torch.float64))[
            :2
        ]
    ),
    "causal": lambda n: F.scaled_dot_product_attention(*_three(n), is_causal=True),
    "foreach": lambda n: torch._foreach_mul([_x(n), _x(n, 2)], 2.0),
    "dropout": lambda n: F.dropout(_x(n, 4), 0.5),
    "rand_like": lambda n: torch.rand_like(_x(n, 4)),
    "view": lambda n: _x(n, 4)[1:, ::2],
}


def _tensors(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value)


def _run(call: Call, sizes: list[int]) -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [each for n in sizes for each in _tensors(call(n))]


@pytest.mark.parametrize("name", CALLS)
def test_what_is_enqueued_is_what_debug_mode_gives(name: str) -> None:
    # One element, two that are proofs, a jump up, one back, none if that is a size.
    sizes = [4, 6, 5, 7, 33, 3, 1 if name not in ("topk", "conv1d", "pool", "unfold") else 8, 34]
    if name in ("add", "cat", "matmul", "softmax", "dropout", "rand_like", "zeros", "clone"):
        sizes += [0, 9]
    queued = _run(CALLS[name], sizes)
    N.set_eager_mode("debug")
    for one, other in zip(queued, _run(CALLS[name], sizes), strict=True):
        assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)
        assert torch.equal(one.cpu(), other.cpu())


def test_which_calls_are_enqueued() -> None:
    """Most of them, and among these what a model that decodes is made of."""
    waits = set()
    for name, call in CALLS.items():
        for n in (4, 6, 5):
            call(n)
        N.synchronize()
        N.reset_eager_stats()
        call(37)
        if _firsts() or not (N.eager_stats()["enqueued"] or name == "view"):
            waits.add(name)
    assert waits == NOT_YET


def test_one_without_elements_says_nothing_of_the_draws_of_others() -> None:
    def draw(n: int) -> None:
        torch.rand_like(torch.ones(n, 2, 3, 5, device="neuron"))  # of a kind that no other test has

    for n in (0, 4, 6, 5, 0):
        draw(n)
    N.synchronize()
    N.reset_eager_stats()
    draw(37)
    assert _firsts() == {}


# Their shape functions are in Python only.
NOT_YET = {"out", "conv1d", "pool", "unfold", "interpolate"}


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: x.flip((0, 0)), "appears multiple times"),
        (lambda x: x.flip((0, 5)), "Dimension out of range"),
        (lambda x: x.roll((1, 1), (0, 5)), "Dimension out of range"),
        (lambda x: x.roll((1, 1), (-3, 0)), "Dimension out of range"),
    ],
)
def test_dimensions_that_are_not_there_are_refused_at_the_call(
    call: Callable[[torch.Tensor], Any], text: str
) -> None:
    for n in (3, 4, 5, 6):  # others of their kind are known
        x = _x(n, n)
        _ = x.flip((0, 1)), x.roll((1, 1), (0, 1))
    for n in (6, 7):
        with pytest.raises((RuntimeError, IndexError), match=text) as error:
            call(_x(n, n))
        assert "ran after its call" not in str(error.value)


def test_sizes_that_do_not_fit_are_refused_at_the_call() -> None:
    for n in (4, 6, 5, 7):
        _ = _x(n, 3) @ _x(3, n)
        _ = _x(n) + _x(n)
        _ = torch.cat([_x(n, 2), _x(n, 3)], 1)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        _ = _x(8, 3) @ _x(4, 8)
    with pytest.raises(RuntimeError, match="must match the size of tensor b"):
        _ = _x(8) + _x(9)
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        torch.cat([_x(8, 2), _x(9, 3)], 1)
    N.synchronize()


def test_an_output_is_resized_with_one_warning() -> None:
    for n in (4, 6, 5):
        torch.add(_x(n), 1, out=torch.empty(n, device="neuron"))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        out = torch.add(_x(8), 1, out=torch.empty(2, device="neuron"))
    assert len(told) == 1
    assert torch.equal(out.cpu(), _x(8).cpu() + 1)


def test_random_numbers_are_those_of_debug_mode() -> None:
    def draw() -> list[torch.Tensor]:
        torch.manual_seed(5)
        made = []
        for n in (4, 6, 5, 0, 7, 9, 0, 11):
            made.append(F.dropout(torch.ones(n, 3, device="neuron"), 0.5))
            made.append(torch.randn(n, device="neuron"))
        return [each.cpu() for each in made]

    queued = [draw(), draw()]
    N.set_eager_mode("debug")
    for ours in queued:
        for one, other in zip(ours, draw(), strict=True):
            assert torch.equal(one, other)


def test_a_late_failure_of_a_new_size_names_it() -> None:
    table = torch.randn(4, 3, device="neuron")
    for n in (2, 3, 4):
        table.index_select(0, torch.ones(n, dtype=torch.int64, device="neuron"))
    wrong = torch.full((5,), 9, device="neuron")
    N.synchronize()
    table.index_select(0, wrong)
    with pytest.raises(IndexError, match=r"aten::index_select\(float32\[4, 3\], int64\[5\]\)"):
        N.synchronize()


def test_a_kind_of_calls_that_is_in_use_is_not_forgotten_for_others() -> None:
    """Of one operator some dozens are kept; here are more than a hundred, each asked about once."""
    kinds = [
        (dtype, dims, other)
        for dtype in (torch.float32, torch.float64, torch.int64, torch.int32, torch.bfloat16)
        for dims in range(1, 7)
        for other in (torch.float32, torch.int64, torch.bfloat16, torch.float16)
    ]
    for size in range(4, 7):
        _x(size, 3).mul(_x(size, 3))
    N.synchronize()
    N.reset_eager_stats()
    for n, (dtype, dims, other) in enumerate(kinds):
        sizes = [2] * dims
        _x(*sizes, dtype=dtype).mul(_x(*sizes, dtype=other))
        before = _firsts().get("aten::mul.Tensor", 0)
        _x(7 + n, 3).mul(_x(7 + n, 3))
        assert _firsts().get("aten::mul.Tensor", 0) == before
    assert before > 64
