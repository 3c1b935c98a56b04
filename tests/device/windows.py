"""Random calls of functions whose arguments are geometry: windows, steps, edges, sizes, places.

PyTorch's samples of them are few and usual; kernels went wrong where no sample is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

Draw = st.DrawFn


@dataclass(frozen=True)
class Case:
    """A function of tensors, float32 on the CPU.

    Attributes:
        run: Takes the operands, returns a tensor, or several.
        operands: Those that gradients are taken for.
        rounds_places: It chooses elements by places that are computed in float32, so another type
            may choose others.
        text: The call, for messages.
    """

    run: Callable[..., Any]
    operands: tuple[Tensor, ...]
    text: str
    rounds_places: bool = False

    def __repr__(self) -> str:
        return f"{self.text} of {[tuple(t.shape) for t in self.operands]}"


def _each(draw: Draw, count: int, low: int, high: int) -> tuple[int, ...]:
    return tuple(draw(st.integers(low, high)) for _ in range(count))


def _normal(draw: Draw, shape: Sequence[int]) -> Tensor:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    return torch.randn(tuple(shape), generator=generator)


def _images(draw: Draw, dims: int, most: int = 12, *, batched: bool = False) -> Tensor:
    lead = _each(draw, 2 if batched or draw(st.booleans()) else 1, 1, 3)
    return _normal(draw, (*lead, *_each(draw, dims, 1, most)))


def _case(
    name: str, options: dict[str, Any], *operands: Tensor, rounds_places: bool = False
) -> Case:
    function = getattr(functional, name)

    def run(*tensors: Tensor) -> Any:
        return function(*tensors, **options)

    return Case(run, operands, f"{name}({options})", rounds_places)


def _sees_nothing(
    size: int, window: int, step: int, edge: int, gap: int, *, ceil_mode: bool
) -> bool:
    """Return whether a window lies outside: PyTorch's maximum of nothing has a place outside."""
    reach = gap * (window - 1) + 1
    count = (size + 2 * edge - reach + (step - 1 if ceil_mode else 0)) // step + 1
    taps = range(0, reach, gap)
    return any(
        not any(0 <= i * step - edge + tap < size for tap in taps) for i in range(max(count, 0))
    )


@st.composite
def max_pool(draw: Draw) -> Case:
    dims, ceil_mode = draw(st.integers(1, 3)), draw(st.booleans())
    x, window, gaps = _images(draw, dims), _each(draw, dims, 1, 5), _each(draw, dims, 1, 3)
    steps = _each(draw, dims, 1, 5)
    edges = tuple(draw(st.integers(0, k // 2)) for k in window)
    rows = zip(x.shape[-dims:], window, steps, edges, gaps, strict=True)
    assume(not any(_sees_nothing(*row, ceil_mode=ceil_mode) for row in rows))
    options = {
        "kernel_size": window, "stride": steps, "padding": edges, "dilation": gaps,
        "ceil_mode": ceil_mode, "return_indices": draw(st.booleans()),
    }  # fmt: skip
    return _case(f"max_pool{dims}d", options, x)


@st.composite
def avg_pool(draw: Draw) -> Case:
    dims = draw(st.integers(1, 3))
    x, window, steps = _images(draw, dims), _each(draw, dims, 1, 5), _each(draw, dims, 1, 5)
    edges = tuple(draw(st.integers(0, k // 2)) for k in window)
    options: dict[str, Any] = {
        "kernel_size": window, "stride": steps, "padding": edges,
        "ceil_mode": draw(st.booleans()), "count_include_pad": draw(st.booleans()),
    }  # fmt: skip
    if dims > 1:
        options["divisor_override"] = draw(st.sampled_from([None, 3, -2]))
    return _case(f"avg_pool{dims}d", options, x)


@st.composite
def adaptive_pool(draw: Draw) -> Case:
    dims, kind = draw(st.integers(1, 3)), draw(st.sampled_from(["avg", "max"]))
    options: dict[str, Any] = {"output_size": _each(draw, dims, 1, 14)}
    if kind == "max":
        options["return_indices"] = True
    return _case(f"adaptive_{kind}_pool{dims}d", options, _images(draw, dims))


@st.composite
def unfold(draw: Draw) -> Case:
    window, gaps = _each(draw, 2, 1, 4), _each(draw, 2, 1, 3)
    edges, steps = _each(draw, 2, 0, 3), _each(draw, 2, 1, 4)
    options = {"kernel_size": window, "dilation": gaps, "padding": edges, "stride": steps}
    if draw(st.booleans()):
        return _case("unfold", options, _images(draw, 2, 10))
    sizes = _each(draw, 2, 1, 10)
    rows = zip(sizes, window, gaps, edges, steps, strict=True)
    counts = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, d, p, s in rows]
    assume(min(counts) > 0)
    lead = _each(draw, draw(st.integers(0, 1)), 1, 3)
    channels = draw(st.integers(1, 3)) * math.prod(window)
    x = _normal(draw, (*lead, channels, math.prod(counts)))
    return _case("fold", {"output_size": sizes, **options}, x)


_SMOOTH = {1: ("linear",), 2: ("bilinear", "bicubic"), 3: ("trilinear",)}


@st.composite
def interpolate(draw: Draw) -> Case:
    dims = draw(st.integers(1, 3))
    mode = draw(st.sampled_from(["nearest", "nearest-exact", "area", *_SMOOTH[dims]]))
    options: dict[str, Any] = {"mode": mode}
    if mode in _SMOOTH[dims]:
        options["align_corners"] = draw(st.sampled_from([None, True, False]))
        options["antialias"] = dims == 2 and draw(st.booleans())
    if draw(st.booleans()):
        options["size"] = _each(draw, dims, 1, 14)
    else:
        factors = st.sampled_from([0.3, 0.5, 1.0, 1.5, 2.0, 2.7])
        options["scale_factor"] = tuple(draw(factors) for _ in range(dims))
        options["recompute_scale_factor"] = draw(st.sampled_from([None, True]))
    x = _images(draw, dims, 9, batched=True)
    return _case("interpolate", options, x, rounds_places=mode.startswith("nearest"))


@st.composite
def grid_sample(draw: Draw) -> Case:
    dims = draw(st.integers(2, 3))
    mode = draw(st.sampled_from(["bilinear", "nearest", "bicubic"][: 5 - dims]))
    x = _images(draw, dims, 7, batched=True)
    places = _normal(draw, (x.shape[0], *_each(draw, dims, 1, 5), dims))
    options = {
        "mode": mode,
        "padding_mode": draw(st.sampled_from(["zeros", "border", "reflection"])),
        "align_corners": draw(st.booleans()),
    }
    return _case("grid_sample", options, x, places, rounds_places=mode == "nearest")


@st.composite
def pad(draw: Draw) -> Case:
    dims = draw(st.integers(1, 3))
    mode = draw(st.sampled_from(["constant", "reflect", "replicate", "circular"]))
    x = _images(draw, dims, 7)
    # A circle that is cut off further than it goes reads what nothing wrote, on the CPU, too.
    amounts = _each(draw, 2 * dims, 0 if mode == "circular" else -2, 4)
    if mode == "reflect":  # the gradient of nothing is what nothing wrote
        ends = zip(x.shape[::-1], amounts[::2], amounts[1::2], strict=False)
        assume(all(n + before + after > 0 for n, before, after in ends))
    return _case("pad", {"pad": amounts, "mode": mode}, x)


FAMILIES: dict[str, st.SearchStrategy[Case]] = {
    function.__name__: function()
    for function in (
        max_pool, avg_pool, adaptive_pool, unfold, interpolate, grid_sample, pad,
    )
}  # fmt: skip
