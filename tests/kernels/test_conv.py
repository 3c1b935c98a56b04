"""Convolutions of the native core against float64.

Bounds are derived, not fitted. With u = 2^-24, Winograd's method rounds each number at most so
often, to first order: 6 times in the values of a patch (three operations in each direction), once
in the values of a filter, min(C, 32) + C / 32 times in the sum over C channels (32 at a time), 8
times on the way back (four operations in each direction), and 4 times in scale, bias, residual and
rounding to the result. Each rounding is relative to the sum of the absolute values of what was
added up. A plain sum is off by at most (C + 3) u times that of its terms. A result in 16 bits is
rounded once more, to that dtype.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from tests import interpreter

core: Any = importlib.import_module(
    os.environ.get("TORCH_NEURONX_GEMM_TEST_MODULE", "torch_neuronx._C")
)
pytestmark = pytest.mark.skipif(
    core.gemm_kernels()["Float"] != "avx512", reason="this processor has no kernels for it"
)

UNIT = 2.0**-24
# Half a unit in the last place of the dtype, relative, and half its smallest subnormal.
ROUNDING = {
    torch.float32: (0.0, 2.0**-150),  # counted above
    torch.bfloat16: (2.0**-8, 2.0**-134),
    torch.float16: (2.0**-11, 2.0**-25),
}
POINTS = (0.0, 0.625, -0.625, 1.5, -1.5)
LAYOUTS = ["planes", "channels last", "part"]
FINITE, NOT_FINITE = 1.0, [float("inf"), -float("inf"), float("nan")]


def transforms() -> tuple[Tensor, Tensor, Tensor]:
    """Matrices back, filter and patch of F(4, 3): y = back @ ((filter @ g) * (patch @ d)).

    Values of polynomials at the points and at infinity, as Toom and Cook multiply them; the
    correlation is the transposed algorithm.
    """

    def values(columns: int) -> np.ndarray:
        rows = [[p**j for j in range(columns)] for p in POINTS]
        return np.array([*rows, [0.0] * (columns - 1) + [1.0]])

    return (
        torch.from_numpy(values(4).T.copy()),
        torch.from_numpy(values(3)),
        torch.from_numpy(np.linalg.inv(values(6)).T.copy()),
    )


def winograd(x: Tensor, weight: Tensor, padding: tuple[int, int], absolute: bool) -> Tensor:
    """The method as it is written in books, in float64; or the same of all absolute values."""
    back, filters, patch = transforms()
    x, weight = x.double(), weight.double()
    if absolute:
        x, weight = x.abs(), weight.abs()
        back, filters, patch = back.abs(), filters.abs(), patch.abs()
    height = x.size(2) + 2 * padding[0] - 2
    width = x.size(3) + 2 * padding[1] - 2
    spare = (-width % 4, -height % 4)
    x = functional.pad(x, (padding[1], padding[1] + spare[0], padding[0], padding[0] + spare[1]))
    d = x.unfold(2, 6, 4).unfold(3, 6, 4)  # image, channel, tile row, tile column, 6, 6
    v = patch @ d @ patch.T
    u = filters @ weight @ filters.T
    m = torch.einsum("nchwij,kcij->nkhwij", v, u)
    y = back @ m @ back.T
    y = y.permute(0, 1, 2, 4, 3, 5).reshape(y.size(0), y.size(1), 4 * y.size(2), 4 * y.size(3))
    return y[..., :height, :width]


def laid_out(t: Tensor, layout: str) -> Tensor:
    """The same numbers, laid out in memory as named."""
    if layout == "channels last":
        return t.to(memory_format=torch.channels_last)
    if layout == "part":
        sizes = (t.size(0), t.size(1) + 2, t.size(2) + 1, t.size(3) + 3)
        room = torch.full(sizes, torch.nan, dtype=t.dtype)
        room[:, 1:-1, :-1, 2:-1] = t
        return room[:, 1:-1, :-1, 2:-1]
    return t.contiguous()


def empty(sizes: tuple[int, ...], layout: str, dtype: torch.dtype = torch.float32) -> Tensor:
    layout = "planes" if layout == "part" else layout
    return laid_out(torch.full(sizes, torch.nan, dtype=dtype), layout)


def assert_within(out: Tensor, want: Tensor, bound: Tensor) -> None:
    relative, least = ROUNDING[out.dtype]
    bound = bound + relative * (want.abs() + bound) + least
    assert ((out - want).abs() <= bound).all()


def out_sizes(x: Tensor, weight: Tensor, padding: tuple[int, int]) -> tuple[int, int, int, int]:
    height = x.size(2) + 2 * padding[0] - weight.size(2) + 1
    width = x.size(3) + 2 * padding[1] - weight.size(3) + 1
    return x.size(0), weight.size(0), height, width


def run(x: Tensor, weight: Tensor, padding: tuple[int, int] = (0, 0), **options: Any) -> Tensor:
    """The convolution by our kernel, which must take it."""
    layout = options.pop("out_layout", "planes")
    out = empty(out_sizes(x, weight, padding), layout, x.dtype)
    options.setdefault("method", "winograd" if weight.size(2) == 3 else "product")
    assert core.conv_run(x, weight, out, padding=padding, **options)
    return out


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    size = st.integers(1, 21)
    return {
        "images": draw(st.integers(1, 3)),
        "channels": draw(st.integers(1, 37) | st.sampled_from([64, 65, 130])),
        "outs": draw(st.integers(1, 37) | st.sampled_from([64, 65, 130])),
        "height": draw(size),
        "width": draw(size | st.sampled_from([63, 64, 67])),
        "padding": (draw(st.integers(0, 2)), draw(st.integers(0, 2))),
        "x_layout": draw(st.sampled_from(LAYOUTS)),
        "weight_layout": draw(st.sampled_from(LAYOUTS)),
        "out_layout": draw(st.sampled_from(LAYOUTS)),
        "dtype": draw(st.sampled_from(list(ROUNDING))),
        "extras": draw(st.sets(st.sampled_from(["bias", "scale", "residual", "relu"]))),
        "seed": draw(st.integers(0, 2**31)),
    }


@given(problems())
def test_winograd(p: dict[str, Any]) -> None:
    torch.manual_seed(p["seed"])
    padding = p["padding"]
    height, width = (
        max(3 - 2 * pad, p[n]) for n, pad in zip(("height", "width"), padding, strict=True)
    )
    dtype, extras, outs = p["dtype"], p["extras"], p["outs"]
    x = torch.randn(p["images"], p["channels"], height, width).to(dtype)
    x = laid_out(x, p["x_layout"])
    weight = laid_out(torch.randn(outs, p["channels"], 3, 3).to(dtype), p["weight_layout"])
    precise = "scale" in extras and p["seed"] % 2 == 0
    affine = torch.float32 if precise else dtype
    bias = torch.randn(outs).to(affine) if "bias" in extras else None
    scale = torch.randn(outs).to(affine) if "scale" in extras else None
    sizes = out_sizes(x, weight, padding)
    residual = empty(sizes, p["out_layout"], dtype).normal_() if "residual" in extras else None
    out = run(
        x,
        weight,
        padding,
        out_layout=p["out_layout"],
        bias=bias,
        scale=scale,
        residual=residual,
        relu="relu" in extras,
    )
    want = functional.conv2d(x.double(), weight.double(), None, 1, padding)
    terms = winograd(x, weight, padding, absolute=True)
    if scale is not None:
        want = want * scale.double().view(-1, 1, 1)
        terms = terms * scale.double().abs().view(-1, 1, 1)
    for added in (bias if bias is None else bias.view(-1, 1, 1), residual):
        if added is not None:
            want = want + added.double()
            terms = terms + added.double().abs()
    if "relu" in extras:
        want = want.relu()
    channels = p["channels"]
    roundings = 6 + 1 + min(channels, 32) + channels / 32 + 8 + 4
    assert_within(out, want, roundings * UNIT * terms)


def test_the_book_agrees_with_the_sum() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 5, 9, 11), torch.randn(3, 5, 3, 3)
    want = functional.conv2d(x.double(), weight.double(), None, 1, (1, 2))
    torch.testing.assert_close(winograd(x, weight, (1, 2), absolute=False), want)


@pytest.mark.parametrize("channels", [64, 256, 512])
@pytest.mark.parametrize("positive", [False, True], ids=["signed", "after relu"])
def test_error_is_a_few_times_that_of_direct_summation(channels: int, positive: bool) -> None:
    """The condition under which tiles of 4 x 4 are used at all; see docs/convolution.md."""
    torch.manual_seed(channels)
    x = torch.randn(2, channels, 24, 24)
    x = x.relu() if positive else x
    weight = torch.randn(64, channels, 3, 3) / (9 * channels) ** 0.5
    want = functional.conv2d(x.double(), weight.double(), None, 1, 1)
    ours = run(x, weight, (1, 1)) - want
    direct = functional.conv2d(x, weight, None, 1, 1) - want
    assert ours.square().mean().sqrt() <= 4 * direct.square().mean().sqrt()
    assert ours.abs().max() <= 8 * direct.abs().max()


@pytest.mark.parametrize("layout", ["planes", "channels last"])
@pytest.mark.parametrize("where", ["input", "weight"])
@pytest.mark.parametrize("value", NOT_FINITE)
def test_what_is_not_finite_spreads_as_in_a_plain_sum(
    layout: str, where: str, value: float
) -> None:
    torch.manual_seed(1)
    x = laid_out(torch.randn(2, 20, 13, 14), layout)
    weight = torch.randn(24, 20, 3, 3)
    bias, residual = torch.randn(24), empty((2, 24, 13, 14), layout).normal_()
    if where == "input":
        x[1, 7, 6, 5] = value
    else:
        weight[3, 7, 0, 2] = value
    want = (functional.conv2d(x, weight, bias, 1, 1) + residual).relu()
    options = {"out_layout": layout, "bias": bias, "residual": residual, "relu": True}
    out = run(x, weight, (1, 1), **options)
    assert want.isfinite().any()
    torch.testing.assert_close(out, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_that_are_not_finite_spread_as_in_a_plain_sum(dtype: torch.dtype) -> None:
    x, weight = torch.randn(1, 20, 8, 8).to(dtype), torch.randn(24, 20, 3, 3).to(dtype)
    x[0, 7, 3, 4] = torch.inf
    names = {torch.bfloat16: "BFloat16", torch.float16: "Half"}
    given = torch.float32 if core.conv_widened()[names[dtype]] else dtype
    want = functional.conv2d(x.to(given), weight.to(given), None, 1, 1).to(dtype)
    torch.testing.assert_close(run(x, weight, (1, 1)), want, rtol=0, atol=0, equal_nan=True)


def test_sums_that_overflow_only_on_the_way() -> None:
    x, weight = torch.full((1, 16, 8, 8), 1e38), torch.zeros(16, 16, 3, 3)
    weight[:, 0, 1, 1] = 1.0
    torch.testing.assert_close(run(x, weight, (1, 1)), torch.full((1, 16, 8, 8), 1e38))


def test_not_a_number_in_the_residual_is_no_reason_to_start_again() -> None:
    residual = torch.zeros(1, 16, 8, 8)
    residual[0, 0, 0, 0] = torch.nan
    x, weight = torch.randn(1, 16, 8, 8), torch.randn(16, 16, 3, 3)
    out = run(x, weight, (1, 1), residual=residual)
    assert int(out.isnan().sum()) == 1
    mine = run(x, weight, (1, 1))
    assert torch.equal(out[0, 1:], mine[0, 1:])


@pytest.mark.parametrize("sizes", [(2, 48, 30, 31, 70), (1, 160, 9, 9, 200), (3, 256, 14, 14, 512)])
def test_bits_do_not_depend_on_threads_or_on_what_is_kept(
    sizes: tuple[int, int, int, int, int],
) -> None:
    images, channels, height, width, outs = sizes
    x, weight = torch.randn(images, channels, height, width), torch.randn(outs, channels, 3, 3)
    threads = torch.get_num_threads()
    try:
        found = []
        for count in (1, 2, 3, 7):
            torch.set_num_threads(count)
            found.append(run(x, weight, (1, 1)))
        core.gemm_clear_packed()
        found += [run(x, weight, (1, 1), generation=1) for _ in range(3)]
        assert core.gemm_cache_stats()["hits"] == 1
    finally:
        torch.set_num_threads(threads)
        core.gemm_clear_packed()
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_part_of_a_batch_gives_the_same_bits() -> None:
    x, weight = torch.randn(5, 32, 17, 18), torch.randn(40, 32, 3, 3)
    whole = run(x, weight, (1, 1))
    assert torch.equal(whole[3:4], run(x[3:4], weight, (1, 1)))


def test_a_new_generation_is_transformed_anew() -> None:
    core.gemm_clear_packed()
    x, weight = torch.randn(1, 32, 12, 12), torch.randn(32, 32, 3, 3)
    for generation, factor in ((1, 1), (1, 1), (1, 1), (2, 3), (2, 1), (2, 1)):
        weight.mul_(factor)
        want = functional.conv2d(x.double(), weight.double(), None, 1, 1)
        out = run(x, weight, (1, 1), generation=generation)
        torch.testing.assert_close(out.double(), want, rtol=1e-4, atol=1e-3)
    assert core.gemm_cache_stats()["packed"] == 2
    core.gemm_clear_packed()


StoreFunction = ctypes.CFUNCTYPE(
    None,
    ctypes.c_void_p,
    *[ctypes.c_int64] * 5,
    ctypes.POINTER(ctypes.c_float),
    ctypes.c_int64,
)


@pytest.mark.parametrize("layout", ["planes", "channels last"])
@pytest.mark.parametrize("last", [FINITE, NOT_FINITE[2]], ids=["finite", "computed again"])
def test_a_function_gets_every_result_once(layout: str, last: float) -> None:
    x, weight, bias = torch.randn(2, 20, 9, 70), torch.randn(70, 20, 3, 3), torch.randn(70)
    x[-1, -1, -1, -1] = last
    want = run(x, weight, (1, 1), bias=bias, relu=True)
    rows = want if layout == "planes" else want.permute(0, 2, 3, 1)
    rows = rows.reshape(2, 70, -1) if layout == "planes" else rows.reshape(2, -1, 70)
    got, times = torch.full_like(rows, torch.nan), torch.zeros_like(rows)

    def store(*arguments: Any) -> None:
        _, image, row0, rows, col0, cols, tile, stride = arguments
        part = np.ctypeslib.as_array(tile, (rows, stride))[:, :cols]
        got[image, row0 : row0 + rows, col0 : col0 + cols] = torch.from_numpy(part)
        times[image, row0 : row0 + rows, col0 : col0 + cols] += 1

    function = StoreFunction(store)
    address = ctypes.cast(function, ctypes.c_void_p).value
    out = run(x, weight, (1, 1), out_layout=layout, bias=bias, relu=True, function=address)
    assert out.isnan().all()  # untouched
    torch.testing.assert_close(got, rows, rtol=0, atol=0, equal_nan=True)
    assert int(times.min()) >= 1
    assert int(times.max()) == (1 if last == FINITE else 2)


@given(problems())
def test_product(p: dict[str, Any]) -> None:
    torch.manual_seed(p["seed"])
    x = torch.randn(p["images"], p["channels"], p["height"], p["width"]).to(p["dtype"])
    layout = "planes" if p["x_layout"] == "part" else p["x_layout"]
    weight = torch.randn(p["outs"], p["channels"], 1, 1).to(p["dtype"])
    weight = laid_out(weight, p["weight_layout"])
    bias = torch.randn(p["outs"]).to(p["dtype"]) if "bias" in p["extras"] else None
    out = run(laid_out(x, layout), weight, out_layout=layout, bias=bias)
    want = functional.conv2d(x.double(), weight.double(), bias if bias is None else bias.double())
    terms = functional.conv2d(
        x.double().abs(), weight.double().abs(), bias if bias is None else bias.double().abs()
    )
    assert_within(out, want, (p["channels"] + 3) * UNIT * terms)


def method_of(x: Tensor, weight: Tensor, **options: Any) -> str:
    groups = options.get("groups", 1)
    padding = options.get("padding", (0, 0))
    stride, dilation = options.get("stride", (1, 1)), options.get("dilation", (1, 1))
    want = functional.conv2d(x, weight, None, stride, padding, dilation, groups)
    method: str = core.conv_method(x, weight, torch.empty_like(want), **options)
    return method


def test_what_is_left_to_aten() -> None:
    x, weight = torch.randn(4, 64, 32, 32), torch.randn(64, 64, 3, 3)
    assert method_of(x, weight, padding=(1, 1)) == "winograd"
    assert method_of(x, weight, padding=(1, 1), stride=(2, 2)) == "aten"
    assert method_of(x, weight, padding=(1, 1), dilation=(2, 2)) == "aten"
    assert method_of(x, weight[:, :32].contiguous(), groups=2) == "aten"
    assert method_of(x.double(), weight.double()) == "aten"
    assert method_of(x, torch.randn(64, 64, 5, 5)) == "aten"
    assert method_of(x[..., ::2], weight) == "aten"
    assert method_of(torch.randn(1, 3, 32, 32), torch.randn(64, 3, 3, 3)) == "aten"
    assert method_of(torch.randn(0, 64, 32, 32), weight) == "aten"
    assert method_of(torch.randn(1, 512, 4, 4), torch.randn(512, 512, 3, 3)) == "aten"


def test_operands_that_do_not_fit_are_not_taken() -> None:
    x, weight = torch.randn(4, 64, 32, 32), torch.randn(64, 64, 3, 3)
    out = torch.empty(4, 64, 30, 30)
    for options in (
        {"padding": (1, 1)},
        {"padding": (-1, 0)},
        {"bias": torch.randn(3)},
        {"bias": torch.randn(64).double()},
        {"scale": torch.randn(64).bfloat16()},
        {"residual": torch.randn(4, 64, 30, 29)},
        {"residual": out},
        {"scale": torch.randn(128)[::2]},
    ):
        assert not core.conv_run(x, weight, out, method="winograd", **options), options
    assert not core.conv_run(x, weight[:, :63], out, method="winograd")
    assert not core.conv_run(x, weight, out.expand(4, 64, 30, 30)[..., ::2], method="winograd")


def test_an_unknown_method_is_explained() -> None:
    x = torch.randn(1, 16, 8, 8)
    with pytest.raises(ValueError, match='must be auto, winograd or product, got "magic"'):
        core.conv_run(x, torch.randn(16, 16, 1, 1), x.clone(), method="magic")


SCRIPT = """
import importlib, torch
core = importlib.import_module({module!r})
x, weight = torch.randn(4, 64, 32, 32), torch.randn(64, 64, 3, 3)
print(core.conv_method(x, weight, torch.empty(4, 64, 30, 30)))
"""


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("", "winograd"),
        ("auto", "winograd"),
        ("none", "aten"),
        ("fast", 'TORCH_NEURONX_CONV_KERNELS must be auto or none, got "fast"'),
    ],
)
def test_our_methods_can_be_switched_off(setting: str, said: str) -> None:
    environ = {**os.environ, "TORCH_NEURONX_CONV_KERNELS": setting}
    done = interpreter.run(["-c", SCRIPT.format(module=core.__name__)], env=environ)
    assert said in (done.stdout if done.returncode == 0 else done.stderr)
    assert (done.returncode == 0) == (setting != "fast")
