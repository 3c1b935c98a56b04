"""The facts about a machine: the classes that the files of this package fill in.

Units are in the names: ``*_ghz`` 1e9 cycles per second, ``*_bytes`` bytes, ``*_gbps`` 1e9 bytes per
second, ``*_tflops`` 1e12 operations per second. Data types are named as in NumPy and ml_dtypes
(``"bfloat16"``, ``"float8_e4m3fn"``), because this package knows no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from neuronxcc.targets.engines import Engine

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


def table(**values: float) -> Mapping[str, float]:
    """Make a read-only table of numbers keyed by data type name."""
    return MappingProxyType(values)


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One compute engine of a NeuronCore.

    ``elements_per_cycle`` gives the width of the data path by data type; ``"default"`` holds for
    every type not named. For the tensor engine it counts input elements, and
    ``output_elements_per_cycle`` what it writes; for the others the two are equal.
    ``peak_tflops`` is the published rate of one engine by data type, empty where none is published.
    """

    name: Engine
    clock_ghz: float
    elements_per_cycle: Mapping[str, float]
    output_elements_per_cycle: int
    peak_tflops: Mapping[str, float]

    def width(self, dtype: str) -> float:
        """Return the input elements per cycle for a data type name."""
        return self.elements_per_cycle.get(dtype, self.elements_per_cycle["default"])


@dataclass(frozen=True, slots=True)
class OnChipMemory:
    """SBUF or PSUM of one core: two-dimensional, ``partitions`` rows by ``bytes_per_partition``."""

    partitions: int
    bytes_per_partition: int
    banks: int = 1

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole memory of one core."""
        return self.partitions * self.bytes_per_partition


@dataclass(frozen=True, slots=True)
class NeuronCore:
    """One physical core: its engines, its on-chip memories and its share of the DMA engines.

    ``isa`` is the newest published set of NKI instructions that it executes, by the number of the
    core that it came with: a core that nothing is published about has that of its predecessor.
    ``wide_products`` says whether the compiler multiplies matrices of 32-bit integers for it
    without going through float32.
    """

    version: str
    isa: int
    wide_products: bool
    tensor: EngineSpec
    vector: EngineSpec
    scalar: EngineSpec
    gpsimd: EngineSpec
    gpsimd_processors: int
    gpsimd_vector_bits: int
    sbuf: OnChipMemory
    psum: OnChipMemory
    dma_engines: int
    dma_engine_gbps: float

    @property
    def generation(self) -> int:
        """The number in its version: a larger one is a newer core."""
        return int(self.version.removeprefix("v"))

    @property
    def engines(self) -> tuple[EngineSpec, EngineSpec, EngineSpec, EngineSpec]:
        """All compute engines, in the order the documentation lists them."""
        return (self.tensor, self.vector, self.scalar, self.gpsimd)


@dataclass(frozen=True, slots=True)
class Link:
    """The connection between chips: its generation, bandwidth of one chip, and topology."""

    name: str
    chip_gbps: float
    topology: str


@dataclass(frozen=True, slots=True)
class CollectiveFacts:
    """The published facts about how the runtime runs collectives between cores.

    Payloads below ``mesh_below_bytes`` go in one hop to everybody (mesh), those below
    ``halving_below_bytes`` by recursive doubling and halving in log2(n) hops, and larger ones
    around rings of n/2 hops. ``hop_us`` is the time of a hop in an instance and ``network_hop_us``
    between instances, in microseconds.
    """

    mesh_below_bytes: int
    halving_below_bytes: int
    hop_us: float
    network_hop_us: float


@dataclass(frozen=True, slots=True)
class Instance:
    """An EC2 instance type: how many chips it has, and what its host offers.

    ``network_gbit`` is the EFA bandwidth in 1e9 bits per second, ``None`` where none is published.
    """

    name: str
    chips: int
    vcpus: int
    host_memory_gib: int
    network_gbit: float | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """A machine that can be emulated and compiled for. All sizes and rates are of one chip.

    ``dtypes`` are the data types that some engine computes with; ``native_int64`` says whether
    64-bit integers are among them when the compiler is told to use them.
    ``float8_e4m3_max`` is the largest finite value of the 8-bit E4M3 format that the tensor engine
    multiplies natively: 240 for the IEEE-like format, 448 for OCP's ``float8_e4m3fn``.
    ``max_chips`` is the number of chips of the largest instance of the family: the emulation grows
    to that and no further. ``collectives`` is ``None`` where nothing is published about them.
    """

    name: str
    aliases: tuple[str, ...]
    chip_name: str
    capability: tuple[int, int]
    core: NeuronCore
    cores_per_chip: int
    default_lnc: int
    supported_lnc: tuple[int, ...]
    hbm_bytes: int
    hbm_gbps: float
    dma_gbps: float
    peak_tflops: Mapping[str, float]
    cc_cores: int
    link: Link
    dtypes: frozenset[str]
    native_int64: bool
    float8_e4m3_max: float
    max_chips: int
    instances: tuple[Instance, ...]
    collectives: CollectiveFacts | None = None

    @property
    def hbm_gib(self) -> float:
        """Device memory of one chip in GiB."""
        return self.hbm_bytes / GIB

    def logical_cores_per_chip(self, lnc: int) -> int:
        """Return how many logical cores one chip shows when each is made of ``lnc`` physical ones.

        Raises:
            ValueError: the target cannot group its cores like that.
        """
        if lnc not in self.supported_lnc:
            raise ValueError(f"{self.name} supports LNC {self.supported_lnc}, got {lnc}")
        return self.cores_per_chip // lnc

    def hbm_bytes_per_logical_core(self, lnc: int) -> int:
        """Return the device memory that belongs to one logical core, in bytes."""
        return self.hbm_bytes // self.logical_cores_per_chip(lnc)
