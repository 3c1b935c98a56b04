"""A logical core: what a program is compiled for, as rates in microseconds."""

from __future__ import annotations

from dataclasses import dataclass, field

from neuronxcc.ir.dtypes import DType
from neuronxcc.perf.graphs.parameters import GraphParameters
from neuronxcc.perf.parameters import Parameters
from neuronxcc.targets import EngineSpec, Target

__all__ = ["LANES", "LEAST", "Machine"]

LANES = 128  # partitions that an engine works on at a time
LEAST = 64  # cycles of an instruction: NKI API reference, the minimum initiation interval
_MOVING = 512  # columns of the moving operand of an instruction (nki-api-reference, nc_matmul)
#: How the tables of the targets call the IR's types.
_NAMES = {
    DType.F32: "float32",
    DType.F64: "float32",
    DType.F16: "float16",
    DType.BF16: "bfloat16",
    DType.F8E4M3: "float8",
    DType.F8E4M3FN: "float8",
    DType.F8E5M2: "float8",
    DType.F8E8M0: "float8",
}
_WIDTHS = {
    DType.F8E4M3: "float8_e4m3",
    DType.F8E4M3FN: "float8_e4m3fn",
    DType.F8E5M2: "float8_e5m2",
}


@dataclass(frozen=True, slots=True)
class Machine:
    """One logical core of a target.

    The work of a logical core is divided evenly over its physical cores: they have an engine of
    each kind and their share of HBM, and nothing is lost between them.

    Attributes:
        target: the chip.
        lnc: physical cores of a logical one.
        known: the parameters of kernels.
        graph: those of graphs.
    """

    target: Target
    lnc: int = 1
    known: Parameters = field(default_factory=Parameters)
    graph: GraphParameters = field(default_factory=GraphParameters)

    @classmethod
    def of(
        cls,
        target: Target,
        lnc: int | None = None,
        known: Parameters | None = None,
        graph: GraphParameters | None = None,
    ) -> Machine:
        """Return a logical core, by default as the target groups its cores.

        Raises:
            ValueError: the target does not group its cores like that.
        """
        lnc = target.default_lnc if lnc is None else lnc
        target.logical_cores_per_chip(lnc)
        return cls(target, lnc, known or Parameters(), graph or GraphParameters())

    @property
    def hbm_gbps(self) -> float:
        """The share of HBM, in 1e9 bytes per second."""
        return self.target.hbm_gbps / self.target.cores_per_chip * self.lnc

    @property
    def dma_gbps(self) -> float:
        """The most that is moved between HBM and the core, in 1e9 bytes per second."""
        core = self.target.core
        return min(core.dma_engines * core.dma_engine_gbps * self.lnc, self.hbm_gbps)

    @property
    def sbuf_bytes(self) -> int:
        """The memory of the physical cores together."""
        return self.target.core.sbuf.total_bytes * self.lnc

    @property
    def resident_bytes(self) -> int:
        """The largest result that stays in SBUF for the next section."""
        return int(self.sbuf_bytes * self.graph.resident)

    def dma_us(self, nbytes: float) -> float:
        """Microseconds that bytes take between HBM and the core."""
        return nbytes / self.dma_gbps / 1e3

    def rows_us(self, rows: int, row_bytes: int) -> float:
        """Microseconds of a transfer of rows that lie apart, which cost more than their bytes."""
        return self.dma_us(rows * self.known.row_bytes(row_bytes))

    def spec(self, engine: str) -> EngineSpec:
        """The facts about an engine, by its name."""
        found: EngineSpec = getattr(self.target.core, engine)
        return found

    def lanes_us(self, engine: str, elements: int, cycles: float, dtype: DType) -> float:
        """Microseconds of an engine for elements, each of so many cycles of one lane.

        An instruction takes 64 cycles at least.
        """
        if not elements:
            return 0.0
        spec = self.spec(engine)
        width = spec.width(_WIDTHS.get(dtype, _NAMES.get(dtype, "default"))) / LANES
        each = -(-elements // (LANES * self.lnc))
        return max(LEAST, each * cycles / max(width, 1)) / spec.clock_ghz / 1e3

    def latency_us(self, engine: str) -> float:
        """Microseconds that pass besides until who waits can read a result."""
        if engine not in {"tensor", "vector", "scalar", "gpsimd"}:
            return 0.0
        cycles = getattr(self.known, f"{engine}_latency")
        return float(cycles) / self.spec(engine).clock_ghz / 1e3

    def passes(self, dtype: DType) -> float:
        """How often the Tensor Engine goes over operands of a type, bfloat16 being 1."""
        peaks = self.spec("tensor").peak_tflops
        name = _NAMES.get(dtype, "bfloat16")
        best = peaks.get("mxfp8", 0.0) if name == "float8" and "float8" not in peaks else 0.0
        return peaks["bfloat16"] / (peaks.get(name) or best or peaks["bfloat16"])

    def product_us(self, batch: int, m: int, k: int, n: int, dtype: DType) -> float:
        """Microseconds of the Tensor Engine for `batch` products of [m, k] and [k, n].

        An instruction multiplies a stationary [128, 128] by a moving [128, 512] and takes as many
        cycles as that has columns, 64 at least. Either operand may be the stationary one.
        """
        if not batch * m * k * n:
            return 0.0
        cycles = min(_columns(m, n), _columns(n, m)) * -(-k // LANES) * batch
        spec = self.spec("tensor")
        rate = spec.clock_ghz * 1e3 * self.graph.product_efficiency
        # One core multiplies at least one tile.
        least = -(-k // LANES) * LEAST if self.lnc > 1 else 0
        return max(cycles / self.lnc, least) * self.passes(dtype) / rate

    def peak_tflops(self, dtype: DType) -> float:
        """The published rate of the Tensor Engines for products of a type, in 1e12 per second."""
        return self.spec("tensor").peak_tflops["bfloat16"] / self.passes(dtype) * self.lnc


def _columns(stationary: int, moving: int) -> int:
    """Cycles for one tile of 128 rows of what is summed over."""
    whole, rest = divmod(moving, _MOVING)
    return -(-stationary // LANES) * (whole * _MOVING + (max(rest, LEAST) if rest else 0))
