"""`neuron-explorer capture`: runs a NEFF and keeps what the core did."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from neuron_tools.explorer.session import Event, SessionError, write_events
from neuronxcc.files import read_regular, write_whole
from nrtpy import NrtpyModel, NrtpyTensor
from torch_neuronx.profiling import recording

_MOST = 1_000_000  # activities
_MOST_BYTES = 1 << 34  # of an input


class Done(NamedTuple):
    """What a capture leaves.

    Attributes:
        profile: The file; None if none was wanted.
        outputs: The files of results, by name.
        checksums: CRC32 of each result, execution by execution, if they were asked for.
    """

    profile: Path | None
    outputs: list[tuple[str, Path]]
    checksums: dict[str, list[int]]


def capture(
    neff: Path,
    ntff: Path | None,
    inputs: Mapping[str, Path],
    *,
    executions: int = 1,
    kept: int | None = None,
    outputs: Sequence[str] = (),
    checksums: bool = False,
) -> Done:
    """Run a NEFF and write the profile of one execution.

    Args:
        neff: The file.
        ntff: Where the profile is written, None: nowhere. With `kept` its name has `_exec_<kept>`.
        inputs: Files by name: .npy, or the bytes of the tensor. Others are zeros.
        executions: How often it runs.
        kept: The execution that is kept, from 1; None: the last.
        outputs: Write the results of the last execution beside the profile (without one, in the
            current directory) under these endings: ".npy", or "" for their bytes.
        checksums: Note the CRC32 of all results.

    Raises:
        SessionError: An input or a number doesn't fit the NEFF.
    """
    chosen = executions if kept is None else kept
    if not 1 <= chosen <= executions:
        raise SessionError(f"execution {chosen} is to be kept of {executions}")
    model = NrtpyModel.load_from_neff(neff)
    given = _inputs(model, neff, inputs)
    results: dict[str, NrtpyTensor] = {}
    events: list[Event] = []
    sums: dict[str, list[int]] = {}
    for number in range(1, executions + 1):
        observed = number == chosen and ntff is not None
        if observed:
            recording.start(_MOST)
        results = model(given) or {}
        if observed:
            events, _ = recording.take()
        for name, result in results.items() if checksums else ():
            sums.setdefault(name, []).append(zlib.crc32(result.numpy().tobytes()))
    path = ntff
    if path is not None:
        path = path if kept is None else path.with_name(f"{path.stem}_exec_{kept}{path.suffix}")
        write_events(path, [event for event in events if event.source == "neuron_hw"])
    return Done(path, _save(results, path.parent if path else Path(), outputs), sums)


def _inputs(model: NrtpyModel, neff: Path, inputs: Mapping[str, Path]) -> dict[str, NrtpyTensor]:
    unknown = set(inputs) - set(model.input_tensors_info)
    if unknown:
        known = ", ".join(model.input_tensors_info)
        raise SessionError(f"{neff} has no input {min(unknown)!r}; it has {known}")
    return {name: _tensor(model, name, inputs.get(name)) for name in model.input_tensors_info}


def _save(
    results: Mapping[str, NrtpyTensor], folder: Path, endings: Sequence[str]
) -> list[tuple[str, Path]]:
    written = []
    for name, result in results.items():
        for ending in endings:
            written.append((name, folder / f"{name}{ending}"))
            if ending:
                np.save(written[-1][1], result.numpy(), allow_pickle=False)
            else:
                write_whole(written[-1][1], result.numpy().tobytes())
    return written


def _tensor(model: NrtpyModel, name: str, path: Path | None) -> NrtpyTensor:
    info = model.input_tensors_info[name]
    if path is None:
        return NrtpyTensor.from_numpy(np.zeros(info.shape, info.dtype), name)
    if path.suffix == ".npy":
        array = np.load(path, allow_pickle=False)
    else:
        data = read_regular(path, _MOST_BYTES, links=True, anyone=True)
        if len(data) != info.size:
            raise SessionError(f"{path} has {len(data)} bytes; input {name!r} has {info.size}")
        array = np.frombuffer(data, info.dtype).reshape(info.shape)
    if list(array.shape) != list(info.shape) or array.dtype != info.dtype:
        raise SessionError(
            f"{path} is {array.dtype}{list(array.shape)}; "
            f"input {name!r} is {info.dtype}{list(info.shape)}"
        )
    return NrtpyTensor.from_numpy(np.ascontiguousarray(array), name)
