"""The table of faults: what each is called, where it acts, and what it does."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from neuronxcc import faults as compiler
from neuronxcc.status import Status


class Point(enum.Enum):
    """Where a fault can act; the values are the native core's numbers (device/faults.h)."""

    EXECUTION = 0  # an operator, or a compiled program, on a core
    COMMUNICATION = 1  # a collective or a message
    ALLOCATION = 2  # device memory is asked for
    COMPILATION = 3  # a graph is compiled
    CACHE_READ = 4  # an entry of the compile cache is read
    FILE_WRITE = 5  # a file of the compile cache is written

    @property
    def word(self) -> str:
        """Its name in options."""
        return self.name.lower()


COMPILERS = {
    compiler.COMPILATION: Point.COMPILATION,
    compiler.CACHE_READ: Point.CACHE_READ,
    compiler.FILE_WRITE: Point.FILE_WRITE,
}


class Action(enum.Enum):
    """What a fault does; the values are the native core's numbers."""

    RAISE = 0
    OUT_OF_MEMORY = 1
    DELAY = 2
    HANG = 3
    SPOIL = 4
    END = 5
    ELSEWHERE = 6  # in Python: `inject.py`


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        name: What `inject` calls it.
        point: Where it acts if the caller does not say.
        action: What it does.
        says: What its error says, or what it does, in words.
        status: The status that the runtime documents for it.
        lasting: After the first time it acts every time: the hardware is broken until the process
            ends.
        elsewhere: Other points at which it can act.
        options: Options of its own, and their defaults.
    """

    name: str
    point: Point
    action: Action
    says: str
    status: Status | None = None
    lasting: bool = False
    elsewhere: tuple[Point, ...] = ()
    options: tuple[tuple[str, float], ...] = ()

    @property
    def text(self) -> str:
        """What its error says."""
        return self.says if self.status is None else f"{self.says} {self.status.text}"


_E, _C = Point.EXECUTION, Point.COMMUNICATION
_RAISE = Action.RAISE

_ALL = (
    Fault("execution_error", _E, _RAISE, "The execution completed with an error.",
          Status.EXEC_COMPLETED_WITH_ERR),
    Fault("numerical_error", _E, _RAISE, "The execution completed with a numerical error.",
          Status.EXEC_COMPLETED_WITH_NUM_ERR),
    Fault("bad_input", _E, _RAISE, "The execution was refused: bad input.",
          Status.EXEC_BAD_INPUT),
    Fault("out_of_bounds", _E, _RAISE, "The execution accessed memory out of bounds.",
          Status.EXEC_OOB),
    Fault("busy", _E, _RAISE, "The NeuronCore is locked by another model or process.",
          Status.EXEC_NC_BUSY),
    Fault("queue_full", _E, _RAISE, "The queue of executions is full.", Status.QUEUE_FULL),
    Fault("queue_overflow", _E, _RAISE, "The queue of notifications overflowed.",
          Status.EXEC_SW_NQ_OVERFLOW),
    Fault("hbm_error", _E, _RAISE, "The HBM had an error that cannot be corrected.",
          Status.EXEC_HW_ERR_HBM_UE, lasting=True),
    Fault("repairable_hbm_error", _E, _RAISE,
          "The HBM had an error that can be repaired by resetting the device.",
          Status.EXEC_HW_ERR_REPAIRABLE_HBM_UE, lasting=True),
    Fault("core_error", _E, _RAISE, "The NeuronCore had an error that cannot be corrected.",
          Status.EXEC_HW_ERR_NC_UE, lasting=True),
    Fault("dma_abort", _E, _RAISE, "A DMA engine aborted.", Status.EXEC_HW_ERR_DMA_ABORT,
          lasting=True),
    Fault("unrecoverable", _E, _RAISE, "The execution unit is in an unrecoverable state.",
          Status.EXEC_UNIT_UNRECOVERABLE, lasting=True),
    Fault("timeout", _E, Action.HANG, "The execution timed out.", Status.TIMEOUT,
          elsewhere=(_C,), options=(("seconds", 2.0),)),
    Fault("hang", _E, Action.HANG, "The execution did not end.", Status.TIMEOUT,
          elsewhere=(_C,), options=(("seconds", 86400.0),)),
    Fault("slow_core", _E, Action.DELAY, "Each execution takes `seconds` longer.",
          options=(("seconds", 0.01),)),
    Fault("nan", _E, Action.SPOIL, "The first element of the result is NaN.",
          options=(("value", float("nan")),)),
    Fault("inf", _E, Action.SPOIL, "The first element of the result is infinite.",
          options=(("value", float("inf")),)),
    Fault("out_of_memory", Point.ALLOCATION, Action.OUT_OF_MEMORY, "NEURON out of memory.",
          Status.RESOURCE),
    Fault("collective_error", _C, _RAISE, "A collective failed on the hardware.",
          Status.EXEC_HW_ERR_COLLECTIVES),
    Fault("network_failure", _C, _RAISE, "The network proxy failed.",
          Status.NETWORK_PROXY_FAILURE),
    Fault("slow_rank", _C, Action.DELAY, "This rank comes `seconds` late.",
          options=(("seconds", 0.1),)),
    Fault("slow_link", _C, Action.DELAY,
          "Each byte takes time, so that `bandwidth` bytes are moved in a second.",
          options=(("seconds", 0.0), ("bandwidth", 1e9))),
    Fault("lost_rank", _C, Action.END, "The process ends as if killed (SIGKILL).",
          elsewhere=(_E,)),
    Fault("compile_error", Point.COMPILATION, Action.ELSEWHERE, "The compiler failed."),
    Fault("slow_compile", Point.COMPILATION, Action.ELSEWHERE,
          "A compilation takes `seconds` longer.", options=(("seconds", 1.0),)),
    Fault("broken_cache", Point.CACHE_READ, Action.ELSEWHERE,
          "What is read of a cached program has a wrong byte in the middle."),
    Fault("unreadable_cache", Point.CACHE_READ, Action.ELSEWHERE,
          "A cached program cannot be read (EIO)."),
    Fault("disk_full", Point.FILE_WRITE, Action.ELSEWHERE,
          "A file of the compile cache cannot be written (ENOSPC)."),
)  # fmt: skip
#: By name.
FAULTS = {fault.name: fault for fault in _ALL}
