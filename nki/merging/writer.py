"""The merged recording while it is written."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

from neuronxcc.targets import Target
from nki.forms import Forms
from nki.isa.describe import prepare
from nki.isa.spec import Instruction
from nki.memory import MemoryRegion, Storage
from nki.pattern import contiguous
from nki.recording import Block, Recording, Template
from nki.tensor import NkiTensor, tensor_of

__all__ = ["Writer"]


class Writer:
    """Collects templates, lines and storages of all cores, and instructions that none asked for.

    Attributes:
        recording: what is written.
        forms: numbers the storages.
    """

    def __init__(self, name: str, target: Target) -> None:
        self.recording = Recording(name, target)
        self.forms = Forms()
        self.recording.storages = self.forms.storages
        self._generation = target.core.isa
        self._lines: dict[tuple[str, int], int] = {}
        self._templates: dict[Any, int] = {}

    def line(self, where: tuple[str, int]) -> int:
        """Return the number of a user's line."""
        number = self._lines.get(where)
        if number is None:
            number = self._lines[where] = len(self.recording.locations)
            self.recording.locations.append(where)
        return number

    def adopt(self, template: Template) -> int:
        """Return the number of a template of one core's recording."""
        self.recording.templates.append(template)
        return len(self.recording.templates) - 1

    def temporary(self, like: NkiTensor) -> NkiTensor:
        """Return a new tensor in private HBM with the shape and type of another."""
        storage = Storage(
            MemoryRegion.private_hbm, like.dtype, like.shape, core=like.storage.core
        )  # fmt: skip
        return tensor_of(storage, contiguous(like.dtype, like.shape, partition=False))

    def emit(
        self,
        block: Block,
        row: Instruction,
        operands: Mapping[str, Any],
        attributes: Mapping[str, Any],
        line: int,
        core: int,
        *,
        hidden: bool = False,
    ) -> None:
        """Append an instruction.

        Args:
            block: where.
            row: of the instruction table.
            operands: tensors and numbers by name.
            attributes: the others have their defaults.
            line: number of the user's line.
            core: which participant it belongs to.
            hidden: see `Template`.
        """
        known = {attribute.name: attribute.default for attribute in row.attributes}
        known.update(attributes)
        known.pop("name", None)
        places = array("q")
        forms = self.forms.operands(row, operands, places, 16)
        key = (row.name, core, hidden, forms, tuple(known.items()))
        number = self._templates.get(key)
        if number is None:
            call = prepare(row, operands, known, self._generation)
            names = [operand.name for operand in row.operands]
            template = Template(
                row,
                tuple(zip(names, forms, strict=True)),
                known,
                call,
                core=core,
                hidden=hidden,
                words=len(places),
            )
            number = self._templates[key] = self.adopt(template)
        block.code.append(number)
        block.code.append(line)
        block.code.extend(places)
