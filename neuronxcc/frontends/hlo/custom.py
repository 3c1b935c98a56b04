"""Custom calls: the targets of Neuron, and what XLA's front ends write as one.

Source of the names: the error pages EHCA005 and EVRF036 to EVRF058 of the Neuron documentation.
What they take is told where they are imported.
"""

from __future__ import annotations

from neuronxcc.frontends.hlo import (
    custom_functions,
    custom_kernels,
    custom_microscale,
    custom_products,
    custom_resize,
    shards,
)
from neuronxcc.frontends.hlo.errors import RefusedError, invalid, unsupported
from neuronxcc.frontends.hlo.graph_call import GRAPH_TARGET, graph_call
from neuronxcc.frontends.hlo.site import Handler, Site, Value
from neuronxcc.ir.node import Node


def _pass_on(site: Site) -> Value:
    """Marks of the framework: the operands are the results."""
    if isinstance(site.type, tuple) and len(site.operands) != 1:
        return site.operands
    if len(site.operands) == 1:
        value = site.operands[0]
        return (value,) if isinstance(site.type, tuple) and isinstance(value, Node) else value
    raise invalid(f"custom-call {site.proto.custom_call_target} takes what it returns")


def _dropout_mask(_site: Site) -> Value:
    """The documentation has nothing but the name, and the meaning can't be guessed from types.

    Whether a number among the operands is the probability to keep or to drop decides everything.
    """
    raise unsupported(
        "custom call AwsNeuronDropoutMaskV1, of which no public document says what it takes",
        "draw the mask with rng-bit-generator or rng and a comparison",
    )


TARGETS: dict[str, Handler] = {
    **custom_functions.TARGETS,
    **custom_resize.TARGETS,
    **custom_products.TARGETS,
    **custom_microscale.TARGETS,
    **custom_kernels.TARGETS,
    "AwsNeuronDropoutMaskV1": _dropout_mask,
    "AwsNeuronModuleMarkerStart-Forward": _pass_on,
    "AwsNeuronModuleMarkerStart-Backward": _pass_on,
    "AwsNeuronModuleMarkerEnd-Forward": _pass_on,
    "AwsNeuronModuleMarkerEnd-Backward": _pass_on,
    "NeuronBoundaryMarker-Start": _pass_on,
    "NeuronBoundaryMarker-End": _pass_on,
    "AwsNeuronLNCShardingConstraint": _pass_on,
    "AwsNeuronTransferWithStaticRing": _pass_on,
    GRAPH_TARGET: graph_call,
    **shards.TARGETS,
}
#: Those of the documentation, as far as they have a public form.
DOCUMENTED = tuple(
    sorted(
        name
        for name in TARGETS
        if name.startswith(("AwsNeuron", "NeuronBoundary", "Resize", "QuantizeMX", "__op$"))
    )
)


def _custom_call(site: Site) -> Value:
    target = site.proto.custom_call_target
    handler = TARGETS.get(target)
    if handler is None:
        raise RefusedError(
            "NCC_EHCA005",
            f"custom call instruction with a target name that is not recognized: '{target[:200]}'",
            f"use one of: {', '.join(DOCUMENTED)}",
        )
    return handler(site)


TABLE: dict[str, Handler] = {"custom-call": _custom_call}
