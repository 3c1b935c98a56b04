"""One specialisation of a kernel: what was recorded for a signature, and how it is run."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from neuronxcc.targets import Target
from nki.errors import NkiError, NkiTypeError, NkiWarning
from nki.merge import merge
from nki.recorder import Grid, Recorder
from nki.recording import Recording, Result
from nki.tensor import NkiTensor

__all__ = ["CHECKS_VARIABLE", "Launch", "Slot", "record"]

CHECKS_VARIABLE = "TORCH_NEURONX_NKI_CHECKS"
Array = npt.NDArray[Any]
Runner = Callable[[Sequence[Array]], Any]


class Slot:
    """Stands for array argument number ``number`` in the arguments of a kernel."""

    __slots__ = ("dtype", "name", "number", "shape")

    def __init__(self, number: int, name: str, shape: tuple[int, ...], dtype: str) -> None:
        self.number = number
        self.name = name
        self.shape = shape
        self.dtype = dtype


class Launch:
    """A recording, and what makes it run.

    Attributes:
        recording: what the kernel did.
        written: numbers of the array arguments that it writes.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        known = recording.written_inputs()
        self.written = frozenset(i for i, n in enumerate(recording.inputs) if n in known)
        self._runners: dict[Any, Any] = {}

    def runner(self, key: Any, make: Callable[[Recording], Any]) -> Any:
        """Return what runs the recording in some place, made when first asked for."""
        full = (key, make)
        found = self._runners.get(full)
        if found is None:
            found = self._runners[full] = make(self.recording)
        return found

    def restore(self, results: Any, values: list[Any]) -> Any:
        """Put arguments into the results where the kernel returned them as they are."""
        return _restored(self.recording, self.recording.results, results, values)


def _restored(recording: Recording, form: Any, result: Any, values: list[Any]) -> Any:
    if isinstance(form, Result):
        if form.storage in recording.inputs:
            whole = recording.storages[form.storage]
            if form.form.shape == whole.shape and form.offset == 0:
                return values[recording.inputs.index(form.storage)]
        return result
    if isinstance(form, (tuple, list)):
        pairs = zip(form, result, strict=True)
        return type(form)(_restored(recording, f, r, values) for f, r in pairs)
    if isinstance(form, dict):
        return {k: _restored(recording, form[k], result[k], values) for k in form}
    return result


def record(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    target: Target,
    grid: Grid,
    values: Callable[[], list[Array]] | None = None,
) -> Recording:
    """Run a kernel as Python and return what it did.

    Args:
        function: the kernel.
        args: its arguments, with a :class:`Slot` for every array.
        kwargs: likewise.
        target: what to check for.
        grid: programs along each axis of the launch grid, () for none; they run on as many cores.
        values: gives the contents of the arrays, for kernels that look at them.

    Raises:
        NkiError: the kernel breaks a rule.
    """
    count = int(np.prod(grid)) if grid else 1
    recorders = []
    for index in range(count):
        recorder = Recorder(function.__name__, target, grid=grid, index=index, lane=index)
        recorder.values = values
        with recorder.active():
            result = function(*_tensors(recorder, args), **_tensors(recorder, kwargs))
            recorder.recording.results = _results(recorder, result)
        recorders.append(recorder)
    recording = merge(recorders)
    _report(recording)
    return recording


def _tensors(recorder: Recorder, value: Any) -> Any:
    """Replace slots by tensors, in order of their numbers."""
    if isinstance(value, Slot):
        return recorder.argument(value.shape, value.dtype, value.name)
    if isinstance(value, (tuple, list)):
        return type(value)(_tensors(recorder, item) for item in value)
    if isinstance(value, dict):
        return {key: _tensors(recorder, item) for key, item in value.items()}
    return value


def _results(recorder: Recorder, result: Any) -> Any:
    if isinstance(result, NkiTensor):
        if result.buffer.on_chip or result.is_indirect():
            raise NkiError(
                "NKI208",
                f"the kernel returns {result!r}",
                "results are tensors in nl.shared_hbm: copy it there with nisa.dma_copy",
            )
        return recorder.result(result)
    if isinstance(result, (tuple, list)):
        return type(result)(_results(recorder, item) for item in result)
    if isinstance(result, dict):
        return {key: _results(recorder, item) for key, item in result.items()}
    if result is None:
        return None
    raise NkiTypeError(
        "NKI208",
        f"the kernel returns a {type(result).__name__}",
        "return tensors in nl.shared_hbm, one or a tuple of them, or nothing",
    )


def _report(recording: Recording) -> None:
    """Warn of findings, or refuse them, as `TORCH_NEURONX_NKI_CHECKS` says."""
    mode = os.environ.get(CHECKS_VARIABLE) or "warn"
    if mode not in ("off", "warn", "strict"):
        raise ValueError(f"{CHECKS_VARIABLE}={mode}: use off, warn or strict")
    seen: set[tuple[str, tuple[str, int]]] = set()
    for finding, where in recording.findings:
        if mode == "off" or (finding.code, where) in seen:
            continue
        seen.add((finding.code, where))
        if mode == "strict":
            raise NkiError(
                finding.code,
                finding.text,
                f"correct it, or set {CHECKS_VARIABLE}=warn to go on",
                where,
            )
        warnings.warn_explicit(f"{finding.text} [{finding.code}]", NkiWarning, *where)
