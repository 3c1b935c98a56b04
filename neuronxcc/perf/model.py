"""What a target's core costs, in picoseconds: the chip's numbers and the model's parameters.

Times are integers, so that sums of them do not depend on their order, and what a loop repeats it
repeats exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from neuronxcc.perf.parameters import Parameters
from neuronxcc.perf.stream import ENGINES, GPSIMD, SCALAR, SYNC, TENSOR, VECTOR, Work
from neuronxcc.targets import Target

__all__ = ["CoreModel", "Cost", "model_of"]

LEAST_CYCLES = 64  # of an instruction: NKI API reference, the minimum initiation interval
_PS = 1000  # picoseconds in a nanosecond
# What VectorE shares with GpSimd (the port to SBUF) and with ScalarE (that to PSUM).
SBUF_PORT, PSUM_PORT = 1, 2
_SHARING = {VECTOR: SBUF_PORT | PSUM_PORT, GPSIMD: SBUF_PORT, SCALAR: PSUM_PORT}


class Cost(NamedTuple):
    """What a work costs; times are picoseconds.

    Attributes:
        issue: until the next instruction of its queue can begin.
        latency: from then on until what it wrote can be read.
        ports: which ports it holds during `issue`, as bits.
        engines: how many DMA engines move it, 0 if it moves nothing.
        moving: how long each of them does.
        start: until the first byte moves.
        maker: who makes its descriptors: 0 nobody, 1 one of the two units for that, 2 GpSimd.
        making: how long that takes.
    """

    issue: int
    latency: int
    ports: int = 0
    engines: int = 0
    moving: int = 0
    start: int = 0
    maker: int = 0
    making: int = 0


@dataclass(frozen=True, slots=True)
class CoreModel:
    """A core of a target with parameters.

    Attributes:
        target: the machine.
        parameters: of the model.
        clocks: GHz by engine, in the order of `ENGINES`.
        latencies: cycles by engine likewise.
        hbm_gbps: the core's share of its chip's HBM, in 1e9 bytes per second.
        shares_ports: VectorE shares ports with GpSimd and ScalarE: NeuronCore-v2.
    """

    target: Target
    parameters: Parameters
    clocks: tuple[float, ...]
    latencies: tuple[float, ...]
    hbm_gbps: float
    shares_ports: bool

    @property
    def semaphore(self) -> int:
        """From an engine's end to another engine's start, in picoseconds."""
        return round(self.parameters.semaphore * _PS)

    @property
    def launch(self) -> int:
        """What passes besides the device's own time when a program is run, in picoseconds."""
        return round(self.parameters.launch * _PS * _PS)

    @property
    def dma_gbps(self) -> float:
        """The most that a core's DMA engines move, in 1e9 bytes per second."""
        return self.target.core.dma_engines * self.target.core.dma_engine_gbps

    def cost(self, work: Work) -> Cost:
        """Return what a work costs."""
        if work.transfer is not None:
            return self._transfer(work)
        clock = self.clocks[work.queue]
        ports = 0
        if self.shares_ports:
            ports = (SBUF_PORT if work.sbuf else 0) | (PSUM_PORT if work.psum else 0)
            ports &= _SHARING.get(work.queue, 0)
        cycles = work.cycles
        if work.slope:
            cycles = max(LEAST_CYCLES, cycles * getattr(self.parameters, work.slope))
        issue = round(cycles / clock * _PS)
        if work.waits:
            issue += round(self.parameters.wait * _PS)
        return Cost(issue, round(self.latencies[work.queue] / clock * _PS), ports)

    def _transfer(self, work: Work) -> Cost:
        known, core = self.parameters, self.target.core
        transfer = work.transfer
        assert transfer is not None
        rows = max(1, -(-transfer.nbytes // max(1, transfer.row)))
        engines = min(core.dma_engines, rows)
        # A transfer between two places in HBM takes its bandwidth twice.
        share = self.hbm_gbps / core.dma_engines / max(1, transfer.hbm)
        rate = min(core.dma_engine_gbps, share) * transfer.share
        size = known.row_bytes(min(transfer.row, transfer.nbytes))
        # What the last rows leave of an engine's turn another transfer can use.
        moving = max(rows * size, transfer.nbytes) / engines / rate * _PS
        maker = {"": 0, "hardware": 1, "gpsimd": 2}[transfer.made]
        return Cost(
            issue=round(known.dma_issue * _PS),
            latency=0,
            engines=engines,
            moving=round(moving),
            start=round(known.dma_start * _PS),
            maker=maker,
            making=round(known.descriptors * _PS) if maker else 0,
        )


def model_of(target: Target, parameters: Parameters | None = None) -> CoreModel:
    """Return what the cores of a target cost.

    Args:
        target: the machine.
        parameters: by default those of the table.
    """
    known = parameters or Parameters()
    core = target.core
    specs = {spec.name.value: spec.clock_ghz for spec in core.engines}
    # The Sync Engine computes nothing, and no clock of it is published: GpSimd's stands for it.
    clocks = tuple(specs.get(name, core.gpsimd.clock_ghz) for name in ENGINES)
    latencies = [0.0] * len(ENGINES)
    latencies[TENSOR] = known.tensor_latency
    latencies[VECTOR] = known.vector_latency
    latencies[SCALAR] = known.scalar_latency
    latencies[GPSIMD] = latencies[SYNC] = known.gpsimd_latency
    return CoreModel(
        target,
        known,
        clocks,
        tuple(latencies),
        target.hbm_gbps / target.cores_per_chip,
        shares_ports=core.generation == 2,
    )
