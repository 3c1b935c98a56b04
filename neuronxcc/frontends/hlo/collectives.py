"""Collectives. Ranks are numbered as the module numbers its devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from neuronxcc.frontends.hlo.errors import invalid, unsupported
from neuronxcc.frontends.hlo.scalar import Scalar
from neuronxcc.frontends.hlo.site import Handler, Site, Value
from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node

Groups = tuple[tuple[int, ...], ...]
MAX_RANKS = 1 << 20


def _groups(site: Site) -> Groups:
    """The replica groups, whichever way they are written."""
    listed = site.proto.replica_groups or site.proto.collective_device_list.replica_groups
    groups = tuple(tuple(group.replica_ids) for group in listed)
    iota = site.proto.collective_device_list.iota_replica_group_list
    if not groups and iota.num_replica_groups:
        groups = _iota_groups(iota)
    ranks = [rank for group in groups for rank in group]
    if not ranks:
        raise unsupported(
            f"{site.opcode} without replica groups, whose ranks only the run would tell",
            "name the ranks: replica_groups={{0,1,...}}",
        )
    if len(set(ranks)) != len(ranks) or min(ranks) < 0 or max(ranks) >= MAX_RANKS:
        raise invalid(f"{site.opcode} with replica groups {groups}")
    return groups


def _iota_groups(iota: object) -> Groups:
    shape = list(iota.iota_reshape_dims)  # type: ignore[attr-defined]
    order = list(iota.iota_transpose_perm)  # type: ignore[attr-defined]
    sizes = (iota.num_replica_groups, iota.num_devices_per_group)  # type: ignore[attr-defined]
    order = order or list(range(len(shape)))
    fits = sorted(order) == list(range(len(shape))) and min(shape, default=1) > 0
    if not fits or math.prod(shape) != math.prod(sizes) or math.prod(shape) > MAX_RANKS:
        raise invalid(f"replica groups of iota {shape}, {order} as {sizes}")
    ranks = np.arange(math.prod(shape)).reshape(shape).transpose(order).reshape(sizes)
    return tuple(tuple(int(rank) for rank in group) for group in ranks)


def group_name(groups: Groups) -> str:
    """How a program calls the ranks of a collective; who loads it makes the group."""
    return "ranks:" + ";".join(",".join(map(str, group)) for group in groups)


def _common(site: Site, groups: Groups) -> dict[str, Any]:
    """What every collective of these ranks is given."""
    return {"group": groups, "name": group_name(groups), "channel": site.counter()}


def _each(site: Site, results: Sequence[Node]) -> Value:
    return tuple(results) if isinstance(site.type, tuple) else results[0]


def _for_each(site: Site, make: Callable[..., Node]) -> Value:
    """A collective of its own for every operand."""
    groups = _groups(site)
    return _each(site, [make(x, **_common(site, groups)) for x in site.tensors])


def _kind(site: Site, x: Node) -> str:
    return Scalar.of(site, [x.dtype, x.dtype]).kinds()[0]


def _dim(site: Site) -> int:
    if len(site.proto.dimensions) != 1:
        raise invalid(f"{site.opcode} goes along one dimension")
    return int(site.proto.dimensions[0])


def _all_reduce(site: Site) -> Value:
    return _for_each(site, lambda x, **common: build.all_reduce(x, _kind(site, x), **common))


def _all_gather(site: Site) -> Value:
    return _for_each(site, lambda x, **common: build.all_gather(x, _dim(site), **common))


def _reduce_scatter(site: Site) -> Value:
    def one(x: Node, **common: Any) -> Node:
        return build.reduce_scatter(x, _kind(site, x), _dim(site), **common)

    return _for_each(site, one)


def _all_to_all(site: Site) -> Value:
    common = _common(site, _groups(site))
    if site.proto.dimensions:
        dim = _dim(site)
        return _each(site, [build.all_to_all(x, dim, dim, **common) for x in site.tensors])
    # One operand per rank, and as many results.
    received = build.all_to_all(build.stack(site.tensors, 0), 0, 0, **common)
    return tuple(
        build.reshape(build.slice_dim(received, 0, i, i + 1), site.tensors[0].shape)
        for i in range(len(site.tensors))
    )


def _permute(site: Site) -> Value:
    pairs = tuple((pair.source, pair.target) for pair in site.proto.source_target_pairs)
    ranks = sorted({rank for pair in pairs for rank in pair})
    if not ranks or ranks[0] < 0 or ranks[-1] >= MAX_RANKS:
        raise invalid(f"collective-permute of {pairs}")
    name = group_name((tuple(range(ranks[-1] + 1)),))
    results = [
        build.collective_permute(x, pairs, name=name, channel=site.counter()) for x in site.tensors
    ]
    return _each(site, results)


def _broadcast(site: Site) -> Value:
    return _for_each(site, build.collective_broadcast)


def _rank(site: Site) -> Node:
    return build.convert(site.rank(), DType.U32)


TABLE: dict[str, Handler] = {
    "all-reduce": _all_reduce,
    "all-gather": _all_gather,
    "reduce-scatter": _reduce_scatter,
    "all-to-all": _all_to_all,
    "collective-permute": _permute,
    "collective-broadcast": _broadcast,
    "replica-id": _rank,
    "partition-id": _rank,
}
