"""TORCH_NEURONX_CLOCK=model: what programs are predicted to take, counted as they run.

Programs of graphs have the prediction that their compiler left in them
(`neuronxcc.perf.graphs.kept`), kernels of NKI that of the performance model. Operators of eager
mode have none: to predict one, its arguments would have to be seen by Python, which takes longer
than most operators do.
"""

from __future__ import annotations

import atexit
import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from neuron_tools.registry.predicted import Keeper
from neuronxcc.environment.tools import TORCH_NEURONX_CLOCK
from torch_neuronx import _C
from torch_neuronx.profiling.recording import PREDICTED

Tensors = TypeVar("Tensors")  # a list or tuple of them


class _Process:
    """The file of this process, made at the first execution."""

    keeper: Keeper | None = None
    tried = False
    lock = threading.Lock()

    @classmethod
    def counter(cls, core: int, ns: int | None) -> Callable[[], None]:
        """Return what counts an execution, see `Keeper.counter`."""
        with cls.lock:
            if not cls.tried:
                cls._open()
                cls.tried = True
        return _nothing if cls.keeper is None else cls.keeper.counter(core, ns)

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
        atexit.register(cls.keeper.remove)
        os.register_at_fork(after_in_child=cls._forget)

    @classmethod
    def _forget(cls) -> None:
        """In a forked child: the file is the parent's."""
        if cls.keeper is not None:
            atexit.unregister(cls.keeper.remove)
            cls.keeper.disown()
        cls.keeper = None


def _nothing() -> None:
    pass


_SAID: set[str] = set()  # reasons why there is no prediction


def counted(
    run: Callable[[Tensors], list[torch.Tensor]],
    device: torch.device,
    name: str,
    predicted: Callable[[], float],
) -> Callable[[Tensors], list[torch.Tensor]]:
    """Return what runs a program on a core and, if tools ask for that, counts its predicted time.

    A program without a prediction runs as any other. Its executions are counted as such, and tools
    then show this host's time for the process.

    Args:
        run: Runs the program.
        device: Where.
        name: Of the program.
        predicted: Gives the microseconds that it is predicted to take, or raises. It is asked once,
            and only if TORCH_NEURONX_CLOCK=model.
    """
    if device.type != "neuron" or TORCH_NEURONX_CLOCK.get() != "model":
        return run
    index: int | None = device.index
    core = _C.current_device() if index is None else index
    ns: int | None = None
    try:
        us = predicted()
        ns = round(1000 * us)
        PREDICTED[name] = us
    except Exception as error:  # noqa: BLE001 - a program is worth no less without a prediction
        _say(name, f"{type(error).__name__}: {error}")

    count: Callable[[], None] | None = None

    def call(args: Tensors) -> list[torch.Tensor]:
        nonlocal count
        results = run(args)
        if count is None:
            count = _Process.counter(core, ns)  # now that the process has its file
        count()
        return results

    return call


def _say(name: str, reason: str) -> None:
    if reason in _SAID:
        return
    _SAID.add(reason)
    warnings.warn(
        f"TORCH_NEURONX_CLOCK=model: the program {name!r} has no predicted time ({reason}). It "
        "runs as any other, and once it has, the tools show this host's time for this process",
        RuntimeWarning,
        stacklevel=3,
    )
