"""Updates of memory in place: the kernel that stores the updates, and the content before them."""

from __future__ import annotations

from collections.abc import Collection

from neuronxcc.ir.node import Node
from neuronxcc.lowering.classify import UPDATES, origin
from neuronxcc.lowering.fusion.cluster import Storage
from neuronxcc.lowering.fusion.contents import Contents
from neuronxcc.lowering.fusion.demands import Demands
from neuronxcc.lowering.fusion.loops import Loops
from neuronxcc.lowering.fusion.updates import update_write
from neuronxcc.lowering.geometry.chains import enclosed
from neuronxcc.lowering.geometry.layout import Layout, Strides, contiguous
from neuronxcc.lowering.geometry.sources import is_choice


class Updates:
    """Makes a cluster of every update.

    Args:
        demands: Of the steps made so far.
        contents: Told which are overwritten.
        loops: Computes updates that are choices between two values, where these are wanted.
        chained: Updates of a content that others read: done in place if at all possible.
    """

    def __init__(
        self, demands: Demands, contents: Contents, loops: Loops, chained: Collection[Node]
    ) -> None:
        self.demands = demands
        self.places = demands.places
        self.contents = contents
        self.loops = loops
        self._chained = frozenset(chained)
        # For updates inside of another's memory: the content that the memory needs before.
        self._old: dict[Node, tuple[Node, Storage, Strides]] = {}

    def visit(self, node: Node) -> None:
        """A scatter or dynamic update: over its operand's memory, which is filled before."""
        demands = self.demands
        if not demands.wanted(node):
            return
        plain = Layout(contiguous(node.shape))
        chained = node in self._chained or enclosed(node, plain) is not None
        free = node not in demands.required and not chained and is_choice(node)
        if free and self.loops.inlined(node, demands.demanders[node]):
            return
        storage, layout = self.places.store(node)
        old = self._old.pop(node, None) or (node.srcs[0], storage, layout.strides)
        if self._enclose(node, storage, layout, old):
            return
        cluster = demands.cluster(update=node)
        cluster.writes.append(update_write(node, cluster, storage, layout))
        self.contents.overwrite(old[0], cluster.number)
        demands.want(cluster, cluster.wants)
        self._copy_old(*old)

    def _enclose(
        self, node: Node, storage: Storage, layout: Layout, old: tuple[Node, Storage, Strides]
    ) -> bool:
        """Let the update of a part of a window do it in the memory of the whole."""
        found = enclosed(node, layout)
        if found is None or found[0] in self.places.layouts or found[0] in self.places.homes:
            return False
        inner, place = found
        self.places.layouts[inner] = place
        self.places.homes[inner] = storage
        self._old[inner] = old
        self.demands.require(inner, self.demands.number())
        return True

    def _copy_old(self, node: Node, storage: Storage, strides: Strides) -> None:
        """Give memory the content that is then updated; most often it turns out to be there."""
        if origin(node).op in UPDATES:
            self.places.claim(node, strides)
        self.demands.copy_into(node, storage, strides)
