"""A recording that is being made, as those see it who follow what it reads and writes.

`nki.recorder` makes recordings with the help of `nki.psum`, `nki.uninitialised` and `nki.repeats`.
These are below it, so they know it by what stands here.
"""

from __future__ import annotations

from typing import Any, Protocol

from nki.forms import Forms
from nki.isa.objects import NkiInstruction
from nki.memory import Storage
from nki.recording import Block, Recording, Template
from nki.tensor import NkiTensor

__all__ = ["OpenRecording"]


class OpenRecording(Protocol):
    """The interface of a recorder for its helpers.

    Attributes:
        recording: what was recorded so far.
        forms: numbers the storages.
        depth: number of nested loops of the device that are open.
        cores: physical cores of the logical core.
    """

    recording: Recording
    forms: Forms
    depth: int
    cores: int
    where: tuple[str, int] | None

    # --- what is recorded ------------------------------------------------------------------------

    def append(self, code: list[int], name: str | None) -> NkiInstruction:
        """Append an instruction to the current block; see `nki.recording.Block` for its code."""

    def hidden_fill(self, block: Block, tensor: NkiTensor, value: Any) -> None:
        """Append a fill that no instruction of the user asks for to an open block."""

    def finding(self, code: str, text: str, where: tuple[str, int] | None = None) -> None:
        """Take note of something that works here and is undefined on hardware."""

    # --- numbers ---------------------------------------------------------------------------------

    def line(self, where: tuple[str, int]) -> int:
        """Return the number of a user's line."""

    def number_of(self, template: Template) -> int:
        """Return the number of a template."""

    def variant(self, template: Template, **changes: Any) -> Template:
        """Return a template like another with some fields changed, always the same one."""

    # --- storages and the loops around them ------------------------------------------------------

    def block_of(self, storage: Storage) -> Block:
        """Return the innermost open block in which a storage exists in all iterations."""

    def inside_loop_of(self, storage: Storage) -> bool:
        """Return whether the current block is a loop that the storage was created outside of."""

    def surely_runs(self, storage: Storage) -> bool:
        """Return whether the current block runs, once control is where a storage is created."""

    def counted(self, storage: Storage, index: Any) -> range | None:
        """Return the values that a register takes while a storage exists; None if unknown."""

    def where_created(self, storage: Storage) -> tuple[str, int]:
        """Return the user's line that created a storage in HBM."""
