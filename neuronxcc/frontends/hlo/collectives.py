"""Collectives. Ranks are numbered as the module numbers its devices: by replica, then by partition.

A program calls its ranks by the text that `group_name` makes: "ranks:0,1;2,3", or "ranks:all" for
all that run it. Who loads the program makes the group.

What replica groups mean depends, as in XLA, on the channel and on `use_global_device_ids`: numbers
of replicas, of partitions, or of devices. Without a device assignment in the module one of the two
kinds is taken to have a single member, as front ends have it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuronxcc.frontends.hlo.errors import invalid, unsupported
from neuronxcc.frontends.hlo.scalar import Scalar
from neuronxcc.frontends.hlo.site import Handler, Site, Value
from neuronxcc.ir import build
from neuronxcc.ir.collectives import ALL_RANKS, group_name
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op

Groups = tuple[tuple[int, ...], ...]
MAX_RANKS = 1 << 20
#: Their groups are numbers of partitions if they have a channel, otherwise of replicas.
_BY_PARTITION = frozenset({"all-to-all", "collective-permute", "collective-broadcast"})


@dataclass(frozen=True, slots=True)
class Ranks:
    """Who takes part.

    Attributes:
        groups: Of ranks; (): all ranks are one, however many they are.
        name: What a program calls them.
    """

    groups: Groups
    name: str

    @classmethod
    def of(cls, groups: Groups) -> Ranks:
        """Groups that the module names."""
        return cls(groups, group_name(groups))

    @classmethod
    def all(cls, count: int) -> Ranks:
        """All ranks that run the program: `count` by the shapes, 0 if these don't tell.

        Raises:
            RefusedError: They are more than MAX_RANKS.
        """
        if count > MAX_RANKS:
            raise invalid(f"a collective of {count} ranks")
        return cls((tuple(range(count)),) if count else (), ALL_RANKS)


def _ranks(site: Site, count: int = 0) -> Ranks:
    """The groups of ranks, whichever way they are written.

    Args:
        site: The instruction.
        count: The number of ranks of a group that its shapes imply, 0 if they don't.
    """
    listed = site.proto.replica_groups or site.proto.collective_device_list.replica_groups
    groups = tuple(tuple(group.replica_ids) for group in listed if group.replica_ids)
    iota = site.proto.collective_device_list.iota_replica_group_list
    if not groups and iota.num_replica_groups:
        groups = _iota_groups(iota)
    numbers = [number for group in groups for number in group]
    if len(set(numbers)) != len(numbers) or any(not 0 <= n < MAX_RANKS for n in numbers):
        raise invalid(f"{site.opcode} with replica groups {groups}")
    replicas, partitions = site.devices
    total = replicas * partitions
    if site.proto.use_global_device_ids:
        if groups:
            return Ranks.of(groups)
        return Ranks.of((tuple(range(total)),)) if total else Ranks.all(count)
    if total:
        everyone = (tuple(range(partitions if _of_partitions(site) else replicas)),)
        return Ranks.of(_of_devices(site, groups or everyone))
    if not groups or (_crosses_both(site) and len(numbers) == 1 and count != 1):
        # One replica, or none named: as many as run the program.
        return Ranks.all(count)
    return Ranks.of(groups)


def _of_partitions(site: Site) -> bool:
    return bool(site.proto.channel_id) and site.opcode in _BY_PARTITION


def _crosses_both(site: Site) -> bool:
    """Groups of replicas, each with all its partitions."""
    return bool(site.proto.channel_id) and site.opcode not in _BY_PARTITION


def _of_devices(site: Site, groups: Groups) -> Groups:
    """Numbers of replicas or partitions, as those of devices."""
    replicas, partitions = site.devices
    most = partitions if _of_partitions(site) else replicas
    if any(number >= most for group in groups for number in group):
        raise invalid(f"{site.opcode} with replica groups {groups} among {most}")
    if _of_partitions(site):
        return tuple(
            tuple(r * partitions + p for p in group) for r in range(replicas) for group in groups
        )
    if _crosses_both(site):
        return tuple(
            tuple(r * partitions + p for r in group for p in range(partitions)) for group in groups
        )
    return tuple(
        tuple(r * partitions + p for r in group) for p in range(partitions) for group in groups
    )


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


def _common(site: Site, ranks: Ranks) -> dict[str, Any]:
    """The arguments that all collectives of these ranks share."""
    return {"group": ranks.groups, "name": ranks.name, "channel": site.counter()}


def _each(site: Site, results: Sequence[Node]) -> Value:
    return tuple(results) if isinstance(site.type, tuple) else results[0]


def _kind(site: Site, x: Node) -> str:
    return Scalar.of(site, [x.dtype, x.dtype]).kinds()[0]


def _dim(site: Site, x: Node) -> int:
    dims = list(site.proto.dimensions)
    if len(dims) != 1 or not 0 <= dims[0] < x.type.rank:
        raise invalid(f"{site.opcode} of {x.type} along dimensions {dims}")
    return int(dims[0])


def _declared(site: Site, index: int) -> TensorType:
    """The type that the module gives the result for an operand."""
    type_ = site.type
    if isinstance(type_, tuple):
        type_ = type_[index] if index < len(type_) else None
    if not isinstance(type_, TensorType):
        raise invalid(f"{site.opcode} returns a tensor for every operand")
    return type_


def _ratio(large: TensorType, small: TensorType, dim: int) -> int:
    """How many times a dimension of one type is that of another; 0 if that isn't known."""
    if large.rank != small.rank or not small.shape[dim] or large.shape[dim] % small.shape[dim]:
        return 0
    return large.shape[dim] // small.shape[dim]


def _all_reduce(site: Site) -> Value:
    ranks = _ranks(site)
    return _each(
        site, [build.all_reduce(x, _kind(site, x), **_common(site, ranks)) for x in site.tensors]
    )


def _all_gather(site: Site) -> Value:
    results = []
    for i, x in enumerate(site.tensors):
        dim = _dim(site, x)
        ranks = _sized(site, _ratio(_declared(site, i), x.type, dim))
        results.append(build.all_gather(x, dim, **_common(site, ranks)))
    return _each(site, results)


def _reduce_scatter(site: Site) -> Value:
    results = []
    for i, x in enumerate(site.tensors):
        dim = _dim(site, x)
        ranks = _sized(site, _ratio(x.type, _declared(site, i), dim))
        results.append(build.reduce_scatter(x, _kind(site, x), dim, **_common(site, ranks)))
    return _each(site, results)


def _sized(site: Site, count: int) -> Ranks:
    """The ranks of a collective that must know how many they are."""
    ranks = _ranks(site, count)
    if not ranks.groups:
        raise unsupported(
            f"{site.opcode} without replica groups, whose number of ranks its shapes don't tell",
            "name the ranks: replica_groups={{0,1,...}}",
        )
    return ranks


def _all_to_all(site: Site) -> Value:
    xs = site.tensors
    if site.proto.dimensions:
        ranks = _sized(site, 0)
        return _each(
            site,
            [build.all_to_all(x, _dim(site, x), _dim(site, x), **_common(site, ranks)) for x in xs],
        )
    # One operand per rank, and as many results.
    if not xs or any(x.type != xs[0].type for x in xs):
        raise invalid("all-to-all takes one operand of one type per rank")
    common = _common(site, _sized(site, len(xs)))
    received = build.all_to_all(build.stack(xs, 0), 0, 0, **common)
    return tuple(
        build.reshape(build.slice_dim(received, 0, i, i + 1), xs[0].shape) for i in range(len(xs))
    )


def _permute(site: Site) -> Value:
    pairs = [(pair.source, pair.target) for pair in site.proto.source_target_pairs]
    replicas, partitions = site.devices
    by_partition = _of_partitions(site)
    most = (partitions if by_partition else replicas) or MAX_RANKS
    numbers = {number for pair in pairs for number in pair}
    once = all(len(set(side)) == len(pairs) for side in zip(*pairs, strict=True))
    if not once or any(not 0 <= number < most for number in numbers):
        raise invalid(f"collective-permute of {pairs[:20]} among {most}")
    if replicas > 1 and partitions > 1:
        own, others = (1, partitions) if by_partition else (partitions, 1)
        starts = [others * i for i in range(replicas if by_partition else partitions)]
        pairs = [(own * a + start, own * b + start) for start in starts for a, b in pairs]
    if not numbers:  # nobody sends: who receives nothing has zeros
        return _each(site, [build.splat(0, x.type) for x in site.tensors])
    results = [
        build.collective_permute(x, pairs, name=ALL_RANKS, channel=site.counter())
        for x in site.tensors
    ]
    return _each(site, results)


def _broadcast(site: Site) -> Value:
    ranks = _ranks(site)
    return _each(
        site, [build.collective_broadcast(x, **_common(site, ranks)) for x in site.tensors]
    )


def _replica(site: Site) -> Node:
    partitions = site.devices[1]
    rank = site.rank()
    return build.convert(build.divide(rank, partitions) if partitions > 1 else rank, DType.U32)


def _partition(site: Site) -> Node:
    partitions = site.devices[1]
    rank = site.rank()
    place = build.binary(Op.REMAINDER, rank, partitions) if partitions else rank
    return build.convert(place, DType.U32)


TABLE: dict[str, Handler] = {
    "all-reduce": _all_reduce,
    "all-gather": _all_gather,
    "reduce-scatter": _reduce_scatter,
    "all-to-all": _all_to_all,
    "collective-permute": _permute,
    "collective-broadcast": _broadcast,
    "replica-id": _replica,
    "partition-id": _partition,
}
