"""Custom calls: the targets of Neuron, and what XLA's front ends write as one.

Source of the names: the error pages EHCA005 and EVRF036 to EVRF058 of the Neuron documentation.
"""

from __future__ import annotations

import math

from neuronxcc.frontends.hlo.errors import RefusedError, invalid
from neuronxcc.frontends.hlo.graph_call import GRAPH_TARGET, graph_call
from neuronxcc.frontends.hlo.site import Handler, Site, Value
from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op


def _wide(x: Node) -> Node:
    return build.convert(x, DType.F32) if x.dtype in (DType.BF16, DType.F16) else x


def _erf(site: Site) -> Node:
    return build.erf(site.one)


def _gelu_factor(x: Node) -> Node:
    """The distribution function of a normal variable."""
    return build.multiply(build.add(build.erf(build.multiply(x, math.sqrt(0.5))), 1.0), 0.5)


def _gelu(site: Site) -> Node:
    x = _wide(site.one)
    return build.convert(build.multiply(x, _gelu_factor(x)), site.tensor_type.dtype)


def _gelu_tanh(site: Site) -> Node:
    x = _wide(site.one)
    cube = build.multiply(build.multiply(x, x), x)
    inner = build.multiply(build.add(x, build.multiply(cube, 0.044715)), math.sqrt(2 / math.pi))
    half = build.multiply(x, 0.5)
    result = build.multiply(half, build.add(build.tanh(inner), 1.0))
    return build.convert(result, site.tensor_type.dtype)


def _gelu_backward(site: Site) -> Node:
    grad, x = map(_wide, site.take(2))
    density = build.multiply(
        build.exp(build.multiply(build.multiply(x, x), -0.5)), 1 / math.sqrt(2 * math.pi)
    )
    slope = build.add(_gelu_factor(x), build.multiply(x, density))
    return build.convert(build.multiply(grad, slope), site.tensor_type.dtype)


def _silu(site: Site) -> Node:
    x = _wide(site.one)
    return build.convert(build.multiply(x, build.logistic(x)), site.tensor_type.dtype)


def _silu_backward(site: Site) -> Node:
    grad, x = map(_wide, site.take(2))
    s = build.logistic(x)
    one = build.full_like(x, 1.0)
    slope = build.multiply(s, build.add(build.multiply(x, build.subtract(one, s)), 1.0))
    return build.convert(build.multiply(grad, slope), site.tensor_type.dtype)


def _softmax_of(x: Node) -> Node:
    last = x.type.rank - 1
    peak = build.broadcast_to(build.reduce(x, "max", last, keep=True), x.shape)
    raised = build.exp(build.subtract(x, peak))
    total = build.broadcast_to(build.reduce(raised, "add", last, keep=True), x.shape)
    return build.divide(raised, total)


def _softmax(site: Site) -> Node:
    return build.convert(_softmax_of(_wide(site.one)), site.tensor_type.dtype)


def _softmax_backward(site: Site) -> Node:
    grad, y = map(_wide, site.take(2))
    weighted = build.multiply(grad, y)
    total = build.reduce(weighted, "add", y.type.rank - 1, keep=True)
    result = build.subtract(weighted, build.multiply(y, build.broadcast_to(total, y.shape)))
    return build.convert(result, site.tensor_type.dtype)


def _rms_norm(site: Site) -> Node:
    """X / sqrt(mean(x * x) + epsilon) * weight along a dimension, which stands in the config."""
    given, weight, epsilon = site.take(3)
    x, dim = _wide(given), _dimension(site, given)
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


def _pass_on(site: Site) -> Value:
    """Marks of the framework: the operands are the results."""
    if isinstance(site.type, tuple) and len(site.operands) != 1:
        return site.operands
    if len(site.operands) == 1:
        value = site.operands[0]
        return (value,) if isinstance(site.type, tuple) and isinstance(value, Node) else value
    raise invalid(f"custom-call {site.proto.custom_call_target} takes what it returns")


def _arg(kind: str) -> Handler:
    def handle(site: Site) -> Value:
        x = site.tensors[0]
        declared = site.type[-1] if isinstance(site.type, tuple) else site.type
        if not isinstance(declared, type(x.type)):
            raise invalid("the position of an extreme is a tensor")
        dim = _dimension(site, x)
        keep = len(declared.shape) == x.type.rank
        where = build.arg_reduce(x, kind, dim, declared.dtype, keep=keep)
        if not isinstance(site.type, tuple):
            return where
        return build.reduce(x, kind, dim, keep=keep), where

    return handle


def _dimension(site: Site, x: Node) -> int:
    text = site.proto.backend_config.decode("utf-8", "replace").strip()
    try:
        dim = int(text or -1)
    except ValueError:
        raise invalid(f"backend_config {text[:80]!r} is no dimension") from None
    return build.axes(Op.ARG_REDUCE, dim, x.type.rank)[0]


def _topk(site: Site) -> Value:
    x = site.tensors[0]
    if not isinstance(site.type, tuple) or len(site.type) != 2:
        raise invalid("TopK returns values and positions")
    values, where = site.type
    if values is None or where is None or isinstance(values, tuple) or isinstance(where, tuple):
        raise invalid("TopK returns two tensors")
    best, place = build.results(build.topk(x, values.shape[-1] if values.shape else 0))
    return best, build.convert(place, where.dtype)


TARGETS: dict[str, Handler] = {
    "AwsNeuronErf": _erf,
    "mhlo.erf": _erf,
    "AwsNeuronGelu": _gelu,
    "AwsNeuronGeluApprxTanh": _gelu_tanh,
    "AwsNeuronGeluBackward": _gelu_backward,
    "AwsNeuronSilu": _silu,
    "AwsNeuronSiluBackward": _silu_backward,
    "AwsNeuronRmsNorm": _rms_norm,
    "AwsNeuronSoftmax": _softmax,
    "AwsNeuronSoftmaxBackward": _softmax_backward,
    "AwsNeuronArgMax": _arg("max"),
    "AwsNeuronArgMin": _arg("min"),
    "AwsNeuronTopK": _topk,
    "TopK": _topk,
    "AwsNeuronModuleMarkerStart-Forward": _pass_on,
    "AwsNeuronModuleMarkerStart-Backward": _pass_on,
    "AwsNeuronModuleMarkerEnd-Forward": _pass_on,
    "AwsNeuronModuleMarkerEnd-Backward": _pass_on,
    "NeuronBoundaryMarker-Start": _pass_on,
    "NeuronBoundaryMarker-End": _pass_on,
    "AwsNeuronLNCShardingConstraint": _pass_on,
    "AwsNeuronTransferWithStaticRing": _pass_on,
    "Sharding": _pass_on,
    "SPMDFullToShardShape": _pass_on,
    "SPMDShardToFullShape": _pass_on,
    GRAPH_TARGET: graph_call,
}


def _custom_call(site: Site) -> Value:
    target = site.proto.custom_call_target
    handler = TARGETS.get(target)
    if handler is None:
        known = ", ".join(sorted(name for name in TARGETS if "Neuron" in name))
        raise RefusedError(
            "NCC_EHCA005",
            f"custom call instruction with a target name that is not recognized: '{target}'",
            f"use one of: {known}",
        )
    return handler(site)


TABLE: dict[str, Handler] = {"custom-call": _custom_call}
