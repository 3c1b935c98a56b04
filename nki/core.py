"""A physical core: what it is, and its memories on the chip."""

import numpy as np
import numpy.typing as npt

from neuronxcc.machine import named_target
from neuronxcc.targets import SIMULATOR_TARGET, Target, get_target
from nki import artifacts
from nki.shadow import Shadow

__all__ = ["Core", "OnChip", "default_target"]


class OnChip:
    """The bytes of one core's SBUF or PSUM, as far as tensors have explicit addresses.

    Attributes:
        partitions: rows.
        pitch: bytes of a row.
        banks: equal parts of a row at whose beginnings PSUM tensors may start; 1 for SBUF.
    """

    __slots__ = ("_bytes", "_shadow", "banks", "partitions", "pitch")

    def __init__(self, partitions: int, pitch: int, banks: int) -> None:
        self.partitions = partitions
        self.pitch = pitch
        self.banks = banks
        self._bytes: npt.NDArray[np.uint8] | None = None
        self._shadow: Shadow | None = None

    @property
    def bytes(self) -> npt.NDArray[np.uint8]:
        """All bytes, flat. At first they are 0xFF: NaN in every floating-point type."""
        if self._bytes is None:
            self._bytes = np.full(self.partitions * self.pitch, 0xFF, np.uint8)
        return self._bytes

    @property
    def shadow(self) -> Shadow:
        """Which bytes have been written."""
        if self._shadow is None:
            self._shadow = Shadow(self.partitions * self.pitch, 1, rows=self.partitions)
        return self._shadow


class Core:
    """One physical core: its number, what it is, and its on-chip memories.

    Attributes:
        spills: whoever compiles the kernel that runs places tiles without an address, and may
            spill them, so that they may be larger than there is room for.
    """

    __slots__ = ("index", "psum", "sbuf", "spills", "target")

    def __init__(self, target: Target, index: int = 0) -> None:
        self.target = target
        self.index = index
        self.spills = False
        spec = target.core
        self.sbuf = OnChip(spec.sbuf.partitions, spec.sbuf.bytes_per_partition, 1)
        self.psum = OnChip(spec.psum.partitions, spec.psum.bytes_per_partition, spec.psum.banks)


def default_target() -> Target:
    """Return the target that ``NEURON_PLATFORM_TARGET_OVERRIDE`` names.

    Without it that is the simulator's; for kernels that become files it is what the compiler takes.

    Raises:
        neuronxcc.machine.MachineConfigError: it names none.
    """
    return named_target() or get_target(artifacts.target_name() or SIMULATOR_TARGET)
