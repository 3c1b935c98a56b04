"""An operator's other forms: in place, as a method, as Python's operator, under another name.

PyTorch gives some of them kernels of their own, which may call a kernel of the CPU's without asking
where their operand is. Each form gives the bits of the plain one, where it does so on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tests.operator_cases import operator_cases, sample_on
from tests.shallow import shallow

pytestmark = pytest.mark.filterwarnings("ignore")  # samples warn themselves
SAMPLES = 6
DTYPES = (torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.bool)
#: Operators of which forms are called, but not compared.
NOT_COMPARED = {
    **dict.fromkeys(
        ("cauchy", "exponential", "geometric", "log_normal", "normal", "uniform"),
        "the table's plain form has a seed of its own",
    ),
    **dict.fromkeys(("new_empty", "new_empty_strided"), "nothing was written"),
    "nn.functional.dropout": "it draws whole words, and in place a truth value for each element",
    "mvlgamma": "in place it sums over another layout",
}


def _forms(info: Any) -> dict[str, Callable[..., Any]]:
    """The forms of an operator besides the plain one."""
    forms = {
        "method": info.method_variant,
        "in place": info.inplace_variant,
        "operator": info.operator_variant,
        "operator in place": info.inplace_operator_variant,
    }
    for alias in info.aliases:
        forms[alias.name] = alias.op
        forms[f"{alias.name} as a method"] = alias.method_variant
        forms[f"{alias.name} in place"] = alias.inplace_variant
    return {name: form for name, form in forms.items() if form is not None}


def _run(form: Callable[..., Any], sample: Any, device: str) -> Any:
    """What a form gives for copies of a sample, or its error."""
    x, args, kwargs = sample_on(sample, device)
    torch.manual_seed(0)
    try:
        return form(x, *args, **kwargs)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        return error


def _same(one: Any, other: Any) -> bool:
    """Whether the tensors of two results have the same types and bits; any NaN is like another."""
    pairs = [pytree.tree_leaves(x) for x in (one, other)]
    if len(pairs[0]) != len(pairs[1]):
        return False
    return all(
        x.dtype == y.dtype and x.shape == y.shape and bool(((x == y) | ((x != x) & (y != y))).all())  # noqa: PLR0124
        if isinstance(x, Tensor) and isinstance(y, Tensor) and x.layout is torch.strided
        else type(x) is type(y)
        for x, y in zip(*pairs, strict=True)
    )


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("info", "dtype"), [case for case in operator_cases(*DTYPES) if _forms(case.values[0])]
)
@shallow
def test_forms_of_an_operator(info: Any, dtype: torch.dtype) -> None:
    forms = _forms(info)
    compared = 0
    samples = list(info.sample_inputs("cpu", dtype, requires_grad=False))[:SAMPLES]
    for sample in samples:
        plain = {device: _run(info.op, sample, device) for device in ("cpu", "neuron")}
        for name, form in forms.items():
            expected, got = (_run(form, sample, device) for device in ("cpu", "neuron"))
            said = f"{name}: {got!r} for {expected!r} of {sample}"
            assert isinstance(got, Exception) == isinstance(expected, Exception), said
            if info.name in NOT_COMPARED or isinstance(expected, Exception):
                continue
            if _same(expected, plain["cpu"]):
                assert _same(got, plain["neuron"]), said
                compared += 1
    assert compared or not samples or info.name in NOT_COMPARED, (
        "no form gives the bits of the plain one"
    )
