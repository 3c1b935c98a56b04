"""What a kernel's call returns: which tensors are new, which are arguments, in what structure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nki.recording import Recording, Result
from torch_neuronx.nki.types import TO_TORCH

__all__ = ["Fresh", "Layout"]


@dataclass(frozen=True, slots=True)
class Fresh:
    """A tensor that a call creates.

    Attributes:
        result: where the kernel has it.
        shape: sizes.
        dtype: PyTorch's type.
    """

    result: Result
    shape: tuple[int, ...]
    dtype: torch.dtype


class Layout:
    """The results of a recording.

    Attributes:
        fresh: the new tensors, in the order of the results.
        written: numbers of the array arguments that the kernel changes, increasing.
    """

    def __init__(self, recording: Recording, written: frozenset[int]) -> None:
        self._recording = recording
        self.written = tuple(sorted(written))
        self.fresh = tuple(
            Fresh(leaf, leaf.form.shape, TO_TORCH[leaf.form.dtype])
            for leaf in _leaves(recording.results)
            if self._argument(leaf) is None
        )

    def assemble(self, fresh: Sequence[Any], values: Sequence[Any]) -> Any:
        """Return what the call returns.

        Args:
            fresh: the new tensors, in order.
            values: the array arguments: a kernel that returns one as it is returns that object.
        """
        return self._filled(self._recording.results, iter(fresh), values)

    def flatten(self, results: Any) -> list[Any]:
        """Return the new arrays among results of the recording's structure, in order."""
        found: list[Any] = []
        self._collect(self._recording.results, results, found)
        return found

    def _argument(self, leaf: Result) -> int | None:
        """The number of the argument that a result is, as a whole."""
        recording = self._recording
        if leaf.storage not in recording.inputs:
            return None
        whole = recording.storages[leaf.storage]
        same = leaf.form.shape == whole.shape and leaf.offset == 0
        return recording.inputs.index(leaf.storage) if same else None

    def _filled(self, form: Any, fresh: Iterator[Any], values: Sequence[Any]) -> Any:
        if isinstance(form, Result):
            number = self._argument(form)
            return next(fresh) if number is None else values[number]
        if isinstance(form, (tuple, list)):
            items = [self._filled(item, fresh, values) for item in form]
            return type(form)(*items) if hasattr(form, "_fields") else type(form)(items)
        if isinstance(form, dict):
            return {key: self._filled(item, fresh, values) for key, item in form.items()}
        return form

    def _collect(self, form: Any, result: Any, found: list[Any]) -> None:
        if isinstance(form, Result):
            if self._argument(form) is None:
                found.append(result)
        elif isinstance(form, (tuple, list)):
            for item, part in zip(form, result, strict=True):
                self._collect(item, part, found)
        elif isinstance(form, dict):
            for key, item in form.items():
                self._collect(item, result[key], found)


def _leaves(form: Any) -> Iterator[Result]:
    if isinstance(form, Result):
        yield form
    elif isinstance(form, (tuple, list)):
        for item in form:
            yield from _leaves(item)
    elif isinstance(form, dict):
        for item in form.values():
            yield from _leaves(item)
