"""Types that eager mode refuses are refused by compiled functions, with its words and the line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

X, H = torch.ones(4, 3), torch.ones(3, 3, dtype=torch.float16)
D, I = torch.ones(3, 3, dtype=torch.float64), torch.ones(3, 3, dtype=torch.int64)  # noqa: E741
BOOLS = torch.ones(3, 3, dtype=torch.bool)
# Lambdas, also around one function, so that the line is of this file.
# ruff: noqa: PLW0108
CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    **{
        f"{name} of {other.dtype}": (function, (X, other))
        for name, function in {
            "mm": lambda a, b: a @ b,
            "linear": lambda a, b: functional.linear(a, b),
            "mv": lambda a, b: a @ b[0],
            "addmm": lambda a, b: torch.addmm(a, a, b),
            "batched": lambda a, b: a.expand(2, 4, 3) @ b,
            "layer": lambda a, b: torch.nn.functional.linear(a, b, b[0]),
        }.items()
        for other in (H, D, I)
    },
    "bias of linear": (lambda a, b: functional.linear(a, a, b[0, :1].expand(4)), (X, H)),
    "bias of addmm": (lambda a, b: torch.addmm(b[0], a[:3], a[:3]), (X, H)),
    "weight of layer_norm": (lambda a, b: functional.layer_norm(a, (3,), b[0]), (X, H)),
    "values of index_put": (lambda a, b, i: a.index_put((i[0],), b), (X, H, I)),
    "truth values": (lambda m: m @ m, (BOOLS,)),
    **{
        f"integers in {name}": (function, (I,))
        for name, function in {
            "gelu": lambda i: functional.gelu(i),
            "silu": lambda i: functional.silu(i),
            "softplus": lambda i: functional.softplus(i),
            "hardswish": lambda i: functional.hardswish(i),
            "softmax": lambda i: functional.softmax(i, 0),
            "log_softmax": lambda i: functional.log_softmax(i, 0),
            "adaptive_avg_pool2d": lambda i: functional.adaptive_avg_pool2d(i[None], 2),
            "adaptive_avg_pool3d": lambda i: functional.adaptive_avg_pool3d(i[None, None], 2),
            "std": lambda i: i.std(),
        }.items()
    },
    **{
        f"integers in {name}, which PyTorch decomposes": (function, (I,))
        for name, function in {
            "bilinear interpolate": lambda i: functional.interpolate(
                i[None, None], size=2, mode="bilinear"
            ),
            "huber_loss": lambda i: functional.huber_loss(i, i),
            "glu": lambda i: functional.glu(i.expand(2, 3, 3), 0),
            "grid_sample": lambda i: functional.grid_sample(
                i[None, None], i[None, :, :2, None].expand(1, 3, 2, 2), align_corners=False
            ),
            "multilabel_margin_loss": lambda i: functional.multilabel_margin_loss(i, i * 0),
        }.items()
    },
    "brain floats in complex": (lambda a: torch.complex(a.bfloat16(), a.bfloat16()), (X,)),
    "brain floats in polar": (lambda a: torch.polar(a.bfloat16(), a.bfloat16()), (X,)),
    "indices of 32 bits in index_copy": (lambda i, a: a.index_copy(0, i[0].int(), a[:3]), (I, X)),
    "one_hot of 32 bits": (lambda i: functional.one_hot(i.int(), 4), (I,)),
    **{
        f"an image of nothing, {mode}": (
            lambda a, mode=mode: functional.interpolate(
                a[None, None], scale_factor=(2.0, 0.1), mode=mode
            ),
            (X,),
        )
        for mode in ("nearest", "bilinear", "bicubic")
    },
    "floats in gcd": (lambda a: a.gcd(a), (X,)),
    "mixed cross": (lambda a, d: torch.linalg.cross(a[:3], d), (X, D)),
    "complex numbers in ceil": (lambda c: c.ceil(), (D.to(torch.complex64),)),
    "complex numbers in clamp": (lambda c: c.clamp(c, c), (D.to(torch.complex64),)),
    "operator in place": (lambda i, a: i.add_(a[:3]), (I, X)),
    "halves in cdist": (lambda h: torch.cdist(h, h), (H,)),
    "floats in and": (lambda a: a & a, (X,)),
    "truth values in floor": (lambda m: m.floor(), (BOOLS,)),
}


def words(text: str) -> str:
    """The first line, without the names of types, which PyTorch writes in several ways."""
    names = r"torch\.\w+|c10::\w+|\b(float|double|long int|Long|Float|Double|Half|Bool|int)\b"
    line = re.sub(r"^(\w+: )?\[NCC_\w+\] ", "", text.partition("\n")[0])
    return re.sub(names, "T", line)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_refused_as_in_eager_mode(name: str, dynamic: bool) -> None:
    function, arguments = CASES[name]
    torch.compiler.reset()
    mine = [a.to("neuron") for a in arguments]
    with pytest.raises(RuntimeError) as eager:
        function(*mine)
    compiled = torch.compile(function, backend="neuron", dynamic=dynamic)
    with pytest.raises(Exception, match=r"(?s).*") as raised:  # Dynamo's class, by where it was
        compiled(*mine)
    text = str(raised.value)
    assert "defect" not in text
    # Or the graph broke in front of the operator, and the user's line is the one that raised.
    assert __file__ in text or str(raised.traceback[-1].path) == __file__
    if "fake tensor" not in text:  # else PyTorch refused, with words of its own
        assert words(str(eager.value)) in [words(line) for line in text.splitlines()]


def _products(a: Tensor, d: Tensor) -> Tensor:
    """A product of two types, which autocast makes one."""
    with torch.autocast(a.device.type, dtype=torch.bfloat16):
        return (a @ d.bfloat16()).float()


ACCEPTED: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "promotion": (lambda a, b, i: a[:3] + b * i, (X, H, I)),
    "division by integers that are 0": (lambda a, i: a[:3] / (i - 1), (X, I)),
    "integers": (lambda i: (i @ i, i * 2 // 3, i.cumsum(0), i.sum(), i[i[0]]), (I,)),
    "batch_norm in float32": (
        lambda b, a: functional.batch_norm(b.bfloat16(), a[0], a[1], a[0], a[1]), (H, X)
    ),
    "layer_norm in float32": (
        lambda b, a: functional.layer_norm(b.bfloat16(), (3,), a[0], a[0]), (H, X)
    ),
    "autocast": (lambda a, d: a[:3].clone() @ d.float() + _products(a[:3], d), (X, D)),
    "optimizer": (lambda a, b: torch._foreach_mul([a, b], 2), (X, H)),
}  # fmt: skip


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_eager_mode_takes_is_taken(name: str) -> None:
    function, arguments = ACCEPTED[name]
    torch.compiler.reset()
    got = torch.compile(function, backend="neuron")(*[a.to("neuron") for a in arguments])
    expected = function(*arguments)
    torch.testing.assert_close(torch.utils._pytree.tree_map(Tensor.cpu, got), expected)


# PyTorch promotes neither group with other types, with some exceptions, and its fake kernels do.
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
MIXTURES = [
    pair
    for group, others in (
        (FLOAT8, (torch.float32, torch.bfloat16, torch.int64, torch.bool)),
        (UNSIGNED, (torch.float32, torch.int32, torch.uint8, torch.bool)),
    )
    for one in group
    for other in (*group, *others)
    for pair in ((one, other), (other, one))
]
BINARY: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "add": lambda a, b: a + b,
    "add in place": lambda a, b: a.clone().add_(b),
    "equal": lambda a, b: a == b,
    "maximum": lambda a, b: torch.maximum(a, b),
    "where": lambda a, b: torch.where(a.float() > 1, a, b),
    "stack": lambda a, b: torch.stack([a, b]),
    "copy": lambda a, b: a.clone().copy_(b),
}


@pytest.mark.every(4)
@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("types", MIXTURES, ids=str)
@pytest.mark.parametrize("dynamic", [False, True])
def test_mixtures_that_are_not_promoted(
    name: str, types: tuple[torch.dtype, torch.dtype], dynamic: bool
) -> None:
    function = BINARY[name]
    mine = [torch.tensor([1.0, 2.0, 3.0]).to(dtype).to("neuron") for dtype in types]
    torch.compiler.reset()
    compiled = torch.compile(function, backend="neuron", dynamic=dynamic)
    try:
        expected = function(*mine)
    except RuntimeError:
        with pytest.raises(Exception, match=r"(?s).*") as raised:  # Dynamo's class, or ours
            compiled(*mine)
        refused = str(raised.value)
    else:
        refused = ""
        got = compiled(*mine)
        assert got.dtype == expected.dtype
        assert torch.equal(got.float(), expected.float())
    assert not refused or (__file__ in refused and "defect" not in refused)


def test_asking_draws_no_numbers_of_the_users() -> None:
    x = torch.full((4, 3), 0.5, dtype=torch.bfloat16, device="neuron")
    torch.compiler.reset()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    torch.compile(lambda x: x.bernoulli() + torch.randint_like(x, 9), backend="neuron")(x)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_complex_numbers_of_half_precision_are_named() -> None:
    compiled = torch.compile(lambda h: torch.view_as_complex(h) * 2, backend="neuron")
    with pytest.raises(
        Exception, match=r"not supported for code generation: torch\.complex32\n  at"
    ):
        compiled(torch.ones(4, 2, dtype=torch.float16, device="neuron"))


RANDOM: dict[str, Callable[..., Tensor]] = {
    **{
        f"{name}{tuple(sizes)}": (
            lambda x, name=name, sizes=sizes: getattr(torch, name)(
                *sizes, generator=None, device=x.device
            )
        )
        for name, sizes in (
            ("rand", [4, 3]), ("randn", [4, 3]), ("randint", [5, (4, 3)]),
            ("randint", [2, 5, (4, 3)]), ("randperm", [6]),
        )
    },
    "rand_like": lambda x: torch.rand_like(x, generator=None),
    "randn_like": lambda x: torch.randn_like(x, generator=None),
    "randint_like": lambda x: torch.randint_like(x, 7, generator=None),
    "randint_like from": lambda x: torch.randint_like(x, 2, 7, generator=None),
    "bernoulli": lambda x: torch.bernoulli(x / 2, generator=None),
    "multinomial": lambda x: torch.multinomial(x, 2, generator=None),
    "poisson": lambda x: torch.poisson(x, generator=None),
    "normal": lambda x: torch.normal(x, x, generator=None),
    **{
        f"{name}{arguments}": (
            lambda x, name=name, arguments=arguments: getattr(x.clone(), name)(
                *arguments, generator=None
            )
        )
        for name, arguments in (
            ("random_", ()), ("random_", (5,)), ("random_", (2, 5)), ("uniform_", (0.0, 2.0)),
            ("normal_", ()), ("bernoulli_", (0.5,)), ("exponential_", ()), ("cauchy_", ()),
            ("log_normal_", ()), ("geometric_", (0.5,)),
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", RANDOM)
def test_no_generator_is_the_default_one(name: str) -> None:
    function = RANDOM[name]
    x = X.to("neuron")
    torch.compiler.reset()  # they have their code in common, whose graphs are counted
    compiled = torch.compile(function, backend="neuron")
    torch.manual_seed(3)
    expected = function(x)
    torch.manual_seed(3)
    assert torch.equal(compiled(x), expected)


@pytest.mark.every(4)
@pytest.mark.parametrize("sizes", [(0, 3, 2), (2, 0, 3), (2, 3, 0), (0, 0, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_products_of_empty_matrices(sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    m, k, n = sizes

    def ones(*shape: int) -> Tensor:
        return torch.ones(shape).to(dtype)

    cases: list[tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = [
        (torch.addmm, (ones(m, n), ones(m, k), ones(k, n))),
        (torch.addmv, (ones(m), ones(m, k), ones(k))),
        (torch.addr, (ones(m, n), ones(m), ones(n))),
        (torch.baddbmm, (ones(2, m, n), ones(2, m, k), ones(2, k, n))),
        (torch.addbmm, (ones(m, n), ones(2, m, k), ones(2, k, n))),
    ]
    for function, arguments in cases:
        torch.compiler.reset()  # the graphs of one function are counted
        for options in ({}, {"beta": 0}, {"beta": 2, "alpha": 3}):

            def called(*given: Tensor, function: Any = function, options: Any = options) -> Any:
                return function(*given, **options)

            try:
                expected = called(*arguments)
            except RuntimeError:
                continue  # the CPU has none for this type
            got = torch.compile(called, backend="neuron")(*[a.to("neuron") for a in arguments])
            torch.testing.assert_close(got.cpu(), expected)


NO_TYPES = [torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.complex32]
TAKES_THEM: dict[str, Callable[[Tensor], Any]] = {
    "computed": lambda x: x * 2,
    "converted": lambda x: x.to(torch.complex64 if x.is_complex() else torch.float32),
    "moved": lambda x: x.t(),
    "joined": lambda x: torch.cat([x, x]),
}


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("use", TAKES_THEM)
@pytest.mark.parametrize("dtype", NO_TYPES, ids=str)
def test_arguments_of_types_that_the_compiler_has_not(
    dtype: torch.dtype, use: str, dynamic: bool | None
) -> None:
    x = torch.ones(3, 4).to(dtype).to("neuron")
    if use == "computed" and not dtype.is_complex:
        pytest.skip("eager mode has no arithmetic of it")
    compiled = torch.compile(TAKES_THEM[use], backend="neuron", dynamic=dynamic)
    with pytest.raises(Exception, match="NCC_ESPP004") as caught:
        compiled(x)
    text = str(caught.value)
    assert f"data type not supported for code generation: {dtype}\n  at {__file__}:" in text
    assert "remedy: convert the tensor to a supported type before the compiled region" in text
