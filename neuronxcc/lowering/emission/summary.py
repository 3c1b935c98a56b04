"""The summary of a program in its `meta`: who would execute each step, and how much it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.definition import Cost
from neuronxcc.ir.table import TABLE, Group
from neuronxcc.lowering.classify import VIEWS
from neuronxcc.lowering.emission.drafts import Draft, WaitDraft
from neuronxcc.lowering.fusion.cluster import Cluster
from neuronxcc.lowering.fusion.convolve import multiplications
from neuronxcc.lowering.fusion.units import Made, Opaque, Product
from neuronxcc.targets import Engine

# A step of several operators is carried out by the engine that comes last here.
_WEIGHT = {
    engine: weight
    for weight, engine in enumerate(
        (
            Engine.NONE,
            Engine.DMA,
            Engine.VECTOR,
            Engine.SCALAR,
            Engine.GPSIMD,
            Engine.TENSOR,
            Engine.CC,
            Engine.HOST,
        )
    )
}


_WAIT = {
    "engine": Engine.CC.value,
    "cost": Cost.FREE.value,
    "ops": ("wait",),
    "elements": 0,
    "products": 0,
    "bytes": 0,
}


def summary(drafts: Sequence[Draft]) -> tuple[dict[str, Any], ...]:
    """For every step what it is made of.

    Each has "engine" and "cost" (names in ir.table), "ops" (names of the operators, in the order in
    which they are computed), "elements" (points of its space), "products" (multiplications of a
    matrix product) and "bytes" (of memory read and written).
    """
    return tuple(map(_step, drafts))


def _step(draft: Draft) -> dict[str, Any]:
    unit = draft.unit
    if isinstance(draft, WaitDraft):
        return {**_WAIT}
    elements = products = 0
    nodes: Iterable[Node] = ()
    if isinstance(unit, Cluster):
        nodes, elements = unit.inside, unit.points(unit.order)
    elif isinstance(unit, Product):
        region = unit.region
        made = [o.cluster for o in unit.operands if isinstance(o, Made)]
        nodes = [node for cluster in (unit.cluster, *made) for node in cluster.inside]
        elements = region.batch * region.m * region.n
        products = multiplications(region)
    elif isinstance(unit, Opaque):
        nodes = (unit.node,)
        elements = sum(type_.size for type_ in unit.node.types)
    ops = [node.op for node in nodes if node.op not in Group.LEAF]
    ops.reverse()  # they were found consumers first
    ops = [op for op in ops if op not in VIEWS] or ops[:1]
    leading = max(ops, key=lambda op: _WEIGHT[TABLE[op].engine], default=None)
    scatters = isinstance(unit, Cluster) and unit.has_updates
    if leading is None or scatters:
        leading = Op.SCATTER if scatters else Op.TRANSPOSE  # it moves data
    place = TABLE[leading]
    return {
        "engine": place.engine.value,
        "cost": place.cost.value,
        "ops": tuple(op.value for op in ops),
        "elements": elements,
        "products": products,
        "bytes": sum(storage.nbytes for storage in (*draft.reads, *draft.writes)),
    }
