"""TORCH_NEURONX_CLOCK=model: what compiled programs are predicted to take, counted as they run.

A prediction is that of `torch_neuronx.estimate` by bytes and flops (`neuronxcc.perf.graphs`), made
when a program is loaded. Operators of eager mode, traced models and NEFF files have none.
"""

from __future__ import annotations

import atexit
import os
import threading
import warnings
from pathlib import Path
from typing import Any

import torch

from neuron_tools.registry.predicted import Keeper
from neuronxcc.options import Options
from neuronxcc.passes import pipeline
from neuronxcc.perf.graphs import Machine, sections_of
from neuronxcc.targets import get_target
from torch_neuronx import _C, _config
from torch_neuronx.dynamo.importer import Imported
from torch_neuronx.profiling.recording import PREDICTED
from torch_neuronx.program.executable import Run


def predicted_us(imported: Imported, settings: Options) -> float:
    """Return the microseconds that a NeuronCore is predicted to take for a graph."""
    machine = Machine.of(get_target(settings.target), _config.machine().lnc)
    graph = pipeline.run(imported.graph, settings)
    constant = imported.constant_params or frozenset()
    return sum(one.us for one in sections_of(graph, machine, constant_params=constant))


class _Process:
    """The file of this process, made at the first execution."""

    keeper: Keeper | None = None
    tried = False
    lock = threading.Lock()

    @classmethod
    def count(cls, core: int, ns: int) -> None:
        if not cls.tried:
            with cls.lock:
                if not cls.tried:
                    cls._open()
                    cls.tried = True
        if cls.keeper is not None:
            cls.keeper.add(core, ns)

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
        cls.keeper = None


def counted(run: Run, imported: Imported, settings: Options, name: str) -> Run:
    """Return what runs a program on a core and counts its predicted time."""
    device = imported.device
    if device.type != "neuron":
        return run
    us = PREDICTED[name] = predicted_us(imported, settings)
    index: int | None = device.index
    core = _C.current_device() if index is None else index
    ns = round(1000 * us)

    def call(args: list[Any]) -> list[torch.Tensor]:
        results = run(args)
        _Process.count(core, ns)
        return results

    return call
