"""The operations: their names, and what sizes and bandwidths mean for each.

As in the guide of the vendor's tool, a size is that of the data of the whole operation: what a rank
reduces, sends, or ends up with. A bandwidth is in units of 2^30 bytes a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation.

    Attributes:
        name: As it is documented.
        short: The same, for typing.
        divided: Whether its data is divided between the ranks, so that a size is rounded up.
        bus: By the number of ranks, how much of the data crosses the busiest link, as a factor.
        kind: What the performance model calls it.
    """

    name: str
    short: str
    divided: bool
    bus: str
    kind: str

    def bus_factor(self, ranks: int) -> float:
        """Return busbw/algbw: that of NCCL's tests."""
        if self.bus == "all_reduce":
            return 2 * (ranks - 1) / ranks
        return (ranks - 1) / ranks if self.bus == "part" else 1.0


OPERATIONS: Final = (
    Operation("all_reduce", "allr", divided=False, bus="all_reduce", kind="all_reduce"),
    Operation("all_gather", "allg", divided=True, bus="part", kind="all_gather"),
    Operation("all_gatherv", "allgv", divided=True, bus="part", kind="all_gather"),
    Operation("reduce_scatter", "redsct", divided=True, bus="part", kind="reduce_scatter"),
    Operation("sendrecv", "sendrecv", divided=False, bus="one", kind="send"),
    Operation("alltoall", "alltoall", divided=True, bus="part", kind="all_to_all"),
    Operation("alltoallv", "alltoallv", divided=True, bus="part", kind="all_to_all"),
    Operation("permute", "permute", divided=False, bus="one", kind="send"),
)
BY_NAME: Final = {name: o for o in OPERATIONS for name in (o.name, o.short)}
#: Bytes of an element.
DTYPES: Final = {
    "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "fp16": 2, "bf16": 2, "uint32": 4, "int32": 4,
    "fp32": 4, "fp8": 1,
}  # fmt: skip
GIB: Final = 1 << 30


def elements(operation: Operation, size: int, itemsize: int, ranks: int) -> int:
    """How many elements a size has: at least one, and for each rank equally many if divided."""
    count = max(1, -(-size // itemsize))
    return -(-count // ranks) * ranks if operation.divided else count
