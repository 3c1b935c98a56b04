"""Fused mode: operators that wait are joined into programs, and nobody can tell by the results."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import torch_neuronx
from tests.device.enqueued import everything_enqueued, held, regions_soon, until_fused
from torch_neuronx import _C
from torch_neuronx.neuron.regions import TYPES_BY_NUMBER, compile_region

N = torch_neuronx.neuron
NUMBERS = {dtype: number for number, dtype in TYPES_BY_NUMBER.items()}
TYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def soon() -> Iterator[None]:
    with regions_soon():
        yield


@pytest.fixture
def fused() -> Iterator[None]:
    with everything_enqueued("fused"):
        yield


def patterns(dtype: torch.dtype, seed: int) -> torch.Tensor:
    """All values of a 16-bit type, or a sample of those of float32, in some order.

    In front, those of the seeds 1 and 2 have each pair of special values.
    """
    info = torch.finfo(dtype)
    ends = [info.max, info.tiny, info.smallest_normal * info.eps, float("inf"), 0.0, 0.1, 0.5, 1, 3]
    special = torch.tensor([*ends, *(-x for x in ends), float("nan")]).to(dtype)
    count = len(special)
    special = special.repeat_interleave(count) if seed == 1 else special.repeat(count)
    return torch.cat([special, _patterns(dtype, seed)])


def _patterns(dtype: torch.dtype, seed: int) -> torch.Tensor:
    source = torch.Generator().manual_seed(seed)
    if dtype is torch.float32:
        bits = torch.randint(-(1 << 31), 1 << 31, (1 << 16,), generator=source)
        values = bits.to(torch.int32).view(torch.float32)
        return torch.cat([values, torch.randn(1 << 15, generator=source)])
    values = torch.arange(1 << 16, dtype=torch.int32).sub(1 << 15).to(torch.int16).view(dtype)
    return values[torch.randperm(1 << 16, generator=source)]


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bits, but for those of NaN."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    ints = torch.int32 if a.itemsize == 4 else torch.int16
    return bool(((a.view(ints) == b.view(ints)) | (a.isnan() & b.isnan())).all())


_X, _Y, _M, _Z = (("input", number) for number in range(4))
#: By operator: arguments of a call, _M being a mask. All of csrc/program/collected.cpp's kSameBits.
CALLS: dict[str, list[list[Any]]] = {
    "abs": [[_X]],
    "add.Tensor": [[_X, _Y, 1], [_X, 1.7, 1], [_X, 3, 1]],
    "addcdiv": [[_X, _Y, _Z, 1], [_X, _Y, _Z, -0.3]],
    "cat": [[[_X, _Y, _X], 0]],
    "ceil": [[_X]],
    "clamp": [[_X, -0.5, 0.7], [_X, None, 0.7], [_X, 0.1, None]],
    "clamp_max": [[_X, 0.1], [_X, -0.0]],
    "clamp_min": [[_X, 0.1], [_X, 0]],
    "copysign.Tensor": [[_X, _Y]],
    "div.Tensor": [[_X, _Y], [_X, 0.3], [_X, -0.0]],
    "eq.Scalar": [[_X, 0.5]],
    "eq.Tensor": [[_X, _Y]],
    "exp": [[_X]],
    "floor": [[_X]],
    "frac": [[_X]],
    "gelu": [[_X, "none"], [_X, "tanh"]],
    "gelu_backward": [[_X, _Y, "none"], [_X, _Y, "tanh"]],
    "ge.Scalar": [[_X, -0.0]],
    "ge.Tensor": [[_X, _Y]],
    "gt.Scalar": [[_X, 0.1]],
    "gt.Tensor": [[_X, _Y]],
    "hardtanh": [[_X, -0.7, 1.3]],
    "hardsigmoid": [[_X]],
    "hardsigmoid_backward": [[_X, _Y]],
    "hardswish": [[_X]],
    "isnan": [[_X]],
    "le.Scalar": [[_X, 0.1]],
    "le.Tensor": [[_X, _Y]],
    "leaky_relu": [[_X, 0.01], [_X, -0.3]],
    "leaky_relu_backward": [[_X, _Y, 0.01, False]],
    "logical_and": [[_X, _Y]],
    "logical_not": [[_X]],
    "logical_or": [[_X, _Y]],
    "logical_xor": [[_X, _Y]],
    "lt.Scalar": [[_X, 1]],
    "lt.Tensor": [[_X, _Y]],
    "masked_fill.Scalar": [[_X, _M, -1.5], [_X, _M, float("-inf")]],
    "mse_loss": [[_X, _Y, 0]],
    "mse_loss_backward": [[_X, _Y, _Z, 0]],
    "mul.Tensor": [[_X, _Y], [_X, 0.3], [_X, -0.0], [_X, 2]],
    "nan_to_num": [[_X, 0.0, None, None], [_X, 0.5, 3.0, -3.0]],
    "native_dropout_backward": [[_X, _M, 1 / 0.9]],
    "ne.Scalar": [[_X, 0]],
    "ne.Tensor": [[_X, _Y]],
    "neg": [[_X]],
    "pow.Tensor_Scalar": [[_X, 2], [_X, 2.0], [_X, -1], [_X, 1], [_X, 3]],
    "reciprocal": [[_X]],
    "relu": [[_X]],
    "round": [[_X]],
    "rsqrt": [[_X]],
    "rsub.Scalar": [[_X, 1, 1], [_X, 0.3, 1]],
    "sigmoid": [[_X]],
    "sigmoid_backward": [[_X, _Y]],
    "sgn": [[_X]],
    "signbit": [[_X]],
    "sign": [[_X]],
    "silu": [[_X]],
    "silu_backward": [[_X, _Y]],
    "sqrt": [[_X]],
    "sub.Tensor": [[_X, _Y, 1], [_X, 0.1, 1]],
    "tanh": [[_X]],
    "tanh_backward": [[_X, _Y]],
    "threshold": [[_X, 0.1, 0.2]],
    "threshold_backward": [[_X, _Y, 0], [_X, _Y, 0.5]],
    "trunc": [[_X]],
    "where.self": [[_M, _X, _Y]],
}


#: Calls of these that differ, and take no part: the eager kernel rounds x * x to bfloat16.
BUT: list[tuple[str, list[Any], torch.dtype]] = [("pow.Tensor_Scalar", [3], torch.bfloat16)]


@pytest.mark.every(2)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", CALLS)
def test_an_operator_gives_the_same_bits_compiled(name: str, dtype: torch.dtype) -> None:
    x, y, z = (patterns(dtype, seed).to("neuron") for seed in (1, 2, 3))
    inputs = [x, y, x > 0, torch.cat([z, y])[: x.numel()]]
    base, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, base), overload or "default")
    named = operator._schema.arguments

    def of(given: Any) -> Any:
        if isinstance(given, list):
            return [of(each) for each in given]
        return inputs[given[1]] if isinstance(given, tuple) else given

    for arguments in CALLS[name]:
        if (name, arguments[1:], dtype) in BUT:
            continue
        split = list(zip(named, map(of, arguments), strict=True))
        expected = operator(
            *(value for about, value in split if not about.kwarg_only),
            **{about.name: value for about, value in split if about.kwarg_only},
        )
        facts = [(NUMBERS[t.dtype], tuple(t.shape), tuple(t.stride())) for t in inputs]
        geometry = (NUMBERS[expected.dtype], tuple(expected.shape), expected.stride())
        call = (base, overload, arguments, *geometry, -1, 0)
        program = compile_region(0, 0, facts, [call], (0,))
        assert program is not None
        (found,) = program(inputs[:])
        assert same(found.cpu(), expected.cpu()), arguments


@pytest.mark.parametrize("source", TYPES)
@pytest.mark.parametrize("target", TYPES)
def test_a_cast_gives_the_same_bits_compiled(source: torch.dtype, target: torch.dtype) -> None:
    x = patterns(source, 3).to("neuron")
    facts = [(NUMBERS[source], tuple(x.shape), (1,))]
    call = ("copy_", "", [None, _X, False], NUMBERS[target], tuple(x.shape), (1,), -1, 0)
    program = compile_region(0, 0, facts, [call], (0,))
    (found,) = program([x])
    assert same(found.cpu(), x.to(target).cpu())


#: Lengths of rows: around the widths of registers and their multiples, and those of models.
LENGTHS = [16, 17, 31, 33, 48, 63, 64, 65, 96, 97, 127, 129, 200, 768, 1000, 2111]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("work", ["light", "heavy"])
def test_sums_of_rows_give_the_same_bits_compiled(
    work: str, length: int, dtype: torch.dtype
) -> None:
    """Whatever else the kernel computes: half as many vectors at once, if that is much."""
    x = torch.randn(2, 3, length, generator=torch.Generator().manual_seed(length)).to(dtype)
    inputs = [x.to("neuron")]
    first: Any = ("gelu", "", [_X, "none"]) if work == "heavy" else ("neg", "", [_X])
    plan: list[tuple[str, str, list[Any]]] = [
        first,
        ("mean", "dim", [("value", 0), [-1], True, None]),
        ("sub", "Tensor", [("value", 0), ("value", 1), 1]),
        ("tanh", "", [("value", 2)]),
        ("sum", "dim_IntList", [("value", 3), [2], False, None]),
        ("mul", "Tensor", [("value", 2), ("value", 1)]),
    ]
    if work == "light":
        plan = plan[:3]
    check(inputs, plan)


@pytest.mark.every(2)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("parameters", [(_Y, _Z), (_Y, None), (None, None)])
def test_layer_norm_gives_the_same_bits_compiled(
    parameters: tuple[Any, Any], length: int, dtype: torch.dtype
) -> None:
    source = torch.Generator().manual_seed(length)
    x = torch.randn(5, length, generator=source) * 3 + 1
    row = torch.randn(2, length, generator=source)
    inputs = [t.to(dtype).to("neuron") for t in (x, row[0], x, row[1])]
    plan: list[tuple[str, str, list[Any]]] = [
        ("gelu", "", [_X, "tanh"]),
        ("native_layer_norm", "", [("value", 0), [length], *parameters, 1e-5]),
        ("mul", "Tensor", [("value", 1), 0.7]),
        ("add", "Tensor", [("value", 4), ("value", 3), 1]),
    ]
    used = [inputs[0], *(inputs[each[1]] for each in parameters if each)]
    numbers = {_X: ("input", 0)}
    for each in parameters:
        if each:
            numbers[each] = ("input", len(numbers))
    plan[1] = (*plan[1][:2], [numbers.get(v, v) if isinstance(v, tuple) else v for v in plan[1][2]])
    check(used, plan)


def check(inputs: list[torch.Tensor], plan: list[tuple[str, str, list[Any]]]) -> None:
    """Run operators one by one and as a region that returns all, and compare the bits."""
    expected: list[torch.Tensor] = []
    calls: list[Any] = []
    for name, overload, arguments in plan:
        operator = getattr(getattr(torch.ops.aten, name), overload or "default")
        given = [
            (inputs if each[0] == "input" else expected)[each[1]]
            if isinstance(each, tuple)
            else each
            for each in arguments
        ]
        split = list(zip(operator._schema.arguments, given, strict=True))
        results = operator(
            *(value for about, value in split if not about.kwarg_only),
            **{about.name: value for about, value in split if about.kwarg_only},
        )
        for number, result in enumerate(results if isinstance(results, tuple) else (results,)):
            geometry = (NUMBERS[result.dtype], tuple(result.shape), result.stride())
            calls.append((name, overload, [] if number else arguments, *geometry, -1, number))
            expected.append(result)
    facts = [(NUMBERS[t.dtype], tuple(t.shape), t.stride()) for t in inputs]
    program = compile_region(0, 0, facts, calls, tuple(range(len(calls))))
    assert program is not None
    for call, found, wanted in zip(calls, program(inputs[:]), expected, strict=True):
        assert same(found.cpu(), wanted.cpu()), call


@pytest.mark.parametrize("shape", [(4, 1 << 15), (1, 1 << 17)])
def test_few_long_rows_that_the_compiler_divides_are_not_joined(shape: tuple[int, int]) -> None:
    facts = [(NUMBERS[torch.float32], shape, (shape[1], 1))]
    sizes = (shape[0], 1)
    calls: list[Any] = [
        ("neg", "", [_X], NUMBERS[torch.float32], shape, (shape[1], 1), -1, 0),
        ("sum", "dim_IntList", [("value", 0), [1], True, None], 6, sizes, (1, 1), -1, 0),
    ]
    assert compile_region(0, 0, facts, calls, (0, 1)) is None


def test_sums_of_columns_are_not_joined() -> None:
    x = torch.randn(2048, 64, device="neuron")
    facts = [(NUMBERS[torch.float32], (64, 2048), (1, 64))]
    calls: list[Any] = [
        ("neg", "", [_X], 6, (64, 2048), (1, 64), -1, 0),
        ("sum", "dim_IntList", [("value", 0), [1], True, None], 6, (64, 1), (1, 1), -1, 0),
    ]
    program = compile_region(0, 0, facts, calls, (1,))
    if program is not None:  # the lanes lay along the row all the same
        expected = (-x.t()).contiguous().sum(1, keepdim=True)
        assert same(program([x.t()])[0].cpu(), expected.cpu())


def _work(seed: int, dtype: torch.dtype) -> Callable[[], list[torch.Tensor]]:
    """Some 20 operators on tensors of 96 KiB and more, with views, writes and reads."""
    choose = random.Random(seed)  # noqa: S311
    source = torch.Generator().manual_seed(seed)
    given = [torch.randn(192, 256, generator=source).to(dtype).to("neuron") for _ in range(3)]
    row = torch.randn(256, generator=source).to(dtype).to("neuron")
    makers: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [
        lambda a, b: a + b,
        lambda a, b: a * b,
        lambda a, b: a - b * 0.5,
        lambda a, _: a.relu() * row,
        lambda a, b: torch.where(a > b, a, -b),
        lambda a, b: torch.cat([a[:96], b[96:]]),
        lambda a, _: a.float().mul(1.25).to(dtype),
        lambda a, b: torch.cat([-a.chunk(2, 1)[1], b.chunk(2, 1)[0]], 1),
        lambda a, _: a.t().contiguous().t().contiguous(),
        lambda a, b: torch.maximum(a, b).clamp_(-2, 2),
        lambda a, b: a.add_(b).clone(),
        lambda a, _: torch.nn.functional.gelu(a),
        lambda a, _: a / (a.abs() + 1),
        lambda a, _: a.softmax(1),
        lambda a, b: a.copy_(b) + 1,
        lambda a, b: a.mul_(0.5).sub_(b).relu_(),
        lambda a, b: b * a.gt_(b),
        lambda a, _: a.add_(a).abs().sqrt(),
        lambda a, _: (a * a + 0.5).rsqrt(),
        lambda a, b: (a.t() * b.t() - a.t()).t() + b,
        lambda a, _: a - a.mean(-1, keepdim=True),
        lambda a, b: a * b.sum(1, keepdim=True).tanh(),
        lambda a, b: torch.nn.functional.layer_norm(a + b, (256,), row, row),
        lambda a, _: (a.float() * (a.float().pow(2).mean(-1, keepdim=True) + 0.1).rsqrt()).to(
            dtype
        ),
        lambda a, b: a + torch.nn.functional.dropout(b * 0.5, 0.3),
        lambda a, b: (a.to(torch.float16) * 2).to(dtype) + b,
    ]
    plan = [(choose.randrange(len(makers)), choose.random(), choose.random()) for _ in range(20)]

    def step() -> list[torch.Tensor]:
        torch.neuron.manual_seed(seed)  # type: ignore[attr-defined]
        values = [t.clone() for t in given]
        for maker, first, second in plan:
            a, b = (values[int(r * len(values))] for r in (first, second))
            values.append(makers[maker](a, b))
            if len(values) > 5:
                del values[int(first * len(values))]
        return values

    return step


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize("seed", range(12))
def test_random_programs_give_the_same_bits(seed: int) -> None:
    step = _work(seed, TYPES[seed % 3])
    with N.eager_mode("debug"):
        expected = [t.cpu() for t in step()]
    for _ in range(12):
        for found, wanted in zip(step(), expected, strict=True):
            assert same(found.cpu(), wanted)
        step()  # nobody reads this one's results
        N.synchronize()
        time.sleep(0.02)


@pytest.mark.usefixtures("fused")
def test_what_is_kept_of_a_region_has_its_value() -> None:
    x = torch.randn(300, 300, device="neuron")
    kept: list[torch.Tensor] = []

    def step() -> torch.Tensor:
        y = x * 2
        z = y + 1
        kept[:] = [z]
        return (z - 3).relu() * x

    result = until_fused(step)
    stats = N.eager_stats()["fused"]
    assert stats["operators"] >= 2 * stats["regions"]
    expected = x.cpu() * 2 + 1
    assert torch.equal(kept[0].cpu(), expected)
    assert torch.equal(result.cpu(), (expected - 3).relu() * x.cpu())


@pytest.mark.usefixtures("fused")
def test_a_norm_written_out_is_one_region() -> None:
    x, weight = torch.randn(256, 512, device="neuron"), torch.randn(512, device="neuron")

    def step() -> torch.Tensor:
        wide = x.float() * 2
        return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5))

    with N.eager_mode("debug"):
        expected = step().cpu()
    for _ in range(40):
        assert torch.equal(until_fused(step).cpu(), expected)
        ran = [{name for name, *_ in r["calls"]} for r in _C.regions_seen() if r["runs"]]
        if any({"pow.Tensor_Scalar", "mean.dim", "rsqrt"} <= names for names in ran):
            return
    raise AssertionError(ran)


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize("dtype", TYPES)
def test_dropout_draws_the_same_and_leaves_its_mask(dtype: torch.dtype) -> None:
    x = torch.randn(300, 300, device="neuron", dtype=dtype, requires_grad=True)

    def step() -> torch.Tensor:
        torch.neuron.manual_seed(3)  # type: ignore[attr-defined]
        first = torch.nn.functional.dropout(torch.nn.functional.gelu(x), 0.4)
        y = torch.nn.functional.dropout(first + x, 0.1)
        return torch.cat([y.detach(), *torch.autograd.grad(y, x, x.detach())])

    with N.eager_mode("debug"):
        expected = step().cpu()
    end, ran = time.monotonic() + 60, set[str]()
    while not {"native_dropout", "native_dropout_backward"} <= ran:
        assert same(step().cpu(), expected)
        step()  # nobody reads this one's result
        N.synchronize()
        ran = {name for r in _C.regions_seen() if r["runs"] for name, *_ in r["calls"]}
        assert time.monotonic() < end, ran
        time.sleep(0.02)


@pytest.mark.usefixtures("fused")
def test_a_reader_behind_the_region_finds_what_was_freed() -> None:
    x = torch.randn(300, 300, device="neuron")
    weights = torch.randn(300, 300, device="neuron")

    def step() -> torch.Tensor:
        y = x * 2 + 1
        z = y @ weights  # no part of a region; reads what is freed when the function ends
        return z + 1

    with N.eager_mode("debug"):
        expected = step().cpu()
    assert torch.equal(until_fused(step).cpu(), expected)
    for _ in range(20):
        assert torch.equal(step().cpu(), expected)


@pytest.mark.usefixtures("fused")
def test_a_reader_on_another_stream_finds_what_was_freed() -> None:
    x = torch.randn(300, 300, device="neuron")
    side = N.Stream()

    def step() -> torch.Tensor:
        with held(side) as work:
            y = x * 2 + 1
            side.wait_stream(N.current_stream())
            with N.stream(side):
                z = y - 3
            del y  # the region of x * 2 + 1 runs while its only reader waits
            N.current_stream().synchronize()
            work.set()
            N.current_stream().wait_stream(side)
        return z

    expected = (x.cpu() * 2 + 1) - 3
    for mode in ("debug", "fused"):  # after which the calls are known
        with N.eager_mode(mode):
            assert torch.equal(((x * 2 + 1) - 3).cpu(), expected)
    assert torch.equal(until_fused(step).cpu(), expected)
    for _ in range(20):
        assert torch.equal(step().cpu(), expected)


@pytest.mark.usefixtures("fused")
def test_what_is_written_in_place_and_read_before_and_after() -> None:
    start = torch.randn(300, 300, device="neuron")
    x = start.clone()

    def step() -> torch.Tensor:
        x.copy_(start)
        before = x * 2
        x.mul_(3).add_(before)
        return x.relu_() - before

    with N.eager_mode("debug"):
        expected = step().cpu()
        left = x.cpu()
    assert torch.equal(until_fused(step).cpu(), expected)
    for _ in range(20):
        assert torch.equal(step().cpu(), expected)
        assert torch.equal(x.cpu(), left)
    names = {name for region in _C.regions_seen() for name, *_ in region["calls"] if region["runs"]}
    assert {"mul_.Tensor", "add_.Tensor", "relu_"} <= names


@pytest.mark.usefixtures("fused")
def test_what_is_written_in_place_after_a_part_of_it_was_read() -> None:
    start = torch.randn(300, 300, device="neuron")
    x = start.clone()

    def step() -> torch.Tensor:
        x.copy_(start)
        half, turned = x[:150], x.t()
        y = torch.cat([half * 2, half - 1]) + turned
        x.mul_(3)  # the program has read both views before it writes
        return y - x

    with N.eager_mode("debug"):
        expected, left = step().cpu(), x.cpu()
    assert torch.equal(until_fused(step).cpu(), expected)
    for _ in range(20):
        assert torch.equal(step().cpu(), expected)
        assert torch.equal(x.cpu(), left)
    ran = [{name for name, *_ in region["calls"]} for region in _C.regions_seen() if region["runs"]]
    assert any({"cat", "mul_.Tensor"} <= names for names in ran), ran


@pytest.mark.usefixtures("fused")
def test_a_core_that_is_idle_waits_for_what_can_join() -> None:
    x = torch.randn(2048, 2048, device="neuron")

    def step() -> torch.Tensor:
        return ((x * x + x).relu() * 0.5 + x) - x

    expected = step().cpu()
    end = time.monotonic() + 60
    longest = 0
    while longest < 6:  # nothing is enqueued in front of the first
        assert torch.equal(step().cpu(), expected)
        longest = max((len(r["calls"]) for r in _C.regions_seen() if r["runs"]), default=0)
        assert time.monotonic() < end, N.eager_stats()
        time.sleep(0.02)


@pytest.mark.usefixtures("fused")
def test_more_regions_than_are_kept() -> None:
    x = torch.randn(300, 300, device="neuron")

    def often() -> torch.Tensor:
        return (x * 2 + 1).relu() * 0.5

    def later() -> torch.Tensor:
        return (x - 2).relu() * 3

    wanted = until_fused(often).cpu()
    for size in range(600):
        once = torch.full((40_000 + size,), 2.0, device="neuron")
        assert ((once * 3 - 1).relu() + 2).cpu().eq(7).all()
        if size % 50 == 0:
            assert torch.equal(often().cpu(), wanted)
    assert N.eager_stats()["fused"]["forgotten"] >= 128
    assert torch.equal(until_fused(often).cpu(), wanted)
    for _ in range(64):  # every sixteenth is tried
        later()
        N.synchronize()
    assert torch.equal(until_fused(later).cpu(), later().cpu())


@pytest.mark.usefixtures("fused")
def test_deterministic_algorithms_join_nothing() -> None:
    x = torch.randn(300, 300, device="neuron")

    def step() -> torch.Tensor:
        return (x * 2 + 1).relu() - x

    until_fused(step)
    torch.use_deterministic_algorithms(mode=True)
    try:
        N.reset_eager_stats()
        for _ in range(5):
            step()
            N.synchronize()
        assert N.eager_stats()["fused"]["regions"] == 0
    finally:
        torch.use_deterministic_algorithms(mode=False)


def test_training_gives_the_same_bits_in_all_modes() -> None:
    def losses(mode: str) -> list[torch.Tensor]:
        with N.eager_mode(mode):
            torch.manual_seed(0)
            model = torch.nn.Sequential(
                torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)
            ).to("neuron")
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            x = torch.randn(300, 64, device="neuron")
            told = []
            for _ in range(12):
                loss = ((model(x) - x) * 0.5).square().mean() * 2
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                told.append(loss.detach())
            return [each.cpu() for each in told] + [p.detach().cpu() for p in model.parameters()]

    expected = losses("debug")
    for mode in ("strict", "fused"):
        for found, wanted in zip(losses(mode), expected, strict=True):
            assert torch.equal(found, wanted)
