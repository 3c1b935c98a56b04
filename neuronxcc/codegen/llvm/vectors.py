"""Which points make a vector."""

from __future__ import annotations

import math

from neuronxcc.codegen.llvm.emitter import Emitter, Val
from neuronxcc.codegen.llvm.host import Host
from neuronxcc.codegen.loop import Kind
from neuronxcc.codegen.space import Space, accesses

# Costs of a vector of elements from memory, in loads of neighbouring ones.
_BROADCAST, _SIDE_BY_SIDE, _SHUFFLED, _GATHERED, _SCATTERED = 0.25, 1.0, 4.0, 10.0, 14.0
# Joining the lanes of a row takes about as long as so many loads.
_JOINED = 2.0


def prefix_mask(em: Emitter, lanes: int, active: int) -> Val | None:
    """Lanes 0..active-1 of `lanes`; None for all."""
    if active == lanes:
        return None
    return em.lane_constants("i1", [lane < active for lane in range(lanes)])


def memory_cost(space: Space, dim: int) -> float:
    """The cost of one vector along this dimension, in memory accesses."""
    cost = 0.0
    stores = len(space.kernel.stores)
    for number, access in enumerate(accesses(space.kernel)):
        stride = abs(space.stride(access, dim))
        if stride <= 1:
            cost += _SIDE_BY_SIDE if stride else _BROADCAST
        elif number < stores:
            cost += _SCATTERED
        else:
            cost += _SHUFFLED if stride <= 4 else _GATHERED
        # An index that differs between the lanes sends each of them elsewhere.
        if any(dim in space.vary(index) for index, _ in access.indices):
            cost += _GATHERED
    return cost


def cost_per_element(space: Space, dim: int, host: Host) -> float:
    """Cost of vectors along a dimension, by the elements that are really there."""
    extent = space.extent(dim)
    vectors = -(-extent // host.lanes)
    cost = memory_cost(space, dim) * vectors * host.lanes / extent
    if space.kind(dim) is Kind.REDUCE:
        cost += _JOINED * host.lanes / math.prod(space.extent(d) for d in space.reduced)
    return cost


def cheapest_vector(space: Space, host: Host) -> int | None:
    """The dimension that the lanes lie along, the innermost of equals; None in an empty space."""
    dims = reversed(range(space.rank))
    return min(dims, key=lambda dim: cost_per_element(space, dim, host), default=None)


def pair_lanes(space: Space, host: Host) -> int | None:
    """Lanes for vectors over the two innermost dimensions at once, if that is the better way.

    For an innermost dimension of, say, 3: 16 lanes make no whole number of threes, 48 do, and then
    every lane's place in the innermost dimension is a constant.
    """
    if space.rank < 2:
        return None
    inner, outer = space.rank - 1, space.rank - 2
    extent = space.extent(inner)
    lanes = math.lcm(extent, host.lanes)
    if extent >= host.lanes or lanes > 8 * host.lanes or space.extent(outer) * extent < lanes:
        return None
    cost = 0.0
    for number, access in enumerate(accesses(space.kernel)):
        far, near = space.stride(access, outer), space.stride(access, inner)
        if near == 1 and far == extent:
            cost += _SIDE_BY_SIDE
        elif far == 0 and not access.indices:
            cost += _BROADCAST  # the same for all vectors
        elif number < len(space.kernel.stores):
            cost += _SCATTERED
        else:
            cost += _SHUFFLED if abs(far) <= 2 * extent and abs(near) <= 2 else _GATHERED
    best = min(cost_per_element(space, dim, host) for dim in range(space.rank))
    return lanes if cost < best else None
