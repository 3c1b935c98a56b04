"""A NEFF loaded onto a core, and its calls."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from neuronxcc.environment.runtime import NEURON_FAIL_ON_NAN, NEURON_RT_NUMERICAL_ERRORS_VERBOSITY
from neuronxcc.files import write_whole
from neuronxcc.neff.container import NeffInfo, read_neff
from neuronxcc.neff.rules import check_lnc, check_target
from neuronxcc.program.errors import NeffError
from neuronxcc.program.footprint import MemoryFacts
from neuronxcc.program.interface import RANK, Interface, interface
from torch_neuronx import _C
from torch_neuronx._config import machine
from torch_neuronx.nrt.groups import Ranks, bind, needs_ranks
from torch_neuronx.program.executable import Executable
from torch_neuronx.program.model_time import count_kept
from torch_neuronx.program.rounding import state_source

Tensors = list[torch.Tensor]


class LoadedNeff:
    """A program of a NEFF on a core. Calls may run at the same time.

    Attributes:
        info: What the NEFF says about itself.
        interface: Its inputs and outputs.
        core: Index of the neuron device.
        memory: How much of the core's memory it needs.
        run: Takes the tensors of `interface.given` in a list, which is emptied; returns the
            results when they are there, also where operators are enqueued: a call of the runtime
            says how its execution ended.
    """

    def __init__(
        self, content: bytes | memoryview, core: int, rank: int = 0, ranks: Ranks | None = None
    ) -> None:
        """Load.

        Args:
            content: The file.
            core: Index of the neuron device.
            rank: What a program that asks for its rank is told.
            ranks: The job whose collectives the program takes part in, if it has any.

        Raises:
            NeffError: The file is damaged, or made for another machine or another job.
            ValueError: The program contradicts itself.
            torch.OutOfMemoryError: The core has no memory for its constants.
        """
        found = read_neff(content)
        here = machine()
        if found.info.target:
            remedy = f"compile it again with --target {here.target.name}"
            check_target(found.info.target, here.target.name, remedy)
        check_lnc(found.info.lnc, here.lnc)
        program = found.program
        if needs_ranks(program):
            if ranks is None:
                raise NeffError(
                    "the NEFF has collectives: load it with cc_enabled=True, the rank_id of this "
                    "process and the world_size of the job"
                )
            program = bind(program, ranks)
        self.info: NeffInfo = found.info
        self.interface: Interface = interface(program)
        self.core = core
        self._executable = Executable(program, torch.device("neuron", core))
        self.memory: MemoryFacts = self._executable.memory
        count_kept(self._executable)
        self.run: Callable[[Tensors], Tensors] = self._run
        if self.interface.supplied:
            self.run = self._supplying(rank)

    def _run(self, args: Tensors) -> Tensors:
        results = self._executable.run(args)
        _C.synchronize(self.core)
        return results

    def _supplying(self, rank: int) -> Callable[[Tensors], Tensors]:
        """A call that also fills the inputs that are not the caller's."""
        run = self.run
        number = torch.tensor(rank, dtype=torch.int32, device=torch.device("neuron", self.core))
        sources: list[tuple[int, Callable[[], torch.Tensor]]] = [
            (place, (lambda: number) if what == RANK else state_source())
            for place, what in sorted(self.interface.supplied.items())
        ]

        def call(args: Tensors) -> Tensors:
            for place, source in sources:
                args.insert(place, source())
            return run(args)

        return call

    def count_failure(self, status: int) -> None:
        """Count a call whose result was found to be wrong, for the tools, by NRT_STATUS."""
        _C.count_failure(self.core, status)


def reports_nan() -> bool:
    """Return whether the environment asks for an error when a result is not a number."""
    verbosity = NEURON_RT_NUMERICAL_ERRORS_VERBOSITY.get().lower()
    return NEURON_FAIL_ON_NAN.get() or verbosity == "critical"


def with_nan(results: Sequence[torch.Tensor]) -> list[int]:
    """Numbers of the results that have elements which are not numbers."""
    return [
        number
        for number, result in enumerate(results)
        if (result.is_floating_point() or result.is_complex())
        and bool(torch.isnan(result.float() if result.itemsize == 1 else result).any())
    ]


def traced(call: Callable[[], Tensors], path: Path) -> Tensors:
    """Run a call under PyTorch's profiler and write what it saw.

    Args:
        call: What is run.
        path: Where to; written as a whole or not at all.

    Returns:
        What the call returned.

    Raises:
        OSError: The file can't be written.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        results = call()
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(exported))
        document = json.loads(exported.read_text(encoding="utf-8"))
    document["format"] = "Chrome trace of TorchNeuron's emulated NeuronCore; no NTFF of AWS"
    write_whole(path, json.dumps(document).encode())
    return results
