"""A model file in any form that the compiler reads, checked against the target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from neuronxcc.frontends.hlo import HloError, Imported, import_hlo
from neuronxcc.frontends.stablehlo import is_stablehlo, to_hlo
from neuronxcc.ir.gaps import gaps
from neuronxcc.ir.graph import Graph
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.verify import called_graphs
from neuronxcc.options import Options

#: Operators -> their names in --implicit-integer-downcast.
_DOWNCASTS: dict[Op, str] = {
    Op.DOT_GENERAL: "dot",
    Op.CONVOLUTION: "dot",
    Op.SCATTER: "scatter",
    Op.ALL_REDUCE: "all_reduce",
    Op.REDUCE_SCATTER: "reduce_scatter",
    Op.POWER: "pow",
}


@dataclass(frozen=True, slots=True)
class Model:
    """A model that a target takes.

    Attributes:
        imported: Its tensor IR.
        warnings: What the target computes with loss, as texts with codes.
    """

    imported: Imported
    warnings: tuple[str, ...]


def load_model(content: bytes, options: Options) -> Model:
    """Read a model and check that the target of the options takes it.

    Args:
        content: HLO protobuf, StableHLO text or bytecode.
        options: Of the compilation.

    Raises:
        HloError: It is none of these, damaged, or not supported on the target.
    """
    content = to_hlo(content) if is_stablehlo(content) else content
    imported = import_hlo(content, options.max_instructions)
    return Model(imported, tuple(_checked(imported, options)))


def _checked(imported: Imported, options: Options) -> Iterator[str]:
    """Texts of the lossy operators that the options allow.

    Raises:
        HloError: Something that the target doesn't have, or a loss that the options forbid.
    """
    for note, place in imported.notes:
        if note.refused_before_trn3 and options.target == "trn3":
            continue
        told = HloError(note.code, note.text, note.remedy, place)
        if note.refused_before_trn3:
            raise told
        yield str(told)
    allowed, said = options.integer_downcasts, set()
    for node in _all_nodes(imported.graph, set()):
        for gap in gaps(node, options.target):
            if gap.code == "NCC_EVRF051" and options.unsafe_fp8:
                continue
            where = imported.where.get(node)
            error = HloError(gap.code, f"{gap.text} ({node.op.value})", gap.remedy, where)
            if not (gap.lossy and _DOWNCASTS[node.op] in allowed):
                raise error
            text = str(error)
            if text not in said:
                said.add(text)
                yield text


def _all_nodes(graph: Graph, done: set[int]) -> Iterator[Node]:
    for node in (*graph.params, *graph.nodes()):
        if id(node) in done:
            continue
        done.add(id(node))
        yield node
        for inner in called_graphs(node):
            yield from _all_nodes(inner, done)
