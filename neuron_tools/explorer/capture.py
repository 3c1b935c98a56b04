"""`neuron-explorer capture`: runs a NEFF and keeps what the core did."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from neuron_tools.explorer.session import Event, SessionError, write_events
from neuronxcc.files import read_regular
from nrtpy import NrtpyModel, NrtpyTensor
from torch_neuronx.profiling import recording

_MOST = 1_000_000  # activities
_MOST_BYTES = 1 << 34  # of an input


def capture(
    neff: Path,
    ntff: Path,
    inputs: Mapping[str, Path],
    *,
    executions: int = 1,
    kept: int | None = None,
    outputs: bool = False,
) -> list[Path]:
    """Run a NEFF and write the profile of one execution.

    Args:
        neff: The file.
        ntff: Where the profile is written; with `kept`, `<name>_exec_<kept><ending>`.
        inputs: Files by name: .npy, or the bytes of the tensor. Others are zeros.
        executions: How often it runs.
        kept: The execution that is kept, from 1; None: the last.
        outputs: Write the results beside the profile, `<name>.npy`.

    Returns:
        The files.

    Raises:
        SessionError: An input or a number doesn't fit the NEFF.
    """
    chosen = executions if kept is None else kept
    if not 1 <= chosen <= executions:
        raise SessionError(f"execution {chosen} is to be kept of {executions}")
    model = NrtpyModel.load_from_neff(neff)
    unknown = set(inputs) - set(model.input_tensors_info)
    if unknown:
        known = ", ".join(model.input_tensors_info)
        raise SessionError(f"{neff} has no input {min(unknown)!r}; it has {known}")
    given = {name: _tensor(model, name, inputs.get(name)) for name in model.input_tensors_info}
    results = None
    events: list[Event] = []
    for number in range(1, executions + 1):
        if number == chosen:
            recording.start(_MOST)
        results = model(given)
        if number == chosen:
            events, _ = recording.take()
    path = ntff if kept is None else ntff.with_name(f"{ntff.stem}_exec_{kept}{ntff.suffix}")
    write_events(path, [event for event in events if event.source == "neuron_hw"])
    written = [path]
    for name, result in (results or {}).items() if outputs else ():
        written.append(path.with_name(f"{name}.npy"))
        np.save(written[-1], result.numpy(), allow_pickle=False)
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
