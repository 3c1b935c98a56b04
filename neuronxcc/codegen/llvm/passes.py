"""Which pass over the reduced dimensions computes what, and what is kept for later ones."""

from __future__ import annotations

from dataclasses import dataclass, field

from neuronxcc.codegen.loop import Scalar, Store, operands
from neuronxcc.codegen.space import Space
from neuronxcc.ir.table import TABLE

# A value this expensive is worth a round trip through the cache.
_WORTH_KEEPING = 10


def cost(scalar: Scalar) -> int:
    """Instructions for one vector of the expression's own operation."""
    if scalar.what == "load":
        return 4 if scalar.srcs or (scalar.access and scalar.access.indices) else 1
    if scalar.what != "op" or scalar.op is None:
        return 1
    return TABLE[scalar.op].instructions


def complexity(space: Space) -> int:
    """Instructions for one vector of the whole kernel."""
    return sum(cost(s) for s in space.order if s.what != "const")


@dataclass
class Passes:
    """The chain of reductions of a kernel.

    Attributes:
        count: Passes over the reduced dimensions, at least one.
        reductions: For each pass the reductions that it completes.
        work: Instructions for one vector in each pass.
        varying_stores: What is stored at every point of the reduced dimensions, in the last pass.
    """

    count: int
    reductions: list[list[Scalar]]
    varying_stores: list[Store]
    work: list[int]
    _kept: list[list[Scalar]] = field(default_factory=list)

    def kept_by(self, number: int) -> list[Scalar]:
        """The values that pass `number` writes to a row buffer."""
        return self._kept[number]

    def candidates(self) -> list[Scalar]:
        """All values that are kept."""
        return [s for group in self._kept for s in group]

    def drop(self, scalar: Scalar) -> None:
        """Do not keep this value after all."""
        self._kept = [[s for s in group if s is not scalar] for group in self._kept]


def passes_of(space: Space) -> Passes:
    """Plans the passes of a kernel that has REDUCE dimensions."""
    reduced = set(space.reduced)
    varies = {s: bool(space.vary(s) & reduced) for s in space.order}
    completed = [s for s in space.order if s.what in ("reduce", "arg")]
    roots: list[Scalar] = []
    varying = []
    for store in space.kernel.stores:
        store_roots = [store.value, *(index for index, _ in store.access.indices)]
        store_roots += [] if store.mask is None else [store.mask]
        if any(varies[r] for r in store_roots) or any(
            space.stride(store.access, d) for d in reduced
        ):
            roots += store_roots
            varying.append(store)
    count = max((space.stage(s) for s in completed), default=0)
    if roots:
        count = max(count, 1 + max(space.stage(r) for r in roots))
    count = max(count, 1)
    reductions = [[s for s in completed if space.stage(s) == n + 1] for n in range(count)]
    passes = Passes(count, reductions, varying, [0] * count, [[] for _ in range(count)])
    needed = [[s.srcs[0] for s in group] for group in reductions]
    needed[-1] = needed[-1] + roots
    _choose_kept(passes, needed, varies)
    return passes


def _choose_kept(passes: Passes, needed: list[list[Scalar]], varies: dict[Scalar, bool]) -> None:
    """Keeps what an earlier pass has computed at a high price, at the topmost such place."""
    first: dict[Scalar, int] = {}  # the pass that computes an expression first
    for number, roots in enumerate(needed):
        seen: set[Scalar] = set()
        stack = [r for r in roots if varies[r]]
        while stack:
            scalar = stack.pop()
            if scalar in seen:
                continue
            seen.add(scalar)
            earlier = first.get(scalar, number)
            if earlier < number and scalar.what == "op" and not scalar.dtype.is_complex:
                if scalar in passes.kept_by(earlier):
                    continue
                if _subtree_cost(scalar, varies) >= _WORTH_KEEPING:
                    passes.kept_by(earlier).append(scalar)
                    continue
            stack += [s for s in operands(scalar) if varies[s]]
        passes.work[number] = sum(cost(scalar) for scalar in seen)
        for scalar in seen:
            first.setdefault(scalar, number)


def _subtree_cost(root: Scalar, varies: dict[Scalar, bool]) -> int:
    total, seen, stack = 0, set(), [root]
    while stack:
        scalar = stack.pop()
        if scalar in seen or not varies[scalar]:
            continue
        seen.add(scalar)
        total += cost(scalar)
        stack += operands(scalar)
    return total
