"""The steps that fusion makes of nodes."""

from __future__ import annotations

from dataclasses import dataclass, field

from neuronxcc.ir.node import Node
from neuronxcc.lowering.fusion.cluster import Cluster, Storage
from neuronxcc.lowering.fusion.order import Region

# A tensor where it lies, or a copy that was made for one step.
Tensor = Node | Storage


@dataclass(eq=False)
class Opaque:
    """A step that is one node: a call, control flow. `outs`: where its results go, None: unused."""

    number: float
    node: Node
    operands: tuple[Tensor, ...]
    outs: tuple[Node | None, ...]


@dataclass(eq=False)
class Made:
    """An operand of a product that is computed while the product reads it.

    `by_columns`: the rows of the cluster are columns of the operand.
    """

    cluster: Cluster
    by_columns: bool


@dataclass(eq=False)
class Product:
    """A matrix product and what follows it, which `cluster` computes from its tiles."""

    number: float
    cluster: Cluster
    region: Region
    operands: list[Tensor | Made] = field(default_factory=list)


@dataclass(eq=False)
class Home:
    """Copies a storage to the parameter that is to have its content; runs last of all."""

    number: float
    storage: Storage


# Steps with greater numbers run earlier.
Unit = Cluster | Opaque | Product | Home
