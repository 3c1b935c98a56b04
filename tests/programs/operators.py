"""Statements that call an operator of PyTorch's own table, on values that the program already has."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.overrides import resolve_name
from torch.testing._internal.common_methods_invocations import op_db

from tests.device.harness_exclusions import EXCLUDED
from tests.programs.program import CALLABLES

#: Left out here besides what can't be compared at all, with the reason.
LEFT_OUT = {
    **EXCLUDED,
    "nn.functional.gumbel_softmax": "random",
    "nn.functional.fractional_max_pool2d": "random",
    "to_sparse": "results are sparse",
    "sparse.mm": "takes sparse tensors",
    "sparse.sampled_addmm": "takes sparse tensors",
    "linalg.ldl_factor": "the factors are not unique",
    "linalg.ldl_factor_ex": "the factors are not unique",
    "linalg.qr": "unique up to signs",
    "qr": "unique up to signs",
    "ormqr": "wants the factors of geqrf",
    "item": "returns a number",
    "tolist": "returns numbers",
    "equal": "returns a bool",
    "allclose": "returns a bool",
    "is_nonzero": "returns a bool",
    "masked.normalize": "wants a mask of the size",
    **dict.fromkeys(
        (
            "native_group_norm",
            "native_batch_norm",
            "_native_batch_norm_legit",
            "_batch_norm_with_update",
        ),
        "the CPU's kernel overlooks strides of weights and statistics; `F.group_norm` and the like don't",
    ),
    **dict.fromkeys(("bucketize", "searchsorted"), "want boundaries in order"),
    **dict.fromkeys(
        ("as_strided", "as_strided_copy", "as_strided_scatter"),
        "their samples know nothing of the memory of what they are called on; the statement does",
    ),
    "to": "samples name the CPU",
    "chalf": "graphs refuse complex32, which nothing but copies takes",
    "tensor_split": "wants a tensor of indices on the CPU; the other forms are views",
    "signbit": "a NaN has a sign too, which nobody promises",
    "nonzero_static": "the strides are those of PyTorch's rule for accelerators",
    "rand": "random",
    "randperm": "random",
    "nn.functional.scaled_dot_product_attention": "",
}
del LEFT_OUT["nn.functional.scaled_dot_product_attention"]


#: The CPU computes places, of which the nearest is taken, in 16 bits, and the device in 32.
_WIDE = frozenset({"nn_functional_grid_sample", "grid_sampler_2d", "grid_sampler_3d"}) | {
    "native_layer_norm"  # statistics that the device, as CUDA, has in float32, the CPU in 16 bits
}
#: Of 16 bits it makes complex32, which graphs refuse.
_PAIRS = frozenset({"view_as_complex"})


#: Which of equal elements they name is nobody's promise, and integers are often equal.
TIES = frozenset({"topk", "kthvalue"})
#: It names one of the equal elements too, of any type: the CPU's sort keeps their order up to here.
_SORTED_IN_ORDER = {"mode": 16}


@dataclass(frozen=True)
class Operator:
    """An entry of the table.

    Attributes:
        name: its own and its variant's
        text: what calls it
        in_place: the method that writes the result to the first operand, "" without one
        info: the entry
    """

    name: str
    text: str
    in_place: str
    info: Any


@cache
def operators() -> tuple[Operator, ...]:
    """All that can be drawn."""
    made = []
    for info in op_db:
        if (
            info.name in LEFT_OUT
            or "jiterator" in info.name
            or info.name.startswith(("sparse", "_refs"))
        ):
            continue
        variant = f"_{info.variant_test_name}" if info.variant_test_name else ""
        name = (info.name + variant).replace(".", "_")
        public = resolve_name(info.op)
        text = f"op_{name}"
        if public and public.startswith("torch.") and _resolves(public, info.op):
            text = public.replace("torch.nn.functional.", "F.")
        else:
            CALLABLES[text] = info.op
        in_place = getattr(info.inplace_variant, "__name__", "")
        method = in_place if getattr(torch.Tensor, in_place, None) is info.inplace_variant else ""
        made.append(Operator(name, text, method, info))
    return tuple(made)


def _resolves(public: str, function: Any) -> bool:
    found: Any = torch
    for part in public.split(".")[1:]:
        found = getattr(found, part, None)
    return found is function


@cache
def samples(name: str, dtype: torch.dtype) -> tuple[Any, ...]:
    """Small samples of the operator; none where it doesn't have the type."""
    info = next(o.info for o in operators() if o.name == name)
    if not info.supports_dtype(dtype, "cpu") or (name in _WIDE | _PAIRS and dtype.itemsize < 4):
        return ()
    if name in TIES and not dtype.is_floating_point:
        return ()
    torch.manual_seed(11)
    made = []
    for number, sample in enumerate(info.sample_inputs("cpu", dtype, requires_grad=False)):
        leaves = [
            x
            for x in pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
            if isinstance(x, torch.Tensor)
        ]
        limit = _SORTED_IN_ORDER.get(name, 4096)
        if (
            sum(x.numel() for x in leaves) <= limit
            and all(x.layout is torch.strided for x in leaves)
            and not sample.kwargs.get("unsafe")
        ):  # which asks for no look at what leads outside
            made.append(sample)
        if number >= 40:
            break
    return tuple(made)


def literal(x: Any) -> str | None:
    """Python text of an argument that is no tensor, or None where it has none."""
    if x is None or x is Ellipsis or isinstance(x, bool | int | float | complex | str):
        return repr(x)
    if isinstance(x, torch.dtype | torch.layout):
        return str(x)
    if isinstance(x, torch.memory_format):
        return str(x)
    if isinstance(x, torch.device):
        return None
    if isinstance(x, slice):
        parts = [literal(p) for p in (x.start, x.stop, x.step)]
        return f"slice({', '.join(str(p) for p in parts)})"
    return None


def wrong_literal(rng: random.Random, x: Any) -> str | None:
    """The text of a number or a name that an argument seldom may be, now and then of the right one."""
    if rng.random() < 0.3 or isinstance(x, bool) or not isinstance(x, int | float | str):
        return literal(x)
    others = {int: (99, -99, -1, 0), float: (-1.0, 0.0, torch.nan, 1e30), str: ("bogus", "")}
    return literal(rng.choice(others[type(x)]))


def pick(rng: random.Random, name: str, dtype: torch.dtype) -> Any | None:
    """One sample, or None."""
    found = samples(name, dtype)
    return rng.choice(found) if found else None
