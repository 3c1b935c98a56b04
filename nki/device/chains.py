"""Chains: groups that become one kernel, so that what is between them stays in SBUF.

Only work row by row and products are in chains. Physical cores share a chain by its rows, each with
the tiles of its own: what another core has computed is not in this one's SBUF, so that a chain ends
before a group that needs rows of another core, as attention needs all keys. A graph of equal layers
is cut where its layers are, so that equal chains are recorded once.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from neuronxcc.ir.node import Node
from nki.device.emitter import Emitter
from nki.device.groups import Group
from nki.device.kernels import run_group
from nki.device.products import Product
from nki.device.resident import Resident
from nki.tensor import NkiTensor

__all__ = [
    "Chain",
    "chains_of",
    "cut_of",
    "inner_of",
    "neighbours",
    "pairs_of",
    "residents_of",
    "run_chain",
]

Chain = tuple[Group, ...]

_KINDS: Final = frozenset({"rows", "product"})
_MOST_GROUPS: Final = 16
_LEAST_LAYER: Final = 4  # groups
_MOST_BYTES: Final = 120 * 1024  # of a partition for what stays, at any time


def chains_of(groups: Sequence[Group], keys: Sequence[Any], *, chained: bool) -> list[Chain]:
    """Return chains in the order in which they run.

    Args:
        groups: in the order in which they run.
        keys: equal for groups whose instructions are the same.
        chained: several groups may be in one; else each is one of its own.
    """
    begins = _layers_begin(groups, keys)
    found: list[list[Group]] = []
    for group, key in zip(groups, keys, strict=True):
        may = chained and group.kind in _KINDS and not group.once
        last = found[-1] if found else None
        joins = (
            may
            and last is not None
            and last[-1].kind in _KINDS
            and not last[-1].once
            and len(last) < _MOST_GROUPS
            and not (begins is not None and key == begins)
        )
        if joins and last is not None:
            last.append(group)
        else:
            found.append([group])
    return [tuple(chain) for chain in found]


def _layers_begin(groups: Sequence[Group], keys: Sequence[Any]) -> Any:
    """Return the key of the groups that each layer has one of, None if there are no equal layers.

    Of what repeats itself at a distance, that is what repeats itself least.
    """
    places: dict[Any, list[int]] = {}
    for at, (group, key) in enumerate(zip(groups, keys, strict=True)):
        if group.kind in _KINDS and not group.once:
            places.setdefault(key, []).append(at)
    apart = {
        key: len(found)
        for key, found in places.items()
        if len(found) > 1 and min(b - a for a, b in itertools.pairwise(found)) >= _LEAST_LAYER
    }
    return min(apart, key=lambda key: (apart[key], places[key][0]), default=None)


def neighbours(groups: Sequence[Group]) -> list[Group]:
    """Return groups in an order in which products follow those whose result they take by matrix.

    What does not need the first product, as the values of attention do not, runs before it.
    """
    found = list(groups)
    makes = {node: group for group in found for node in group.outputs}
    for second in groups:
        if second.kind != "product":
            continue
        first = makes.get(second.uses[second.nodes[0]][0].source)
        if first is None or first is second or _paired(first, second) is None:
            continue
        begin, end = found.index(first), found.index(second)
        needs: set[Node] = set(first.outputs)
        before, after = [], []
        for group in found[begin + 1 : end]:
            if needs.isdisjoint(group.inputs()):
                before.append(group)
            else:
                needs |= set(group.outputs)
                after.append(group)
        if needs.isdisjoint(set(second.inputs()) - set(first.outputs)):
            found[begin : end + 1] = [*before, first, second, *after]
    return found


def inner_of(chain: Chain, outside: frozenset[Node]) -> tuple[list[Node], list[Node]]:
    """Return what groups of a chain make for each other, and what leaves the chain.

    Args:
        chain: the groups.
        outside: nodes that other groups or the caller need.
    """
    used = {node for group in chain for node in group.inputs()}
    made = [node for group in chain for node in group.outputs]
    return [n for n in made if n in used], [n for n in made if n in outside]


def _paired(first: Group, second: Group) -> Node | None:
    """Return what one product makes matrix by matrix and the other one takes so: scores."""
    if first.kind != "product" or second.kind != "product" or first.stored:
        return None
    a, b = first.nodes[0], second.nodes[0]
    batches = 1
    for d in a["lhs_batch"]:
        batches *= a.srcs[0].shape[d]
    if batches == 1 or len(first.outputs) != 1:
        return None
    (made,) = first.outputs
    use = second.uses[b][0]
    if (
        use.source is not made
        or not use.view.is_whole
        or any(u.source is made for n in second.nodes[1:] for u in second.uses[n])
        or second.uses[b][1].source is made
    ):
        return None
    if tuple(b["lhs_batch"]) != tuple(range(len(b["lhs_batch"]))):
        return None
    others = 1
    for d in b["lhs_batch"]:
        others *= b.srcs[0].shape[d]
    return made if others == batches else None


def pairs_of(chain: Chain) -> dict[int, Node]:
    """Return by number of a group that the next one takes matrix by matrix, what it takes."""
    found: dict[int, Node] = {}
    for at in range(len(chain) - 1):
        made = None if at - 1 in found else _paired(chain[at], chain[at + 1])
        if made is not None:
            found[at] = made
    return found


def residents_of(
    chain: Chain,
    inner: Sequence[Node],
    without: frozenset[Node],
    cores: int = 1,
    most: int = _MOST_BYTES,
) -> dict[Node, Resident]:
    """Return what may stay in SBUF between the groups of a chain, as far as there is room.

    Args:
        chain: the groups.
        inner: what they make for each other.
        without: what may not.
        cores: how many share the chain.
        most: bytes of a partition.
    """
    single = {made: at for at, made in pairs_of(chain).items()}
    makes = {node: at for at, group in enumerate(chain) for node in group.outputs}
    last = {node: at for at, group in enumerate(chain) for node in group.inputs()}
    taken = [0] * len(chain)
    found: dict[Node, Resident] = {}
    # What is needed soonest first: short lives take little of the room.
    for node in sorted(inner, key=lambda n: (last[n] - makes[n], makes[n])):
        if node in without or not Resident.may(node, 1 if node in single else cores):
            continue
        made = Resident(node, cores)
        size = made.bytes
        if node in single:
            size = Resident(node).bytes
            (at,) = {single[node]}
            batches = 1
            for d in chain[at].nodes[0]["lhs_batch"]:
                batches *= chain[at].nodes[0].srcs[0].shape[d]
            size = 2 * size // batches
        lives = range(makes[node], last[node] + 1)
        if any(taken[at] + size > most for at in lives):
            continue
        for at in lives:
            taken[at] += size
        found[node] = made
    return found


def cut_of(chain: Chain, inner: Collection[Node], stays: Collection[Node], cores: int = 1) -> int:
    """Return the number of a group before which a chain must end, 0 if there is none.

    That is where nothing stays, or of several cores the first one that needs what does not stay:
    the other cores have to be done with it.
    """
    makes = {node: at for at, group in enumerate(chain) for node in group.outputs}
    last = {node: at for at, group in enumerate(chain) for node in group.inputs()}
    if cores > 1:
        through = frozenset(inner) - frozenset(stays)
        needs = (at for at, group in enumerate(chain) if not through.isdisjoint(group.inputs()))
        first = next(needs, 0)
        if first:
            return first
    lives = [range(makes[node], last[node]) for node in stays]
    return next((at + 1 for at in range(len(chain) - 1) if not any(at in r for r in lives)), 0)


def run_chain(
    e: Emitter,
    chain: Chain,
    inputs: Mapping[Node, NkiTensor],
    outputs: Mapping[Node, NkiTensor | Resident],
) -> None:
    """Issue the instructions of a chain.

    Args:
        e: the emitter.
        chain: the groups.
        inputs: tensors in HBM of what comes from elsewhere.
        outputs: of what the groups make, where it goes.

    Raises:
        NoLoweringError: there are none for some operator.
        NotResidentError: something cannot stay in SBUF that was to.
    """
    known: dict[Node, Any] = {**outputs, **inputs}

    def ends(group: Group) -> tuple[dict[Node, Any], dict[Node, Any]]:
        given = {node: known[node] for node in group.inputs()}
        return given, {node: outputs[node] for node in group.outputs}

    pairs = pairs_of(chain)
    at = 0
    while at < len(chain):
        group = chain[at]
        scores = outputs[pairs[at]] if at in pairs else None
        if isinstance(scores, Resident):
            _run_pair(e, [Product(e, g, *ends(g)) for g in chain[at : at + 2]], scores)
            at += 2
            continue
        run_group(e, group, *ends(group))
        e.goals = {}
        at += 1


def _run_pair(e: Emitter, products: Sequence[Product], scores: Resident) -> None:
    """Compute two products matrix by matrix, the second one of what the first one has made."""
    by_rows = all(product.in_one_pass() for product in products)
    if not all(product.by_batch for product in products):
        # What a core has scored, it uses.
        for product in products:
            product.by_batch = False
    m = products[0].shape.m
    for batch in products[0].share():
        if by_rows:
            # What follows a step of the first one is computed while the next one begins.
            steps = [p.steps(batch, by_rows=n > 0) for n, p in enumerate(products)]
            for _ in zip(*steps, strict=True):
                e.goals = {}
        else:
            for product in products:
                product.run((batch,))
        for row in range(0, m, 128):
            scores.forget(batch * m + row)
