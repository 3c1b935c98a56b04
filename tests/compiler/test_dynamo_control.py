"""Control flow operators, FlexAttention and mixtures of experts, compiled."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops import associative_scan, scan
from torch._higher_order_ops.map import map as map_operator
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils import _pytree as pytree

from neuronxcc.ir.op import Op

from .dynamo_tools import assert_equal, check, host_operators, watched

pytestmark = [
    # Dynamo warns about its own use of deprecated functions while it traces these.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile:UserWarning"),
]


def operands(count: int, *, grad: bool) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(4, 3, generator=generator) for _ in range(count)]
    return [t.to("neuron").requires_grad_(grad) for t in made]


def branch(x: Tensor, y: Tensor) -> Any:
    return torch.cond(
        x.sum() > 0, lambda a, b: (a.sin() + b, a * 2), lambda a, b: (a.cos() - b, a * 3), (x, y)
    )


def nested(x: Tensor, y: Tensor) -> Any:
    def inner(a: Tensor, b: Tensor) -> Any:
        return torch.cond(a.max() > 2, lambda a, b: (a + b,), lambda a, b: (a * b,), (a, b))

    return torch.cond(x.min() < 0, inner, lambda a, b: (a - b,), (x, y))


def repeated(x: Tensor) -> Any:
    def busy(i: Tensor, _v: Tensor) -> Tensor:
        return i < 5

    def step(i: Tensor, v: Tensor) -> Any:
        return i + 1, v * 1.5 + x

    return while_loop(busy, step, (torch.tensor(0, device=x.device), x.clone()))


def recurrent(x: Tensor) -> Any:
    def step(carry: Tensor, row: Tensor) -> Any:
        return carry * 0.5 + row, (carry + row).sin()

    return scan(step, x[0].clone(), x, dim=0)


def mapped(x: Tensor, y: Tensor) -> Any:
    operator: Any = map_operator  # its annotations want a function without arguments
    return operator(lambda row, other: (row * other).sum(), x, y[0].clone())


CONTROL = pytest.mark.parametrize(
    ("function", "count", "op"),
    [
        (branch, 2, Op.CONDITIONAL),
        (nested, 2, Op.CONDITIONAL),
        (repeated, 1, Op.WHILE),
        (recurrent, 1, Op.WHILE),
        (mapped, 2, Op.WHILE),
    ],
)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "plain"])
@CONTROL
def test_control_flow(
    function: Callable[..., Any], count: int, op: Op, grad: bool, sign: int
) -> None:
    if function is repeated and grad:
        pytest.skip("PyTorch's while_loop has no gradient by default")
    args = [(a.detach() * sign).requires_grad_(grad) for a in operands(count, grad=grad)]
    graphs = check(function, args)
    assert not host_operators(graphs)
    assert any(node.op is op for node in graphs[0].imported.graph.nodes())


def _sized_branch(x: Tensor) -> Any:
    count = x.shape[0]
    return torch.cond(x.sum() > 0, lambda a: a.sin() * count, lambda a: a + a.shape[0], (x,))


def _sized_loop(x: Tensor) -> Any:
    count = x.shape[0]

    def step(i: Tensor, v: Tensor) -> Any:
        return i + 1, v * count + x.new_ones(count, 1)

    return while_loop(lambda i, _v: i < count, step, (torch.tensor(0, device=x.device), x.clone()))


def _sized_scan(x: Tensor) -> Any:
    count, width = x.shape

    def step(carry: Tensor, row: Tensor) -> Any:
        return carry / count + row, (carry * width + row.view(1, width).sum(0)).sin()

    return scan(step, x[0].clone(), x, dim=0, reverse=True)


def _sized_map(x: Tensor) -> Any:
    count = x.shape[0]
    operator: Any = map_operator
    return operator(lambda row, all_: (row * all_.view(count, -1)).sum() + count, x, x.clone())


def _sized_combination(x: Tensor) -> Any:
    count = x.shape[0]
    return associative_scan(lambda a, b: a * b + count, x, dim=0, combine_mode="generic")


SIZED = [_sized_branch, _sized_loop, _sized_scan, _sized_map, _sized_combination]


@pytest.mark.every(3, "slow")
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "plain"])
@pytest.mark.parametrize("function", SIZED, ids=lambda f: f.__name__.strip("_"))
def test_control_flow_with_symbolic_sizes(function: Callable[..., Any], grad: bool) -> None:
    """Sizes are arguments of the inner graphs, which are numbers by the time these are compiled."""
    if function is _sized_loop and grad:
        pytest.skip("PyTorch's while_loop has no gradient by default")
    compiled = torch.compile(function, backend="neuron", dynamic=True, fullgraph=True)
    for count in (4, 3, 6):
        values = torch.linspace(-1, 1.2, count * 3).view(count, 3)
        results = []
        for call, device in ((compiled, "neuron"), (function, "cpu")):
            x = values.to(device).requires_grad_(grad)
            leaves = pytree.tree_leaves(call(x))
            if grad:
                sum(leaf.square().sum() for leaf in leaves).backward()
                leaves.append(x.grad)
            results.append([leaf.detach().cpu() for leaf in leaves])
        torch.testing.assert_close(results[0], results[1])


@pytest.mark.usefixtures("reference")
@CONTROL
def test_control_flow_by_the_reference(function: Callable[..., Any], count: int, op: Op) -> None:
    test_control_flow(function, count, op, function is not repeated, 1)


# ---- FlexAttention ------------------------------------------------------------------------------


def causal(_b: Tensor, _h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def sliding(_b: Tensor, _h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q >= k) & (q - k < 9)


ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def plain(score: Tensor, *_places: Tensor) -> Tensor:
    return score


def capped(score: Tensor, *_places: Tensor) -> Tensor:
    return 5 * torch.tanh(score / 5)


def exact_attention(
    q: Tensor, k: Tensor, v: Tensor, score_mod: ScoreMod, mask: Callable[..., Tensor] | None
) -> Tensor:
    """What FlexAttention is documented to compute, score by score."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q.float() @ k.float().transpose(-1, -2) / q.shape[-1] ** 0.5
    batch = torch.arange(q.shape[0], device=q.device)[:, None, None, None]
    head = torch.arange(q.shape[1], device=q.device)[:, None, None]
    row = torch.arange(q.shape[2], device=q.device)[:, None]
    column = torch.arange(k.shape[2], device=q.device)
    scores = score_mod(scores, batch, head, row, column)
    if mask is not None:
        scores = scores.masked_fill(~mask(batch, head, row, column), float("-inf"))
    return scores.softmax(-1).to(q.dtype) @ v


@pytest.mark.slow
@pytest.mark.parametrize(
    ("score_mod", "mask", "kv_heads", "queries", "keys", "block", "dtype"),
    [
        (plain, None, 4, 32, 32, 128, torch.float32),
        (plain, sliding, 1, 48, 64, 16, torch.float32),
        (capped, causal, 2, 64, 64, 32, torch.float32),
        (capped, causal, 4, 64, 64, 32, torch.bfloat16),
    ],
)
def test_flex_attention(
    score_mod: ScoreMod,
    mask: Callable[..., Tensor] | None,
    kv_heads: int,
    queries: int,
    keys: int,
    block: int,
    dtype: torch.dtype,
) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    shapes = [(2, 4, queries, 16), (2, kv_heads, keys, 16), (2, kv_heads, keys, 16)]
    args = [torch.randn(s, device="neuron").to(dtype).requires_grad_() for s in shapes]

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Any:
        blocks = None
        if mask is not None:
            blocks = create_block_mask(
                mask, None, None, queries, keys, device="neuron", BLOCK_SIZE=block
            )
        return flex_attention(
            q, k, v, score_mod=score_mod, block_mask=blocks, enable_gqa=kv_heads != 4
        )

    got = torch.compile(attention, backend="neuron", fullgraph=True)(*args)
    weights = torch.randn(got.shape, device="neuron").to(dtype)
    grads = torch.autograd.grad((got * weights).sum(), args)
    query, key, value = args
    expected = exact_attention(query, key, value, score_mod, mask)
    wanted = torch.autograd.grad((expected * weights).sum(), args)
    for mine, theirs in zip((got, *grads), (expected, *wanted), strict=True):
        assert_equal(mine.contiguous(), theirs.contiguous())


@pytest.mark.slow
@pytest.mark.usefixtures("reference")
def test_flex_attention_by_the_reference() -> None:
    test_flex_attention(capped, causal, 2, 32, 32, 16, torch.float32)


def test_flex_attention_learns_what_the_score_function_captures() -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 24, 8, device="neuron") for _ in range(3))
    bias = torch.randn(2, device="neuron", requires_grad=True)

    def biased(score: Tensor, _b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + bias[h] * (i - j) * 0.1

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, score_mod=biased)

    compiled = torch.compile(attention, backend="neuron", fullgraph=True)(q, k, v)
    (got,) = torch.autograd.grad(compiled.square().sum(), [bias])
    exact = exact_attention(q, k, v, biased, None)
    (expected,) = torch.autograd.grad(exact.square().sum(), [bias])
    assert_equal(got, expected)


def test_flex_attention_keeps_to_listed_blocks() -> None:
    """A block mask may list fewer blocks than its function would let."""
    torch.compiler.reset()
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 32, 8, device="neuron") for _ in range(3))
    blocks = create_block_mask(causal, None, None, 32, 32, device="neuron", BLOCK_SIZE=16)
    blocks.kv_num_blocks.clamp_(max=0)  # drop the partial ones, keep the full one
    compiled = torch.compile(flex_attention, backend="neuron", fullgraph=True)
    got = compiled(q, k, v, block_mask=blocks)
    assert got[:, :, :16].abs().sum() == 0
    expected = exact_attention(q[:, :, 16:], k[:, :, :16], v[:, :, :16], plain, None)
    assert_equal(got[:, :, 16:].contiguous(), expected)


def test_flex_attention_learns_a_captured_number() -> None:
    """A captured tensor that is not indexed: its gradient is the sum over all scores."""
    torch.compiler.reset()
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 24, 8, device="neuron") for _ in range(3))
    factor = torch.tensor(1.5, device="neuron", requires_grad=True)
    table = torch.randn(2, 24, device="neuron", requires_grad=True)

    def scaled(score: Tensor, _b: Tensor, h: Tensor, _i: Tensor, j: Tensor) -> Tensor:
        return score * factor + table[h, j] * factor

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, score_mod=scaled)

    compiled = torch.compile(attention, backend="neuron", fullgraph=True)(q, k, v)
    got = torch.autograd.grad(compiled.square().sum(), [factor, table])
    exact = exact_attention(q, k, v, scaled, None)
    expected = torch.autograd.grad(exact.square().sum(), [factor, table])
    for mine, theirs in zip(got, expected, strict=True):
        assert_equal(mine, theirs)


def test_regions_called_twice_have_gradients_of_their_own() -> None:
    """PyTorch caches what it knows of a region: results of the second call seem to share memory
    with arguments of the first."""

    @torch.compiler.nested_compile_region
    def region(a: Tensor, b: Tensor) -> Tensor:
        return (a @ b.t()).relu()

    def function(x: Tensor, y: Tensor) -> Tensor:
        first: Tensor = region(x, y)
        second: Tensor = region(y, x)
        return first + second * 3

    check(function, operands(2, grad=True))


def test_associative_scan_backwards() -> None:
    def scanned(x: Tensor) -> Any:
        return associative_scan(torch.add, x, dim=0, reverse=True, combine_mode="generic")

    assert not host_operators(check(scanned, operands(1, grad=True)))


# ---- experts ------------------------------------------------------------------------------------


def test_grouped_products() -> None:
    dtype = torch.bfloat16  # what PyTorch traces it with
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 16, generator=generator).to("neuron", dtype).requires_grad_()
    w = torch.randn(3, 16, 32, generator=generator).to("neuron", dtype).requires_grad_()
    ends = torch.tensor([2, 2, 8], dtype=torch.int32, device="neuron")

    def experts(x: Tensor, w: Tensor) -> Tensor:
        return torch._grouped_mm(x, w, offs=ends)

    with watched() as graphs:
        check(experts, [x, w])
    assert not host_operators(graphs)


FLOAT8 = torch.float8_e4m3fn


def scaled_groups(
    x: Tensor, y: Tensor, scale_x: Tensor, scale_y: Tensor, ends: list[int] | None
) -> Tensor:
    """`_scaled_grouped_mm`, group by group."""
    x, y = x.float(), y.float()
    if ends is None:
        return x @ y * scale_x[:, :, None] * scale_y[:, None]
    parts, starts = [], [0, *ends[:-1]]
    for g, (start, end) in enumerate(zip(starts, ends, strict=True)):
        here = slice(start, end)
        if x.dim() == y.dim() == 2:
            rows, columns = (s.reshape(len(ends), -1)[g] for s in (scale_x, scale_y))
            parts.append((x[:, here] @ y[here] * rows[:, None] * columns)[None])
        elif x.dim() == 2:
            parts.append(x[here] @ y[g] * scale_x[here, None] * scale_y[g])
        else:
            parts.append(x[g] @ y[:, here] * scale_x[g][:, None] * scale_y[here])
    return torch.cat(parts, -1 if x.dim() == 3 else 0)


@pytest.mark.parametrize(
    ("x_shape", "y_shape", "scales", "ends"),
    [
        ((32, 64), (3, 48, 64), ((32,), (3, 48)), [8, 8, 32]),
        ((32, 64), (48, 64), ((96,), (144,)), [16, 32, 64]),
        ((3, 32, 64), (48, 64), ((3, 32), (48,)), [16, 16, 48]),
        ((3, 32, 64), (3, 48, 64), ((3, 32), (3, 48)), None),
    ],
    ids=["rows", "contracted", "columns", "batch"],
)
def test_scaled_grouped_products(
    x_shape: tuple[int, ...],
    y_shape: tuple[int, ...],
    scales: tuple[tuple[int, ...], tuple[int, ...]],
    ends: list[int] | None,
) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(s, generator=generator).to(FLOAT8) for s in (x_shape, y_shape))
    scale_x, scale_y = (torch.rand(s, generator=generator) + 0.5 for s in scales)
    offsets = None if ends is None else torch.tensor(ends, dtype=torch.int32)

    def product(x: Tensor, y: Tensor, a: Tensor, b: Tensor, offsets: Tensor | None) -> Tensor:
        y = y.transpose(-2, -1)
        return torch._scaled_grouped_mm(x, y, a, b, offs=offsets, out_dtype=torch.bfloat16)

    torch.compiler.reset()
    moved = [None if t is None else t.to("neuron") for t in (x, y, scale_x, scale_y, offsets)]
    compiled: Any = torch.compile(product, backend="neuron", fullgraph=True)
    with watched() as graphs:
        got = compiled(*moved)
    assert not host_operators(graphs)
    expected = scaled_groups(x, y.transpose(-2, -1), scale_x, scale_y, ends)
    # 64 terms of at most 16 * 2.25 in float32, then one rounding to bfloat16.
    torch.testing.assert_close(got.cpu().float(), expected, rtol=2.0**-8, atol=64 * 36 * 2.0**-24)


@pytest.mark.usefixtures("reference")
def test_grouped_products_by_the_reference() -> None:
    test_grouped_products()
    test_scaled_grouped_products((32, 64), (3, 48, 64), ((32,), (3, 48)), [8, 8, 32])


def test_an_effect_that_nothing_uses_in_a_branch_is_refused_with_its_line() -> None:
    def drawing(x: Tensor) -> Tensor:
        def first(x: Tensor) -> Tensor:
            torch.rand(3, device=x.device)
            return x + 1

        result: Tensor = torch.cond(x.sum() > 0, first, lambda x: x - 1, (x,))
        return result

    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        torch.compile(drawing, backend="neuron", fullgraph=True)(torch.ones(4, device="neuron"))
    text = str(caught.value)
    assert "[NCC_ICAP001]" in text
    assert "in the 'true' graph of control flow that has an effect" in text
    assert "torch.rand(3, device=x.device)" in text
    assert "remedy: use its result, or call it outside" in text
