"""Which operators run together: groups, each of which becomes one kernel.

Operators of movement are access patterns of what they move (`nki.device.views`), unless there is no
such pattern; then they are groups of their own. Elementwise operators and reductions join the group
of their last operand as long as they see its rows and columns as it does. Groups are in the order
of their first nodes, and operands come from the same group or earlier ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from neuronxcc.ir.graph import Graph
from neuronxcc.ir.node import Node, is_uniform
from neuronxcc.ir.op import Op
from nki.device.calls import is_draw
from nki.device.fixed import NOTHING, Fixed
from nki.device.pointwise import POINTWISE
from nki.device.views import (
    MOVES,
    Sources,
    Use,
    View,
    collapsed,
    contiguous,
    inverted,
    moved,
    split,
)

__all__ = ["Group", "Space", "Use", "fused", "is_number", "kind_in", "uses_of"]


class Space(NamedTuple):
    """Positions that a group computes: rows over partitions, columns within each."""

    rows: int
    columns: int


@dataclass(eq=False)
class Group:
    """Operators that run together.

    Attributes:
        number: of the group, ascending in the order in which they run.
        kind: "rows", "product", or the name of the one operator.
        nodes: what is computed, operands first.
        spaces: the possible ways to see it as rows and columns.
        uses: of each node its operands.
        outputs: nodes that others, or the caller, need.
        lines: nodes that have one value for each column.
        stored: nodes that are others' elements in another order: what is stored, and where each of
            its elements comes to lie.
        once: it depends on weights and constants alone, and runs when a program is loaded.
    """

    number: float
    kind: str
    nodes: list[Node] = field(default_factory=list)
    spaces: list[Space] = field(default_factory=list)
    uses: dict[Node, tuple[Use, ...]] = field(default_factory=dict)
    outputs: list[Node] = field(default_factory=list)
    lines: set[Node] = field(default_factory=set)
    stored: dict[Node, Use] = field(default_factory=dict)
    once: bool = False

    def kind_of(self, node: Node, space: Space) -> str:
        """Return "column" for a value in each column; else see `kind_in`."""
        return "column" if node in self.lines else kind_in(node.shape, space)

    def inputs(self) -> Iterator[Node]:
        """Iterate over what comes from elsewhere, once each, numbers left out."""
        mine = set(self.nodes)
        seen: set[Node] = set()
        for node in self.nodes:
            for source, _ in self.uses[node]:
                if source not in mine and source not in seen and not is_number(source):
                    seen.add(source)
                    yield source


def is_number(node: Node) -> bool:
    """Return whether a node is a constant whose elements are all the same."""
    return node.op is Op.CONSTANT and is_uniform(node["literal"].array) and node.type.size > 0


def uses_of(sources: Sources, node: Node) -> tuple[Use, ...]:
    """Return the operands of a node that is computed."""
    return tuple(sources.of(src) for src in node.srcs)


# --- rows and columns ----------------------------------------------------------------------------


def kind_in(shape: tuple[int, ...], space: Space) -> str:
    """Return "full" for a value in all positions, "row" for one in each row, "" for others."""
    if split(contiguous(shape), *space) is not None:
        return "full"
    return "row" if math.prod(shape) == space.rows else ""


def _fits_use(  # noqa: PLR0911 - a case each
    use: Use, inner: str, space: Space
) -> bool:
    """Return whether a value of the group, of a kind, is used where it is."""
    view = use.view
    found = split(view, *space)
    rows, columns = space
    if inner == "column":
        if view.size == columns and found is None:
            return view.is_whole
        if found is None or view.offset:
            return False
        one_each = found[1] == ((columns, 1),) or (columns == 1 and found[1] == ())
        return one_each and all(stride == 0 for _, stride in found[0])
    if found is None:
        whole = collapsed(view.dims) in ((), ((rows, 1),)) and view.offset == 0
        return inner == "row" and view.size == rows and whole
    at_rows, at_columns = found
    if view.offset:
        return False
    if inner == "full":
        return (
            at_rows in ((), ((rows, columns),))
            and at_columns in ((), ((columns, 1),))
            and ((rows == 1 or at_rows != ()) and (columns == 1 or at_columns != ()))
        )
    one_each = at_rows == ((rows, 1),) or (rows == 1 and at_rows == ())
    return inner == "row" and one_each and all(stride == 0 for _, stride in at_columns)


def _reduces_columns(node: Node, view: View, space: Space) -> bool:
    """Return whether a reduction takes all columns and no rows."""
    count = 1
    for dim, size in enumerate(view.shape):
        if size > 1 and (dim in node["dims"]) != (count >= space.rows):
            return False
        count *= size
    return split(view, *space) is not None


def _fits(group: Group, node: Node, uses: tuple[Use, ...], space: Space) -> bool:
    mine = group.uses
    if any(use.source in group.stored for use in uses):
        return False  # in HBM only

    def fits(use: Use) -> bool:
        return use.source not in mine or _fits_use(use, group.kind_of(use.source, space), space)

    if node.op is Op.REDUCE:
        (use,) = uses
        if not _reduces_columns(node, use.view, space) or kind_in(use.view.shape, space) != "full":
            return False
        return fits(use)
    kind = group.kind_of(node, space)
    if kind == "column":
        # On its own: of other columns and of what is the same for all rows.
        return node.type.size == space.columns and all(
            use.source in group.lines or use.source not in mine for use in uses
        )
    return bool(kind) and all(fits(use) for use in uses)


def _prefixes(shape: tuple[int, ...]) -> list[Space]:
    """Return all ways to divide dimensions into rows and columns."""
    total, rows = math.prod(shape), 1
    found = [Space(1, total)]
    for size in shape:
        rows *= size
        if Space(rows, total // rows) not in found:
            found.append(Space(rows, total // rows))
    return found


# --- making groups -------------------------------------------------------------------------------

_THIN = 4  # rows: below that most partitions have nothing to do
_LONG = 1024  # columns


def _is_thin(space: Space) -> bool:
    """Return whether elementwise work is done faster by itself, with columns over partitions."""
    return space.rows <= _THIN and space.columns >= _LONG


_OPEN = frozenset({"rows", "product", "convolution"})  # kinds of groups that others join
_FIRST = 1 << 32  # more than there are groups
_MOST_NODES = 96  # of a group: recordings stay small, and tiles fit


class _Fuser:
    def __init__(
        self,
        graph: Graph,
        alone: frozenset[Node],
        fixed: Fixed,
        *,
        fuse: bool,
        whole: frozenset[Node],
    ) -> None:
        self.graph = graph
        self.fuse = fuse
        self.whole = whole
        self.alone = alone
        self.fixed = fixed
        self.sources = Sources(fixed.moved)
        self.groups: list[Group] = []
        self.owner: dict[Node, Group] = {}

    def run(self) -> list[Group]:
        for node in self.graph.nodes():
            self._node(node)
        for result in self.graph.results:
            if self.sources.of(result).source is not result:
                self._result(result)
        self._outputs()
        kept = [group for group in self.groups if group.nodes]
        self.groups = sorted(kept, key=lambda group: group.number)
        return self.groups

    def _node(self, node: Node) -> None:
        if node.op in (Op.PARAMETER, Op.CONSTANT) or not any(t.size for t in node.types):
            return
        if node.op is Op.GET:
            self.owner[node] = self.owner[node.srcs[0]]
            return
        if self.sources.of(node).source is not node:
            return
        if node.op is Op.RESHAPE and self._store_moved(node, self.sources.of(node.srcs[0])):
            return
        uses = uses_of(self.sources, node)
        if node.op in POINTWISE or node.op is Op.REDUCE:
            group = None if node in self.alone else self._home(node, uses)
            if group is not None and self._join(group, node, uses):
                return
            self._begin_rows(node, uses)
        elif node.op is Op.DOT_GENERAL:
            self._begin_product(node, uses)
        elif node.op is Op.CONVOLUTION:
            group = self._begin("convolution", node, uses)
            if tuple(node["out_spec"]) == tuple(range(len(node.shape))):
                rows = node.shape[0] * node.shape[1]
                group.spaces = [Space(rows, node.type.size // rows)]
        else:
            self._begin_other(node, uses)

    def _begin_other(self, node: Node, uses: tuple[Use, ...]) -> None:
        if node in self.fixed.moved:
            uses = (self._moved(node),)  # a copy: the node's operand as it sees it
        elif node in self.whole:
            uses = tuple(self._given(src) for src in node.srcs)
        kind = "random" if is_draw(node) else node.op.value
        self._begin("move" if node.op in MOVES else kind, node, uses)

    def _given(self, node: Node) -> Use:
        """Return an operand that has to lie in memory as it is: a copy where it is a view."""
        self._result(node)
        whole = node in self.owner and node is not self.sources.of(node).source
        return Use(node, contiguous(node.shape)) if whole else self.sources.of(node)

    def _moved(self, node: Node) -> Use:
        source, view = self.sources.of(node.srcs[0])
        made = moved(node, view)
        assert made is not None
        return Use(source, made)

    def _last(self, owners: set[Group]) -> Group | None:
        """Return the last group of operands, if nodes may join it."""
        last = max(owners, key=lambda group: group.number, default=None)
        if last is None or not self.fuse or last.kind not in _OPEN:
            return None
        closed = len(last.nodes) >= _MOST_NODES or last.nodes[0] in self.alone
        return None if closed else last

    def _home(self, node: Node, uses: tuple[Use, ...]) -> Group | None:
        """Return the group that a node may join: earlier operands' if the last one can move there.

        That is what bias and scales need, whose type is converted after the product has begun.
        """
        if not self.fuse:
            return None
        owners = self._owners(node, uses)
        ordered = sorted(owners, key=lambda group: -group.number)
        if not ordered:
            return None
        last = ordered[0]
        for group in ordered[1:]:
            closed = (
                group.nodes[0] in self.alone or len(group.nodes) + len(last.nodes) > _MOST_NODES
            )
            if group.kind not in _OPEN or closed:
                continue
            if group.kind == "product" and _is_thin(group.spaces[0]):
                continue
            if last.kind == "rows" and self._merged(last, group, node, uses):
                return group
            fits = any(_fits(group, node, uses, space) for space in group.spaces)
            if fits and group.kind != "rows" and self._moved_before(last, group):
                return group
        return self._last(owners)

    def _owners(self, node: Node, uses: tuple[Use, ...]) -> set[Group]:
        """Return the groups of operands that run as often as a node."""
        once = node in self.fixed.nodes
        found = {self.owner[use.source] for use in uses if use.source in self.owner}
        return {group for group in found if group.once is once}

    def _moved_before(self, last: Group, group: Group) -> bool:
        """Let a group, and what it needs, run before an earlier one that none of them needs."""
        moved_groups, stack = {last}, [last]
        while stack:
            for uses in stack.pop().uses.values():
                for owner in [self.owner[u.source] for u in uses if u.source in self.owner]:
                    if owner is group:
                        return False
                    if owner.number > group.number and owner not in moved_groups:
                        moved_groups.add(owner)
                        stack.append(owner)
        before = max((g.number for g in self.groups if g.number < group.number), default=-1.0)
        step = (group.number - before) / (len(moved_groups) + 1)
        for place, other in enumerate(sorted(moved_groups, key=lambda g: g.number)):
            other.number = before + step * (place + 1)
        return True

    def _merged(self, last: Group, group: Group, node: Node, uses: tuple[Use, ...]) -> bool:
        """Move the nodes of a group to an earlier one, if there they and the node fit."""
        for part in last.nodes:
            for use in last.uses[part]:
                owner = self.owner.get(use.source)
                if owner is not None and owner is not last and owner.number > group.number:
                    return False
        if last.stored:
            return False
        trial = Group(group.number, group.kind, list(group.nodes), list(group.spaces),
                      dict(group.uses), [], set(group.lines), dict(group.stored))  # fmt: skip
        if self._are_lines(last, group, uses):
            trial.lines |= set(last.nodes)
        for part, operands in [*last.uses.items(), (node, uses)]:
            spaces = [space for space in trial.spaces if _fits(trial, part, operands, space)]
            if not spaces or (part.op is Op.REDUCE and not self._reduces(trial, spaces[0])):
                return False
            trial.spaces = spaces
            trial.nodes.append(part)
            trial.uses[part] = operands
        for part in last.nodes:
            self._add(group, part, last.uses[part])
        group.spaces, group.lines = trial.spaces, trial.lines
        last.nodes.clear()
        last.uses.clear()
        return True

    def _are_lines(self, last: Group, group: Group, uses: tuple[Use, ...]) -> bool:
        """Return whether a group has a value for each column of another one."""
        columns = {space.columns for space in group.spaces}
        if len(columns) != 1 or any(part.op is Op.REDUCE for part in last.nodes):
            return False
        (count,) = columns
        if any(part.type.size not in (1, count) for part in last.nodes):
            return False
        space = group.spaces[0]
        return all(
            _fits_use(use, "column", space) for use in uses if self.owner.get(use.source) is last
        )

    def _store_moved(self, node: Node, use: Use) -> bool:
        """Let a group store a result in the order that a node has its elements in."""
        source, view = use
        group = self.owner.get(source)
        if group is None or not self.fuse or group.kind not in _OPEN or source not in group.uses:
            return False
        if source in group.lines or group.nodes[0] in self.alone:
            return False
        inverse = inverted(view, source.type.size)
        if inverse is None:
            return False
        spaces = [
            space
            for space in group.spaces
            if kind_in(source.shape, space) == "full" and split(inverse, *space) is not None
        ]
        if not spaces:
            return False
        group.spaces = spaces
        group.stored[node] = Use(source, inverse)
        self.owner[node] = group
        return True

    def _join(self, group: Group, node: Node, uses: tuple[Use, ...]) -> bool:
        spaces = [space for space in group.spaces if _fits(group, node, uses, space)]
        if not spaces:
            return False
        if node.op is Op.REDUCE and not self._reduces(group, spaces[0]):
            return False
        if group.kind == "product" and _is_thin(spaces[0]) and node.op is not Op.CONVERT:
            return False
        group.spaces = spaces
        self._add(group, node, uses)
        return True

    def _reduces(self, group: Group, space: Space) -> bool:
        """Return whether whole rows of a group are on the chip at once, or can be again."""
        if group.kind != "product" or space.columns > _MOST_COLUMNS:
            return group.kind == "rows"
        # All of the right operand of a matrix is on the chip meanwhile.
        node = group.nodes[0]
        depth = math.prod(node.srcs[0].shape[d] for d in node["lhs_contract"])
        size = -(-depth // 128) * space.columns * node.srcs[1].dtype.itemsize
        return bool(size <= _MOST_BYTES)

    def _begin(self, kind: str, node: Node, uses: tuple[Use, ...]) -> Group:
        once = node in self.fixed.nodes
        # What is fixed runs before all else, and never joins what is not.
        group = Group(len(self.groups) - (_FIRST if once else 0), kind, once=once)
        self.groups.append(group)
        self._add(group, node, uses)
        return group

    def _add(self, group: Group, node: Node, uses: tuple[Use, ...]) -> None:
        group.nodes.append(node)
        group.uses[node] = uses
        self.owner[node] = group

    def _begin_rows(self, node: Node, uses: tuple[Use, ...]) -> None:
        if node.op is Op.REDUCE:
            (use,) = uses
            kept = [d for d in range(len(use.view.shape)) if d not in node["dims"]]
            view = use.view.permuted([*kept, *node["dims"]])
            group = self._begin("rows", node, (Use(use.source, view),))
            group.spaces = [Space(node.type.size, view.size // max(1, node.type.size))]
            return
        group = self._begin("rows", node, uses)
        group.spaces = _prefixes(node.shape)

    def _begin_product(self, node: Node, uses: tuple[Use, ...]) -> None:
        group = self._begin("product", node, uses)
        rhs = node.srcs[1]
        used = {*node["rhs_batch"], *node["rhs_contract"]}
        columns = math.prod(n for d, n in enumerate(rhs.shape) if d not in used)
        group.spaces = [Space(node.type.size // columns, columns)]

    def _result(self, node: Node) -> None:
        """Compute a result that is a view of something else."""
        source, view = self.sources.of(node)
        if source is node or node in self.owner:
            return
        if view.is_whole and source in self.owner and view.size == source.type.size:
            return  # the same bytes
        if self._store_moved(node, Use(source, view)):
            return
        self._begin("move", node, (Use(source, view),))

    def _outputs(self) -> None:
        wanted: dict[Node, None] = {}
        for group in self.groups:
            for node in group.nodes:
                for use in group.uses[node]:
                    owner = self.owner.get(use.source)
                    if owner is not None and owner is not group:
                        wanted[use.source] = None
        for result in self.graph.results:
            source = result if result in self.owner else self.sources.of(result).source
            if source in self.owner:
                wanted[source] = None
        for node in wanted:
            self.owner[node].outputs.append(node)


_MOST_BYTES = 64 * 1024  # of a partition for the right operand of such a product
_MOST_COLUMNS = 8192  # of a product whose rows are reduced while they are on the chip


def fused(
    graph: Graph,
    alone: frozenset[Node] = frozenset(),
    fixed: Fixed = NOTHING,
    *,
    fuse: bool = True,
    whole: frozenset[Node] = frozenset(),
) -> tuple[list[Group], Sources]:
    """Return the groups of a graph in order, and what its nodes are views of.

    Args:
        graph: verified.
        alone: nodes that are groups of their own.
        fixed: what is computed when a program is loaded.
        fuse: several operators may be in a group; else each is one of its own.
        whole: nodes that are groups of their own and take operands that lie in memory in order.
    """
    fuser = _Fuser(graph, alone, fixed, fuse=fuse, whole=whole)
    return fuser.run(), fuser.sources
