"""Custom operators that write their arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from neuronxcc.ir.node import Node
from torch_neuronx.dynamo.functional import functional_operator
from torch_neuronx.dynamo.registry import Context, flat, lowers

higher_order = torch.ops.higher_order


@lowers(higher_order.auto_functionalized_v2, higher_order.auto_functionalized)
def auto_functionalized(cx: Context, operator: Any, **kwargs: Any) -> Any:
    if not isinstance(operator, OpOverload):
        raise NotImplementedError(f"a mutating operator of kind {type(operator).__name__}")
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
    return tuple(next(results) if isinstance(v, torch.Tensor) else None for v in flat(cx.value))
