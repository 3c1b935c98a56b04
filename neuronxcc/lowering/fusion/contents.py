"""Contents of memory that changes: which step writes over which, and who has to read before."""

from __future__ import annotations

from collections.abc import Collection

from neuronxcc.ir.node import Node
from neuronxcc.lowering.classify import REDUCTIONS, origin
from neuronxcc.lowering.fusion import policy
from neuronxcc.lowering.fusion.cluster import Cluster, Storage
from neuronxcc.lowering.fusion.places import Places
from neuronxcc.lowering.geometry.chains import in_step
from neuronxcc.lowering.geometry.layout import contiguous


class Contents:
    """The contents that are overwritten in their place.

    Args:
        places: Where tensors lie.
        versions: The contents that an update writes over in their memory (`geometry.chains`).
    """

    def __init__(self, places: Places, versions: Collection[Node]) -> None:
        self.places = places
        self.versions = frozenset(versions)
        # The first step that writes over a content, by that content.
        self._overwritten: dict[Node, float] = {}
        self._rescued: set[Node] = set()  # views that are copied before that

    def overwrite(self, node: Node, number: float) -> None:
        """A step writes over the content that a node reads."""
        content = origin(node)
        if content in self.versions:
            self._overwritten[content] = number

    def is_stale(self, node: Node, cluster: Cluster) -> bool:
        """Return whether an operand that the cluster would read is overwritten in its place.

        The cluster that does it may read what it replaces, at the same points. A reduction is asked
        for all that it is computed from: better it is computed before than its operand stored.
        """
        if not self._overwritten:
            return False
        for src in policy.leaves(node) if node.op in REDUCTIONS else node.srcs:
            written = self._overwritten.get(origin(src), -2)
            if written > cluster.number:
                return True
            if written == cluster.number:
                update, at = cluster.update, cluster.writes[0].at
                if update is None or not in_step(update, src) or list(cluster.wants[node]) != [at]:
                    return True
        return False

    def rescue(self, node: Node) -> bool:
        """Have a view of what is overwritten copied before that, if its layout is free."""
        if node not in self._rescued:
            strides = contiguous(node.shape)
            if not self.places.claim_copy(node, strides):
                return False
            self.places.homes[node] = Storage("temp", node, node.shape, strides)
            self._rescued.add(node)
        return True
