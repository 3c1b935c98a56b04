"""Rules for the operands and attributes of collectives."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from nki.collectives.replica import ReplicaGroup, checked_groups
from nki.errors import NkiError
from nki.isa.spec import HBM, Call, Fields, Rule, Tile

__all__ = [
    "PRIORITY",
    "allowed_dim",
    "channels",
    "gathered",
    "group",
    "hbm_or_sbuf",
    "metadata",
    "no_displacements",
    "one_tensor",
    "pairs",
    "rank_count",
    "same_lists",
    "same_shapes",
    "scattered",
    "sequence_of_channels",
    "split",
]

Shape = tuple[int, ...]


def tiles(call: Call, name: str) -> tuple[Tile, ...]:
    """Return a list of tensors."""
    value = call.operands[name]
    assert isinstance(value, tuple)
    return value


def rank_count(call: Call) -> int:
    """Return how many ranks a list of the replica group has."""
    return len(call.attributes["replica_group"][0])


# --- attributes ----------------------------------------------------------------------------------


def group(given: Any) -> tuple[tuple[int, ...], ...]:
    """Accept a ReplicaGroup, or the lists themselves."""
    return given.groups if isinstance(given, ReplicaGroup) else checked_groups(given)


def pairs(given: Any) -> tuple[tuple[int, int], ...]:
    """Accept (source, target) pairs in which no rank sends twice or receives twice."""
    try:
        made = tuple((operator.index(source), operator.index(target)) for source, target in given)
    except (TypeError, ValueError):
        made = ()
    sources, targets = {a for a, _ in made}, {b for _, b in made}
    negative = any(rank < 0 for rank in sources | targets)
    if not made or negative or len(sources) < len(made) or len(targets) < len(made):
        raise NkiError(
            "NKI317",
            f"collective_permute has the source_target_pairs {given!r}",
            "give (source, target) pairs of ranks; each rank sends and receives at most once",
        )
    return made


def sequence_of_channels(given: Any) -> tuple[int, ...]:
    """Accept consecutive integers from 0."""
    try:
        made = tuple(operator.index(channel) for channel in given)
    except TypeError:
        made = ()
    if not made or made != tuple(range(len(made))):
        raise NkiError(
            "NKI316",
            f"channel_ids are {given!r}",
            "give consecutive integers from 0, like [0, 1]",
        )
    return made


# --- rules ---------------------------------------------------------------------------------------


def _rule(code: str, text: str, remedy: str, broken: Callable[[Call], Fields | None]) -> Rule:
    return Rule(code, text, remedy, broken)


PRIORITY = Rule(
    "NKI116",
    "{instruction} priority does not exist on {nc}",
    "leave it out: quality of service came with NeuronCore-v4",
    lambda call: None if call.attributes["priority"] is None else {},
    generations=(2, 3),
)


def same_lists(*names: str) -> Rule:
    """Make the rule that lists have the same length and data types, one by one."""

    def broken(call: Call) -> Fields | None:
        lists = [tiles(call, name) for name in names]
        shown = ", ".join(
            f"{name} {[f'{t.dtype}{list(t.shape)}' for t in items]}"
            for name, items in zip(names, lists, strict=True)
        )
        fits = len({len(items) for items in lists}) == 1 and all(
            len({tile.dtype for tile in row}) == 1 for row in zip(*lists, strict=True)
        )
        return None if fits else {"shown": shown}

    return _rule(
        "NKI312",
        "{instruction} has {shown}",
        "give lists of the same length, whose tensors have the same data types one by one",
        broken,
    )


def one_tensor(*names: str) -> Rule:
    """Make the rule that lists have one tensor."""

    def broken(call: Call) -> Fields | None:
        for name in names:
            if len(tiles(call, name)) != 1:
                return {"operand": name, "got": len(tiles(call, name))}
        return None

    return _rule(
        "NKI312",
        "{instruction} {operand} has {got} tensors",
        "give one tensor, and call it several times",
        broken,
    )


def hbm_or_sbuf(*names: str) -> tuple[Rule, Rule, Rule]:
    """Make the rules that all tensors are in HBM, or one list element each in SBUF, of rank 2."""

    def regions(call: Call) -> list[Tile]:
        return [tile for name in names for tile in tiles(call, name)]

    def mixed(call: Call) -> Fields | None:
        kinds = {tile.region in HBM for tile in regions(call)}
        return {} if len(kinds) > 1 else None

    def coalesced(call: Call) -> Fields | None:
        on_chip = regions(call)[0].region not in HBM
        count = len(tiles(call, names[0]))
        return {"got": count} if on_chip and count > 1 else None

    def dims(call: Call) -> Fields | None:
        for tile in regions(call):
            if tile.region not in HBM and len(tile.shape) != 2:
                return {"got": tile.shape}
        return None

    return (
        _rule(
            "NKI313",
            "{instruction} mixes tensors in HBM and in SBUF",
            "copy them to one of the two with nisa.dma_copy",
            mixed,
        ),
        _rule(
            "NKI313",
            "{instruction} has {got} tensors in SBUF in one list",
            "several tensors at once must be in HBM: call it once for each",
            coalesced,
        ),
        _rule(
            "NKI315",
            "{instruction} has a tensor of shape {got} in SBUF",
            "in SBUF collectives take tensors with one free dimension: reshape it",
            dims,
        ),
    )


def allowed_dim(hbm: tuple[int, ...], sbuf: tuple[int, ...]) -> Rule:
    """Make the rule that names the dimensions that can be split or joined."""

    def broken(call: Call) -> Fields | None:
        first = tiles(call, "srcs")[0]
        allowed = hbm if first.region in HBM else sbuf
        dim = call.attributes["collective_dim"]
        shown = " or ".join(map(str, allowed))
        return None if dim in allowed else {"got": dim, "region": first.region, "allowed": shown}

    return _rule(
        "NKI315",
        "{instruction} collective_dim is {got} for tensors in {region}",
        "only {allowed} is supported there: permute the dimensions before",
        broken,
    )


def _shapes(expected: Callable[[Call, Shape], Shape | None], remedy: str) -> Rule:
    """Make a rule about each destination's shape, from that of its source."""

    def broken(call: Call) -> Fields | None:
        names = [name for name, value in call.operands.items() if isinstance(value, tuple)]
        *sources, dsts = [tiles(call, name) for name in names]
        for i, dst in enumerate(dsts):
            for name, srcs in zip(names, sources, strict=False):
                wanted = expected(call, srcs[i].shape)
                if wanted != dst.shape:
                    return {"name": name, "src": srcs[i].shape, "dst": dst.shape, "i": i}
        return None

    return _rule(
        "NKI314",
        "{instruction} {name}[{i}] has shape {src} and its destination {dst}",
        remedy,
        broken,
    )


def _scaled(shape: Shape, dim: int, times: int, by: int) -> Shape | None:
    size = shape[dim] * times
    return None if size % by else (*shape[:dim], size // by, *shape[dim + 1 :])


same_shapes = _shapes(lambda _, shape: shape, "give both the same shape")
gathered = _shapes(
    lambda call, shape: _scaled(shape, call.attributes["collective_dim"], rank_count(call), 1),
    "the destination is as long along collective_dim as the sources of all ranks together",
)
scattered = _shapes(
    lambda call, shape: _scaled(shape, call.attributes["collective_dim"], 1, rank_count(call)),
    "the source is as long along collective_dim as the destinations of all ranks together",
)


def _indivisible(call: Call) -> Fields | None:
    n = rank_count(call)
    for tile in tiles(call, "srcs"):
        if tile.shape[call.attributes["collective_dim"]] % n:
            return {"got": tile.shape, "n": n}
    return None


split = _rule(
    "NKI314",
    "{instruction} splits a tensor of shape {got} among {n} ranks",
    "make the size along collective_dim a multiple of the number of ranks",
    _indivisible,
)


def channels(*names: str) -> Rule:
    """Make the rule that there is one tensor for each channel, and at most 4 channels."""

    def broken(call: Call) -> Fields | None:
        asked = len(call.attributes["channel_ids"])
        counts = {len(tiles(call, name)) for name in names}
        fits = counts == {asked} and asked <= 4
        return None if fits else {"asked": asked, "counts": ", ".join(map(str, sorted(counts)))}

    return _rule(
        "NKI316",
        "{instruction} has {asked} channel_ids and tensors for {counts} channels",
        "give one list with one tensor for each of at most 4 channels",
        broken,
    )


def _metadata_shape(call: Call) -> Fields | None:
    tile = call.tile("metadata_tensor")
    rows = 4 if call.attributes["has_rdispls"] else 3
    wanted: Shape = (rows, rank_count(call))
    if tile.region not in HBM:
        wanted = (1, *wanted)
    return None if tile.shape == wanted else {"got": tile.shape, "wanted": wanted}


def _slots(call: Call) -> Fields | None:
    n = rank_count(call)
    size = tiles(call, "dsts")[0].size
    return {"got": size, "n": n} if size % n and not call.attributes["has_rdispls"] else None


metadata = (
    _rule(
        "NKI318",
        "{instruction} metadata_tensor has shape {got}, and this call needs {wanted}",
        "give rows send_count, send_displ, recv_counts (and recv_displs with has_rdispls=True) "
        "and a column for each rank; in SBUF on one partition",
        _metadata_shape,
    ),
    _rule(
        "NKI314",
        "{instruction} divides a destination of {got} elements among {n} ranks",
        "make its number of elements a multiple of the number of ranks",
        _slots,
    ),
)


def no_displacements(remedy: str, generations: tuple[int, ...]) -> Rule:
    """Make the rule that received chunks are laid out at equal distances."""
    return Rule(
        "NKI321",
        "{instruction} has_rdispls=True is not supported on {nc}",
        remedy,
        lambda call: {} if call.attributes["has_rdispls"] else None,
        generations,
    )
