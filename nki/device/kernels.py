"""The kernels of groups, by kind: the table that says what has a device lowering."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from neuronxcc.ir.node import Node
from nki.device.along import run_arg_reduce, run_cumulative, run_sort, run_topk
from nki.device.choices import run_draw
from nki.device.convolutions import run_convolution
from nki.device.emitter import Emitter, NoLoweringError
from nki.device.groups import Group
from nki.device.indexed import run_gather
from nki.device.movement import run_concatenate, run_dynamic, run_iota, run_move, run_pad
from nki.device.products import run_product
from nki.device.rows import run_rows
from nki.device.scattered import run_scatter
from nki.device.windows import run_reduce_window, run_select_and_scatter
from nki.tensor import NkiTensor

__all__ = ["KERNELS", "ONE_CORE", "run_group"]

Run = Callable[[Emitter, Group, Mapping[Node, NkiTensor], Mapping[Node, NkiTensor]], None]

#: By `Group.kind`.
KERNELS: Final[Mapping[str, Run]] = {
    "rows": run_rows,
    "product": run_product,
    "move": run_move,
    "concatenate": run_concatenate,
    "pad": run_pad,
    "dynamic_slice": run_dynamic,
    "dynamic_update_slice": run_dynamic,
    "iota": run_iota,
    "cumulative": run_cumulative,
    "arg_reduce": run_arg_reduce,
    "sort": run_sort,
    "topk": run_topk,
    "reduce_window": run_reduce_window,
    "select_and_scatter": run_select_and_scatter,
    "gather": run_gather,
    "scatter": run_scatter,
    "convolution": run_convolution,
    "random": run_draw,
}


#: Kernels that one core runs alone: they write elements twice, in an order that two cores would not
#: keep, or there is too little to do.
ONE_CORE: Final = frozenset({"pad", "dynamic_slice", "dynamic_update_slice", "iota", "scatter"})


def run_group(
    e: Emitter, group: Group, inputs: Mapping[Node, Any], outputs: Mapping[Node, Any]
) -> None:
    """Issue the instructions of a group.

    Args:
        e: the emitter.
        group: what to compute.
        inputs: tensors in HBM of what comes from elsewhere.
        outputs: tensors in HBM for the group's outputs.

    Raises:
        NoLoweringError: there are none for it.
    """
    run = KERNELS.get(group.kind)
    if run is None:
        raise NoLoweringError(f"{group.kind} has no lowering to instructions")
    if group.kind not in ONE_CORE:
        run(e, group, inputs, outputs)
        return
    cores = e.cores
    if not e.core:
        e.cores = 1
        run(e, group, inputs, outputs)
        e.cores = cores
