"""Every write is counted, so that autograd notices when what it saved is overwritten."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

Optimizer = torch.optim.Optimizer


def _list_operators() -> list[str]:
    """Overloads that write to lists of tensors, by all that PyTorch registers."""
    found = []
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith(("aten::_foreach_", "aten::_fused_", "aten::_amp_foreach_")):
            continue
        packet, _, overload = name.removeprefix("aten::").partition(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
        if any(_written(argument) and "List" in str(argument.type) for argument in _all(operator)):
            found.append(f"{packet}.{overload or 'default'}")
    return sorted(found)


def _all(operator: Any) -> list[Any]:
    return list(operator._schema.arguments)


def _written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _value(argument: Any, device: str, dtype: torch.dtype) -> Any:
    """Something to pass: tensors of two shapes, whose positions fit together."""
    kind = str(argument.type)
    values: dict[str, Callable[[], Any]] = {
        "List[Tensor]": lambda: [
            torch.ones((), device=device) if argument.name == "state_steps"
            else torch.ones(shape, device=device, dtype=dtype)
            for shape in ((3,), (2, 2))
        ],
        "Tensor": lambda: torch.ones((), device=device),
        "List[number]": lambda: [1, 1],
        "number": lambda: 1,
        "float": lambda: 0.5,
        "int": lambda: 1,
        "bool": lambda: False,
    }  # fmt: skip
    return values[kind]()


def _versions(name: str, device: str, dtype: torch.dtype) -> Any:
    """How often each written tensor was written to, or the type of the error."""
    operator: Any = torch.ops.aten
    for part in name.split("."):
        operator = getattr(operator, part)
    needed = [a for a in _all(operator) if _written(a) or not a.has_default_value()]
    values = {a.name: _value(a, device, dtype) for a in needed}
    args = [values[a.name] for a in needed if not a.kwarg_only]
    try:
        operator(*args, **{a.name: values[a.name] for a in needed if a.kwarg_only})
    except RuntimeError as error:
        return type(error)
    return {
        a.name: [tensor._version > 0 for tensor in values[a.name]]
        for a in needed
        if _written(a) and isinstance(values[a.name], list)
    }


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
@pytest.mark.parametrize("name", _list_operators())
def test_operators_on_lists(name: str, dtype: torch.dtype) -> None:
    # Floats are joined with what follows, integers run at once.
    assert _versions(name, "neuron", dtype) == _versions(name, "cpu", dtype)


OPTIMIZERS: dict[str, Callable[[Iterable[Parameter]], Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=True),
    "Adam": lambda p: torch.optim.Adam(p, 0.1, foreach=True),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.1, foreach=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.1, foreach=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.1, foreach=True),
    "NAdam": lambda p: torch.optim.NAdam(p, 0.1, foreach=True),
    "RAdam": lambda p: torch.optim.RAdam(p, 0.1, foreach=True),
    "by default": lambda p: torch.optim.AdamW(p, 0.1),
}


def _step_before_backward(device: str, make: Callable[[Iterable[Parameter]], Optimizer]) -> str:
    """Overwrite parameters that a backward pass still needs, as two losses and two steps do."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    model.to(device)
    optimizer = make(model.parameters())
    x = torch.ones(5, 3, device=device, requires_grad=True)
    first, second = model(x).sum(), model(x).square().sum()
    first.backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation") as caught:
        second.backward()
    return str(caught.value).replace("neuronFloatType", "torch.FloatTensor")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_before_the_backward_pass_is_noticed(name: str) -> None:
    ours = _step_before_backward("neuron", OPTIMIZERS[name])
    theirs = _step_before_backward("cpu", OPTIMIZERS[name])
    shape = ours[ours.index("[") : ours.index(", which is")]
    assert shape in theirs


def test_inference_tensors_are_refused_outside_of_their_mode() -> None:
    with torch.inference_mode():
        tensors = [torch.ones(3, device="neuron"), torch.ones(2, device="neuron")]
        torch._foreach_add_(tensors, 1.0)
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        torch._foreach_mul_(tensors, 3.0)
    assert [x.tolist() for x in tensors] == [[2.0] * 3, [2.0] * 2]


def test_a_single_write_counts_once() -> None:
    x: Tensor = torch.ones(3, device="neuron")
    torch._foreach_add_([x], 1.0)
    x.add_(1)
    assert x._version == 2
