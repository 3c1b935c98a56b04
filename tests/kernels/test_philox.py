"""The counter-based random number kernels: known answers, layout, distributions, independence."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.isas import ISAS, core, forced

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FULL = 1 << 64
# Chance of a false alarm per statistical test; seeds are fixed, so a pass is a pass for ever.
LEAST_P = 1e-3
# Vectors of the authors' Random123 distribution (kat_vectors): counter, key, result.
KNOWN = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]

Fill = Callable[[int, int, torch.Tensor], None]


def _fill(name: str, a: float = 0.0, b: float = 0.0) -> Fill:
    function = getattr(core, f"kernel_philox_{name}")
    return lambda seed, offset, out: function(seed, offset, out, a, b)


FILLS: dict[str, Fill] = {
    "uniform": _fill("uniform", -2.0, 3.0),
    "normal": _fill("normal", 1.0, 2.0),
    "log_normal": _fill("log_normal", 0.1, 0.5),
    "exponential": _fill("exponential", 0.5),
    "cauchy": _fill("cauchy", 1.0, 2.0),
    "geometric": _fill("geometric", 0.3),
    "bernoulli": _fill("bernoulli", 0.3),
    "random_full": _fill("random_full"),
    "random_from_to": lambda seed, offset, out: core.kernel_philox_random_from_to(
        seed, offset, out, 100, -7
    ),
}
CONTINUOUS = {
    "uniform": scipy.stats.uniform(-2, 5),
    "normal": scipy.stats.norm(1, 2),
    "log_normal": scipy.stats.lognorm(0.5, scale=math.exp(0.1)),
    "exponential": scipy.stats.expon(0, 2),
    "cauchy": scipy.stats.cauchy(1, 2),
}


def drawn(name: str, n: int, dtype: torch.dtype, seed: int = 7, offset: int = 0) -> torch.Tensor:
    out = torch.empty(n, dtype=dtype)
    FILLS[name](seed, offset, out)
    return out


def words_of(n: int, seed: int, offset: int) -> npt.NDArray[np.uint32]:
    words = torch.empty(n, dtype=torch.int32)
    core.kernel_philox_words(seed, offset, words)
    found: npt.NDArray[np.uint32] = words.numpy().view(np.uint32)
    return found


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_block_gives_the_published_answers(
    counter: list[int], key: list[int], expected: list[int]
) -> None:
    assert core.kernel_philox_block(counter, key) == expected


@pytest.mark.parametrize("offset", [0, 4, 4 * ((1 << 32) - 7), 4 * (7 << 33), (1 << 64) - 400])
def test_words_are_the_documented_blocks(isa: str, offset: int) -> None:
    n, seed = 700, (0xDEADBEEF << 32) | 12345
    values = words_of(n, seed, offset)
    for i in range(0, n, 13):
        block, upper = 16 * (i // 64) + i % 16, offset // 4
        counter = [block, 0, upper & 0xFFFFFFFF, upper >> 32]
        key = [seed & 0xFFFFFFFF, seed >> 32]
        assert core.kernel_philox_block(counter, key)[(i % 64) // 16] == values[i], isa


def test_numbers_of_64_bits_are_the_documented_words(isa: str) -> None:
    n, seed, offset = 200, 9, 44
    words = words_of(64 * math.ceil(n / 32), seed, offset).astype(np.uint64)
    wide = torch.empty(n, dtype=torch.int64)
    core.kernel_philox_random_from_to(seed, offset, wide, 0, 0)
    i = np.arange(n)
    low = i // 32 * 64 + i // 16 % 2 * 32 + i % 16
    expected = words[low] | words[low + 16] << np.uint64(32)
    np.testing.assert_array_equal(wide.numpy().view(np.uint64), expected, isa)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", FILLS)
def test_result_does_not_depend_on_threads_or_length(
    isa: str, name: str, dtype: torch.dtype
) -> None:
    n = 100_003
    long = drawn(name, n, dtype)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert torch.equal(drawn(name, n, dtype), long), isa
        for shorter in (0, 1, 31, 64, 4097):
            assert torch.equal(drawn(name, shorter, dtype), long[:shorter])
    finally:
        torch.set_num_threads(threads)


@given(
    shards=st.integers(2, 16),
    size=st.integers(4, 300),
    words=st.sampled_from([1, 2]),
    base=st.integers(0, 1 << 40),
    seed=st.integers(0, FULL - 1),
)
def test_shards_of_a_dtensor_have_no_block_in_common(
    shards: int, size: int, words: int, base: int, seed: int
) -> None:
    """DTensor starts shard k at k times its size, rounded up to a multiple of 4.

    And goes on from the size of the whole. Numbers of 64 bits take two words each. A shard of fewer
    than 4 numbers may share its offset with others, here as on CUDA.
    """
    starts = [(k * size + 3) // 4 * 4 for k in range(shards)]
    after = (shards * size + 3) // 4 * 4
    count = 64 * math.ceil(size * words / 64)
    blocks = np.stack([words_of(count, seed, 4 * base + start) for start in [*starts, after]])
    # A block's words are 16 apart; each group has 16 blocks.
    blocks = blocks.reshape(-1, 4, 16).swapaxes(1, 2).reshape(-1, 4)
    assert len(np.unique(blocks, axis=0)) == len(blocks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["uniform", "normal"])
def test_neighbouring_offsets_are_independent(name: str, dtype: torch.dtype) -> None:
    rows = torch.stack([drawn(name, 1000, dtype, offset=4 * k) for k in range(20)]).double()
    correlation = rows.corrcoef().fill_diagonal_(0)
    assert correlation.abs().max().item() < 5 / math.sqrt(1000)


@pytest.mark.skipif(len(ISAS) == 1, reason="only one instruction set to compare")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", FILLS)
def test_instruction_sets_agree(name: str, dtype: torch.dtype) -> None:
    results = []
    for isa in ISAS:
        with forced(isa):
            results.append(drawn(name, 5000, dtype))
    exact = name in {"uniform", "bernoulli", "random_full", "random_from_to"}
    for other in results[1:]:
        if exact:
            assert torch.equal(other, results[0])
        else:
            torch.testing.assert_close(other, results[0])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_distributions(isa: str, name: str, dtype: torch.dtype) -> None:
    # 16-bit formats have steps of their own, which a larger sample would make visible.
    n = 200_000 if dtype in (torch.float32, torch.float64) else 20_000
    values = drawn(name, n, dtype, seed=2).double().numpy()
    assert scipy.stats.kstest(values, CONTINUOUS[name].cdf).pvalue > LEAST_P, isa


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normals_are_uncorrelated(dtype: torch.dtype) -> None:
    z = drawn("normal", 400_000, dtype).double().numpy()
    limit = 4.5 / math.sqrt(z.size)
    for lag in (1, 2, 16, 17, 32, 48, 64):
        assert abs(np.corrcoef(z[:-lag], z[lag:])[0, 1]) < limit
        # A shared Box-Muller radius would show in the squares if the angle were poor.
        squares = (z - z.mean()) ** 2
        assert abs(np.corrcoef(squares[:-lag], squares[lag:])[0, 1]) < limit
    assert np.abs((z - 1) / 2).max() < (6.7 if dtype == torch.float32 else 9.3)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.uint8])
def test_geometric(isa: str, dtype: torch.dtype) -> None:
    values = drawn("geometric", 100_000, dtype).double().numpy()
    assert values.min() == 1, isa
    cells = np.array([(values == k).sum() for k in range(1, 11)] + [(values > 10).sum()])
    chances = np.array([0.3 * 0.7 ** (k - 1) for k in range(1, 11)] + [0.7**10])
    assert scipy.stats.chisquare(cells, chances * values.size).pvalue > LEAST_P


@given(
    low=st.floats(-1e4, 1e4),
    width=st.floats(0, 1e4),
    dtype=st.sampled_from(FLOATS),
    seed=st.integers(0, FULL - 1),
)
def test_uniform_stays_inside(low: float, width: float, dtype: torch.dtype, seed: int) -> None:
    out = torch.empty(3000, dtype=dtype)
    low = torch.tensor(low, dtype=dtype).item()
    high = torch.tensor(low + width, dtype=dtype).item()
    core.kernel_philox_uniform(seed, 0, out, low, high)
    assert out.min().item() >= low
    assert out.max().item() < high or (low == high == out.max().item())


@pytest.mark.parametrize("dtype", FLOATS)
def test_exponential_is_never_zero(dtype: torch.dtype) -> None:
    out = torch.empty(1 << 21, dtype=dtype)
    core.kernel_philox_exponential(3, 0, out, 1.0, 0.0)
    assert out.min().item() > 0
    assert out.isfinite().all()


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool])
@pytest.mark.parametrize("p", [0.0, 0.25, 0.5, 1.0])
def test_bernoulli(isa: str, dtype: torch.dtype, p: float) -> None:
    n = 100_000
    out = torch.empty(n, dtype=dtype)
    core.kernel_philox_bernoulli(11, 0, out, p, 0.0)
    values = out.double()
    assert set(values.unique().tolist()) <= {0.0, 1.0}, isa
    assert abs(values.mean().item() - p) <= 4.5 * math.sqrt(p * (1 - p) / n)
    for p_dtype in FLOATS:
        other = torch.empty_like(out)
        core.kernel_philox_bernoulli_tensor(11, 0, other, torch.full((n,), p, dtype=p_dtype))
        assert torch.equal(other, out)


def test_bernoulli_takes_each_element_s_probability() -> None:
    p = torch.linspace(0, 1, 50_001, dtype=torch.float64)
    out = torch.empty(50_001)
    core.kernel_philox_bernoulli_tensor(5, 0, out, p)
    assert out[0] == 0
    assert out[-1] == 1
    for part, chance in zip(out.chunk(10), p.chunk(10), strict=True):
        assert abs(part.mean().item() - chance.mean().item()) < 4.5 * 0.5 / math.sqrt(5000)


@pytest.mark.parametrize("range_", [1, 2, 10, 1 << 16, (1 << 16) + 1, 3 << 30, 1 << 40, FULL - 1])
def test_random_integers_are_uniform(isa: str, range_: int) -> None:
    out = torch.empty(100_000, dtype=torch.int64)
    core.kernel_philox_random_from_to(21, 0, out, range_, -5)
    values = out.numpy().astype(np.int64).view(np.uint64) + np.uint64(5)
    assert int(values.max()) < range_, isa
    cells = min(range_, 16)
    # Integer arithmetic on purpose: a float64 quotient would round at the edges of the cells.
    counts = np.bincount([int(v) * cells // range_ for v in values], minlength=cells)
    edges = [-(-k * range_ // cells) for k in range(cells + 1)]
    chances = np.array([(b - a) / range_ for a, b in itertools.pairwise(edges)])
    expected = chances * values.size
    assert scipy.stats.chisquare(counts, expected).pvalue > LEAST_P or cells == 1


def test_random_over_all_64_bits() -> None:
    out = torch.empty(4000, dtype=torch.int64)
    core.kernel_philox_random_from_to(3, 0, out, 0, -(1 << 63))
    assert out.min().item() < -(1 << 62)
    assert out.max().item() > 1 << 62


@pytest.mark.parametrize(
    ("dtype", "most"),
    [
        (torch.uint8, 255),
        (torch.int8, 127),
        (torch.int16, 32767),
        (torch.int32, (1 << 31) - 1),
        (torch.int64, (1 << 63) - 1),
        (torch.bool, 1),
        (torch.float32, 1 << 24),
        (torch.float64, 1 << 53),
        (torch.bfloat16, 1 << 8),
        (torch.float16, 1 << 11),
    ],
)
def test_random_over_the_whole_type(dtype: torch.dtype, most: int) -> None:
    values = drawn("random_full", 200_000, dtype).double()
    assert values.min().item() >= 0
    assert 0.99 * most <= values.max().item() <= float(most)
    assert values.mean().item() == pytest.approx(most / 2, rel=0.02)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32, torch.float64])
@pytest.mark.parametrize("n", [0, 1, 2, 31, 5000])
def test_randperm_is_a_permutation(isa: str, dtype: torch.dtype, n: int) -> None:
    out = torch.empty(n, dtype=dtype)
    core.kernel_philox_randperm(4, 8, out, 0.0, 0.0)
    assert torch.equal(out.sort().values, torch.arange(n, dtype=dtype)), isa


def test_randperm_gives_all_orders_equally() -> None:
    counts: dict[tuple[int, ...], int] = {}
    out = torch.empty(4, dtype=torch.int64)
    for seed in range(4800):
        core.kernel_philox_randperm(seed, 0, out, 0.0, 0.0)
        order = tuple(out.tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == math.factorial(4)
    assert scipy.stats.chisquare(list(counts.values())).pvalue > LEAST_P


def test_offset_must_be_a_multiple_of_four() -> None:
    with pytest.raises(RuntimeError, match="Philox offset must be a multiple of 4, got 6"):
        core.kernel_philox_uniform(0, 6, torch.empty(4), 0.0, 1.0)


def test_complex_is_refused() -> None:
    out = torch.empty(4, dtype=torch.complex64)
    with pytest.raises(
        NotImplementedError, match="\"bernoulli\" not implemented for 'ComplexFloat'"
    ):
        core.kernel_philox_bernoulli(0, 0, out, 0.5, 0.0)
    with pytest.raises(NotImplementedError, match="\"normal_\" not implemented for 'ComplexFloat'"):
        core.kernel_philox_normal(0, 0, out, 0.0, 1.0)
