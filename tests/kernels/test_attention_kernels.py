"""Attention of the native core against its definition in float64, with bounds that are derived.

With u = 2^-24 and r the rounding of the operands' dtype, to first order:

- a score is a float32 sum of `width` products, scaled: off by (width + 3) u |scale| |q||k|, and
  the mask adds u |mask|; its exponential (relative to the maximum or the log-sum-exp) is off by
  that, by u times the exponents' size, and by the exponential's own error;
- the weights are rounded to r before the product with the values if that is done in bfloat16;
- every further float32 sum of n terms adds n u, every result its rounding.
"""

from __future__ import annotations

import importlib
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

core: Any = importlib.import_module("torch_neuronx._C")
aten = torch.ops.aten
INF, NAN = math.inf, math.nan
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
UNIT = 2.0**-24
# Half a unit in the last place, relative, and half the smallest subnormal.
ROUNDING = {
    torch.float32: (2.0**-24, 2.0**-150),
    torch.bfloat16: (2.0**-8, 2.0**-134),
    torch.float16: (2.0**-11, 2.0**-25),
}
# Of one exponential, and of a weight as an operand; float16 is computed in float32.
EXPONENTIAL = {torch.float32: 3 * UNIT, torch.bfloat16: 1e-4, torch.float16: 3 * UNIT}
OPERAND = {torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 0.0}

pytestmark = pytest.mark.skipif(
    core.gemm_kernels()["Float"] != "avx512", reason="this processor has no attention kernels"
)


@dataclass
class Case:
    query: Tensor
    key: Tensor
    value: Tensor
    grad: Tensor
    mask: Tensor | None
    causal: bool
    scale: float | None

    @property
    def factor(self) -> float:
        return 1 / math.sqrt(self.query.shape[-1]) if self.scale is None else self.scale

    def forward(self) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = core.attention_forward(
            self.query, self.key, self.value, self.mask, self.causal, self.scale
        )
        return result

    def backward(self, out: Tensor, logsumexp: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        result: tuple[Tensor, Tensor, Tensor] = core.attention_backward(
            self.grad,
            self.query,
            self.key,
            self.value,
            out,
            logsumexp,
            self.mask,
            self.causal,
            self.scale,
        )
        return result


@dataclass
class Exact:
    """The definition in float64, and how far each element may be from it."""

    results: dict[str, Tensor]
    bounds: dict[str, Tensor]


def grouped(t: Tensor, heads: int) -> Tensor:
    """The sum over the query heads that share a head of keys."""
    shared: Tensor = t.unflatten(1, (heads, -1)).sum(2)
    return shared


def exact(case: Case) -> Exact:
    dtype, kv_heads = case.query.dtype, case.key.shape[1]
    heads = case.query.shape[1]
    q, g = case.query.double(), case.grad.double()
    k, v = (t.double().repeat_interleave(heads // kv_heads, 1) for t in (case.key, case.value))
    scale = case.factor
    added = torch.zeros((), dtype=torch.float64)
    if case.mask is not None and case.mask.dtype == torch.bool:
        added = added.expand(case.mask.shape).masked_fill(~case.mask, -INF)
    elif case.mask is not None:
        added = case.mask.double()
    scores = q @ k.mT * scale + added
    if case.causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -INF)
    lse = scores.logsumexp(-1, keepdim=True)
    lse = lse.where(lse > -INF, 0.0)
    p = (scores - lse).exp()
    out = p @ v
    dp = g @ v.mT
    delta = (g * out).sum(-1, keepdim=True)
    ds = p * (dp - delta) * scale
    results = {
        "out": out,
        "logsumexp": lse.squeeze(-1),
        "query": ds @ k,
        "key": grouped(ds.mT @ q, kv_heads),
        "value": grouped(p.mT @ g, kv_heads),
    }

    width, value_width, keys, queries = (*q.shape[-1:], *v.shape[-1:], *k.shape[-2:-1], q.shape[-2])
    rounding, smallest = ROUNDING[dtype]
    score_error = (width + 3) * UNIT * abs(scale) * (q.abs() @ k.abs().mT)
    score_error = score_error + UNIT * added.abs().where(added > -INF, 0.0)
    score_error = score_error.where(scores > -INF, 0.0)
    worst = score_error.amax(-1, keepdim=True)
    lse_error = worst + EXPONENTIAL[dtype] + (keys + 4) * UNIT + 4 * UNIT * lse.abs()
    exponent = (scores - lse).abs().where(scores > -INF, 0.0)
    weight = score_error + lse_error + 4 * UNIT * exponent + EXPONENTIAL[dtype]
    operand = OPERAND[dtype]
    # Weights so small that they become subnormal or zero.
    lost = 2.0**-125
    out_error = (p * (weight + operand + (keys + 4) * UNIT) + lost) @ v.abs()
    # As far as its own results go, the backward pass starts from the rounded ones.
    delta_error = (g.abs() * (out_error + rounding * out.abs())).sum(-1, keepdim=True)
    dp_error = (
        (value_width + 2) * UNIT * ((g.abs() @ v.abs().mT) + (g * out).abs().sum(-1, keepdim=True))
    )
    ds_error = p * abs(scale) * ((dp - delta).abs() * (weight + 4 * UNIT) + dp_error + delta_error)
    ds_error = ds_error + operand * ds.abs() + lost * (dp - delta).abs()
    p_error = p * (weight + operand) + lost
    bounds = {
        "out": out_error + rounding * (out.abs() + out_error) + smallest,
        "logsumexp": lse_error.squeeze(-1),
    }
    sums = {
        "query": (ds_error + (keys + 2) * UNIT * ds.abs()) @ k.abs(),
        "key": grouped((ds_error + (queries * heads + 2) * UNIT * ds.abs()).mT @ q.abs(), kv_heads),
        "value": grouped((p_error + (queries * heads + 2) * UNIT * p).mT @ g.abs(), kv_heads),
    }
    for name, error in sums.items():
        bounds[name] = error + rounding * (results[name].abs() + error) + smallest
    return Exact(results, bounds)


def check(case: Case) -> None:
    expected = exact(case)
    out, logsumexp = case.forward()
    grads = case.backward(out, logsumexp)
    got = dict(zip(expected.results, (out, logsumexp, *grads), strict=True))
    like = {"out": case.query, "query": case.query, "key": case.key, "value": case.value}
    for name, wanted in expected.results.items():
        mine = got[name]
        assert mine.shape == wanted.shape, name
        assert mine.dtype == (like[name].dtype if name in like else torch.float32), name
        excess = (mine.double() - wanted).abs() / expected.bounds[name]
        assert excess.numel() == 0 or excess.max() <= 1, (name, excess.max())


LAYOUTS = ["heads first", "rows first", "fused", "padded", "one batch", "one head"]
MASKS = ["none", "keys", "queries", "matrix", "all", "every second"]


def operand(shape: tuple[int, int, int, int], layout: str, dtype: torch.dtype) -> Tensor:
    batch, heads, length, width = shape
    if layout == "rows first":
        return torch.randn(batch, length, heads, width).to(dtype).transpose(1, 2)
    if layout == "fused":  # one of three in a row, as a projection of all three gives them
        return torch.randn(batch, length, 3, heads, width).to(dtype)[:, :, 1].transpose(1, 2)
    if layout == "padded":
        return torch.randn(batch, heads, length, width + 3).to(dtype)[..., 1:-2]
    if layout == "one batch":
        return torch.randn(1, heads, length, width).to(dtype).expand(shape)
    if layout == "one head":
        return torch.randn(batch, 1, length, width).to(dtype).expand(shape)
    return torch.randn(shape).to(dtype)


def mask_of(kind: str, shape: tuple[int, int, int, int], dtype: torch.dtype) -> Tensor | None:
    batch, heads, queries, keys = shape
    sizes = {
        "none": (),
        "keys": (batch, 1, 1, keys),
        "queries": (1, heads, queries, 1),
        "matrix": (queries, keys),
        "all": shape,
        "every second": (queries, 2 * keys),
    }[kind]
    if not sizes:
        return None
    mask = torch.rand(sizes) < 0.8 if dtype == torch.bool else torch.randn(sizes).to(dtype)
    return mask[:, ::2] if kind == "every second" else mask


@settings(max_examples=200, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    batch=st.integers(0, 2),
    kv_heads=st.integers(1, 3),
    group=st.sampled_from([1, 1, 2, 5]),
    queries=st.sampled_from([*range(1, 30), 48, 63, 64, 65, 97, 130, 200]),
    keys=st.sampled_from(
        [*range(1, 20), 31, 33, 63, 64, 65, 127, 129, 255, 256, 257, 300, 520, 1100]
    ),
    width=st.sampled_from([1, 2, 7, 8, 15, 16, 17, 32, 33, 64, 65, 80, 128, 150, 256]),
    value_width=st.sampled_from([0, 1, 5, 16, 31, 64, 65, 128, 256]),
    layouts=st.lists(st.sampled_from(LAYOUTS), min_size=4, max_size=4),
    mask=st.sampled_from(MASKS),
    mask_dtype=st.sampled_from([torch.bool, torch.float32, None]),
    causal=st.booleans(),
    scale=st.sampled_from([None, None, 0.3, -0.2, 0.0]),
    seed=st.integers(0, 1000),
)
def test_results_are_those_of_the_definition(
    *,
    dtype: torch.dtype,
    batch: int,
    kv_heads: int,
    group: int,
    queries: int,
    keys: int,
    width: int,
    value_width: int,
    layouts: list[str],
    mask: str,
    mask_dtype: torch.dtype | None,
    causal: bool,
    scale: float | None,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    heads, value_width = kv_heads * group, value_width or width
    check(
        Case(
            operand((batch, heads, queries, width), layouts[0], dtype),
            operand((batch, kv_heads, keys, width), layouts[1], dtype),
            operand((batch, kv_heads, keys, value_width), layouts[2], dtype),
            operand((batch, heads, queries, value_width), layouts[3], dtype),
            mask_of(mask, (batch, heads, queries, keys), mask_dtype or dtype),
            causal,
            scale,
        )
    )


def random_case(
    shape: tuple[int, int, int, int, int],
    dtype: torch.dtype,
    *,
    group: int = 1,
    causal: bool = False,
    mask: Tensor | None = None,
) -> Case:
    batch, kv_heads, queries, keys, width = shape
    sizes = [
        (kv_heads * group, queries),
        (kv_heads, keys),
        (kv_heads, keys),
        (kv_heads * group, queries),
    ]
    torch.manual_seed(sum(shape))
    q, k, v, g = (torch.randn(batch, h, n, width).to(dtype) for h, n in sizes)
    return Case(q, k, v, g, mask, causal, None)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("shape", "group"),
    [
        ((1, 1, 700, 700, 32), 1),  # several tasks and blocks of keys
        ((1, 2, 100, 1300, 64), 2),  # the backward pass in parts
        ((1, 1, 3, 3000, 64), 2),  # few queries, keys in parts
        ((2, 3, 1, 1025, 40), 8),
    ],
)
def test_long_sequences(
    shape: tuple[int, int, int, int, int], group: int, causal: bool, dtype: torch.dtype
) -> None:
    check(random_case(shape, dtype, group=group, causal=causal))


@pytest.fixture
def _thread_count() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_thread_count")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "group", "causal"),
    [
        ((1, 2, 600, 900, 64), 1, False),
        ((1, 2, 600, 600, 64), 2, True),
        ((2, 3, 130, 70, 48), 1, True),
        ((1, 2, 2, 2500, 64), 3, False),
    ],
)
def test_thread_count_does_not_change_a_bit(
    shape: tuple[int, int, int, int, int], group: int, causal: bool, dtype: torch.dtype
) -> None:
    case = random_case(shape, dtype, group=group, causal=causal)
    results = []
    for threads in (1, 2, 3, 5):
        torch.set_num_threads(threads)
        out, logsumexp = case.forward()
        results.append((out, logsumexp, *case.backward(out, logsumexp)))
    for other in results[1:]:
        for mine, first in zip(other, results[0], strict=True):
            assert mine.equal(first)


def by_aten(case: Case) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = aten._scaled_dot_product_flash_attention_for_cpu(
        case.query, case.key, case.value, 0.0, case.causal, attn_mask=case.mask, scale=case.scale
    )
    return result


def agree(mine: Tensor, theirs: Tensor) -> None:
    bound = 32 * torch.finfo(mine.dtype).eps
    torch.testing.assert_close(mine, theirs, rtol=bound, atol=bound, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries", [2, 70])
@pytest.mark.parametrize("boolean", [True, False])
def test_a_query_that_sees_no_key_gives_zeros(
    queries: int, boolean: bool, dtype: torch.dtype
) -> None:
    hidden = torch.zeros(queries, 600, dtype=torch.bool)
    hidden[1] = True
    hidden[:, 3:400] = True
    mask = ~hidden if boolean else torch.zeros(hidden.shape, dtype=dtype).masked_fill(hidden, -INF)
    case = random_case((1, 2, queries, 600, 32), dtype, mask=mask)
    out, logsumexp = case.forward()
    assert out[:, :, 1].count_nonzero() == 0
    assert logsumexp[:, :, 1].count_nonzero() == 0
    if not boolean:  # the operator itself wants numbers
        theirs = by_aten(case)
        agree(out, theirs[0])
        agree(logsumexp, theirs[1])
    grads = case.backward(out, logsumexp)
    assert grads[0][:, :, 1].count_nonzero() == 0
    assert all(grad.isfinite().all() for grad in grads)
    check(case)


@pytest.mark.parametrize("queries", [2, 70])
def test_the_lowest_number_as_a_mask_hides_less_than_infinity(queries: int) -> None:
    mask = torch.zeros(queries, 300)
    mask[1] = torch.finfo(torch.float32).min
    case = random_case((1, 2, queries, 300, 32), torch.float32, mask=mask)
    out, logsumexp = case.forward()
    theirs = by_aten(case)
    agree(out, theirs[0])
    agree(logsumexp, theirs[1])
    torch.testing.assert_close(out[:, :, 1], case.value.mean(2))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries", [3, 70])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("where", ["query", "key", "mask"])
@pytest.mark.parametrize("causal", [False, True])
def test_non_finite_values_spread_as_the_definition_says(
    where: str, value: float, queries: int, causal: bool, dtype: torch.dtype
) -> None:
    mask = torch.zeros(queries, 80, dtype=dtype) if where == "mask" else None
    case = random_case((1, 2, queries, 80, 32), dtype, causal=causal, mask=mask)
    if where == "query":
        case.query[0, 0, 1, 3] = value
    elif where == "key":
        case.key[0, 1, 1, 3] = value
    elif mask is not None:
        mask[1, 1] = value
    out, logsumexp = case.forward()
    assert exact(case).results["out"].isnan().equal(out.isnan())
    if dtype == torch.float32:  # in half precision ATen's rough exponential makes zeros of NaN
        theirs, their_sums = by_aten(case)
        agree(out, theirs)
        assert logsumexp.isfinite().equal(their_sums.isfinite())
    untouched = {"query": 0, "key": 1}.get(where)
    if untouched is not None:
        assert out[0, 1 - untouched].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_value_that_is_not_finite_reaches_every_query(dtype: torch.dtype) -> None:
    for queries in (2, 70):
        case = random_case((1, 2, queries, 80, 32), dtype)
        case.value[0, 1, 79, 5] = INF
        out, _ = case.forward()
        assert out[0, 1, :, 5].isinf().all()
        assert out[0, 0].isfinite().all()
        assert out.isinf().sum() == queries


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_agree_with_atens(dtype: torch.dtype) -> None:
    mask = torch.randn(130, 130).to(dtype)
    for case in (
        random_case((2, 3, 130, 130, 64), dtype, causal=True),
        random_case((2, 3, 130, 130, 64), dtype, mask=mask),
    ):
        theirs, their_sums = by_aten(case)
        wanted = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            case.grad, case.query, case.key, case.value, theirs, their_sums, 0.0, case.causal,
            attn_mask=case.mask,
        )  # fmt: skip
        # ATen's log-sum-exp serves our backward pass too, whatever its strides.
        got = case.backward(theirs, their_sums)
        for mine, other in zip(got, wanted, strict=True):
            # Both are sums over the same numbers, each rounded to the dtype on their way.
            bound = 16 * torch.finfo(dtype).eps * other.abs().max().item()
            torch.testing.assert_close(mine, other, rtol=0, atol=bound)


def test_large_scores_do_not_overflow() -> None:
    case = random_case((1, 2, 70, 300, 32), torch.float32)
    case.query *= 1e18
    case.key *= 1e18
    out, logsumexp = case.forward()
    assert out.isfinite().all()
    assert logsumexp.isfinite().all()
    theirs, _ = by_aten(case)
    agree(out, theirs)


def test_operands_that_are_not_ours_are_refused() -> None:
    def sizes(**changes: tuple[int, ...]) -> list[Tensor]:
        shapes = {"query": (1, 4, 5, 16), "key": (1, 4, 6, 16), "value": (1, 4, 6, 16), **changes}
        return [torch.randn(shape) for shape in shapes.values()]

    message = "our attention kernels do not take these operands"
    refused = [
        [t.double() for t in sizes()],
        [sizes()[0], *(t.bfloat16() for t in sizes()[1:])],
        sizes(query=(1, 4, 5, 257), key=(1, 4, 6, 257)),
        sizes(value=(1, 4, 6, 257)),
        sizes(query=(1, 6, 5, 16)),
        sizes(query=(2, 4, 5, 16)),
        sizes(value=(1, 4, 7, 16)),
        sizes(key=(1, 4, 6, 8)),
        sizes(key=(1, 4, 0, 16), value=(1, 4, 0, 16)),
        [sizes()[0].mT.contiguous().mT, *sizes()[1:]],
    ]
    for operands in refused:
        with pytest.raises(ValueError, match=message):
            core.attention_forward(*operands)
    for mask in (torch.zeros(7, 6), torch.zeros(5, 6, dtype=torch.int32)):
        with pytest.raises(ValueError, match=message):
            core.attention_forward(*sizes(), mask)


def test_wrong_results_are_refused_by_the_backward_pass() -> None:
    case = random_case((1, 2, 5, 6, 16), torch.float32)
    out, logsumexp = case.forward()
    with pytest.raises(RuntimeError, match=r"must be Float of shape \[1, 2, 5, 16\]"):
        case.backward(out[..., :8], logsumexp)
    with pytest.raises(RuntimeError, match=r"log-sum-exp must be float32 of shape \[1, 2, 5\]"):
        case.backward(out, logsumexp[:, :1])
    with pytest.raises(RuntimeError, match=r"log-sum-exp must be float32 of shape \[1, 2, 5\]"):
        case.backward(out, logsumexp.double())


def test_no_queries_at_all() -> None:
    case = random_case((2, 3, 0, 9, 16), torch.float32)
    out, logsumexp = case.forward()
    assert out.shape == (2, 3, 0, 16)
    grads = case.backward(out, logsumexp)
    assert [grad.count_nonzero().item() for grad in grads] == [0, 0, 0]


WITHOUT_KERNELS = """
import torch
from torch.nn import functional
from torch_neuronx import _C
assert _C.gemm_kernels()["Float"] == "none"
torch.manual_seed(0)
for dtype in (torch.float32, torch.bfloat16):
    q, k, v = (torch.randn(2, 3, 40, 16).to(dtype) for _ in range(3))
    on_cpu = [t.clone().requires_grad_() for t in (q, k, v)]
    on_device = [t.to("neuron").requires_grad_() for t in (q, k, v)]
    wanted = functional.scaled_dot_product_attention(*on_cpu, is_causal=True)
    got = functional.scaled_dot_product_attention(*on_device, is_causal=True)
    bound = 32 * torch.finfo(dtype).eps
    torch.testing.assert_close(got.cpu(), wanted, rtol=bound, atol=bound)
    grads = torch.autograd.grad(got.sum(), on_device)
    for mine, other in zip(grads, torch.autograd.grad(wanted.sum(), on_cpu)):
        torch.testing.assert_close(mine.cpu(), other, rtol=bound, atol=8 * bound)
"""


@pytest.mark.slow
def test_atens_kernel_runs_where_ours_do_not() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_KERNELS],
        env={**os.environ, "TORCH_NEURONX_GEMM_KERNELS": "none", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
