"""One specialisation of a kernel: what was recorded for a signature, and how it is run."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from neuronxcc.environment.kernels import TORCH_NEURONX_NKI_CHECKS
from neuronxcc.program.program import Program
from neuronxcc.targets import Target
from nki.checks import check_core
from nki.checks.flow import written
from nki.errors import NkiError, NkiTypeError, NkiWarning
from nki.memory import MemoryRegion
from nki.merge import merge
from nki.objects import copied, fields_of
from nki.recorder import Recorder
from nki.recording import Grid, Recording
from nki.returned import outputs_of, returned
from nki.schedule import Edges, check_edges
from nki.tensor import NkiTensor
from nki.trees import rebuilt
from nki.versions import since

__all__ = ["Facts", "Launch", "Slot", "facts_of", "record"]

Array = npt.NDArray[Any]


class Slot:
    """Stands for array argument number ``number`` in the arguments of a kernel."""

    __slots__ = ("dtype", "name", "number", "shape")

    def __init__(self, number: int, name: str, shape: tuple[int, ...], dtype: str) -> None:
        self.number = number
        self.name = name
        self.shape = shape
        self.dtype = dtype


class Launch:
    """A specialisation that can run: what a kernel did, and programs made of it.

    Attributes:
        name: of the kernel, for people.
        results: structure of what the kernel returns, see `nki.returned`.
        arguments: (shape, NKI's type name) that every array argument must have. It differs from
            what was given only with ``NKI_PRECISE_FP=0``: then the argument is converted, and back
            if it is written.
        written: numbers of the array arguments that it writes.
        outputs: (shape, NKI's type name) of every output.
        findings: what is undefined on hardware, with the user's line.
        keep: Python has not looked at values, so that the next call does the same.
    """

    def __init__(
        self,
        facts: Facts,
        recording: Callable[[], Recording],
        program: Callable[[], Program],
        name: str = "kernel",
    ) -> None:
        """Describe a launch.

        Args:
            facts: what to know of it.
            recording: gives its recording, by running the kernel as Python if need be.
            program: gives its program, by lowering the recording if need be.
            name: of the kernel.
        """
        self.name = name
        self.results = facts.results
        self.arguments = facts.arguments
        self.written = facts.written
        self.outputs = facts.outputs
        self.findings = facts.findings
        self.keep = facts.keep
        self._recording = recording
        self._program = program
        self._made: dict[Any, Any] = {}

    @functools.cached_property
    def recording(self) -> Recording:
        """The recording of the kernel."""
        return self._recording()

    @functools.cached_property
    def program(self) -> Program:
        """The program for the native executor."""
        return self._program()

    def predicted_us(self) -> float:
        """Return how many microseconds it is predicted to take.

        Raises:
            NkiError: a value of the run says how often a loop runs (NKI330).
        """
        from nki.perf.recordings import predict_recording  # noqa: PLC0415 - seldom asked for

        return predict_recording(self.recording).device_us

    def made(self, make: Callable[..., Any], *where: Any) -> Any:
        """Return ``make(self, *where)``, made when it is first asked for.

        That is how executors keep what they load for a place.
        """
        key = (make, *where)
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = make(self, *where)
        return found

    def report(self) -> None:
        """Warn of findings, or refuse them, as `TORCH_NEURONX_NKI_CHECKS` says.

        Raises:
            NkiError: there is a finding, and the variable is ``strict``.
            VariableError: the variable is none of off, warn and strict.
        """
        mode = TORCH_NEURONX_NKI_CHECKS.get()
        for code, text, where in dict.fromkeys(self.findings) if mode != "off" else ():
            if mode == "strict":
                remedy = f"correct it, or set {TORCH_NEURONX_NKI_CHECKS.name}=warn to go on"
                raise NkiError(code, text, remedy, where)
            warnings.warn_explicit(f"{text} [{code}]", NkiWarning, *where)


class Facts(NamedTuple):
    """The facts about a launch without its recording; see :class:`Launch`."""

    results: Any
    arguments: tuple[tuple[tuple[int, ...], str], ...]
    written: frozenset[int]
    outputs: tuple[tuple[tuple[int, ...], str], ...]
    findings: tuple[tuple[str, str, tuple[str, int]], ...]
    keep: bool = True


def facts_of(recording: Recording) -> Facts:
    """Return what is to be known of a recording."""
    known = written(recording)
    return Facts(
        returned(recording),
        tuple(_described(recording, recording.inputs)),
        frozenset(i for i, n in enumerate(recording.inputs) if n in known),
        tuple(_described(recording, outputs_of(recording))),
        tuple((finding.code, finding.text, where) for finding, where in recording.findings),
        not recording.peeked,
    )


def _described(
    recording: Recording, numbers: Iterable[int]
) -> Iterator[tuple[tuple[int, ...], str]]:
    for number in numbers:
        storage = recording.storages[number]
        yield storage.shape, storage.dtype


def record(
    function: Callable[..., Any],
    calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]],
    *,
    target: Target,
    grid: Grid,
    edges: Edges = (),
    values: Sequence[Callable[[], list[Array]]] | None = None,
) -> Recording:
    """Run a kernel as Python for every rank and core, and return what they do together.

    Args:
        function: the kernel.
        calls: positional and named arguments of each rank, with a :class:`Slot` for every array.
        target: what to check for.
        grid: programs along each axis of the launch grid, () for none; each rank runs them on as
            many cores.
        edges: what the schedule demands.
        values: gives the contents of the arrays of each rank, for kernels that look at them.

    Raises:
        NkiError: the kernel breaks a rule.
    """
    count = int(np.prod(grid)) if grid else 1
    checked = TORCH_NEURONX_NKI_CHECKS.get() != "off"
    recorders = []
    for rank, (args, kwargs) in enumerate(calls):
        for index in range(count):
            recorder = Recorder(
                function.__name__, target, grid=grid, index=index, rank=rank, ranks=len(calls)
            )
            recorder.values = None if values is None else values[rank]
            with recorder.active():
                objects: dict[int, Any] = {}
                given = [_tensors(recorder, part, objects) for part in (args, kwargs)]
                result = function(*given[0], **given[1])
                recorder.recording.results = _results(recorder, result)
            check_edges(edges, recorder.names)
            if checked:
                check_core(recorder)
            recorders.append(recorder)
    return merge(recorders)


def _tensors(recorder: Recorder, value: Any, objects: dict[int, Any]) -> Any:
    """Replace slots by tensors, in order of their numbers, and data objects by copies.

    Args:
        recorder: whose tensors.
        value: an argument.
        objects: the copies by id of the original, for those that occur several times.
    """
    if isinstance(value, Slot):
        return recorder.argument(value.shape, value.dtype, value.name)
    if isinstance(value, (tuple, list)):
        return rebuilt(value, [_tensors(recorder, item, objects) for item in value])
    if isinstance(value, dict):
        return {key: _tensors(recorder, item, objects) for key, item in value.items()}
    fields = fields_of(value)
    if fields is None:
        return value
    made = objects.get(id(value))
    if made is None:
        made = objects[id(value)] = copied(value, {})
        for name, item in fields.items():
            vars(made)[name] = _tensors(recorder, item, objects)
    return made


def _results(recorder: Recorder, result: Any) -> Any:
    if isinstance(result, NkiTensor):
        private = result.buffer is MemoryRegion.private_hbm
        if not (result.buffer.on_chip or result.is_indirect() or (private and recorder.cores > 1)):
            found = recorder.result(result)
            if private and since("outputs") and found.storage not in recorder.recording.inputs:
                # The guides of 0.6 return such tensors, and its migration guide forbids them.
                recorder.finding(
                    "NKI208", f"the kernel returns {result!r}, which 0.3 and later do not compile"
                )
            return found
        raise NkiError(
            "NKI208",
            f"the kernel returns {result!r}",
            "results are tensors in nl.shared_hbm: copy it there with nisa.dma_copy",
        )
    if isinstance(result, (tuple, list)):
        return rebuilt(result, [_results(recorder, item) for item in result])
    if isinstance(result, dict):
        return {key: _results(recorder, item) for key, item in result.items()}
    if result is None:
        return None
    raise NkiTypeError(
        "NKI208",
        f"the kernel returns a {type(result).__name__}",
        "return tensors in nl.shared_hbm, one or a tuple of them, or nothing",
    )
