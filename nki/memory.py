"""Where tensors live: the regions, and the storage behind one tensor.

A :class:`Storage` keeps its bytes in one flat NumPy array, made when somebody first asks, so that
recording a kernel allocates nothing. An SBUF or PSUM tensor without an address has bytes of its
own, partition after partition without gaps; one with an address lies in its core's memory, which
all such tensors share, so that overlapping addresses alias as they do on the hardware.

Sizes and offsets are in bytes wherever a name says so, else in elements.
"""

import math
from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from nki.context import current_core
from nki.core import Core, OnChip
from nki.dtypes import canonical, info
from nki.errors import NkiError, NkiTypeError
from nki.shadow import COMPLETE, Shadow

__all__ = [
    "MemoryRegion",
    "Storage",
    "region_of",
    "sentinel_bytes",
]


class MemoryRegion(Enum):
    """A memory that tensors live in.

    Attributes:
        on_chip: SBUF or PSUM, whose tensors have a partition dimension.
    """

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"
    hbm = "private_hbm"  # noqa: PIE796 (the documented alias)

    on_chip: bool

    def __init__(self, text: str) -> None:
        self.on_chip = text in ("sbuf", "psum")

    # Members are equal to themselves only, and Enum's own function is Python's, ten times as slow.
    __hash__ = object.__hash__


_REGIONS = {
    **MemoryRegion.__members__,
    **{f"nl.{k}": v for k, v in MemoryRegion.__members__.items()},
}


_PRINTED = {
    MemoryRegion.sbuf: "SBUF",
    MemoryRegion.psum: "PSUM",
    MemoryRegion.private_hbm: "private HBM",
    MemoryRegion.shared_hbm: "shared HBM",
}


def region_of(buffer: Any) -> MemoryRegion:
    """Return the region that ``buffer`` names: a member of :class:`MemoryRegion` or its name.

    Raises:
        NkiTypeError: it names none (NKI002).
    """
    if type(buffer) is MemoryRegion:
        return buffer
    found = _REGIONS.get(buffer) if isinstance(buffer, str) else None
    if found is None:
        raise NkiTypeError(
            "NKI002",
            f"{buffer!r} is no memory region",
            "use nl.sbuf, nl.psum, nl.private_hbm or nl.shared_hbm",
        )
    return found


class Storage:
    """The memory behind a tensor and all its views.

    Attributes:
        region: where it is.
        name: the user's name for it, or "".
        dtype: what it was created with; a view may read its bytes as another type.
        shape: of the whole, in elements of ``dtype``; first the partitions if it is on a chip.
        address: first partition and byte within the partition, None where nobody chose.
        core: whose memory it is; HBM that is shared belongs to the core that created it.
        nbytes: size without gaps.
        row_bytes: bytes that it takes of each partition; of HBM all of ``nbytes``.
        pitch: distance in bytes from one partition to the next in ``bytes``.
        base: where in ``bytes`` its first byte is.
        spills: it may be spilled, see :class:`Core`.
        exceeded: there are views that leave it, so that those which are used have to be looked at.
        depth: in how many nested loops of the device it was created.
        marks: what `shadow` is, None as long as nobody has asked for it.
    """

    __slots__ = (
        "_bytes", "address", "base", "core", "depth", "dtype", "exceeded", "marks", "name",
        "nbytes", "pitch", "region", "row_bytes", "shape", "spills",
    )  # fmt: skip

    def __init__(
        self,
        region: MemoryRegion,
        dtype: str,
        shape: tuple[int, ...],
        *,
        name: str = "",
        address: tuple[int, int] | None = None,
        core: Core | None = None,
        spills: bool | None = None,
    ) -> None:
        """Describe a storage; its bytes are not made yet.

        `spills` is by default what the core says.

        Raises:
            NkiError: it doesn't fit the core's memory, or the address doesn't (NKI004, NKI005,
                NKI006, NKI036).
        """
        self.region = region
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.core = core = current_core() if core is None else core
        self.spills = address is None and (core.spills if spills is None else spills)
        self.nbytes = nbytes = math.prod(shape) * info(dtype).itemsize
        self.address: tuple[int, int] | None = None
        self.base = 0
        self.exceeded = False
        self.depth = 0
        self._bytes: npt.NDArray[np.uint8] | None = None
        self.marks: Shadow | None = None
        if region.on_chip:
            self.row_bytes = self.pitch = nbytes // shape[0]
            self._place(address)
        elif address is not None:
            raise NkiError(
                "NKI006",
                f"a tensor in {region.name} was given the address {address}",
                "leave `address` out: only SBUF and PSUM are addressed",
            )
        else:
            self.row_bytes = self.pitch = nbytes

    def another(self, name: str, depth: int) -> "Storage":
        """Return a new storage like this one, which has no address, with bytes of its own."""
        made = _new(Storage)
        made.region = self.region
        made.name = name
        made.dtype = self.dtype
        made.shape = self.shape
        made.core = self.core
        made.nbytes = self.nbytes
        made.address = None
        made.base = 0
        made.depth = depth
        made.spills = self.spills
        made.exceeded = False
        made.row_bytes = made.pitch = self.row_bytes
        made._bytes = None  # noqa: SLF001 (its own class)
        made.marks = None
        return made

    @classmethod
    def from_array(
        cls, array: npt.NDArray[Any], region: MemoryRegion, *, name: str = "", dtype: Any = None
    ) -> "Storage":
        """Make a storage of an array's own bytes, all of them initialised.

        Writes go to the array. ``dtype`` says how NKI reads it, if not as the array does.

        Raises:
            NkiError: the array is not C-contiguous and writable (NKI007).
            NkiTypeError: NKI has no such type (NKI001).
        """
        if not (array.flags.c_contiguous and array.flags.writeable):
            raise NkiError(
                "NKI007",
                "an array whose elements are not contiguous and writable cannot be a storage",
                "pass a copy: np.array(x)",
            )
        kind = canonical(array.dtype if dtype is None else dtype)
        storage = cls(region, kind, array.shape, name=name)
        if storage.nbytes != array.nbytes:
            raise NkiError(
                "NKI007",
                f"an array of {array.dtype} cannot be read as {kind}: items differ in size",
                "pass an array whose items have the size of the type",
            )
        storage._bytes = array.reshape(-1).view(np.uint8)
        storage.marks = COMPLETE
        return storage

    def _place(self, address: tuple[int, int] | None) -> None:
        """Check that an on-chip storage fits, and put it where it was asked to be."""
        memory = self.memory
        partition, byte = (0, 0) if address is None else _checked_address(address)
        end = partition + self.shape[0]
        if end > memory.partitions:
            raise NkiError(
                "NKI004",
                f"{self.label} of shape {self.shape} ends at partition {end}, and "
                f"{self.region.name} has {memory.partitions}",
                "put at most 128 rows into the first dimension (nl.tile_size.pmax)",
            )
        if byte + self.row_bytes > memory.pitch and not self.spills:
            raise NkiError(
                "NKI005",
                f"{self.label} of shape {self.shape} and type {self.dtype} ends at byte "
                f"{byte + self.row_bytes} of its partitions, and {self.region.name} of "
                f"{self.core.target.name} has {memory.pitch}",
                "use smaller tiles or put them elsewhere",
            )
        if address is not None:
            bank = memory.pitch // memory.banks
            if memory.banks > 1 and byte % bank:
                raise NkiError(
                    "NKI036",
                    f"{self.label} starts at byte {byte} of PSUM",
                    f"start at the beginning of a bank: a multiple of {bank} bytes",
                )
            self.address = (partition, byte)
            self.pitch = memory.pitch
            self.base = partition * memory.pitch + byte

    def mark_all(self) -> None:
        """Remember that all bytes have been written, of a storage without an address."""
        assert self.address is None
        self.marks = COMPLETE

    @property
    def memory(self) -> OnChip:
        """The core's memory that an on-chip storage is part of."""
        return self.core.psum if self.region is MemoryRegion.psum else self.core.sbuf

    @property
    def label(self) -> str:
        """How messages call it."""
        where = _PRINTED[self.region]
        return f"tensor {self.name!r} in {where}" if self.name else f"a tensor in {where}"

    @property
    def bytes(self) -> npt.NDArray[np.uint8]:
        """The flat bytes; new ones hold what the documented simulator fills: NaN, or 4."""
        if self._bytes is None:
            if self.address is not None:
                self._bytes = self.memory.bytes
            else:
                self._bytes = _filled(self.nbytes, self.dtype)
        return self._bytes

    @property
    def shadow(self) -> Shadow:
        """Which of ``bytes`` have been written."""
        if self.marks is None:
            if self.address is not None:
                self.marks = self.memory.shadow
            else:
                rows = self.shape[0] if self.region.on_chip else 1
                self.marks = Shadow(self.nbytes, info(self.dtype).itemsize, rows=rows)
        return self.marks

    def __repr__(self) -> str:
        where = "" if self.address is None else f" at {self.address}"
        return f"<{self.label}: {self.dtype}{list(self.shape)}{where}>"


_new = object.__new__


def _checked_address(address: Sequence[int]) -> tuple[int, int]:
    try:
        partition, byte = (int(part) for part in address)
    except (TypeError, ValueError):
        partition = byte = -1
    if partition < 0 or byte < 0:
        raise NkiError(
            "NKI006",
            f"{address!r} is no address",
            "write (partition, byte within the partition), both at least 0",
        )
    return partition, byte


def sentinel_bytes(dtype: str) -> bytes:
    """Return the bytes of one item of new memory of a type: NaN, 4, or bytes of 0xFF."""
    kind = info(dtype)
    if kind.is_packed or dtype == "float8_e8m0fnu":
        return b"\xff" * kind.itemsize
    return np.array(math.nan if kind.is_float else 4, kind.numpy).tobytes()


def _filled(nbytes: int, dtype: str) -> npt.NDArray[np.uint8]:
    item = np.frombuffer(sentinel_bytes(dtype), info(dtype).numpy)
    return np.full(nbytes // item.itemsize, item).view(np.uint8)
