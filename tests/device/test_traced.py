"""`torch.jit.trace` on the device: a trace is what ran, and no number that it was made with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree as pytree

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

#: Their results are memory that nothing wrote.
UNWRITTEN = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty"}
UNWRITTEN |= {"new_empty_strided"}
TRACED = [
    op for op in op_db if torch.float32 in op.supported_dtypes("cpu") and op.name not in UNWRITTEN
]


def _function(op: OpInfo, device: str) -> tuple[Callable[..., Any], list[Tensor]] | None:
    """A function of tensors alone that calls the operator, and the tensors of its first sample."""
    for sample in op.sample_inputs(device, torch.float32, requires_grad=True):
        leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        where = [i for i, x in enumerate(leaves) if isinstance(x, Tensor)]
        if not where or any(leaves[i].layout is not torch.strided for i in where):
            continue

        def function(
            *tensors: Tensor, leaves: Any = leaves, where: Any = where, spec: Any = spec
        ) -> tuple[Tensor, ...]:
            given = list(leaves)
            for i, tensor in zip(where, tensors, strict=True):
                given[i] = tensor
            first, args, kwargs = pytree.tree_unflatten(given, spec)
            results = pytree.tree_leaves(op(first, *args, **kwargs))
            return tuple(x for x in results if isinstance(x, Tensor))

        return function, [leaves[i].detach() for i in where]
    return None


def _other(tensor: Tensor) -> Tensor:
    return tensor * 0.5 + 0.1 if tensor.is_floating_point() else tensor


def _both(op: OpInfo, device: str) -> tuple[Any, Any] | None:
    """What the trace and what the operator make of other numbers."""
    found = _function(op, device)
    if found is None:
        return None
    function, tensors = found
    traced = torch.jit.trace(
        function,
        tuple(t.requires_grad_(t.is_floating_point()) for t in tensors),
        check_trace=False,
    )
    results = []
    for call in (traced, function):
        torch.manual_seed(0)
        results.append(call(*[_other(t.detach()) for t in tensors]))
    return results[0], results[1]


# All others of what `make test` has a part of, since a trace does the same for every operator.
@pytest.mark.every(13)
@pytest.mark.parametrize("op", TRACED, ids=lambda op: op.formatted_name)
def test_the_trace_of_an_operator_takes_other_numbers(op: OpInfo) -> None:
    try:
        on_cpu = _both(op, "cpu")
        if on_cpu is not None:
            torch.testing.assert_close(*on_cpu, equal_nan=True)
    except Exception as error:  # noqa: BLE001 - whatever it is, PyTorch itself can't trace this
        pytest.skip(f"on the CPU neither: {type(error).__name__}")
    if on_cpu is None:
        pytest.skip("no sample of tensors")
    found = _both(op, "neuron")
    assert found is not None
    torch.testing.assert_close(*found, equal_nan=True)


class _Block(nn.Module):
    """A residual block of one convolution."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.inner(x) + x
        return result


_OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"padding": 1},
    "grouped": {"padding": 1, "groups": 2, "bias": False},
}
CONVOLUTIONS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    f"{kind.__name__}-{name}": (partial(kind, 4, 4, 3, **given), (2, 4, *size))
    for kind, size in (
        (nn.Conv1d, (9,)),
        (nn.Conv2d, (9, 8)),
        (nn.Conv3d, (4, 5, 6)),
        (nn.ConvTranspose1d, (9,)),
        (nn.ConvTranspose2d, (4, 5)),
        (nn.ConvTranspose3d, (3, 4, 3)),
    )
    for name, given in _OPTIONS.items()
}


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_traced_convolutions_are_recorded(name: str, frozen: bool) -> None:
    """Frozen, beside the input that they are added to, their results became constants."""
    make, shape = CONVOLUTIONS[name]
    block = _Block(make()).to("neuron").requires_grad_(not frozen)
    x = torch.randn(shape, device="neuron")
    traced = torch.jit.trace(block, x, check_trace=False)
    sides = []
    for call in (traced, block):
        y = (x * 2 + 1).requires_grad_()
        result = call(y)
        sides.append((result, *torch.autograd.grad(result.square().sum(), y)))
    torch.testing.assert_close(*sides)
