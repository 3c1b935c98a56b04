"""Which status of the runtime an error is."""

from __future__ import annotations

import torch
import torch.distributed as dist

from neuronxcc.machine import MachineConfigError
from neuronxcc.program.errors import NeffError
from neuronxcc.status import Status, status_in
from torch_neuronx import _C

# The first row that fits decides. What an error's text names comes before all of them.
_KINDS: tuple[tuple[type[BaseException], Status], ...] = (
    (torch.OutOfMemoryError, Status.RESOURCE),
    (MemoryError, Status.FAIL_HOST_MEM_ALLOC),
    (dist.DistStoreError, Status.TIMEOUT),
    (TimeoutError, Status.TIMEOUT),
    (dist.DistError, Status.FAILURE),
    (OSError, Status.FAILURE),
    (IndexError, Status.EXEC_OOB),
)


def status_of(error: BaseException, otherwise: Status, *, wrong_value: Status) -> Status:
    """The status of an error.

    Args:
        error: What was raised.
        otherwise: The status of errors that nothing is known of,
        wrong_value: and of a ValueError.
    """
    found = _by_kind(error)
    if found is not None:
        return found
    if _C.is_in_bad_fork():
        return Status.UNINITIALIZED
    named = status_in(str(error))
    if named is not None:
        return named
    for kind, status in _KINDS:
        if isinstance(error, kind):
            return status
    return wrong_value if isinstance(error, ValueError) else otherwise


def _by_kind(error: BaseException) -> Status | None:
    """The status of an error that carries one."""
    if isinstance(error, NeffError):
        return Status(error.status)
    if isinstance(error, MachineConfigError):
        name = (error.code or "").removeprefix("NRT_")
        return Status[name] if name in Status.__members__ else Status.INVALID
    if isinstance(error, dist.DistNetworkError) and "timed out" in str(error):
        return Status.TIMEOUT
    return None


def text_of(error: BaseException) -> str:
    """An error's text without the backtrace of C++ that PyTorch appends."""
    return str(error).split("\nException raised from ", 1)[0].strip()
