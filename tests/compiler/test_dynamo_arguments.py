"""Compiled functions whose arguments are more than memory: lazy bits, batches, tangents."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad, graph
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils import _pytree as pytree

# PyTorch compiles decompositions for forward mode by torch.jit, when it first needs them.
FORWARD_MODE = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
# What gives a tensor with a lazy bit, of a complex matrix.
LAZY: dict[str, Callable[[Tensor], Tensor]] = {
    "conjugated": torch.conj,
    "adjoint": lambda z: z.mH,
    "part": lambda z: z.conj()[1:],
    "gaps": lambda z: z.conj()[:, ::2],
    "repeated": lambda z: z[0].conj().expand(3, 3),
    "negated": torch._neg_view,
    "both": lambda z: torch._neg_view(z.conj()),
    "imaginary part": lambda z: z.conj().imag,
    "negated real part": lambda z: torch._neg_view(z.real),
}
# Those without memory that is there twice.
DISTINCT = [name for name in LAZY if name != "repeated"]
USES: dict[str, Callable[[Tensor], Any]] = {
    "pointwise": lambda a: a * 2 + a.abs(),
    "product": lambda a: a @ a.mT,
    "sum": lambda a: (a.sum(0), a.mean()),
    "moved": lambda a: (a.mT.contiguous(), torch.cat([a, a]), a.flip(0), a[0]),
    "conjugated again": lambda a: (a.conj() + 1, a.mH.clone()),
    "resolved": lambda a: a.resolve_conj().resolve_neg() + 1,
}
WRITES: dict[str, Callable[[Tensor], Any]] = {
    "whole": lambda a: a.mul_(2),
    "row": lambda a: a[0].add_(1),
    "and read": lambda a: (a.add_(1), a * 3)[1],
}


def _matrix() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    parts = torch.randn(2, 3, 3, generator=generator)
    return torch.complex(parts[0], parts[1])


def _agree(ours: Any, theirs: Any) -> None:
    for a, b in zip(pytree.tree_leaves(ours), pytree.tree_leaves(theirs), strict=True):
        torch.testing.assert_close(a.cpu().resolve_conj(), b.resolve_conj(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lazy", LAZY)
def test_lazy_bits(lazy: str) -> None:
    def every(a: Tensor) -> Any:
        return [use(a) for use in USES.values()]

    z = _matrix()
    if lazy in {"part", "gaps"}:  # no square, so that extents say which is which
        z = torch.cat([z, z + 1])
    compiled = torch.compile(every, backend="neuron", fullgraph=True)
    _agree(compiled(LAZY[lazy](z.to("neuron"))), every(LAZY[lazy](z)))


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("lazy", DISTINCT)
def test_lazy_bits_are_kept_by_what_is_written(lazy: str, write: str) -> None:
    ours, theirs = _matrix().to("neuron"), _matrix()
    compiled = torch.compile(WRITES[write], backend="neuron", fullgraph=True)
    result = compiled(LAZY[lazy](ours))
    _agree([result, ours], [WRITES[write](LAZY[lazy](theirs)), theirs])


# Dynamo looks at the argument's gradient, which PyTorch warns of where it is no leaf.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("lazy", LAZY)
def test_gradients_through_lazy_bits(lazy: str) -> None:
    def loss(z: Tensor, function: Callable[[Tensor], Tensor]) -> list[Tensor]:
        z.requires_grad_()
        result = function(LAZY[lazy](z))
        # The gradient that comes back to the compiled function is conjugated lazily, too.
        result.mH.sum().abs().backward()
        assert z.grad is not None
        return [result.detach(), z.grad]

    def function(a: Tensor) -> Tensor:
        return a * a.abs() + a

    compiled = torch.compile(function, backend="neuron", fullgraph=True)
    _agree(loss(_matrix().to("neuron"), compiled), loss(_matrix(), function))


# The gradients that come back to a result: in its layout, in another, with lazy bits of their own.
TANGENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "in its layout": lambda r: torch.ones_like(r) * (1 + r.detach()),
    "itself": torch.Tensor.detach,
    "in order": lambda r: torch.ones(r.shape, dtype=r.dtype, device=r.device),
    "transposed": lambda r: torch.ones(r.shape[::-1], dtype=r.dtype, device=r.device).mT,
    "negated": lambda r: torch._neg_view(r.detach() * 2),
    "conjugated with gaps": lambda r: r.detach().repeat_interleave(2, 1).conj()[:, ::2],
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("tangent", TANGENTS)
@pytest.mark.parametrize("lazy", LAZY)
def test_gradients_of_results_with_lazy_bits(lazy: str, tangent: str, *, dynamic: bool) -> None:
    """They are traced with the bits and gaps that PyTorch's results have; a program has none."""

    def loss(z: Tensor, function: Callable[[Tensor], Tensor]) -> list[Tensor]:
        z.requires_grad_()
        result = function(z)
        result.backward(TANGENTS[tangent](result))
        assert z.grad is not None
        return [result.detach().resolve_neg(), z.grad]

    def function(z: Tensor) -> Tensor:
        return LAZY[lazy](z * z)

    z = _matrix()
    z = torch.cat([z, z + 1]) if lazy in {"part", "gaps"} else z
    torch.compiler.reset()
    compiled = torch.compile(function, backend="neuron", fullgraph=True, dynamic=dynamic)
    _agree(loss(z.to("neuron"), compiled), loss(z.clone(), function))


def test_gradients_that_do_not_come_back() -> None:
    """The eigenvectors are a result of the graph that nobody differentiates: autograd says None."""

    def gradient(z: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor | None:
        z.requires_grad_()
        function(z).abs().sum().backward()
        return z.grad

    compiled = torch.compile(torch.linalg.eigvals, backend="neuron")
    _agree(gradient(_matrix().to("neuron"), compiled), gradient(_matrix(), torch.linalg.eigvals))


def _rows(x: Tensor) -> Tensor:
    held = torch.tensor([0.5, -2.0, 3.0, 1.5])  # a tensor that the graph has itself
    return (x.sin() * x * held.to(x.device)).sum(-1)


def _dual(function: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    with forward_ad.dual_level():
        return tuple(forward_ad.unpack_dual(function(forward_ad.make_dual(x, x + 1))))


def _batched(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    x.requires_grad_()
    unit = torch.eye(len(x), device=x.device)
    return torch.autograd.grad(function(x), x, unit, is_grads_batched=True)[0]


def _jacobian(function: Callable[[Tensor], Tensor], x: Tensor, strategy: str) -> Any:
    return torch.autograd.functional.jacobian(function, x, vectorize=True, strategy=strategy)


# A transformation around a compiled function, each called as users do.
TRANSFORMED: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Any]] = {
    "vmap": lambda f, x: vmap(f)(x),
    "grad": lambda f, x: grad(lambda y: f(y).sum())(x),
    "vmap of grad": lambda f, x: vmap(grad(f))(x),
    "vjp": lambda f, x: vjp(f, x)[1](torch.ones(len(x), device=x.device)),
    "jvp": lambda f, x: jvp(f, (x,), (x + 1,)),
    "jacrev": lambda f, x: jacrev(f)(x),
    "jacfwd": lambda f, x: jacfwd(f)(x),
    "hessian": lambda f, x: hessian(lambda y: f(y).sum())(x),
    "dual numbers": _dual,
    "batched gradients": _batched,
    "jacobian, reverse": lambda f, x: _jacobian(f, x, "reverse-mode"),
    "jacobian, forward": lambda f, x: _jacobian(f, x, "forward-mode"),
}


@FORWARD_MODE
@pytest.mark.parametrize("called_before", [False, True])
@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformations_of_compiled_functions(name: str, called_before: bool) -> None:
    transformation = TRANSFORMED[name]
    x = torch.linspace(-1, 2, 12).reshape(3, 4)
    compiled = torch.compile(_rows, backend="neuron")
    if called_before:  # a program is there already, with which the call could be answered
        compiled(x.to("neuron"))
        compiled(x[0].to("neuron"))
    _agree(transformation(compiled, x.to("neuron")), transformation(_rows, x.clone()))


@FORWARD_MODE
def test_programs_run_again_after_a_transformation() -> None:
    x = torch.linspace(-1, 2, 12, device="neuron").reshape(3, 4)
    compiled = torch.compile(_rows, backend="neuron")
    before = compiled(x)
    _dual(compiled, x)
    assert torch.equal(compiled(x), before)


def _elsewhere(x: Tensor) -> Any:
    return graph.saved_tensors_hooks(lambda t: t.cpu(), lambda t: t.to(x.device))


def _as_numbers(x: Tensor) -> Any:
    return graph.saved_tensors_hooks(
        lambda t: t.cpu().numpy(), lambda a: torch.from_numpy(a).to(x.device)
    )


def _transposed(_x: Tensor) -> Any:
    return graph.saved_tensors_hooks(
        lambda t: t.clone(), lambda t: t.mT.contiguous().mT if t.dim() > 1 else t
    )


# Where and how a backward pass finds what the forward pass saved.
KEPT: dict[str, Callable[[Tensor], Any]] = {
    "host": lambda _x: graph.save_on_cpu(),
    "pinned": lambda x: graph.save_on_cpu(pin_memory=x.device.type == "neuron"),
    "hooks": _elsewhere,
    "numbers": _as_numbers,
    "transposed": _transposed,
}
SAVES: dict[str, Callable[[Tensor], Tensor]] = {
    "gaps": lambda x: x[:, ::2] * x[:, ::2].sin(),
    "part": lambda x: (x[1:3] * x[1:3].exp()).cumsum(0),
    "transposed": lambda x: (x.mT @ x.sin()).tanh() @ x.mT,
    "repeated": lambda x: x[:1].expand(4, -1).sin() * x.cos(),
    "written": lambda x: x.clone().mul_(2)[:, 1:].sin().square(),
    "softmax": lambda x: x.unflatten(1, (2, 3)).movedim(0, -1).softmax(1).square(),
}


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("saves", SAVES)
def test_what_is_saved_comes_back_in_another_layout(kept: str, saves: str) -> None:
    def gradient(x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor | None:
        x.requires_grad_()
        with KEPT[kept](x):
            made = function(x)
        made.square().sum().backward()
        return x.grad

    x = torch.linspace(-1, 2, 24).reshape(4, 6)
    compiled = torch.compile(SAVES[saves], backend="neuron", fullgraph=True)
    _agree(gradient(x.to("neuron"), compiled), gradient(x.clone(), SAVES[saves]))


def test_what_is_saved_comes_back_as_another_type() -> None:
    x = torch.linspace(-1, 2, 24, device="neuron").reshape(4, 6).requires_grad_()
    with graph.saved_tensors_hooks(Tensor.half, lambda t: t):
        made = torch.compile(lambda x: x.sin() * x, backend="neuron")(x)
    with pytest.raises(ValueError, match=r"must be float32\[4, 6\], .* got float16\[4, 6\]"):
        made.sum().backward()
