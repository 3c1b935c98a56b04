"""The Neuron runtime's status codes: the one table of the product.

Names and numbers are those of `NRT_STATUS` in the public headers of libnrt 2.34 (nrt_status.h).
"""

from __future__ import annotations

import enum
import re


class Status(enum.IntEnum):
    """`NRT_STATUS`. `Status(10).text` is "NRT_UNSUPPORTED_NEFF_VERSION(10)"."""

    SUCCESS = 0
    FAILURE = 1
    INVALID = 2
    INVALID_HANDLE = 3
    RESOURCE = 4
    TIMEOUT = 5
    HW_ERROR = 6
    QUEUE_FULL = 7
    LOAD_NOT_ENOUGH_NC = 9
    UNSUPPORTED_NEFF_VERSION = 10
    FAIL_HOST_MEM_ALLOC = 11
    UNINITIALIZED = 13
    CLOSED = 14
    QUEUE_EMPTY = 15
    EXEC_UNIT_UNRECOVERABLE = 101
    EXEC_BAD_INPUT = 1002
    EXEC_COMPLETED_WITH_NUM_ERR = 1003
    EXEC_COMPLETED_WITH_ERR = 1004
    EXEC_NC_BUSY = 1005
    EXEC_OOB = 1006
    COLL_PENDING = 1100
    EXEC_HW_ERR_COLLECTIVES = 1200
    EXEC_HW_ERR_HBM_UE = 1201
    EXEC_HW_ERR_NC_UE = 1202
    EXEC_HW_ERR_DMA_ABORT = 1203
    EXEC_SW_NQ_OVERFLOW = 1204
    EXEC_HW_ERR_REPAIRABLE_HBM_UE = 1205
    NETWORK_PROXY_FAILURE = 1206

    @property
    def text(self) -> str:
        """Name and number, as the runtime prints them."""
        return f"NRT_{self.name}({self.value})"


_NUMBERS = frozenset(map(int, Status))
_SAID = re.compile(r"NRT_[A-Z_]+ ?\((?:status )?(\d+)\)")


def status_in(text: str) -> Status | None:
    """The status that an error's text names, as "NRT_TIMEOUT(5)" or "NRT_INVALID (status 2)".

    Returns:
        None if it names none that exists.
    """
    for number in _SAID.findall(text):
        if int(number) in _NUMBERS:
            return Status(int(number))
    return None
