"""Which storages are one memory: updates in place, and results over operands that die.

All units are known here, with what they read and write and in which order they run, so every
question is answered by looking at the uses of two storages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from neuronxcc.ir.op import Op
from neuronxcc.ir.table import Group
from neuronxcc.lowering.classify import VIEWS
from neuronxcc.lowering.fusion.cluster import Cluster, Storage
from neuronxcc.lowering.fusion.convolve import ConvRegion
from neuronxcc.lowering.fusion.fuse import Fused
from neuronxcc.lowering.fusion.units import Home, Made, Opaque, Product, Tensor, Unit
from neuronxcc.lowering.geometry import index as ix
from neuronxcc.lowering.geometry.index import Index
from neuronxcc.lowering.geometry.layout import span
from neuronxcc.lowering.geometry.progressions import fixed_places

_IN_PLACE = frozenset({Op.ALL_REDUCE, Op.COLLECTIVE_BROADCAST})


class Use(NamedTuple):
    """A unit reads or writes a storage, at one element per point or (None) anywhere."""

    number: float
    address: Index | None


@dataclass(eq=False)
class _Uses:
    """Of a storage. Those of the last unit are remembered: much is merged into a few storages."""

    reads: list[Use] = field(default_factory=list)
    writes: list[Use] = field(default_factory=list)
    _last: tuple[float, list[Use], list[Use]] | None = None

    def last(self) -> tuple[float, list[Use], list[Use]]:
        """Number of the last unit that uses it (the least number), what it reads and writes."""
        if self._last is None:
            number = min((use.number for use in (*self.reads, *self.writes)), default=math.inf)
            reads, writes = ([u for u in uses if u.number == number] for uses in self._both())
            self._last = number, reads, writes
        return self._last

    def change(self, changed: Callable[[list[Use]], list[Use]]) -> None:
        """Put others in the place of the uses."""
        self.reads, self.writes, self._last = changed(self.reads), changed(self.writes), None

    def take(self, other: _Uses) -> None:
        """Add those of another storage, which is not used any more."""
        mine, its = self.last(), other.last()
        if mine[0] == its[0]:
            self._last = mine[0], mine[1] + its[1], mine[2] + its[2]
        else:
            self._last = min(mine, its, key=itemgetter(0))
        # Each use is moved a few times only if the shorter list is.
        self.reads = _joined(self.reads, other.reads)
        self.writes = _joined(self.writes, other.writes)

    def forget(self) -> None:
        """The lists have been changed."""
        self._last = None

    def _both(self) -> tuple[list[Use], list[Use]]:
        return self.reads, self.writes


def _joined(one: list[Use], other: list[Use]) -> list[Use]:
    """Both in the longer list; the other is not used any more."""
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    longer.extend(shorter)
    return longer


class Settler:
    """See the module. `dropped` are the units that turn out to have nothing to do."""

    def __init__(self, fused: Fused) -> None:
        self.fused = fused
        self.places = fused.places
        self.uses: dict[Storage, _Uses] = {}
        self.dropped: set[Unit] = set()
        self._postponed = 0
        self._units = {unit.number: unit for unit in fused.units}
        self._homes = {unit.storage.home for unit in fused.units if isinstance(unit, Home)}
        self.reads: dict[Unit, list[tuple[Storage, Index | None]]] = {}
        for unit in fused.units:
            self.reads[unit] = list(self._reads(unit))
            for storage, address in self.reads[unit]:
                self._of(storage).reads.append(Use(unit.number, address))
            for storage, address in self._writes(unit):
                self._of(storage).writes.append(Use(unit.number, address))
        # What collectives send: not to be written over, or who does that waits for them.
        self._sent = {
            self._storage(operand).resolve()
            for unit in fused.units
            if isinstance(unit, Opaque) and unit.node.op in Group.COLLECTIVE
            for operand in unit.operands
        }
        # The caller reads results when all has run.
        for storage in fused.results:
            if storage.kind == "output":
                self._of(storage).reads.append(Use(-1, None))

    def run(self) -> None:
        """Merge what can be merged."""
        # The last first: only then is known for which parameter the content is made.
        for unit in self.fused.units:
            if isinstance(unit, Cluster) and self._is_copy(unit):
                self._elide(unit)
        for unit in self.fused.units:
            if isinstance(unit, Home):
                self._settle_home(unit)
        for unit in reversed(self.fused.units):
            if isinstance(unit, Cluster | Product) and unit not in self.dropped:
                self._reuse(unit)
            elif isinstance(unit, Opaque) and unit.node.op in _IN_PLACE:
                self._reuse_opaque(unit)

    # ---- uses ---------------------------------------------------------------------------------

    def _of(self, storage: Storage) -> _Uses:
        storage = storage.resolve()
        uses = self.uses.get(storage)
        if uses is None:
            uses = self.uses[storage] = _Uses()
        return uses

    def _reads(self, unit: Unit) -> Iterator[tuple[Storage, Index | None]]:
        if isinstance(unit, Home):
            yield unit.storage, None
        elif isinstance(unit, Opaque):
            for operand in unit.operands:
                yield self._storage(operand), None
        else:
            twice = False
            if isinstance(unit, Product):
                for factor in unit.operands:
                    if isinstance(factor, Made):
                        # Its elements are computed in any order, some of them more than once.
                        yield from self._loads(factor.cluster, unordered=True)
                    else:
                        yield self._storage(factor), None
                # Some results of a convolution may be computed a second time.
                twice = isinstance(unit.region, ConvRegion)
                unit = unit.cluster
            yield from self._loads(unit, unordered=twice)

    def _loads(self, unit: Cluster, *, unordered: bool) -> Iterator[tuple[Storage, Index | None]]:
        for node, ats in unit.wants.items():
            if node in unit.inside:
                continue
            storage, layout = self.places.place(node)
            for at in ats:
                parts = list(zip(at.coords, layout.strides, strict=True))
                address = ix.shift(ix.weighted(parts), layout.offset)
                # Under a condition the element may be anywhere, as far as we look.
                yield storage, None if at.mask or unordered else address

    def _storage(self, operand: Tensor) -> Storage:
        return operand if isinstance(operand, Storage) else self.places.place(operand)[0]

    def _writes(self, unit: Unit) -> Iterator[tuple[Storage, Index | None]]:
        if isinstance(unit, Home):
            return  # it runs last of all
        if isinstance(unit, Opaque):
            for out in unit.outs:
                if out is not None:
                    yield self.places.place(out)[0], None
        else:
            cluster = unit.cluster if isinstance(unit, Product) else unit
            for write in cluster.writes:
                known = cluster.update is None or fixed_places(cluster.update) is not None
                yield write.storage, write.address if known and not write.mask else None

    def _merge(self, gone: Storage, kept: Storage) -> None:
        uses = self.uses.pop(gone)
        gone.merged = kept
        self._of(kept).take(uses)

    # ---- copies that need not be made -----------------------------------------------------------

    def _is_copy(self, cluster: Cluster) -> bool:
        """Return whether it writes one whole storage, place by place from another."""
        if len(cluster.writes) != 1 or cluster.has_updates:
            return False
        (write,) = cluster.writes
        loads = self.reads[cluster]
        return (
            len(loads) == 1
            and loads[0][1] == write.address
            and all(node.op in VIEWS for node in cluster.inside)
            and cluster.points(cluster.order) == write.node.type.size
        )

    def _elide(self, unit: Cluster) -> None:
        (write,) = unit.writes
        target, source = write.storage.resolve(), self.reads[unit][0][0].resolve()
        if target is source or not _same_extent(target, source):
            return
        later = [use.number for use in self._of(target).writes if use.number != unit.number]
        # The source is complete, and is not needed any more when the target changes.
        if any(use.number < unit.number for use in self._of(source).writes):
            return
        limit = max(later, default=-2)
        for use in self._of(source).reads:
            if use.number == unit.number or use.number > limit:
                continue
            if use.number < limit or not self._in_step(use, self._of(target).writes):
                return
        if source.kind == "input" and source.index == target.home:
            self._merge(target, source)
        elif source.kind != "temp":
            return
        elif target.kind == "output" and source.home < 0:
            self._merge(source, target)
        elif target.kind == "temp" and (source.home < 0 or target.home < 0):
            source.home = max(source.home, target.home)
            self._merge(target, source)
        else:
            return
        self._of(target).change(lambda uses: [use for use in uses if use.number != unit.number])
        self.dropped.add(unit)

    # ---- parameters that get new content --------------------------------------------------

    def _postpone(self, home: Home, storage: Storage) -> None:
        """Let the step that makes a parameter's new content, and nothing else, run after others."""
        uses = self._of(storage)
        if len(uses.writes) != 1 or [use.number for use in uses.reads] != [home.number]:
            return
        (number,) = (use.number for use in uses.writes)
        unit = self._units[number]
        if not isinstance(unit, Cluster) or len(unit.writes) != 1:
            return
        read = [found.resolve() for found, _ in self.reads[unit]]
        if any(use.number < number for source in read for use in self._of(source).writes):
            return
        # Other parameters that it reads may get their new content before.
        if any(
            source.index in self._homes and source.index != home.storage.home
            for source in read
            if source.kind == "input"
        ):
            return
        self._renumber(unit, (storage, *read))
        self._renumber(home, (storage,))

    def _renumber(self, unit: Cluster | Home, touched: Iterable[Storage]) -> None:
        """Make a unit the last one so far, before the caller's use of the results."""
        self._postponed += 1
        old, unit.number = unit.number, -1 + 1 / (1 + self._postponed)
        for storage in dict.fromkeys(touched):
            self._of(storage).change(
                lambda uses: [
                    use._replace(number=unit.number) if use.number == old else use for use in uses
                ]
            )

    def _settle_home(self, unit: Home) -> None:
        """Write straight to the parameter if its old content is not read after that."""
        param, storage = self.places.params[unit.storage.home], unit.storage.resolve()
        if storage is param:
            self.dropped.add(unit)
            return
        if storage.kind != "temp" or not _same_extent(storage, param):
            return
        self._postpone(unit, storage)
        writes = self._of(storage).writes
        first = max((use.number for use in writes), default=-1)
        for use in self._of(param).reads:
            if use.number > first:
                continue
            if use.number < first or not self._in_step(use, writes):
                return
        self._merge(storage, param)
        uses = self._of(param)
        uses.reads = [use for use in uses.reads if use.number != unit.number]
        uses.forget()
        self.dropped.add(unit)

    def _in_step(self, read: Use, writes: list[Use]) -> bool:
        """Return whether a kernel reads every element just where it then writes it."""
        own = [use for use in writes if use.number == read.number]
        # Kernels with reductions store in their last pass, so they may read before as they like.
        return read.address is not None and all(use.address == read.address for use in own)

    # ---- results over operands that die ---------------------------------------------------

    def _reuse(self, unit: Cluster | Product) -> None:
        cluster = unit.cluster if isinstance(unit, Product) else unit
        if cluster.has_updates:
            return  # what it does not write has to be there already
        for write in cluster.writes:
            target = write.storage.resolve()
            uses = self._of(target)
            if target.kind not in ("temp", "output") or len(uses.writes) != 1:
                continue
            for loaded, _ in self.reads[unit]:
                source = loaded.resolve()
                if self._dies(source, target, unit.number):
                    if target.kind == "output":
                        self._merge(source, target)
                    else:
                        self._merge(target, source)
                    break

    def _reuse_opaque(self, unit: Opaque) -> None:
        """Let a collective reduce in place what nobody else wants."""
        out, (loaded, _) = unit.outs[0], self.reads[unit][0]
        assert out is not None
        target, source = self.places.place(out)[0].resolve(), loaded.resolve()
        if target.kind not in ("temp", "output") or len(self._of(target).writes) != 1:
            return
        if self._unwanted(source, target, unit.number):
            if target.kind == "output":
                self._merge(source, target)
            else:
                self._merge(target, source)

    def _dies(self, source: Storage, target: Storage, number: float) -> bool:
        """Return whether a unit uses a temporary last, and reads it just where it writes."""
        if source in self._sent or not self._unwanted(source, target, number):
            return False
        writes, (last, reads, _) = self._of(target).writes, self._of(source).last()
        return last != number or all(self._in_step(use, writes) for use in reads)

    def _unwanted(self, source: Storage, target: Storage, number: float) -> bool:
        """Return whether a unit is the last to use a temporary that its result would fit in."""
        if source is target or source.kind != "temp" or source.home >= 0 or target.home >= 0:
            return False
        if not _same_extent(source, target):
            return False
        last, _, writes = self._of(source).last()
        return last > number or (last == number and not writes)


def _same_extent(a: Storage, b: Storage) -> bool:
    return a.node.dtype is b.node.dtype and span(a.shape, a.strides) == span(b.shape, b.strides)
