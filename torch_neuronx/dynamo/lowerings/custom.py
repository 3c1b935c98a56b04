"""Custom operators that write their arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from neuronxcc.ir.node import Node
from torch_neuronx.dynamo.functional import functional_operator
from torch_neuronx.dynamo.lowerings.collectives import all_gather, reduce_scatter
from torch_neuronx.dynamo.registry import Context, Lowering, flat, lowers

higher_order = torch.ops.higher_order
functional = torch.ops._c10d_functional

FILLING: dict[OpOverload, Lowering] = {
    functional.all_gather_into_tensor_out.default: all_gather,
    functional.reduce_scatter_tensor_out.default: reduce_scatter,
}


@lowers(higher_order.auto_functionalized_v2, higher_order.auto_functionalized)
def auto_functionalized(cx: Context, operator: Any, **kwargs: Any) -> Any:
    if not isinstance(operator, OpOverload):
        raise NotImplementedError(f"a mutating operator of kind {type(operator).__name__}")
    collective = FILLING.get(operator)
    if collective is not None:
        return _fill(cx, collective, **kwargs)
    operands = [v for v in flat(list(kwargs.values())) if isinstance(v, Node)]
    fakes = [
        n.meta["val"]
        for n in flat(list(cx.fx.kwargs.values()))
        if isinstance(n, torch.fx.Node) and isinstance(n.meta.get("val"), torch.Tensor)
    ]
    wrapper: Any = cx.fx.target
    target = functional_operator(wrapper, operator, kwargs, fakes, lambda v: isinstance(v, Node))
    cx.note_host_call(operator._name)
    results = iter(cx.call(target, (operands,), host=True, device=True, effect=True))
    if isinstance(cx.value, torch.Tensor):  # an operator that fills one tensor
        return next(results)
    return tuple(next(results) if isinstance(v, torch.Tensor) else None for v in flat(cx.value))


def _fill(cx: Context, lowering: Lowering, **kwargs: Any) -> Any:
    """A collective into a tensor that is given: that is its result, and the new value of `out`."""
    given = {name: v for name, v in kwargs.items() if name != "out" and not name.startswith("_")}
    result = lowering(cx, **given)
    return (result, result) if "out" in kwargs else result
