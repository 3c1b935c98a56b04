"""TORCH_NEURONX_CLOCK=model: what programs are predicted to take, counted as they run.

Programs of graphs have the prediction that their compiler left in them
(`neuronxcc.perf.graphs.kept`), kernels of NKI that of the performance model. Operators of eager
mode and collectives are counted by `operator_time`.
"""

from __future__ import annotations

import atexit
import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from neuron_tools.registry.predicted import Keeper
from neuronxcc.environment.tools import TORCH_NEURONX_CLOCK
from neuronxcc.perf.graphs.kept import predicted_us
from torch_neuronx import _C
from torch_neuronx.profiling.recording import PREDICTED

if TYPE_CHECKING:
    from torch_neuronx.program.executable import Executable


class _Process:
    """The file of this process, made when the first program is loaded."""

    keeper: Keeper | None = None
    tried = False
    lock = threading.Lock()

    @classmethod
    def opened(cls) -> Keeper | None:
        """Return what keeps the numbers; None if there is no file."""
        _C.init()  # which makes the file that this one lies beside
        with cls.lock:
            if not cls.tried:
                cls.tried = True
                cls._open()
        return cls.keeper

    @classmethod
    def _open(cls) -> None:
        path = _C.registry_path()
        if not path:  # no file is kept, TORCH_NEURONX_REGISTRY_DIR=off
            return
        try:
            cls.keeper = Keeper(Path(path), _C.device_count())
        except OSError as error:
            warnings.warn(
                f"predicted times cannot be kept for the tools: {error}", RuntimeWarning,
                stacklevel=2,
            )  # fmt: skip
            return
        _C.keep_tallies(cls.keeper.numbers)
        atexit.register(cls.keeper.remove)
        os.register_at_fork(after_in_child=cls._forget)

    @classmethod
    def _forget(cls) -> None:
        """In a forked child, which may not use the device: the file is the parent's."""
        if cls.keeper is not None:
            atexit.unregister(cls.keeper.remove)
        cls.keeper = None


_SAID: set[str] = set()  # reasons why there is no prediction


def count(executable: Executable, predicted: Callable[[], float]) -> None:
    """Count what a program on a core is predicted to take, if tools ask for that.

    A program without a prediction runs as any other. Its executions are counted as such, and tools
    then show this host's time for the process.

    Args:
        executable: The program, which nobody has called yet.
        predicted: Gives the microseconds that it is predicted to take, or raises. It is asked once,
            and only if TORCH_NEURONX_CLOCK=model.
    """
    if executable.device.type != "neuron" or TORCH_NEURONX_CLOCK.get() != "model":
        return
    name = executable.program.name
    ns: int | None = None
    try:
        us = predicted()
        ns = round(1000 * us)
        PREDICTED[name] = us
    except Exception as error:  # noqa: BLE001 - a program is worth no less without a prediction
        if text := said("program", name, f"{type(error).__name__}: {error}"):
            warnings.warn(text, RuntimeWarning, stacklevel=2)
    kept = keeper()
    if kept is not None:
        _C.tally(executable.run, kept.places(executable.device.index, ns))


def count_kept(executable: Executable) -> None:
    """The same, by what the program's compiler has left in it."""
    count(executable, lambda: predicted_us(executable.program.meta))


def keeper() -> Keeper | None:
    """Return the numbers that tools read, made at the first call; None if no file is kept."""
    return _Process.opened()


def said(what: str, name: str, reason: str) -> str:
    """Return the text that a program or an operator has no predicted time; once for a reason."""
    if reason in _SAID:
        return ""
    _SAID.add(reason)
    return (
        f"TORCH_NEURONX_CLOCK=model: the {what} {name!r} has no predicted time ({reason}). It "
        "runs as any other, and once it has, the tools show this host's time for this process"
    )
