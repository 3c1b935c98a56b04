"""Matrix products of the native core against float64, for all methods, layouts and dtypes.

The bound of an element is derived, not fitted. With u = 2^-24, a float32 sum of k products in any
order is off by at most (k + 2) u |alpha| |A||B| (first order; the 2 are alpha and the last
addition), c0, which the sum may start from, adds (k + 2) u |beta| |c0|, and rounding to the
result's dtype adds u_out |result|.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

# The developer's side build of the kernels alone can stand in for the whole core.
core: Any = importlib.import_module(
    os.environ.get("TORCH_NEURONX_GEMM_TEST_MODULE", "torch_neuronx._C")
)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
METHODS = ["panel", "dot", "stream"]
LAYOUTS = ["rows", "columns", "strided", "one row", "one column", "padded"]
C0_KINDS = ["none", "row", "column", "scalar", "matrix", "transposed", "out"]
UNIT = 2.0**-24
# Half a unit in the last place of the dtype, relative, and half its smallest subnormal.
ROUNDING = {
    torch.float32: (2.0**-24, 2.0**-150),
    torch.bfloat16: (2.0**-8, 2.0**-134),
    torch.float16: (2.0**-11, 2.0**-25),
}

pytestmark = pytest.mark.skipif(
    core.gemm_kernels()["Float"] == "none", reason="this processor has no matrix micro-kernels"
)


def matrix(shape: tuple[int, ...], layout: str, dtype: torch.dtype) -> torch.Tensor:
    """Random numbers in [-2, 2) of a shape [..., rows, cols], laid out in memory as named."""
    *batch, rows, cols = shape

    def fresh(*sizes: int) -> torch.Tensor:
        return (torch.rand(*batch, *sizes) * 4 - 2).to(dtype)

    if layout == "columns":
        return fresh(cols, rows).transpose(-1, -2)
    if layout == "strided":
        return fresh(2 * rows, 3 * cols)[..., ::2, ::3]
    if layout == "one row":
        return fresh(1, cols).expand(*batch, rows, cols)
    if layout == "one column":
        return fresh(rows, 1).expand(*batch, rows, cols)
    if layout == "padded":
        return fresh(rows, cols + 3)[..., :cols]
    return fresh(rows, cols)


def bias(kind: str, out: torch.Tensor) -> torch.Tensor | None:
    *batch, rows, cols = out.shape
    if kind == "none":
        return None
    if kind == "out":
        return out
    shapes = {
        "row": (cols,),
        "column": (rows, 1),
        "scalar": (1,),
        "matrix": (*batch, rows, cols),
        "transposed": (*batch, cols, rows),
    }
    value = torch.rand(*shapes[kind]).to(out.dtype)
    return value.transpose(-1, -2) if kind == "transposed" else value


def assert_close(
    out: torch.Tensor,
    *,
    a: torch.Tensor,
    b: torch.Tensor,
    c0: torch.Tensor | None,
    alpha: float,
    beta: float,
) -> None:
    k = a.shape[-1]
    product = a.double() @ b.double()
    size = abs(alpha) * (a.double().abs() @ b.double().abs())
    expected = alpha * product
    bound = (k + 2) * UNIT * size
    if c0 is not None:
        expected = expected + beta * c0.double()
        bound = bound + (k + 2) * UNIT * abs(beta) * c0.double().abs() + 2 * UNIT * size
    relative, absolute = ROUNDING[out.dtype]
    bound = bound + relative * (expected.abs() + bound) + absolute
    error = (out.double() - expected).abs()
    worst = (error - bound).max().item() if error.numel() else 0.0
    assert worst <= 0, f"error exceeds its bound by {worst}"


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int, int]:
    """(m, n, k) around the sizes of tiles, vectors, panels and the depth of a panel."""
    side = st.one_of(
        st.integers(0, 20),
        st.integers(30, 35),
        st.integers(60, 70),
        st.sampled_from([127, 128, 200]),
    )
    depth = st.one_of(st.integers(0, 40), st.sampled_from([63, 64, 65, 511, 512, 513, 1025]))
    return draw(side), draw(side), draw(depth)


@given(
    size=sizes(),
    dtype=st.sampled_from(DTYPES),
    a_layout=st.sampled_from(LAYOUTS),
    b_layout=st.sampled_from(LAYOUTS),
    c0_kind=st.sampled_from(C0_KINDS),
    alpha=st.sampled_from([1.0, 1.0, 0.5, -2.0]),
    beta=st.sampled_from([1.0, 1.0, 0.0, -0.75]),
    method=st.sampled_from(METHODS),
    packed=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_every_method_is_within_its_bound(
    *,
    size: tuple[int, int, int],
    dtype: torch.dtype,
    a_layout: str,
    b_layout: str,
    c0_kind: str,
    alpha: float,
    beta: float,
    method: str,
    packed: bool,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    m, n, k = size
    a, b = matrix((m, k), a_layout, dtype), matrix((k, n), b_layout, dtype)
    out = matrix((m, n), "rows", dtype)
    c0 = bias(c0_kind, out)
    kept = None if c0 is None else c0.clone()
    if core.gemm_run_method(a, b, out, c0, alpha, beta, method, packed):
        assert_close(out, a=a, b=b, c0=kept, alpha=alpha, beta=beta)


@given(
    batch=st.integers(0, 5),
    size=sizes(),
    dtype=st.sampled_from(DTYPES),
    a_layout=st.sampled_from(LAYOUTS),
    b_layout=st.sampled_from(LAYOUTS),
    c0_kind=st.sampled_from(C0_KINDS),
    shared=st.sampled_from(["neither", "a", "b"]),
    out_layout=st.sampled_from(["rows", "columns", "padded"]),
    method=st.sampled_from(METHODS),
    seed=st.integers(0, 2**31),
)
def test_batches(
    *,
    batch: int,
    size: tuple[int, int, int],
    dtype: torch.dtype,
    a_layout: str,
    b_layout: str,
    c0_kind: str,
    shared: str,
    out_layout: str,
    method: str,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    m, n, k = size
    a = matrix((1 if shared == "a" else batch, m, k), a_layout, dtype).expand(batch, m, k)
    b = matrix((1 if shared == "b" else batch, k, n), b_layout, dtype).expand(batch, k, n)
    out = matrix((batch, m, n), out_layout, dtype)
    c0 = bias(c0_kind, out)
    kept = None if c0 is None else c0.clone()
    if core.gemm_run_method(a, b, out, c0, 1.0, 1.0, method):
        assert_close(out, a=a, b=b, c0=kept, alpha=1.0, beta=1.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", METHODS)
def test_strides_around_the_result_are_untouched(method: str, dtype: torch.dtype) -> None:
    whole = torch.full((9, 100), 7.0, dtype=dtype)
    out = whole[2:5, 10:80]
    a, b = torch.ones(3, 33, dtype=dtype), torch.ones(33, 70, dtype=dtype)
    if method == "dot":
        b = b.t().contiguous().t()
    assert core.gemm_run_method(a, b, out, None, 1.0, 0.0, method)
    assert torch.equal(out, torch.full_like(out, 33.0))
    whole[2:5, 10:80] = 7.0
    assert torch.equal(whole, torch.full_like(whole, 7.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 70, 5), (70, 70, 70), (70, 3, 5), (1, 1, 1)])
def test_beta_zero_does_not_read_c0(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    m, n, k = shape
    a, b = torch.ones(m, k, dtype=dtype), torch.ones(k, n, dtype=dtype)
    c0 = torch.full((m, n), float("nan"), dtype=dtype)
    for method in METHODS:
        out = torch.full((m, n), float("nan"), dtype=dtype)
        if core.gemm_run_method(a, b, out, c0, 1.0, 0.0, method):
            assert torch.equal(out, torch.full_like(out, float(k)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_to_add_up_gives_beta_c0(dtype: torch.dtype) -> None:
    a, b = torch.ones(5, 0, dtype=dtype), torch.ones(0, 300, dtype=dtype)
    c0 = torch.full((5, 300), 3.0, dtype=dtype)
    out = torch.full((5, 300), float("nan"), dtype=dtype)
    assert core.gemm_run(a, b, out, c0, 1.0, 2.0)
    assert torch.equal(out, torch.full_like(out, 6.0))
    assert core.gemm_run(a, b, out, c0, float("inf"), 0.0)
    assert torch.equal(out, torch.zeros_like(out))


@pytest.mark.parametrize("dtype", DTYPES)
def test_alpha_zero_reads_neither_operand(dtype: torch.dtype) -> None:
    a, b = torch.full((4, 4), float("nan"), dtype=dtype), torch.ones(4, 4, dtype=dtype)
    out = torch.full((4, 4), 2.0, dtype=dtype)
    assert core.gemm_run(a, b, out, out, 0.0, 0.5)
    assert torch.equal(out, torch.ones_like(out))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("k", [1, 2, 31, 33, 515])
def test_infinities_and_nans_come_through(method: str, dtype: torch.dtype, k: int) -> None:
    a, b = torch.ones(4, k, dtype=dtype), torch.ones(k, 20, dtype=dtype)
    if method == "dot":
        b = b.t().contiguous().t()
    a[1, k - 1] = float("inf")
    a[2, 0] = float("nan")
    out = torch.zeros(4, 20, dtype=dtype)
    assert core.gemm_run_method(a, b, out, None, 1.0, 0.0, method)
    assert torch.equal(out[0], torch.full_like(out[0], float(k)))
    assert bool((out[1] == float("inf")).all())
    assert bool(out[2].isnan().all())
    assert torch.equal(out[3], torch.full_like(out[3], float(k)))


def test_float32_is_not_rounded_to_fewer_bits() -> None:
    """1 + 2^-23 survives a product with one; bfloat16 and tf32 arithmetic would lose it."""
    exact = 1 + 2.0**-23
    a = torch.full((64, 1), exact)
    out = torch.empty(64, 64)
    for method in METHODS:
        if core.gemm_run_method(a, torch.ones(1, 64), out, None, 1.0, 0.0, method):
            assert torch.equal(out, torch.full_like(out, exact))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("method", ["panel", "dot"])
def test_half_widths_accumulate_in_float32_and_round_once(method: str, dtype: torch.dtype) -> None:
    """4096 ones: the dtypes' own sums would stop at 256 and 2048, and c0 would be lost."""
    k = 4096
    a, b = torch.ones(8, k, dtype=dtype), torch.ones(64, k, dtype=dtype).t()
    c0 = torch.full((64,), 64.0, dtype=dtype)
    out = torch.empty(8, 64, dtype=dtype)
    assert core.gemm_run_method(a, b, out, c0, 1.0, 1.0, method)
    assert torch.equal(out, torch.full_like(out, k + 64.0))


def test_ties_round_to_even() -> None:
    """257 and 259 are halfway between bfloat16 neighbours."""
    ones = torch.ones(32, 1, dtype=torch.bfloat16)
    out = torch.empty(32, 32, dtype=torch.bfloat16)
    for extra, expected in ((1.0, 256.0), (3.0, 260.0)):
        c0 = torch.tensor([256.0], dtype=torch.bfloat16)
        assert core.gemm_run_method(ones * extra, ones.t(), out, c0, 1.0, 1.0, "panel")
        assert torch.equal(out, torch.full_like(out, expected))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 512, 64), (12, 100, 64), (65, 130, 700)])
def test_the_chosen_method_gives_the_same_as_its_name(
    shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    m, n, k = shape
    a, b = matrix((m, k), "rows", dtype), matrix((k, n), "columns", dtype)
    out, again = torch.empty(m, n, dtype=dtype), torch.empty(m, n, dtype=dtype)
    method = core.gemm_method(a, b, out)
    assert core.gemm_run(a, b, out) == (method != "aten")
    if method != "aten":
        # A single column or row may have been turned; then the other method cannot be forced.
        assert core.gemm_run_method(a, b, again, None, 1.0, 0.0, method)
        assert torch.equal(out, again)


def test_operands_that_are_not_for_us_are_left_to_aten() -> None:
    x = torch.ones(4, 4)
    out = torch.full((4, 4), 7.0)
    refused = [
        (x.double(), x.double(), out.double(), None),
        (x, x.bfloat16(), out, None),
        (x, torch.ones(5, 4), out, None),
        (x, x, torch.full((4, 5), 7.0), None),
        (x, x, out, torch.ones(3)),
        (x, x, torch.full((8, 8), 7.0)[::2, ::2], None),
        (x, x, torch.full((1, 1), 7.0).expand(4, 4), None),
        (out, x, out, None),
        (x, out.t(), out, None),
        (x, x, out, out.t()),
        (x.to_sparse(), x, out, None),
        (torch._neg_view(x), x, out, None),
    ]
    for a, b, result, c0 in refused:
        assert not core.gemm_run(a, b, result, c0, 1.0, 1.0)
        assert bool((result == 7.0).all())


def test_wrong_arguments_are_explained() -> None:
    x = torch.ones(2, 2)
    with pytest.raises(ValueError, match='method must be panel, dot or stream, got "fast"'):
        core.gemm_run_method(x, x, x.clone(), None, 1.0, 0.0, "fast")
    with pytest.raises(ValueError, match="these operands do not make a problem"):
        core.gemm_run_method(x, x, x, None, 1.0, 0.0, "panel")
    with pytest.raises(RuntimeError, match="a must be a CPU tensor, but is on meta"):
        core.gemm_run(x.to("meta"), x, x.clone())
