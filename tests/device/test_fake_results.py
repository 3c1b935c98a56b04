"""What operators return on the device is what PyTorch's fake kernels say that they return.

Graphs are made of fakes: where one says that there is a tensor and the device returns none, or one
of another type, a traced program fails that eager mode runs (`aot_eager` is the first to).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tests.operator_cases import operator_cases
from tests.shallow import shallow
from torch_neuronx.dynamo.registry import flat

# The samples themselves warn: of deprecations, of tensors resized, of NumPy.
pytestmark = pytest.mark.filterwarnings("ignore")
SAMPLES = 4


class _Compared(TorchDispatchMode):
    """Asks a fake kernel what each operator gives, and compares."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.differences: list[str] = []
        self.compared = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        told = None if func._schema.is_mutable else _told(func, args, kwargs)
        made = func(*args, **kwargs)
        if told is not None:
            self.compared += 1
            self.differences += [
                f"{func}: {difference}" for difference in _different(flat(made), flat(told))
            ]
        return made


def _told(func: Any, args: Any, kwargs: Any) -> Any:
    """What fakes of the arguments give; None if that depends on data, or there is no kernel."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        given = pytree.tree_map_only(
            torch.Tensor, lambda t: mode.from_tensor(t.detach()), (args, kwargs)
        )
        try:
            return func(*given[0], **given[1])
        except Exception:  # noqa: BLE001 - of whatever kind: there is nothing to compare with
            return None


def _different(made: list[Any], told: list[Any]) -> Iterator[str]:
    for number, (mine, other) in enumerate(zip(made, told, strict=True)):
        facts = [
            (x.dtype, tuple(x.shape), x.device) if isinstance(x, torch.Tensor) else x is None
            for x in (mine, other)
        ]
        if facts[0] != facts[1]:
            yield f"result {number} is {facts[0]}, a fake {facts[1]}"


@shallow
def differences(info: Any, dtype: torch.dtype) -> tuple[list[str], int]:
    """What is different for samples of an operator, forward and backward, of so many calls."""
    training = dtype.is_floating_point and info.supports_autograd

    def moved(x: torch.Tensor) -> torch.Tensor:
        return x.detach().to("neuron").requires_grad_(training and x.is_floating_point())

    found: list[str] = []
    compared = 0
    for _, sample in zip(range(SAMPLES), info.sample_inputs("cpu", dtype), strict=False):
        x, args, kwargs = pytree.tree_map_only(
            torch.Tensor, moved, (sample.input, sample.args, sample.kwargs)
        )
        with _Compared() as calls:
            try:
                results = info.op(x, *args, **kwargs)
                if training:
                    leaves = [t for t in pytree.tree_leaves(results) if _trains(t)]
                    torch.autograd.backward(leaves, [torch.ones_like(t) for t in leaves])
            except Exception:  # noqa: BLE001, S112 - other tests say what has to be taken
                continue
        found += calls.differences
        compared += calls.compared
    return found, compared


def _trains(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.requires_grad


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("info", "dtype"), operator_cases(torch.float32, torch.bfloat16, torch.int64)
)
def test_results_are_those_of_fakes(info: Any, dtype: torch.dtype) -> None:
    assert differences(info, dtype)[0] == []


def test_operators_are_compared_in_both_passes() -> None:
    infos = [i for i in op_db if i.name == "nn.functional.scaled_dot_product_attention"]
    found, compared = differences(infos[0], torch.float32)
    assert found == []
    assert compared >= 2 * SAMPLES
