"""What `torch.func` and batched gradients take on the CPU they take on the device.

An operator that the device has of its own needs rules that those of the CPU have: of examples
(`vmap`), of tangents, and of the zeros without memory that forward mode passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, func
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tests.operator_cases import operator_cases, sample_on
from tests.shallow import shallow

# Samples warn themselves, and PyTorch of each operator that it calls once for each example.
pytestmark = pytest.mark.filterwarnings("ignore")
SAMPLES = 8
Function = Callable[[Tensor], Any]


def _tensors(results: Any) -> tuple[Tensor, ...]:
    return tuple(x for x in pytree.tree_leaves(results) if isinstance(x, Tensor))


def _sum(f: Function) -> Function:
    return lambda x: next(y for y in f(x) if y.is_floating_point()).sum()


def _batched(f: Function, x: Tensor) -> Any:
    x = x.clone().requires_grad_()
    y = next(y for y in f(x) if y.requires_grad)
    directions = torch.stack([torch.ones_like(y), torch.full_like(y, 2)])
    return torch.autograd.grad(y, x, directions, is_grads_batched=True)


def _examples(f: Function, x: Tensor, dim: int) -> Any:
    twice = torch.stack([x, x.clone()], dim)
    return func.vmap(f, in_dims=dim, randomness="same")(twice)


TRANSFORMS: dict[str, Callable[[Function, Tensor], Any]] = {
    "examples": lambda f, x: _examples(f, x, 0),
    "examples-last": lambda f, x: _examples(f, x, -1),
    "gradients-of-examples": lambda f, x: _examples(func.grad(_sum(f)), x, 0),
    "tangents": lambda f, x: func.jvp(f, (x,), (torch.ones_like(x),)),
    "tangents-of-gradients": lambda f, x: func.jvp(func.grad(_sum(f)), (x,), (torch.ones_like(x),)),
    "batched-gradients": _batched,
}


class _Draws(TorchDispatchMode):
    """Sees whether values are drawn, which the device does in its own way."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.seen |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def _run(name: str, info: Any, sample: Any, device: str) -> Any:
    """What a transformed operator gives, or raises."""
    x, args, kwargs = sample_on(sample, device)
    try:
        made = TRANSFORMS[name](lambda y: _tensors(info.op(y, *args, **kwargs)), x)
    except Exception as error:  # noqa: BLE001 - compared
        return error
    return [y.cpu() for y in _tensors(made)]


def _difference(theirs: list[Tensor], mine: Any, *, values: bool) -> str | None:
    """What differs of the CPU's results and the device's, None if nothing does."""
    if isinstance(mine, Exception):
        return f"refused: {mine}"
    facts = [[(x.dtype, x.shape) for x in results] for results in (theirs, mine)]
    if facts[0] != facts[1]:
        return f"the CPU's are {facts[0]}, the device's {facts[1]}"
    for x, y in zip(theirs, mine, strict=True):
        try:
            torch.testing.assert_close(y, x, equal_nan=True, **_tolerance(x))
        except AssertionError as error:
            return str(error) if values else None
    return None


def _tolerance(x: Tensor) -> dict[str, Any]:
    """For sums of up to some 100 terms of this size, or of the samples', which may cancel."""
    if not (x.is_floating_point() or x.is_complex()) or x.numel() == 0:
        return {"rtol": 0, "atol": 0}
    near = 256 * torch.finfo(x.dtype).eps
    return {"rtol": near, "atol": near * max(1.0, float(x.abs().nan_to_num(0, 0, 0).max()))}


def _is_compact(x: Any) -> bool:
    """Whether a copy to another device is like it: what lies between elements is not copied."""
    return (
        isinstance(x, Tensor)
        and x.layout is torch.strided
        and x.numel() * x.itemsize == x.untyped_storage().nbytes()
    )


@shallow
def differences(info: Any, dtype: torch.dtype) -> tuple[list[str], int]:
    """What differs for samples of an operator, and how many transforms of it the CPU takes."""
    found: list[str] = []
    compared = 0
    samples = list(info.sample_inputs("cpu", dtype))
    for sample in samples[:: 1 + len(samples) // SAMPLES]:
        if not _is_compact(sample.input):
            continue
        with _Draws() as draws:
            info(sample.input, *sample.args, **sample.kwargs)
        for name in TRANSFORMS:
            theirs = _run(name, info, sample, "cpu")
            if isinstance(theirs, Exception):
                continue
            compared += 1
            values = not draws.seen and "empty" not in info.name
            difference = _difference(theirs, _run(name, info, sample, "neuron"), values=values)
            if difference is not None:
                found.append(f"{name}: {difference}")
    return found, compared


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("info", "dtype"), operator_cases(torch.float32, torch.float64, torch.complex64)
)
def test_what_the_cpu_transforms_the_device_transforms(info: Any, dtype: torch.dtype) -> None:
    assert differences(info, dtype)[0] == []


@pytest.mark.parametrize("name", ["dot", "nn.functional.scaled_dot_product_attention"])
def test_transforms_are_compared(name: str) -> None:
    (info,) = (info for info in op_db if info.name == name)
    found, compared = differences(info, torch.float32)
    assert found == []
    assert compared >= len(TRANSFORMS)


def _attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, bias)


def _loss(*tensors: Tensor) -> Tensor:
    return _attention(*tensors).square().sum()


_gradients = func.grad(_loss, argnums=(0, 1, 2))


#: Shapes of what is added to the scores of 2 batches, 3 heads, 4 queries and 5 keys.
_BIASES = ((4, 5), (3, 4, 5), (1, 1, 4, 5), (2, 1, 4, 5), (1, 3, 4, 5), (2, 3, 4, 5))
_DIMS = st.sampled_from([None, 0, 1, -1])


@given(
    dims=st.tuples(_DIMS, _DIMS, _DIMS, _DIMS).filter(lambda dims: dims[:3] != (None,) * 3),
    bias=st.sampled_from((None, *_BIASES)),
    boolean=st.booleans(),
    trains=st.booleans(),
)
def test_examples_of_attention(
    dims: tuple[int | None, ...], bias: Any, boolean: bool, trains: bool
) -> None:
    shapes = [(2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 5, 8), *([] if bias is None else [bias])]
    f: Any = _gradients if trains else _attention
    examples = [[torch.randn(s, dtype=torch.float32) for _ in range(3)] for s in shapes]
    if boolean and bias is not None:
        examples[3] = [x > -1 for x in examples[3]]  # for some rows no key counts
    pairs = list(zip(examples, dims, strict=False))
    given = [many[0] if dim is None else torch.stack(many, dim) for many, dim in pairs]
    one_by_one = [
        f(*[many[0 if dim is None else i].to("neuron") for many, dim in pairs]) for i in range(3)
    ]
    expected = [torch.stack(results) for results in zip(*map(_tensors, one_by_one), strict=True)]
    made = func.vmap(f, in_dims=dims[: len(shapes)])(*[x.to("neuron") for x in given])
    for together, apart in zip(_tensors(made), expected, strict=True):
        torch.testing.assert_close(together, apart, equal_nan=True, **_tolerance(apart))


def test_examples_in_examples_of_attention() -> None:
    x = torch.randn(3, 2, 2, 3, 4, 8)
    twice = func.vmap(func.vmap(_gradients))
    made = twice(*[x.to("neuron")] * 3)
    for mine, theirs in zip(made, twice(x, x, x), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, **_tolerance(theirs))
