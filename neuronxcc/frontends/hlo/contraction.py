"""Products: dot, convolution; and the batch normalisations."""

from __future__ import annotations

from neuronxcc.frontends.hlo.errors import invalid, unsupported
from neuronxcc.frontends.hlo.site import Handler, Site, Value
from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node


def _dot(site: Site) -> Node:
    lhs, rhs = site.take(2)
    if site.proto.dot_sparsity:
        raise unsupported("dot with a sparse operand")
    dims, dtype = site.proto.dot_dimension_numbers, site.tensor_type.dtype
    if lhs.dtype is not rhs.dtype and DType.PRED not in (lhs.dtype, rhs.dtype):
        lhs, rhs = build.convert(lhs, dtype), build.convert(rhs, dtype)
    return build.dot_general(
        lhs,
        rhs,
        lhs_batch=dims.lhs_batch_dimensions,
        rhs_batch=dims.rhs_batch_dimensions,
        lhs_contract=dims.lhs_contracting_dimensions,
        rhs_contract=dims.rhs_contracting_dimensions,
        dtype=dtype,
    )


def _convolution(site: Site) -> Node:
    x, w = site.take(2)
    window, dims = site.proto.window.dimensions, site.proto.convolution_dimension_numbers
    if len(window) != len(dims.kernel_spatial_dimensions):
        raise invalid(f"convolution with a window of {len(window)} dimensions")
    reversed_ = [
        dims.kernel_spatial_dimensions[i] for i, d in enumerate(window) if d.window_reversal
    ]
    return build.convolution(
        x,
        build.reverse(w, reversed_) if reversed_ else w,
        strides=[d.stride or 1 for d in window],
        low=[d.padding_low for d in window],
        high=[d.padding_high for d in window],
        lhs_dilation=[d.base_dilation or 1 for d in window],
        rhs_dilation=[d.window_dilation or 1 for d in window],
        feature_group_count=site.proto.feature_group_count or 1,
        batch_group_count=site.proto.batch_group_count or 1,
        lhs_spec=(
            dims.input_batch_dimension,
            dims.input_feature_dimension,
            *dims.input_spatial_dimensions,
        ),
        rhs_spec=(
            dims.kernel_output_feature_dimension,
            dims.kernel_input_feature_dimension,
            *dims.kernel_spatial_dimensions,
        ),
        out_spec=(
            dims.output_batch_dimension,
            dims.output_feature_dimension,
            *dims.output_spatial_dimensions,
        ),
        dtype=site.tensor_type.dtype,
    )


# ---- batch normalisation ------------------------------------------------------------------------


def _along(site: Site, x: Node, vector: Node) -> Node:
    """A value per feature, for every element."""
    feature = site.proto.feature_index
    if not 0 <= feature < x.type.rank or vector.shape != (x.shape[feature],):
        raise invalid(f"{site.opcode}: {vector.type} along dimension {feature} of {x.type}")
    return build.broadcast_in_dim(vector, x.shape, (feature,))


def _mean(site: Site, x: Node) -> Node:
    others = [d for d in range(x.type.rank) if d != site.proto.feature_index]
    count = x.type.size // max(x.shape[site.proto.feature_index], 1)
    return build.divide(build.reduce(x, "add", others), float(count))


def _deviation(site: Site, variance: Node) -> Node:
    """1 / sqrt(variance + epsilon)."""
    return build.rsqrt(build.add(variance, site.proto.epsilon))


def _normalise(site: Site, x: Node, scale: Node, offset: Node, mean: Node, variance: Node) -> Node:
    centred = build.subtract(x, _along(site, x, mean))
    factor = build.multiply(_deviation(site, variance), scale)
    return build.add(build.multiply(centred, _along(site, x, factor)), _along(site, x, offset))


def _batch_norm_inference(site: Site) -> Node:
    return _normalise(site, *site.take(5))


def _batch_norm_training(site: Site) -> Value:
    x, scale, offset = site.take(3)
    mean = _mean(site, x)
    centred = build.subtract(x, _along(site, x, mean))
    variance = _mean(site, build.multiply(centred, centred))
    return _normalise(site, x, scale, offset, mean, variance), mean, variance


def _batch_norm_grad(site: Site) -> Value:
    x, scale, mean, variance, grad = site.take(5)
    deviation = _deviation(site, variance)
    normal = build.multiply(build.subtract(x, _along(site, x, mean)), _along(site, x, deviation))
    others = [d for d in range(x.type.rank) if d != site.proto.feature_index]
    grad_offset = build.reduce(grad, "add", others)
    grad_scale = build.reduce(build.multiply(grad, normal), "add", others)
    pulled = build.subtract(
        build.subtract(grad, _along(site, x, _mean(site, grad))),
        build.multiply(normal, _along(site, x, _mean(site, build.multiply(grad, normal)))),
    )
    grad_x = build.multiply(pulled, _along(site, x, build.multiply(scale, deviation)))
    return grad_x, grad_scale, grad_offset


TABLE: dict[str, Handler] = {
    "dot": _dot,
    "convolution": _convolution,
    "batch-norm-inference": _batch_norm_inference,
    "batch-norm-training": _batch_norm_training,
    "batch-norm-grad": _batch_norm_grad,
}
