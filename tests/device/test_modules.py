"""Every module of PyTorch's own list of samples, forward and backward, against float64."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch.testing._internal.common_modules import ModuleInfo, module_db
from torch.utils import _pytree as pytree

MOST_INPUTS = 6
TYPES = (torch.float32, torch.bfloat16)
EXCLUDED = {
    "nn.Transformer": "drops elements at random in training, and is made of the layers below",
}
#: What a result may be off by: so many roundings of its largest element, or so many times what the
#: CPU's is, which adds in another order.
ROUNDINGS, CPU_ERRORS = 8, 4
Found = dict[str, torch.Tensor | None]
#: Lists of samples are as random as the weights that lazy modules draw where they are.
LAZY = "nn.Lazy"


def _moved(tree: Any, device: str, wide: bool = False) -> Any:
    def move(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        dtype = torch.float64 if wide and x.is_floating_point() else x.dtype
        return x.detach().clone().to(device, dtype).requires_grad_(x.requires_grad)

    return pytree.tree_map(move, tree)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


def _run(module: torch.nn.Module, args: Any, kwargs: Any) -> Found:
    """Results and gradients by name."""
    results = _tensors(module(*args, **kwargs))
    # A smooth function: where a result is nearly 0, rounding decides about its sign.
    total = [
        (
            r.abs().square() * torch.linspace(-1, 1, r.numel(), device=r.device).reshape(r.shape)
        ).sum()
        for r in results
        if r.requires_grad
    ]
    if total:
        torch.stack([t.float() for t in total]).sum().backward()
    found: Found = {f"result {i}": r for i, r in enumerate(results)}
    found |= {f"gradient of {n}": p.grad for n, p in module.named_parameters()}
    found |= {f"gradient of input {i}": x.grad for i, x in enumerate(_tensors((args, kwargs)))}
    return found


def _samples(info: ModuleInfo, dtype: torch.dtype, *, training: bool) -> Iterator[Any]:
    torch.manual_seed(0)
    random.seed(0)
    made = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=True, training=training
    )
    with_inputs = [sample for sample in made if sample.forward_input is not None]
    step = max(1, len(with_inputs) // MOST_INPUTS)  # from the whole list: it goes by kinds
    yield from with_inputs[::step]


def _drops(module: torch.nn.Module) -> bool:
    kinds = (torch.nn.modules.dropout._DropoutNd, torch.nn.RReLU)
    return module.training and any(
        (isinstance(m, kinds) and getattr(m, "p", 1) > 0) or getattr(m, "dropout", 0.0)
        for m in module.modules()
    )


def _compare(what: str, got: Found, cpu: Found, exact: Found, dtype: torch.dtype) -> None:
    """Types and shapes are the CPU's, values those of float64."""
    assert got.keys() == cpu.keys() == exact.keys(), what
    most = max((t.numel() for t in cpu.values() if t is not None), default=1)
    for name, have in got.items():
        alike, value = cpu[name], exact[name]
        assert (have is None) == (alike is None), f"{what}, {name}"
        if have is None or alike is None or value is None:
            continue
        facts = [(t.dtype, t.shape, t.layout) for t in (have, alike)]
        assert facts[0] == facts[1], f"{what}, {name}"
        assert have.device.type == "neuron", f"{what}, {name}"
        ours, theirs, true = (t.detach().cpu().to_dense().double() for t in (have, alike, value))
        known = true.isfinite() & theirs.isfinite()
        scale = max(1.0, float(true[known].abs().max()) if known.any() else 0.0)
        error = float((theirs - true)[known].abs().max()) if known.any() else 0.0
        # A parameter's gradient is a sum over the rest, of terms whose weights go from -1 to 1:
        # they are larger than their sum by the root of their number. 16 bits are summed in 32.
        terms = most / max(true.numel(), 1) if name.startswith("gradient") else 1.0
        scale *= math.sqrt(terms) if dtype is torch.float32 else 1.0
        bound = max(ROUNDINGS * torch.finfo(dtype).eps * scale, CPU_ERRORS * error)
        torch.testing.assert_close(
            ours,
            true,
            rtol=0,
            atol=bound,
            equal_nan=True,
            msg=partial("{}, {}: {}".format, what, name),
        )


@pytest.mark.filterwarnings("ignore")  # samples use what is deprecated, and warn of sizes
@pytest.mark.parametrize("mode", ["eager", pytest.param("compiled", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("info", module_db, ids=lambda info: info.name)
def test_module(info: ModuleInfo, dtype: torch.dtype, mode: str, *, training: bool) -> None:
    if dtype not in info.dtypes or info.name.startswith(LAZY) or info.name in EXCLUDED:
        return
    for number, sample in enumerate(_samples(info, dtype, training=training)):
        made = sample.constructor_input
        module = info.module_cls(*made.args, **made.kwargs).to(dtype).train(training)
        if _drops(module):
            continue
        there = copy.deepcopy(module).to("neuron")
        what = f"{info.name} #{number} {sample.desc}"
        given = sample.forward_input
        try:
            cpu = _run(copy.deepcopy(module), *_moved((given.args, given.kwargs), "cpu"))
            exact = _run(module.double(), *_moved((given.args, given.kwargs), "cpu", wide=True))
        except RuntimeError as error:
            with pytest.raises(type(error)):
                _run(there, *_moved((given.args, given.kwargs), "neuron"))
            continue
        if mode == "compiled":
            torch.compiler.reset()
            there = torch.compile(there, backend="neuron")
        got = _run(there, *_moved((given.args, given.kwargs), "neuron"))
        named = {n.replace("_orig_mod.", ""): t for n, t in got.items()}
        _compare(what, named, cpu, exact, dtype)
