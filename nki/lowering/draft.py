"""A work as loop kernels see it: its template, and what has been noted for it so far.

Operands, their copies and the loop kernels that make these need each other. What all of them need
stands here; `nki.lowering.work` makes the rest of it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from neuronxcc.program.tape_functions import TapeLoop, TapeNative, TapeProduct
from nki.dtypes import info
from nki.isa.spec import Role
from nki.lowering.operands import (
    Action,
    Leaf,
    Operand,
    Pointer,
    Print,
    Reach,
    Scratch,
    Variant,
    element_strides,
)
from nki.lowering.shapes import row_major
from nki.recording import RegisterForm, Template, TileForm, leaves

__all__ = ["Draft"]


@dataclass
class Draft(ABC):
    """A work; see the module.

    Attributes:
        template: the instruction.
        variant: what an event adds to it.
        actions: what was noted, in order.
        scratch: (partitions, bytes of each) of the memories of this work alone.
    """

    template: Template
    variant: Variant = field(default_factory=Variant)
    actions: list[Action | Print] = field(default_factory=list)
    scratch: list[tuple[int, int]] = field(default_factory=list)  # (partitions, bytes of each)
    _first: dict[str, int] = field(default_factory=dict)
    _forms: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        at = 0
        for name, form in self.template.operands:
            parts = (
                [(f"{name}[{i}]", item) for i, item in enumerate(form)]
                if isinstance(form, tuple) and not isinstance(form, TileForm | RegisterForm)
                else [(name, form)]
            )
            for part, item in parts:
                self._forms[part], self._first[part] = item, at
                at += sum(1 for _ in leaves(item))

    # --- what loop kernels make of loop kernels --------------------------------------------------

    @abstractmethod
    def operand(self, name: str, *, moved: bool = False) -> Operand:
        """Return a tensor operand; see `nki.lowering.work.Work`."""

    @abstractmethod
    def dense(self, operand: Operand) -> Operand:
        """Return a dense copy of an operand that is read."""

    @abstractmethod
    def copy_bits(self, source: Operand, target: Operand) -> None:
        """Copy items between operands of one shape and type."""

    # --- the template's operands -----------------------------------------------------------------

    @property
    def attributes(self) -> Any:
        """The canonical attributes."""
        return self.template.attributes

    def form(self, name: str) -> Any:
        """Return the form of an operand or of an item of a list; None if it is absent."""
        return self._forms.get(name)

    def is_tile(self, name: str) -> bool:
        """Return whether the operand is given and a tensor."""
        return isinstance(self.form(name), TileForm)

    def has(self, name: str) -> bool:
        """Return whether the operand is given."""
        return self.form(name) is not None

    def leaf(self, name: str) -> Leaf:
        """Return the place of a register or tensor."""
        number = self._first[name]
        return Leaf(self.variant.same[number] if self.variant.same else number)

    def first(self, name: str) -> int:
        """Return the number of an operand's first leaf."""
        return self._first[name]

    def lane(self) -> int:
        """Return the first partition of the first operand on a chip: where its state begins."""
        forms = (form for form in self._forms.values() if isinstance(form, TileForm))
        return next((form.row for form in forms if form.region.on_chip), 0)

    def dtype(self, name: str) -> str:
        """Return NKI's name of the type of a tensor."""
        form = self.form(name)
        assert isinstance(form, TileForm), name
        return form.dtype

    def role(self, name: str) -> Role:
        """Return how the instruction uses an operand."""
        base = name.partition("[")[0]
        return next(o.role for o in self.template.row.operands if o.name == base)

    def plain(self, name: str) -> Operand:
        """Return a tensor operand as if nothing moved it."""
        form = self.form(name)
        assert isinstance(form, TileForm), name
        return Operand(name, form.dtype, form.shape, element_strides(form), self.leaf(name))

    def temporary(self, shape: Sequence[int], dtype: str, name: str = "") -> Operand:
        """Return memory of this work: dense, partition after partition."""
        size = math.prod(shape[1:]) * info(dtype).itemsize
        self.scratch.append((shape[0], size))
        pointer = Scratch(len(self.scratch) - 1)
        return Operand(name, dtype, tuple(shape), row_major(shape), pointer)

    # --- actions ---------------------------------------------------------------------------------

    def writes(self, operand: Operand) -> tuple[bool, bool]:
        """Return whether the instruction reads, and whether it writes, what an operand shows."""
        if operand.name not in self._forms:
            return True, True
        role = self.role(operand.name)
        # What is skipped is kept.
        keeps = self.attributes.get("oob_mode") == "skip"
        return role is not Role.WRITE or keeps, role is not Role.READ

    def add(
        self,
        function: TapeLoop | TapeProduct | TapeNative,
        pointers: Sequence[Pointer],
        reaches: Sequence[Reach],
        chunks: int = 0,
    ) -> None:
        """Note an action."""
        self.actions.append(Action(function, tuple(pointers), tuple(reaches), chunks))
