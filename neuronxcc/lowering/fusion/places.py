"""Where tensors lie: layouts, chosen by the first who minds, and storages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from neuronxcc.ir.graph import Graph
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.table import Group
from neuronxcc.lowering.classify import CALLS, CONTROL, VIEWS, origin
from neuronxcc.lowering.fusion.cluster import Storage
from neuronxcc.lowering.fusion.order import Region
from neuronxcc.lowering.geometry.layout import Layout, Strides, contiguous, unviewed, viewed


class Places:
    """Layouts and storages of nodes.

    Attributes:
        params: Storages of the parameters.
        storages: Of every stored node.
        layouts: Of nodes whose layout is decided.
        homes: Storages made before the nodes are visited that they are for: outputs, and new
            contents of parameters.
    """

    def __init__(
        self, graph: Graph, param_strides: Sequence[Strides], regions: Mapping[Node, Region]
    ) -> None:
        self.regions = regions
        self.params = [
            Storage("input", node, node.shape, tuple(strides), index=i)
            for i, (node, strides) in enumerate(zip(graph.params, param_strides, strict=True))
        ]
        self.storages = {storage.node: storage for storage in self.params}
        self.layouts = {storage.node: Layout(storage.strides) for storage in self.params}
        self.homes: dict[Node, Storage] = {}

    def claim(self, node: Node, strides: Strides) -> Node | None:
        """Decide the layout of a node, or of the node that it views, so that it has these strides.

        Returns the node whose layout is decided now; None if it cannot be, or was before.
        """
        wanted: Strides | None = strides
        while node.op in VIEWS:
            wanted = unviewed(node, wanted) if wanted is not None else None
            if wanted is None:
                return None
            node = node.srcs[0]
        if node in self.layouts or not self._flexible(node, wanted or ()):
            return None
        if any(n > 1 and s <= 0 for n, s in zip(node.shape, wanted or (), strict=True)):
            return None
        self.layouts[node] = Layout(wanted or ())
        return node

    def claim_copy(self, node: Node, strides: Strides) -> bool:
        """Decide that a view is copied to memory of its own with these strides, for all to read."""
        overlap = any(n > 1 and s <= 0 for n, s in zip(node.shape, strides, strict=True))
        if node.op not in VIEWS or node in self.layouts or overlap:
            return False
        self.layouts[node] = Layout(strides)
        return True

    def _flexible(self, node: Node, strides: Strides) -> bool:
        """Return whether a node may be given this layout."""
        if node.op in Group.LEAF:
            return False
        if node.op is Op.GET or node.op in CONTROL:
            owner = node.srcs[0] if node.op is Op.GET else node
            return owner.op in CALLS or strides == contiguous(node.shape)
        if node in self.regions:
            return self.regions[node].holds(node, strides)
        return node.op not in Group.COLLECTIVE or strides == contiguous(node.shape)

    def layout(self, node: Node) -> Layout:
        """Where a node's elements lie in its memory. From now on this is decided."""
        found = self.layouts.get(node)
        if found is None:
            if node.op in VIEWS:
                found = self._view_layout(node)
            elif node in self.regions:
                found = Layout(self.regions[node].strides[node])
            if found is None:
                found = Layout(contiguous(node.shape))
            self.layouts[node] = found
        return found

    def _view_layout(self, node: Node) -> Layout | None:
        """The layout of a view over its operand's memory; None if it has to be copied."""
        found = viewed(node, self.layout(node.srcs[0]))
        # PyTorch's tensors have no negative strides.
        return None if found is None or min(found.strides, default=0) < 0 else found

    def prefer(self, node: Node) -> None:
        """Give the origin of a view the layout in which the view is contiguous, if it is free."""
        base = origin(node)
        if base in self.layouts:
            return
        source = Layout(contiguous(base.shape))
        chain = [node]
        while chain[-1].srcs[0] is not base:
            chain.append(chain[-1].srcs[0])
        for view in reversed(chain):
            layout = viewed(view, source)
            if layout is None:
                self.claim(node, contiguous(node.shape))
                return
            source = layout

    def store(self, node: Node) -> tuple[Storage, Layout]:
        """Memory for a node."""
        layout = self.layout(node)
        storage = self.homes.get(node)
        if storage is None:
            storage = Storage("temp", node, node.shape, layout.strides)
        self.storages[node] = storage
        return storage, layout

    def is_view(self, node: Node) -> bool:
        """Return whether the memory of a VIEWS node is its operand's."""
        return node not in self.homes and self._view_layout(node) == self.layout(node)

    def place(self, node: Node) -> tuple[Storage, Layout]:
        """Where a node lies."""
        layout = self.layout(node)
        while node not in self.storages:
            node = node.srcs[0]
        return self.storages[node].resolve(), layout
