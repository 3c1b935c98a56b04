"""Kernels of the first generation in many styles: each has a time, and variants are in order."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import nki.first_generation.isa as nisa
import nki.first_generation.language as nl
from neuronxcc import nki
from neuronxcc.perf import Prediction, model_of
from neuronxcc.targets import get_target
from tests.nki.first_kernels import CASES

# What does not fit is told when the kernel is recorded.
pytestmark = pytest.mark.filterwarnings("ignore:.*NKI223:nki.errors.NkiWarning")
TARGETS = ("trn1", "trn2")


@functools.cache
def timed(name: str, target: str, *scale: int) -> Prediction:
    """Return the time of a kernel at its shapes, the first dimension of the first one scaled."""
    case = CASES[name]
    shapes = list(case.timed)
    if scale:
        first = shapes[0]
        shapes = [(s[0] * scale[0], *s[1:]) if s[0] == first[0] else s for s in shapes]
    kernel = nki.jit(case.function, platform_target=target)
    made: Prediction = kernel.predict(*(np.zeros(shape, np.float32) for shape in shapes))
    return made


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_computes_what_it_means(name: str) -> None:
    case = CASES[name]
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in case.small]
    found = nki.jit(case.function, platform_target="trn2")(*arrays)
    expected = case.meaning(*(array.astype(np.float64) for array in arrays))
    # Sums of up to 256 products of float32; the engine's functions are good to some units.
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_a_kernel_has_a_time_within_its_bounds(name: str, target: str) -> None:
    made = timed(name, target)
    model = model_of(get_target(target))
    least = max(made.busy_us.values())
    assert least <= made.device_us * (1 + 1e-9)
    # Arguments are read once and results written once, at the least.
    once = sum(4 * int(np.prod(shape)) for shape in CASES[name].timed)
    rate = min(model.dma_gbps, model.hbm_gbps) * 1e3
    assert made.hbm_bytes >= once
    assert made.device_us >= once / rate
    # A chain without any overlap: every instruction with all that it waits for.
    each = [model.cost(work) for work in made.stream.works]
    whole = sum(
        (c.issue + c.latency + c.start + c.making + c.moving + model.semaphore) * n
        for c, n in zip(each, made.counts.tolist(), strict=True)
    )
    assert made.device_us <= whole / 1e6


SLOWER = [
    ("matmul_tiled", "matmul_kept"),
    ("transposed", "transposed_wide"),
    ("attention", "grouped attention"),
]


@pytest.mark.parametrize(("slow", "fast"), SLOWER)
def test_variants_are_in_order(slow: str, fast: str) -> None:
    """What loads more, or moves shorter rows, is not faster."""
    assert timed(fast, "trn1").device_us <= timed(slow, "trn1").device_us


@pytest.mark.parametrize("name", ["bmm", "rope", "softmax_rows", "declared", "layernorm"])
def test_twice_the_work_takes_longer(name: str) -> None:
    one, two = timed(name, "trn1"), timed(name, "trn1", 2)
    assert 1.5 * one.device_us < two.device_us < 2.3 * one.device_us


def _parts(x: Any, y: Any, *, outer: Any, inner: Any) -> Any:
    """x + turns * (x * y), 4 columns at a time; the products are the same in each turn of `outer`.

    A turn of all parts is 32 products and as many sums, which is more than lies near.
    """
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    first, second = nl.load(x), nl.load(y)
    total = nl.copy(first)
    for _ in outer(4):
        for begin in inner(0, x.shape[1], 4):
            part = slice(begin, begin + 4)
            product = nisa.tensor_tensor(first[:, part], second[:, part], np.multiply)
            total[:, part] = nl.add(total[:, part], product)
    nl.store(out, total)
    return out


@pytest.mark.parametrize(
    ("outer", "inner", "products"),
    [
        # The loop that is left is the outer one, and its body has all parts.
        (nl.affine_range, nl.static_range, 32),
        (nl.sequential_range, nl.static_range, 32),
        # In the innermost loop all products are different.
        (nl.affine_range, nl.affine_range, 128),
        (nl.static_range, nl.affine_range, 128),
        # No loop is left.
        (nl.static_range, nl.static_range, 128),
    ],
)
def test_invariants_leave_the_innermost_loop_that_a_compiler_sees(
    outer: Any, inner: Any, products: int
) -> None:
    kernel = nki.jit(functools.partial(_parts, outer=outer, inner=inner), platform_target="trn1")
    arrays = [np.arange(128 * 128, dtype=np.float32).reshape(128, 128) % 7 for _ in range(2)]
    np.testing.assert_array_equal(kernel(*arrays), arrays[0] + 4 * arrays[0] * arrays[1])
    made = kernel.predict(*arrays)
    counts = dict.fromkeys((work.name for work in made.stream.works), 0)
    for work, count in zip(made.stream.works, made.counts.tolist(), strict=True):
        counts[work.name] += count
    assert counts["tensor_tensor"] == products + 128
