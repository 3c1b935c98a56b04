"""The lowering of one instruction: functions of a tape, and where their pointers come from.

An implementation gets a :class:`Work` for a template. It asks for operands, makes loop kernels
(`lanes`, `flat`) or other functions, and the work notes the actions in order. It never sees
places: an action's pointers say "leaf 2 of the event" or "32 constant bytes", and emission finds
the buffers. Dynamic access, layouts that do not fit each other and operands that overlap are
the work's business: an implementation sees direct operands only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from nki.isa.spec import Role
from nki.lowering.draft import Draft
from nki.lowering.index_checks import check_scalar
from nki.lowering.indirect import transfer
from nki.lowering.loops import Flat, Lanes
from nki.lowering.operands import (
    Action,
    Constant,
    Leaf,
    Operand,
    Pointer,
    Print,
    Reach,
    Scratch,
    State,
    Variant,
    f32,
    rows_of,
    s32,
)
from nki.recording import TileForm

__all__ = [
    "Action",
    "Constant",
    "Flat",
    "Lanes",
    "Leaf",
    "Operand",
    "Pointer",
    "Print",
    "Reach",
    "Scratch",
    "State",
    "Variant",
    "Work",
    "f32",
    "rows_of",
    "s32",
]

LANE_COUNT = 128


@dataclass
class Work(Draft):
    """The actions of a template; see the module."""

    _known: dict[str, Operand] = field(default_factory=dict)
    _late: list[tuple[Operand, TileForm]] = field(default_factory=list)

    # --- operands --------------------------------------------------------------------------------

    def operand(self, name: str, *, moved: bool = False) -> Operand:
        """Return a tensor operand.

        What is gathered is in scratch memory then, and what is to be scattered will be copied from
        there at the end.

        Args:
            name: of the operand.
            moved: a scalar may move it, which kernels that load and store it by name respect.
        """
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = self._direct(name, moved=moved)
        return self.dense(found) if found.moved and not moved else found

    def _direct(self, name: str, *, moved: bool) -> Operand:
        form, role = self.form(name), self.role(name)
        assert isinstance(form, TileForm), name
        late = role is not Role.READ and self.variant.staged
        if not late:
            if form.indirect is None:
                return self.plain(name)
            if form.indirect.kind == "scalar" and moved:
                check_scalar(self, name)
                return replace(self.plain(name), moved=True)
        operand = self.temporary(form.shape, form.dtype, name)
        if role is not Role.WRITE or self.attributes.get("oob_mode") == "skip":
            self._move(form, name, operand, inward=True)
        if role is not Role.READ:
            self._late.append((operand, form))
        return operand

    def dense(self, operand: Operand) -> Operand:
        """Return a dense copy of an operand that is read."""
        copy = self.temporary(operand.shape, operand.dtype, operand.name)
        self.copy_bits(operand, copy)
        return copy

    def apart(self, operand: Operand, target: Operand) -> Operand:
        """Return an operand whose items go elsewhere: a copy if it is the target itself."""
        return self.dense(operand) if operand.pointer == target.pointer else operand

    def copy_bits(self, source: Operand, target: Operand) -> None:
        """Copy items between operands of one shape and type."""
        both = [target, source]
        # More are no partitions, but dimension 0 of tensors in HBM.
        few = source.partitions <= LANE_COUNT
        loop = Lanes(self, "copy", both) if few else Flat(self, "copy", both)
        loop.store(target, loop.bits(source))
        loop.finish()

    def _move(self, form: TileForm, name: str, operand: Operand, *, inward: bool) -> None:
        if form.indirect is None:
            outer = self.plain(name)
            self.copy_bits(*((outer, operand) if inward else (operand, outer)))
        else:
            transfer(self, name, operand, inward=inward)

    # --- functions -------------------------------------------------------------------------------

    def lanes(
        self, *names: str | Operand, kept: Sequence[str | Operand] = (), reduce: bool = False
    ) -> Lanes:
        """Begin a kernel that works partition by partition on operands of equal size.

        Args:
            names: operands of (partitions, elements per partition) each; what is not named here
                has one element per partition, or is a number. Those that are absent are left out.
            kept: with `reduce`, operands that have one element for every so many consecutive
                elements of the others. Without any, a whole partition is reduced.
            reduce: what `kept` does not keep are REDUCE dimensions.
        """

        def found(these: Sequence[str | Operand]) -> list[Operand]:
            known = [n for n in these if not isinstance(n, str) or self.is_tile(n)]
            return [self._taken(n) for n in known]

        return Lanes(self, self.template.row.name, found(names), found(kept), reduce=reduce)

    def flat(self, *names: str | Operand) -> Flat:
        """Begin a kernel over all elements of operands of equal size, whatever their shapes."""
        found = [self._taken(n) for n in names]
        return Flat(self, self.template.row.name, found)

    def _taken(self, which: str | Operand) -> Operand:
        """Return an operand for a kernel, which can move it if it is only read."""
        if isinstance(which, Operand):
            return which
        return self.operand(which, moved=which in self._known or self.role(which) is Role.READ)

    def finish(self) -> None:
        """Write back what was computed in scratch memory, in the order of the table."""
        order = [o.name for o in self.template.row.operands]
        for operand, form in sorted(
            self._late, key=lambda item: order.index(item[0].name.partition("[")[0])
        ):
            self._move(form, operand.name, operand, inward=False)
