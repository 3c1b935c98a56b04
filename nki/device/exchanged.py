"""Collectives as instructions: what one rank asks the cores of collectives for.

A collective is one instruction of `nki.collectives`, recorded for one rank as a kernel of a user's
would record it, before the recordings of ranks are merged. It reads its operand in HBM and writes
its result there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import nki.collectives as ncc
import nki.language as nl
from neuronxcc.ir import build
from neuronxcc.ir.graph import Graph, Loc
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op
from neuronxcc.targets import Target
from nki.device.emitter import NoLoweringError, require_form
from nki.device.exchanges import COLLECTIVES
from nki.device.groups import Group
from nki.device.sections import Section
from nki.device.types import HELD, words
from nki.errors import NkiError
from nki.recorder import Recorder
from nki.recording import Recording

__all__ = ["exchange_section", "plain_collectives"]

_KINDS: Final[Mapping[str, Any]] = {"add": nl.add, "max": nl.maximum, "min": nl.minimum}


def plain_collectives(graph: Graph) -> Graph:
    """Return a graph whose collectives are NKI's: sums for means, along the first dimension."""

    def rule(node: Node) -> Node | None:
        if node.op not in _PLAIN or not node["group"]:
            return None  # () is all ranks, and of how many nobody says
        ranks = len(node["group"][0])
        if node.attrs.get("kind") == "avg":
            total = _like(node, node.srcs[0], node.type, kind="add")
            plain = rule(total) if node.op is Op.REDUCE_SCATTER else None
            return build.binary(Op.DIVIDE, plain or total, float(ranks))
        along = _PLAIN[node.op]
        if along is None or not any(node[key] for key in ("dim", "split_dim", "concat_dim")
                                    if key in node.attrs):  # fmt: skip
            return None
        return along(node, ranks)

    found = any(node.op in _PLAIN for node in graph.nodes())
    return graph.rewrite(rule) if found else graph


def _like(node: Node, x: Node, type_: TensorType, **attrs: Any) -> Node:
    return Node.make(node.op, (type_,), (x,), {**node.attrs, **attrs})


def _gathered(node: Node, ranks: int) -> Node:
    """Return an all-gather along a dimension: the parts one behind the other, then turned."""
    (x,), dim = node.srcs, node["dim"]
    lined = build.reshape(x, (1, *x.shape))
    made = _like(node, lined, TensorType(x.dtype, (ranks, *x.shape)), dim=0)
    return build.reshape(build.transpose(made, _moved(0, dim, len(x.shape) + 1)), node.shape)


def _scattered(node: Node, ranks: int) -> Node:
    """Return a reduce-scatter along a dimension: what each rank gets is put in a row before."""
    lined = _divided(node.srcs[0], node["dim"], ranks)
    made = _like(node, lined, TensorType(node.dtype, (1, *lined.shape[1:])), dim=0)
    return build.reshape(made, node.shape)


def _exchanged(node: Node, ranks: int) -> Node:
    """Return an all-to-all of two dimensions as one of the first, turned before and behind."""
    lined = _divided(node.srcs[0], node["split_dim"], ranks)
    made = _like(node, lined, lined.type, split_dim=0, concat_dim=0)
    order = _moved(0, node["concat_dim"], len(lined.shape))
    return build.reshape(build.transpose(made, order), node.shape)


def _divided(x: Node, dim: int, ranks: int) -> Node:
    """Return a tensor with the parts of a dimension as the first dimension of all."""
    parts = (*x.shape[:dim], ranks, x.shape[dim] // ranks, *x.shape[dim + 1 :])
    return build.transpose(build.reshape(x, parts), _moved(dim, 0, len(parts)))


def _moved(source: int, target: int, rank: int) -> tuple[int, ...]:
    """Return the order of dimensions in which one has another place."""
    order = [d for d in range(rank) if d != source]
    order.insert(target, source)
    return tuple(order)


_PLAIN: Final[Mapping[Op, Callable[[Node, int], Node] | None]] = {
    Op.ALL_REDUCE: None,
    Op.ALL_GATHER: _gathered,
    Op.REDUCE_SCATTER: _scattered,
    Op.ALL_TO_ALL: _exchanged,
}


def exchange_section(group: Group, target: Target, locs: Mapping[Node, Loc]) -> Section:
    """Return the section of a collective, which has one instruction, or the reason for none."""
    (node,) = group.nodes
    inputs = tuple(dict.fromkeys(use.source for use in group.uses[node]))
    known = {node: locs[node]} if node in locs else {}
    recording, reason, code = None, "", ""
    try:
        recording = _recorded(node, target, known.get(node))
    except NoLoweringError as error:
        reason, code = error.reason, error.code
    except NkiError as error:
        reason = f"{error.what} [{error.code}]"
    return Section(
        (node,), "collective", inputs, tuple(group.outputs), recording, reason, code, known,
        int(recording is not None),
    )  # fmt: skip


def _recorded(node: Node, target: Target, loc: Loc | None) -> Recording:
    issue = _issued(node)
    for type_ in (*node.srcs[0].types, *node.types):
        require_form(type_.dtype)
    groups: Sequence[Sequence[int]] = node["pairs" if node.op is Op.COLLECTIVE_PERMUTE else "group"]
    groups = groups or [[0]]  # all ranks of a job, which a program does not know
    ranks = [rank for group in groups for rank in group]
    made = Recorder(COLLECTIVES[node.op], target, rank=ranks[0], ranks=max(ranks) + 1)
    made.where = (loc.file, loc.line) if loc is not None else None
    with made.active():
        source, result = node.srcs[0], node
        width, kind = words(source.dtype), HELD[source.dtype]
        given = made.argument((max(1, source.type.size) * width,), kind, "arg0")
        size = max(1, result.type.size) * width
        written = nl.ndarray((size,), dtype=kind, buffer=nl.shared_hbm)
        issue([given], [written], groups)
        made.recording.results = (made.result(written),)
    return made.recording


def _issued(node: Node) -> Callable[[list[Any], list[Any], Any], None]:
    """Return what issues the instruction of a collective.

    Raises:
        NoLoweringError: NKI has none.
    """
    name = COLLECTIVES[node.op]
    if node.op is Op.COLLECTIVE_PERMUTE:
        return lambda srcs, dsts, pairs: ncc.collective_permute(
            srcs=srcs, dsts=dsts, source_target_pairs=pairs
        )
    if node.op is Op.COLLECTIVE_BROADCAST:
        raise NoLoweringError("NKI has no collective that sends one tensor to all ranks")
    if "send" in node.attrs:
        raise NoLoweringError("all_to_all of parts of different sizes")
    dims = [node[key] for key in ("dim", "split_dim", "concat_dim") if key in node.attrs]
    if any(dims):
        raise NoLoweringError(
            f"{name} along dimension {max(dims)}: NKI's collectives divide and join the first one"
        )
    options: dict[str, Any] = {"collective_dim": 0} if dims else {}
    if "kind" in node.attrs:
        if node["kind"] not in _KINDS:
            raise NoLoweringError(f"{name} by {node['kind']}: NKI's collectives add, or take the "
                                  "largest or smallest")  # fmt: skip
        if words(node.dtype) > 1:
            raise NoLoweringError(f"{name} of 64-bit integers: NKI's collectives add 32 bits")
        options["op"] = _KINDS[node["kind"]]
    function = getattr(ncc, name)
    return lambda srcs, dsts, groups: function(
        srcs=srcs, dsts=dsts, replica_group=ncc.ReplicaGroup(groups), **options
    )
