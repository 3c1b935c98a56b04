"""Products that Neuron's front ends write as custom calls."""

from __future__ import annotations

import re

from neuronxcc.frontends.hlo.errors import invalid
from neuronxcc.frontends.hlo.site import Handler, Site
from neuronxcc.ir import build
from neuronxcc.ir.collectives import group_name
from neuronxcc.ir.node import Node

_MOST_RANKS = 1 << 16
_SETTING = re.compile(r"(\w+)=(\d{1,9})")


def _settings(site: Site) -> dict[str, int]:
    """Numbers by name: the config lists name=number with commas between."""
    text = site.proto.backend_config.decode("utf-8", "replace").strip().strip('"')
    found: dict[str, int] = {}
    for part in text.split(",") if text else ():
        match = _SETTING.fullmatch(part.strip())
        if match is None:
            raise invalid(f"{part[:80]!r} in the config of {site.proto.custom_call_target}")
        found[match[1]] = int(match[2])
    return found


def _collective_matmul(site: Site) -> Node:
    """The product of what all ranks have of the first matrix, one under the other, and the second.

    Source: `looped_einsum` of neuronx-distributed and its twin without the custom call. There is
    one group of `tp_degree` ranks there; that several groups are of ranks in a row is inferred.
    """
    lhs, rhs = site.take(2)
    settings = _settings(site)
    degree, count = settings.get("tp_degree", 0), settings.get("num_groups", 1)
    side = settings.get("rhs_contracting_dim", 0)
    if lhs.type.rank != 2 or rhs.type.rank != 2 or side > 1:
        raise invalid(f"AwsNeuronCollectiveMatmul of {lhs.type} and {rhs.type}")
    if degree < 1 or count < 1 or degree * count > _MOST_RANKS:
        raise invalid(f"AwsNeuronCollectiveMatmul with tp_degree={degree}, num_groups={count}")
    groups = tuple(tuple(range(g * degree, (g + 1) * degree)) for g in range(count))
    gathered = build.all_gather(lhs, 0, groups, name=group_name(groups), channel=site.counter())
    return build.dot_general(
        gathered, rhs, lhs_contract=(1,), rhs_contract=(side,), dtype=site.tensor_type.dtype
    )


def _int_matmult(site: Site) -> Node:
    """A product of integer matrices, in exact integers of the declared type.

    Inferred: no public source has a call. The operands are taken as [..., m, k] and [..., k, n].
    """
    lhs, rhs = site.take(2)
    dtype = site.tensor_type.dtype
    ranks = (lhs.type.rank, rhs.type.rank, site.tensor_type.rank)
    if (
        min(ranks) < 2
        or len(set(ranks)) != 1
        or not (lhs.dtype.is_integer and rhs.dtype.is_integer)
    ):
        raise invalid(f"AwsNeuronIntMatmult of {lhs.type} and {rhs.type} to {site.tensor_type}")
    batch = tuple(range(lhs.type.rank - 2))
    last = lhs.type.rank - 1
    return build.dot_general(
        build.convert(lhs, dtype),
        build.convert(rhs, dtype),
        lhs_batch=batch,
        rhs_batch=batch,
        lhs_contract=(last,),
        rhs_contract=(last - 1,),
        dtype=dtype,
    )


TARGETS: dict[str, Handler] = {
    "AwsNeuronCollectiveMatmul": _collective_matmul,
    "AwsNeuronIntMatmult": _int_matmult,
}
