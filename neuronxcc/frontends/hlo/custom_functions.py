"""Functions, normalisations and searches that Neuron's front ends write as custom calls.

Sources of operands and configs: `torch_neuronx/xla_impl/ops.py` as published by AWS (its copies in
public repositories), NKIPY's generator of HLO, and issue 1210 of aws-neuron-sdk.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from neuronxcc.frontends.hlo.errors import invalid
from neuronxcc.frontends.hlo.site import Handler, Site, Value
from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op


def _wide(x: Node) -> Node:
    return build.convert(x, DType.F32) if x.dtype in (DType.BF16, DType.F16) else x


def _erf(site: Site) -> Node:
    return build.erf(site.one)


def _gelu(site: Site) -> Node:
    x = _wide(site.one)
    return build.convert(build.multiply(x, build.normal_cdf(x)), site.tensor_type.dtype)


def _gelu_tanh(site: Site) -> Node:
    x = _wide(site.one)
    cube = build.multiply(build.multiply(x, x), x)
    inner = build.multiply(build.add(x, build.multiply(cube, 0.044715)), math.sqrt(2 / math.pi))
    half = build.multiply(x, 0.5)
    result = build.multiply(half, build.add(build.tanh(inner), 1.0))
    return build.convert(result, site.tensor_type.dtype)


def _slope_of(site: Site, slope: Callable[[Node], Node]) -> Node:
    """A derivative at the last operand, times the gradient if that is given in front of it.

    torch_neuronx gives `AwsNeuronGeluBackward` the input alone and multiplies itself; the form with
    a gradient is inferred from the softmax's.
    """
    *grads, x = map(_wide, site.tensors)
    if len(grads) > 1 or any(grad.shape != x.shape for grad in grads):
        raise invalid(f"{site.proto.custom_call_target} takes an input, or a gradient and an input")
    result = slope(x)
    for grad in grads:
        result = build.multiply(build.convert(grad, x.dtype), result)
    return build.convert(result, site.tensor_type.dtype)


def _gelu_slope(x: Node) -> Node:
    return build.add(build.normal_cdf(x), build.multiply(x, build.normal_pdf(x)))


def _silu(site: Site) -> Node:
    x = _wide(site.one)
    return build.convert(build.multiply(x, build.logistic(x)), site.tensor_type.dtype)


def _silu_slope(x: Node) -> Node:
    s = build.logistic(x)
    one = build.full_like(x, 1.0)
    return build.multiply(s, build.add(build.multiply(x, build.subtract(one, s)), 1.0))


def _softmax(site: Site) -> Node:
    """Along the dimension of the config, as torch_neuronx writes it; the last if there is none."""
    x = _wide(site.one)
    dim = dimension(site, x)
    peak = build.broadcast_to(build.reduce(x, "max", dim, keep=True), x.shape)
    raised = build.exp(build.subtract(x, peak))
    total = build.broadcast_to(build.reduce(raised, "add", dim, keep=True), x.shape)
    return build.convert(build.divide(raised, total), site.tensor_type.dtype)


def _softmax_backward(site: Site) -> Node:
    """From the gradient and the softmax's result, in this order, as torch_neuronx gives them."""
    grad, y = map(_wide, site.take(2))
    weighted = build.multiply(grad, y)
    total = build.reduce(weighted, "add", dimension(site, y), keep=True)
    result = build.subtract(weighted, build.multiply(y, build.broadcast_to(total, y.shape)))
    return build.convert(result, site.tensor_type.dtype)


def _rms_norm(site: Site) -> Node:
    """X / sqrt(mean(x * x) + epsilon) * weight along a dimension, which stands in the config."""
    given, weight, epsilon = site.take(3)
    x, dim = _wide(given), dimension(site, given)
    if weight.shape != (x.shape[dim],) or epsilon.shape:
        raise invalid(f"AwsNeuronRmsNorm of {given.type}: {weight.type}, {epsilon.type}")
    mean = build.divide(
        build.reduce(build.multiply(x, x), "add", dim, keep=True), float(max(x.shape[dim], 1))
    )
    scale = build.rsqrt(
        build.add(mean, build.broadcast_to(build.convert(epsilon, x.dtype), mean.shape))
    )
    normal = build.multiply(x, build.broadcast_to(scale, x.shape))
    weights = build.broadcast_in_dim(build.convert(weight, x.dtype), x.shape, (dim,))
    return build.convert(build.multiply(normal, weights), site.tensor_type.dtype)


def _arg(kind: str) -> Handler:
    def handle(site: Site) -> Value:
        x = site.tensors[0]
        declared = site.type[-1] if isinstance(site.type, tuple) else site.type
        if not isinstance(declared, type(x.type)):
            raise invalid("the position of an extreme is a tensor")
        dim = dimension(site, x)
        # torch_neuronx and issue 1210 of the SDK declare the dimension as gone.
        keep = len(declared.shape) == x.type.rank
        where = build.arg_reduce(x, kind, dim, declared.dtype, keep=keep)
        if not isinstance(site.type, tuple):
            return where
        return build.reduce(x, kind, dim, keep=keep), where

    return handle


def dimension(site: Site, x: Node) -> int:
    """The dimension that the config names as a decimal number; the last if it names none."""
    text = site.proto.backend_config.decode("utf-8", "replace").strip()
    try:
        dim = int(text or -1)
    except ValueError:
        raise invalid(f"backend_config {text[:80]!r} is no dimension") from None
    return build.axes(Op.ARG_REDUCE, dim, x.type.rank)[0]


def _topk(site: Site) -> Value:
    """Of the last dimension; the config is k, which the results' type tells as well."""
    x = site.one
    if not isinstance(site.type, tuple) or len(site.type) != 2:
        raise invalid("TopK returns values and positions")
    values, where = site.type
    if not isinstance(values, TensorType) or not isinstance(where, TensorType) or not values.shape:
        raise invalid("TopK returns two tensors")
    best, place = build.results(build.topk(x, values.shape[-1]))
    return best, build.convert(place, where.dtype)


TARGETS: dict[str, Handler] = {
    "AwsNeuronErf": _erf,
    "mhlo.erf": _erf,
    "AwsNeuronGelu": _gelu,
    "AwsNeuronGeluApprxTanh": _gelu_tanh,
    "AwsNeuronGeluBackward": lambda site: _slope_of(site, _gelu_slope),
    "AwsNeuronSilu": _silu,
    "AwsNeuronSiluBackward": lambda site: _slope_of(site, _silu_slope),
    "AwsNeuronRmsNorm": _rms_norm,
    "AwsNeuronSoftmax": _softmax,
    "AwsNeuronSoftmaxBackward": _softmax_backward,
    "AwsNeuronArgMax": _arg("max"),
    "AwsNeuronArgMin": _arg("min"),
    "AwsNeuronTopK": _topk,
    "TopK": _topk,
}
