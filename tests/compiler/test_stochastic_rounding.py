"""Stochastic rounding: the documented acceptance test, and what rounds to what."""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from neuronxcc.cache.key import make_key
from neuronxcc.compiler import compile_graph
from neuronxcc.environment.compilation import NEURON_RT_STOCHASTIC_ROUNDING_SEED as SEED
from neuronxcc.environment.variable import VariableError
from neuronxcc.ir import DType, Graph, Node, TensorType, build, parameter
from neuronxcc.ir.reference import evaluate
from neuronxcc.ir.verify import verify
from neuronxcc.options import OptionError, Options, parse
from neuronxcc.passes import run, stochastic
from tests.compiler import stochastic_reference as slow
from tests.compiler.graphs import Case, graphs, same_bits
from tests.compiler.test_passes_exact import Casts
from torch_neuronx import neuron
from torch_neuronx.program import rounding
from torch_neuronx.program.dtypes import TO_TORCH, from_numpy, to_numpy
from torch_neuronx.program.executable import Executable

F32, U32 = DType.F32, DType.U32
TYPES = (DType.BF16, DType.F16)
VARIABLE = "NEURON_RT_STOCHASTIC_ROUNDING_EN"
ON = Casts(stochastic_rounding=True)
STATE = np.array([12345, 678], np.uint32)
WORDS = st.integers(0, 2**32 - 1)


def floats(bits: np.ndarray) -> np.ndarray:
    return bits.astype(np.uint32).view(np.float32)


def as_float(array: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return array.astype(np.float32)


def same(found: np.ndarray, want: np.ndarray) -> bool:
    """Equal bits, all NaNs being one."""
    a, b = as_float(found), as_float(want)
    return bool(np.all((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))))


def rounding_graph(shape: tuple[int, ...], dtype: DType) -> Graph:
    x, words = parameter(0, TensorType(F32, shape)), parameter(1, TensorType(U32, shape))
    return Graph("round", (x, words), (stochastic.rounded(x, words, dtype),))


def fast(x: np.ndarray, words: np.ndarray, dtype: DType) -> np.ndarray:
    return evaluate(rounding_graph(x.shape, dtype), [x, words])[0]


# Bits of float32 where something changes: zero, denormals of float32 and of both types, the
# largest numbers and what is just beyond them, infinity, NaNs whose bits a carry would destroy.
_EDGES = np.array(
    [0, 1, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFF, 0x800000, 0x7F7F0000, 0x7F7F0001, 0x7F7F8000,
     0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0x33000000, 0x33800000, 0x32FFFFFF,
     0x387FFFFF, 0x38800000, 0x38800001, 0x477FE000, 0x477FE001, 0x477FFFFF, 0x47800000],
    np.uint32,
)  # fmt: skip
EDGES = floats(np.concatenate([_EDGES, _EDGES | np.uint32(0x80000000)]))


def examples(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of all kinds, many of them in the range of float16, with words of all kinds."""
    rng = np.random.default_rng(seed)
    anywhere = floats(rng.integers(0, 2**32, 2000, dtype=np.uint32))
    small = (rng.normal(size=2000) * np.exp2(rng.integers(-30, 17, 2000))).astype(np.float32)
    x = np.concatenate([anywhere, small, np.repeat(EDGES, 5)])
    words = rng.integers(0, 2**32, x.size, dtype=np.uint32)
    words[-EDGES.size * 5 :: 5], words[-EDGES.size * 5 + 1 :: 5] = 0, 2**32 - 1
    return x, words


@pytest.mark.parametrize("dtype", TYPES)
@given(bits=st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=8))
def test_rounding_is_that_of_the_reference(dtype: DType, bits: list[tuple[int, int]]) -> None:
    x, words = floats(np.array([b for b, _ in bits])), np.array([w for _, w in bits], np.uint32)
    assert same(fast(x, words, dtype), slow.round_stochastically(x, words, dtype))


@pytest.mark.parametrize("dtype", TYPES)
def test_compiled_rounding_is_that_of_the_reference(dtype: DType) -> None:
    x, words = examples(0)
    want = slow.round_stochastically(x, words, dtype)
    assert same(fast(x, words, dtype), want)
    program = compile_graph(rounding_graph(x.shape, dtype), Options())
    (found,) = Executable(program, "cpu")((torch.from_numpy(x), torch.from_numpy(words)))
    assert same(to_numpy(found), want)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_number_becomes_one_of_its_neighbours(dtype: DType) -> None:
    x, words = examples(1)
    x, words = x[finite := np.isfinite(x)], words[finite]
    near, far = slow.neighbours(x, dtype)
    found = np.abs(fast(x, words, dtype).astype(np.float64))
    overflow = 2.0**128 if dtype is DType.BF16 else 2.0**16
    near, far = (np.where(m >= overflow, np.inf, m) for m in (near, far))
    assert np.all((found == near) | (found == far))
    assert np.any(found == far)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("word", [0, 0x5A5A5A5A, 2**32 - 1])
def test_numbers_of_the_type_never_change(dtype: DType, word: int) -> None:
    every = np.arange(2**16, dtype=np.uint16).view(dtype.numpy)
    x = as_float(every)
    found = fast(x, np.full(x.shape, word, np.uint32), dtype)
    assert same(found, every)
    assert np.array_equal(np.signbit(found[x == 0]), np.signbit(every[x == 0]))


@pytest.mark.parametrize("dtype", TYPES)
@given(st.floats(2.0**-14, 60000, width=32), st.booleans())
def test_all_words_together_give_the_number_exactly(
    dtype: DType, magnitude: float, negative: bool
) -> None:
    bits = stochastic.DROPPED[dtype]
    words = (np.arange(2**bits, dtype=np.uint64) << (32 - bits)).astype(np.uint32)
    x = np.full(words.shape, -magnitude if negative else magnitude, np.float32)
    total = fast(x, words, dtype).astype(np.float64).sum()
    assert total == float(x[0]) * 2**bits  # exact: 24 bits times at most 2**16


@given(st.floats(2.0**-40, 2.0**-14, width=32, exclude_max=True), st.integers(0, 99))
def test_denormal_numbers_of_float16_are_right_on_average(magnitude: float, seed: int) -> None:
    count = 2**12
    words = np.random.default_rng(seed).integers(0, 2**32, count, dtype=np.uint32)
    # The words are made even, so that the mean is that of the probabilities up to one word each.
    words = (words >> 12) + (np.arange(count, dtype=np.uint32) << np.uint32(20))
    found = fast(np.full(count, magnitude, np.float32), words, DType.F16).astype(np.float64)
    assert abs(found.mean() - magnitude) <= 2.0**-24 * (1 / count + 2.0**-24)


# ---- chances ------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 4), max_size=4), st.tuples(WORDS, WORDS), st.integers(1, 99))
def test_chances_are_the_hash_of_state_site_and_element(
    shape: list[int], state: tuple[int, int], site: int
) -> None:
    param = parameter(0, stochastic.STATE)
    graph = Graph("g", (param,), (stochastic.chances(param, site, shape),))
    (found,) = evaluate(graph, [np.array(state, np.uint32)])
    assert found.shape == tuple(shape)
    assert np.array_equal(found.ravel(), slow.chances(state, site, found.size))


@given(st.lists(WORDS, min_size=1, max_size=9))
def test_mix_is_the_hash(words: list[int]) -> None:
    array = np.array(words, np.uint32)
    param = parameter(0, TensorType(U32, array.shape))
    (found,) = evaluate(Graph("g", (param,), (stochastic.mix(param),)), [array])
    assert np.array_equal(found, slow.hashed(array))


def test_chances_are_even_and_unrelated() -> None:
    """Neighbouring elements, sites and states share nothing; every bit is set half the time."""
    count = 2**14
    param = parameter(0, stochastic.STATE)
    two = tuple(stochastic.chances(param, site, (count,)) for site in (1, 2))
    draws = [
        words
        for call in range(3)
        for words in evaluate(Graph("g", (param,), two), [to_numpy(rounding.state(0, call))])
    ]
    draws += [np.roll(draws[0], shift) for shift in (1, 64)]
    bits = [(words[:, None] >> np.arange(32, dtype=np.uint32)) & 1 for words in draws]
    # A mean of `count` fair bits has the standard error 1 / (2 sqrt(count)).
    bound = 5 * 0.5 / np.sqrt(count)
    for words in bits:
        assert np.abs(words.mean(0) - 0.5).max() < bound
    for a, b in itertools.combinations(bits, 2):
        assert np.abs((a ^ b).mean(0) - 0.5).max() < bound


def test_states_differ_by_seed_and_by_call() -> None:
    pairs = itertools.product((0, 1, 2, 2**64 - 1), range(100))
    states = {tuple(rounding.state(seed, call).tolist()) for seed, call in pairs}
    assert len(states) == 400


@pytest.mark.parametrize(("text", "value"), [("", 0), ("7", 7), (str(2**64 - 1), 2**64 - 1)])
def test_seed_of_the_environment(text: str, value: int) -> None:
    assert SEED.get({SEED.name: text}) == value


@pytest.mark.parametrize("text", ["-1", "1.5", "x", str(2**64)])
def test_a_wrong_seed_is_named(text: str) -> None:
    with pytest.raises(VariableError, match=r"SEED=.* is not valid; allowed: a number, 0 to 18446"):
        SEED.get({SEED.name: text})


# ---- the pass -----------------------------------------------------------------------------------


def test_off_by_default_and_no_part_of_the_key() -> None:
    x = parameter(0, TensorType(DType.F16, (4,)))
    graph = Graph("g", (x,), (build.exp(x),))
    assert run(graph, Casts()).params == (x,)
    off, on = parse(environ={}), parse(environ={VARIABLE: "1"})
    assert parse(environ={VARIABLE: "0"}) == off == Options()
    assert "stochastic_rounding" not in off.canonical()
    assert make_key(graph, off).digest != make_key(graph, on).digest


def test_a_wrong_value_is_named() -> None:
    with pytest.raises(OptionError, match=f"{VARIABLE}=yes is not valid; allowed: 0, 1"):
        parse(environ={VARIABLE: "yes"})


@given(graphs(dtypes=[DType.BF16, DType.F16, F32]))
def test_any_graph_stays_valid_and_repeats(case: Case) -> None:
    graph = run(case.graph, ON, verify_all=True)
    assert [r.type for r in graph.results] == [r.type for r in case.graph.results]
    assert graph.params[-1].type == stochastic.STATE
    first, second = (evaluate(graph, [*case.args, STATE]) for _ in range(2))
    assert all(same_bits(a, b) for a, b in zip(first, second, strict=True))


@settings(max_examples=20)
@given(
    st.lists(st.integers(0, 9), max_size=3).map(tuple),
    st.sampled_from(TYPES),
    st.integers(0, 99),
    st.booleans(),
)
def test_compiled_graphs_round_as_the_pass_says(
    shape: tuple[int, ...], dtype: DType, seed: int, summed: bool
) -> None:
    """Two roundings, of operands that lie differently: additions alone, so float32 is exact."""
    x, y = parameter(0, TensorType(dtype, shape)), parameter(1, TensorType(dtype, shape[::-1]))
    turned = build.transpose(y, tuple(reversed(range(len(shape)))))
    result = build.add(build.add(x, turned), build.convert(build.full_like(x, 0.25), dtype))
    total = [build.reduce(result, "max", 0)] if summed and shape and shape[0] else []
    graph = Graph("g", (x, y), (result, *total))
    rng = np.random.default_rng(seed)
    args = [(8 * rng.normal(size=p.shape)).astype(dtype.numpy) for p in (x, y)]
    want = evaluate(stochastic.with_state(graph), [*args, STATE])
    program = compile_graph(graph, Options(stochastic_rounding=True))
    tensors = [from_numpy(a, TO_TORCH[dtype]) for a in args]
    found = Executable(program, "cpu")((*tensors, torch.from_numpy(STATE)))
    for one, other in zip(found, want, strict=True):
        assert same(to_numpy(one), other)


@given(graphs(dtypes=[F32, DType.F64, DType.S32]))
def test_other_types_are_left_alone(case: Case) -> None:
    graph = stochastic.with_state(case.graph)
    assert graph.results == case.graph.results


X = parameter(0, TensorType(DType.BF16, (6, 6)))
WIDE: dict[str, tuple[Callable[[], Node], Callable[[np.ndarray], np.ndarray]]] = {
    "add": (lambda: build.add(X, build.transpose(X, (1, 0))), lambda x: x + x.T),
    "divide": (lambda: build.divide(X, build.full_like(X, 3)), lambda x: x / np.float32(3)),
    "sqrt": (lambda: build.sqrt(build.abs_(X)), lambda x: np.sqrt(np.abs(x))),
    "dot": (lambda: build.matmul(X, X), lambda x: x @ x),
    "sum": (lambda: build.reduce(X, "add", 0), lambda x: x.sum(0)),
    "cumulative": (lambda: build.cumulative(X, "add", 0), lambda x: np.cumsum(x, 0)),
    "convert": (
        lambda: build.convert(build.multiply(build.convert(X, F32), 0.3), DType.BF16),
        lambda x: x * np.float32(0.3),
    ),
}


@pytest.mark.parametrize("name", WIDE)
def test_what_computes_rounds_by_chance(name: str) -> None:
    """Means over runs are the float32 results, which no single bfloat16 result is."""
    make, meaning = WIDE[name]
    graph = run(Graph("g", (X,), (make(),)), ON, verify_all=True)
    x = np.random.default_rng(3).normal(size=(6, 6)).astype(DType.BF16.numpy)
    states = [to_numpy(rounding.state(1, call)) for call in range(400)]
    found = np.stack([as_float(evaluate(graph, [x, state])[0]) for state in states])
    want = meaning(as_float(x)).astype(np.float64)
    near, far = slow.neighbours(want.astype(np.float32), DType.BF16)
    # A step times a fair coin's standard deviation at most; sums differ by their order.
    bound = 5 * 0.5 * (far - near) / np.sqrt(len(states)) + 2.0**-20 * np.abs(want).max()
    assert np.all(np.abs(found.mean(0) - want) <= bound)
    assert np.any(found.std(0) > 0)


def test_what_only_chooses_or_moves_is_left_alone() -> None:
    chosen = build.maximum(build.negate(X), build.transpose(X, (1, 0)))
    graph = Graph("g", (X,), (build.reduce(chosen, "max", 0), build.convert(X, F32)))
    assert stochastic.with_state(graph).results == graph.results


def test_loops_and_branches_draw_anew() -> None:
    """A body is one graph, and its runs are many."""
    kind = TensorType(DType.F16, (512,))
    number, v = parameter(0, TensorType(DType.S32, ())), parameter(1, kind)
    body = Graph("body", (number, v), (build.add(number, 1), build.add(v, 0.5)))
    cond = Graph("cond", (number, v), (build.compare(number, 64, "LT"),))
    loop = build.while_(cond, body, [build.constant(0, DType.S32), v := parameter(0, kind)])
    branch = Graph("branch", (v,), (build.add(v, 0.5),))
    picked = parameter(1, TensorType(DType.PRED, ()))
    either = build.conditional(picked, [branch, branch], [build.get(loop, 1)])
    twice = build.conditional(picked, [branch, branch], [either])
    graph = Graph("g", (v, picked), (build.get(loop, 1), either, twice))
    verify(made := stochastic.with_state(graph))
    start = np.full(512, 1024, np.float16)
    looped, once, again = evaluate(made, [start, np.ones((), np.bool_), STATE])
    # 64 fair coins per element: mean 32, variance 16; all equal if the coins were one.
    assert abs(float(as_float(looped).mean()) - 1056) <= 5 * 4 / np.sqrt(512)
    assert 3 < float(as_float(looped).std()) < 5
    up = [as_float(once) - as_float(looped), as_float(again) - as_float(once)]
    assert set(np.unique(up)) == {0, 1}
    assert 0.25 < float((up[0] == up[1]).mean()) < 0.75


# ---- torch.compile ------------------------------------------------------------------------------


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Switch it on, with calls numbered from 0, so that the results are the same every time."""
    torch.compiler.reset()
    neuron.init()  # which otherwise warns of what is not rounded by chance
    monkeypatch.setenv(VARIABLE, "1")
    monkeypatch.setattr(rounding, "_calls", itertools.count())
    yield
    torch.compiler.reset()


def add(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def add_64(x: Tensor, y: Tensor) -> Tensor:
    for _ in range(64):
        x = x + y
    return x


def documented(step: Callable[[Tensor, Tensor], Tensor], calls: int) -> Tensor:
    """1024 + 0.5, added 2048 times in float16, for 4096 elements."""
    total = torch.full((4096,), 1024.0, dtype=torch.float16, device="neuron")
    half = torch.full((4096,), 0.5, dtype=torch.float16, device="neuron")
    compiled = torch.compile(step, backend="neuron", fullgraph=True)
    for _ in range(calls):
        total = compiled(total, half)
    return total.cpu().double()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Thousands of short kernels would spend their time waiting for each other's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


CHUNKS = [(add, 2048), (add_64, 32)]


@pytest.mark.parametrize(("step", "calls"), CHUNKS)
@pytest.mark.usefixtures("on", "one_thread")
def test_documented_acceptance(step: Callable[[Tensor, Tensor], Tensor], calls: int) -> None:
    """Every addition is right on average, so the mean of the sums is 2048.

    An addition's variance is p (1 - p) u**2: 1/4 below 2048, where numbers are u = 1 apart, and 3/4
    from there on (u = 2, p = 1/4). So a sum's is at most 2048 * 3/4, and the standard error of the
    mean of 4096 sums at most sqrt(1536 / 4096) = 0.62.
    """
    total = documented(step, calls)
    assert abs(float(total.mean()) - 2048) <= 5 * (1536 / 4096) ** 0.5
    assert 512**0.5 * 0.9 <= float(total.std()) <= 1536**0.5


@pytest.mark.usefixtures("on", "one_thread")
def test_documented_acceptance_of_one_number() -> None:
    """As it is written there: a tensor without dimensions, and a number. The bound is as above."""
    total = torch.tensor(1024.0).half().to("neuron")
    step = torch.compile(lambda x: x + 0.5, backend="neuron", fullgraph=True)
    for _ in range(2048):
        total = step(total)
    assert abs(float(total) - 2048) <= 5 * 1536**0.5


@pytest.mark.parametrize(("step", "calls"), CHUNKS)
@pytest.mark.usefixtures("one_thread")
def test_documented_behaviour_of_nearest(
    step: Callable[[Tensor, Tensor], Tensor], calls: int
) -> None:
    torch.compiler.reset()
    assert bool((documented(step, calls) == 1024).all())


def model(x: Tensor, w: Tensor) -> Tensor:
    return torch.softmax(torch.nn.functional.gelu(x @ w), -1) + x


def operands() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    made = [torch.randn(256, 256, generator=generator).bfloat16() for _ in range(2)]
    return made[0].to("neuron"), made[1].to("neuron")


@pytest.mark.usefixtures("on")
def test_results_depend_on_seed_and_call_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = operands()

    def results(seed: str, threads: int) -> list[Tensor]:
        torch.compiler.reset()
        monkeypatch.setenv(SEED.name, seed)
        monkeypatch.setattr(rounding, "_calls", itertools.count())
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            compiled = torch.compile(model, backend="neuron", fullgraph=True)
            return [compiled(x, w).cpu() for _ in range(2)]
        finally:
            torch.set_num_threads(before)

    first, second = results("3", 1)
    assert not torch.equal(first, second)
    assert all(torch.equal(a, b) for a, b in zip((first, second), results("3", 2), strict=True))
    assert not torch.equal(first, results("4", 2)[0])


@pytest.mark.usefixtures("on")
def test_the_reference_executor_rounds_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(40, 30, generator=torch.Generator().manual_seed(1)).bfloat16().to("neuron")
    found = []
    for executor in ("native", "reference"):
        torch.compiler.reset()
        monkeypatch.setenv("TORCH_NEURONX_EXECUTOR", executor)
        monkeypatch.setattr(rounding, "_calls", itertools.count())
        compiled = torch.compile(
            lambda x: (x + x.T.contiguous().view_as(x)) * 0.3, backend="neuron"
        )
        found.append(compiled(x).cpu())
    assert torch.equal(*found)


@pytest.mark.usefixtures("on")
def test_gradients_round_by_chance_too() -> None:
    layer = torch.nn.Linear(64, 64).bfloat16().to("neuron")
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(2)).bfloat16().to("neuron")
    compiled = torch.compile(layer, backend="neuron")
    grads = []
    for _ in range(2):
        layer.zero_grad()
        compiled(x).float().pow(2).mean().backward()
        assert layer.weight.grad is not None
        grads.append(layer.weight.grad.cpu().float())
    assert not torch.equal(*grads)
    torch.testing.assert_close(*grads, rtol=0.1, atol=0.1 * float(grads[0].abs().max()))


_EAGER = """
import warnings, torch
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    x = torch.full((8,), 1024, dtype=torch.float16, device="neuron")
    print((x + 0.5).tolist() == [1024] * 8)
    for warning in caught:
        print(warning.category.__name__, str(warning.message).split(" (Triggered")[0])
"""


@pytest.mark.slow
def test_eager_mode_says_once_that_it_rounds_to_nearest() -> None:
    environ = {**os.environ, VARIABLE: "1"}
    done = subprocess.run(
        [sys.executable, "-c", _EAGER], env=environ, capture_output=True, text=True, check=True
    )
    warned = (
        "UserWarning NEURON_RT_STOCHASTIC_ROUNDING_EN=1 acts in compiled programs only "
        "(torch.compile); eager operators round to nearest even"
    )
    assert done.stdout.splitlines() == ["True", warned]
