"""Operators that a NeuronCore has and that ATen's kernels execute for us: no formula here."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from torch_neuronx.dynamo.decompositions import WHOLE
from torch_neuronx.dynamo.dtypes import tensor_type
from torch_neuronx.dynamo.registry import Context, flat, lowers

aten = torch.ops.aten

# Special functions that XLA expands, pooling with windows that a tensor chooses, reductions over
# segments: results have static shapes, and `torch_neuronx.ops` says that a NeuronCore has them.
CALLED: tuple[OpOverload, ...] = (
    aten.i0.default,
    aten.special_i0e.default,
    aten.special_i1.default,
    aten.special_i1e.default,
    aten.special_ndtri.default,
    aten.special_log_ndtr.default,
    aten.special_erfcx.default,
    aten.special_zeta.default,
    aten.special_zeta.self_scalar,
    aten.special_zeta.other_scalar,
    aten.polygamma.default,
    aten.adaptive_max_pool2d.default,
    aten.adaptive_max_pool2d_backward.default,
    aten.adaptive_max_pool3d.default,
    aten.adaptive_max_pool3d_backward.default,
    aten.fractional_max_pool2d.default,
    aten.fractional_max_pool2d_backward.default,
    aten.fractional_max_pool3d.default,
    aten.fractional_max_pool3d_backward.default,
    aten.grid_sampler_3d.default,
    aten.grid_sampler_3d_backward.default,
    aten.grid_sampler_2d_backward.default,
    aten._upsample_bilinear2d_aa.default,
    aten._upsample_bilinear2d_aa_backward.default,
    aten._upsample_bicubic2d_aa.default,
    aten._upsample_bicubic2d_aa_backward.default,
    aten._embedding_bag_backward.default,
    aten._embedding_bag_dense_backward.default,
    aten._embedding_bag_per_sample_weights_backward.default,
    aten.segment_reduce.default,
    aten._segment_reduce_backward.default,
    aten.histogram.bin_ct,
    aten.histogram.bins_tensor,
    aten._histogramdd_bin_edges.default,
    aten._histogramdd_from_bin_cts.default,
    aten._histogramdd_from_bin_tensors.default,
    aten.nonzero_static.default,
)


def called(cx: Context, *args: Any, device: bool = False, **kwargs: Any) -> Any:
    """Call the operator of the node as it is; `device` for one that the device has itself."""
    target = cx.fx.target
    assert isinstance(target, OpOverload)
    if isinstance(cx.value, torch.Tensor):
        return cx.call(target, args, kwargs, device=device)[0]
    # Results that nobody takes are left to the operator: PyTorch's fake kernels guess some shapes.
    taken = {user.args[1] for user in cx.fx.users}
    values = flat(cx.value)
    wanted = [i for i, v in enumerate(values) if isinstance(v, torch.Tensor) and i in taken]
    types = [tensor_type(values[i]) for i in wanted]
    outs = [wanted.index(i) if i in wanted else None for i in range(len(values))]
    results = cx.call(target, args, kwargs, types=types, outs=outs, device=device)
    return tuple(None if o is None else results[o] for o in outs)


lowers(*CALLED, *WHOLE)(called)
