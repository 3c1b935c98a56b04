"""Choices among numbered things, `multinomial` and `randperm`, and what else has an effect.

Whoever waits an exponential time of rate p comes first with probability p / (sum of all p). So the
largest p / q, with q drawn from the exponential distribution of rate 1, is a choice with these
weights, and the n largest ones are n choices without replacement. An order of equal weights is a
permutation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import nki.isa as nisa
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from nki.device.along import MOST_SORTED, ordered
from nki.device.emitter import Emitter, NoLoweringError, Value, chunks, require_form
from nki.device.groups import Group
from nki.device.lines import (
    PART,
    Line,
    Spread,
    extreme_of_spread,
    first_place,
    line,
    line_operand,
    loaded_spread,
    spread_of,
    wide_tile,
)
from nki.device.random import exponential, run_random, seed_of_core, uniform
from nki.device.rows import blocks_of
from nki.device.transfers import load, store
from nki.device.views import contiguous
from nki.tensor import NkiTensor

__all__ = ["run_draw"]

Tensors = Mapping[Node, NkiTensor]

_LEAST: Final = 2.0**-25  # half of the smallest number that is drawn: nothing is divided by 0


def run_draw(e: Emitter, group: Group, inputs: Tensors, outputs: Tensors) -> None:
    """Issue the instructions of a call that draws random numbers."""
    name = group.nodes[0]["target"].partition("::")[2].partition(".")[0]
    _CHOICES.get(name, run_random)(e, group, inputs, outputs)


def _weighed(e: Emitter, source: Line, row: int, column: int) -> NkiTensor:
    """Return p / q for the block's weights p, with new q: 0 where p is 0."""
    return _over_waits(e, wide_tile(e, load(e, source.leaf, row, column)))


def _over_waits(e: Emitter, weights: NkiTensor) -> NkiTensor:
    """Return weights divided by waiting times that are drawn."""
    p = Value(weights, DType.F32)
    q = e.binary("maximum", exponential(e), _LEAST, DType.F32)
    return e.binary("multiply", p, e.activation("reciprocal", q, DType.F32), DType.F32).tile


def _choose(e: Emitter, group: Group, inputs: Tensors, outputs: Tensors) -> None:
    """`multinomial`: for each row of weights the numbers of columns."""
    (call,) = group.nodes
    e.at(call)
    count: int = call["args"][1]
    replaced = bool(call["args"][2]) if len(call["args"]) > 2 else False
    (use,) = group.uses[call]
    source = line_operand(inputs, use, len(use.view.shape) - 1)
    one_by_one = replaced or count == 1
    if not one_by_one and source.columns > MOST_SORTED:
        raise NoLoweringError(
            f"{count} of {source.columns} are chosen without replacement; the searches take "
            f"{MOST_SORTED}"
        )
    seed_of_core(e)
    spread = spread_of(source) if one_by_one else None
    for node in outputs:
        require_form(node.dtype)
        shape = node.shape
        target = line(outputs[node], node.dtype, contiguous(shape), len(shape) - 1)
        if spread is not None:
            _choose_spread(e, source, spread, target, count)
            continue
        for row, partitions in e.share(blocks_of(source.rows)):
            e.partitions = partitions
            if one_by_one:
                for number in range(count):
                    place = _chosen(e, source, row)
                    e.columns = 1
                    store(e, target.leaf, Value(place, DType.F32, vector=True), row, number)
                continue
            e.columns = source.columns
            places = ordered(e, _weighed(e, source, row, 0), count, largest=True)
            e.columns = count
            found = e.copied(Value(places, DType.U32), node.dtype)
            store(e, target.leaf, found, row, 0)


def _choose_spread(e: Emitter, source: Line, spread: Spread, target: Line, count: int) -> None:
    """Choose from few and long rows, each of which lies over several partitions."""
    if e.core:
        return
    weights = loaded_spread(e, source, spread, 0.0)
    for number in range(count):
        e.partitions, e.columns = spread.rows * spread.parts, spread.width
        place = extreme_of_spread(e, "maximum", _over_waits(e, weights), spread)
        store(e, target.leaf, Value(place, DType.F32, vector=True), 0, number)


def _chosen(e: Emitter, source: Line, row: int) -> NkiTensor:
    """Return the column of the largest p / q of each row, part by part: (partitions, 1)."""
    best: tuple[NkiTensor, NkiTensor] | None = None
    for column, columns in chunks(source.columns, PART):
        e.columns = columns
        weighed = _weighed(e, source, row, column)
        most = e.tile(1, "float32")
        nisa.tensor_reduce(most, op="maximum", data=weighed, axis=(1,))
        place = first_place(e, weighed, most, column)
        if best is not None:
            earlier = e.tile(1, "uint8")
            nisa.tensor_tensor(earlier, best[0], most, op="greater_equal")
            nisa.tensor_copy_predicated(most, best[0], earlier)
            nisa.tensor_copy_predicated(place, best[1], earlier)
        best = most, place
    if best is None:
        raise NoLoweringError("nothing is there to choose from")
    return best[1]


def _permute(e: Emitter, group: Group, inputs: Tensors, outputs: Tensors) -> None:
    """`randperm`: the order of as many random numbers."""
    del inputs
    (call,) = group.nodes
    e.at(call)
    for node in outputs:
        require_form(node.dtype)
        count = node.type.size
        if count > MOST_SORTED:
            raise NoLoweringError(f"{count} numbers are permuted; the searches take {MOST_SORTED}")
        target = line(outputs[node], node.dtype, contiguous(node.shape), 0)
        for row, partitions in e.share(blocks_of(1)):
            e.partitions, e.columns = partitions, count
            places = ordered(e, uniform(e).tile, count, largest=True)
            store(e, target.leaf, e.copied(Value(places, DType.U32), node.dtype), row, 0)


def _checked(e: Emitter, group: Group, inputs: Tensors, outputs: Tensors) -> None:
    """A check of values, which has an effect and a place in an order as draws have.

    The host looks at them: the core has the 0 that says that all are right.
    """
    del inputs
    e.at(group.nodes[0])
    for node in outputs:
        target = line(outputs[node], node.dtype, contiguous((1, node.type.size)), 1)
        for row, partitions in e.share(blocks_of(1)):
            e.partitions, e.columns = partitions, node.type.size
            store(e, target.leaf, e.copied(0, node.dtype), row, 0)


_CHOICES: Final[Mapping[str, Callable[[Emitter, Group, Tensors, Tensors], None]]] = {
    "check_factorization": _checked,
    "check_noted_values": _checked,
    "check_values": _checked,
    "multinomial": _choose,
    "randperm": _permute,
}
