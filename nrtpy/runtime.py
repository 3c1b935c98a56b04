"""The runtime of the process: one, made when something first needs it."""

from __future__ import annotations

import importlib
import operator
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from neuronxcc.environment.machine import NEURON_RT_VISIBLE_CORES
from neuronxcc.status import Status
from nrtpy.errors import NrtError, NrtpyError
from nrtpy.logs import log

if TYPE_CHECKING:
    from torch_neuronx.nrt.groups import Ranks


class Memory(Protocol):
    """Memory of a core that is in use: a `nrtpy.tensor.NrtTensor`.

    Attributes:
        data: The memory; None after it was freed.
    """

    data: Any

    def memory(self) -> Any:
        """The memory.

        Raises:
            NrtpyError: It was freed, or the runtime was closed.
        """


class Freeable(Protocol):
    """A reference to memory that can be given back: a `nrtpy.tensor.NrtpyTensor`."""

    @property
    def _ref(self) -> Memory: ...


class Runtime:
    """The runtime that `get_nrtpy_singleton` returns: cores, and what lives on them.

    Attributes:
        devices: Index of the neuron device of every core id.
        memory: The module that moves arrays (torch_neuronx.nrt.memory), which imports PyTorch.
        closed: `reset()` was called.
        tensors: Memory that is in use.
        ranks: The job that this process is a rank of, if it has joined one.
    """

    def __init__(self) -> None:
        with failing("nrt_init", "Failed to initialize the runtime", Status.UNINITIALIZED):
            self.devices: tuple[int, ...] = _devices()
            self.memory: Any = importlib.import_module("torch_neuronx.nrt.memory")
        self.closed = False
        self.tensors: weakref.WeakSet[Memory] = weakref.WeakSet()
        self.ranks: Ranks | None = None

    def device(self, core_id: int) -> int:
        """Index of the neuron device of a core.

        Raises:
            NrtError: There is no such core.
        """
        if 0 <= core_id < len(self.devices):
            return self.devices[core_id]
        raise failed(
            Status.LOAD_NOT_ENOUGH_NC,
            "nrt_allocate_neuron_cores",
            f"NeuronCore(s) not available - Requested:nc{core_id}-nc{core_id} Available:"
            f"{len(self.devices)}. Core ids go from 0 to {len(self.devices) - 1}; "
            f"{NEURON_RT_VISIBLE_CORES.name} and nrtpy.configure() choose the cores",
        )

    def free_tensor(self, tensor: Freeable) -> None:
        """Give a tensor's memory back now; it cannot be used any more.

        Raises:
            NrtpyError: It was freed before.
        """
        tensor._ref.memory()  # noqa: SLF001 - says if there is none
        tensor._ref.data = None  # noqa: SLF001

    def join(self, rank: int, world_size: int) -> Ranks:
        """The job of which this process is a rank; the ranks meet the first time.

        Raises:
            NrtError: The process is another rank already, or the others don't come.
        """
        from torch_neuronx.nrt.groups import join  # noqa: PLC0415 - imports torch

        if self.ranks is None:
            with failing("nrt_build_global_comm", "Failed to meet the other ranks", Status.FAILURE):
                self.ranks = join(rank, world_size)
        if (self.ranks.rank, self.ranks.world_size) != (rank, world_size):
            raise failed(
                Status.INVALID,
                "nrt_build_global_comm",
                f"this process is rank {self.ranks.rank} of {self.ranks.world_size}, it cannot "
                f"be rank {rank} of {world_size} too; call nrtpy.reset() in between",
            )
        return self.ranks

    def close(self) -> None:
        """Free everything; whatever still refers to it is invalid."""
        self.closed = True
        for tensor in list(self.tensors):
            tensor.data = None
        if self.ranks is not None:
            self.ranks.close()
            self.ranks = None


_lock = threading.RLock()
_current: Runtime | None = None
_before: list[str | None] = []  # the variable before the first configure()


def get_nrtpy_singleton() -> Runtime:
    """The runtime of the process, made if there is none.

    Raises:
        NrtError: The emulated machine cannot be set up.
    """
    global _current  # noqa: PLW0603 - documented as a singleton
    if _current is not None:
        return _current
    with _lock:
        if _current is None:
            _current = Runtime()
        return _current


def configure(visible_cores: Iterable[int] | None = None) -> None:
    """Choose the cores of the runtime, before its first use or after `reset`.

    Sets NEURON_RT_VISIBLE_CORES and initialises nothing.

    Args:
        visible_cores: Numbers of logical cores, increasing and without gaps; None leaves the
            choice as it is.

    Raises:
        NrtpyError: The runtime is active (a RuntimeError).
        TypeError: An int instead of an iterable, or something else than ints in it.
        ValueError: A number is negative, or there is none.
    """
    with _lock:
        if _current is not None:
            raise NrtpyError("the runtime is active; call nrtpy.reset() before nrtpy.configure()")
        if visible_cores is None:
            return
        numbers = _numbers(visible_cores)
        before = NEURON_RT_VISIBLE_CORES.set(",".join(map(str, numbers)))
        if not _before:
            _before.append(before)


def reset() -> None:
    """Close the runtime and forget what was configured; does nothing if there is no runtime.

    Tensors and models that exist become invalid: their use is an NrtpyError.
    """
    global _current  # noqa: PLW0603
    with _lock:
        if _current is not None:
            _current.close()
            _current = None
        if _before:
            NEURON_RT_VISIBLE_CORES.set(_before.pop())


def failed(status: Status, function: str, text: str) -> NrtError:
    """An error of the runtime, logged."""
    log("ERROR", "NRT", function, f"{text} {status.text}")
    return NrtError(status, text)


@contextmanager
def failing(
    function: str, what: str, otherwise: Status, wrong_value: Status = Status.INVALID
) -> Iterator[None]:
    """Turn errors of the layers below into errors of the runtime, and log them.

    Args:
        function: The runtime's function that is carried out.
        what: Begins the text.
        otherwise: Status of errors that nothing is known of,
        wrong_value: and of a ValueError.
    """
    try:
        yield
    except (NrtError, NrtpyError):
        raise
    except Exception as error:
        raise translated(error, function, what, otherwise, wrong_value) from error


def translated(
    error: Exception,
    function: str,
    what: str,
    otherwise: Status,
    wrong_value: Status = Status.INVALID,
) -> NrtError:
    """The error of the runtime for one of the layers below, logged; arguments as of `failing`."""
    from torch_neuronx.nrt.failure import status_of, text_of  # noqa: PLC0415 - imports torch

    status = status_of(error, otherwise, wrong_value=wrong_value)
    return failed(status, function, f"{what}: {text_of(error)}")


def _numbers(visible_cores: Any) -> list[int]:
    if isinstance(visible_cores, int) or not isinstance(visible_cores, Iterable):
        raise TypeError(
            f"visible_cores must be an iterable of core numbers such as [0, 1], got "
            f"{visible_cores!r}"
        )
    numbers = []
    for item in visible_cores:
        if isinstance(item, bool) or not hasattr(item, "__index__"):
            raise TypeError(f"visible_cores must hold integers, got {item!r}")
        numbers.append(operator.index(item))
    if not numbers:
        raise ValueError("visible_cores has no core")
    if min(numbers) < 0:
        raise ValueError(f"visible_cores must not be negative, got {min(numbers)}")
    return numbers


def _devices() -> tuple[int, ...]:
    """Index of the neuron device of every core that the environment makes visible.

    The devices are those of the time when torch was imported; later choices pick among them.
    """
    try:
        import torch_neuronx._register  # noqa: PLC0415, F401 - registers the device
    except ImportError as error:
        raise failed(Status.UNINITIALIZED, "nrt_init", str(error)) from error
    from torch_neuronx._config import machine, read_machine_config  # noqa: PLC0415

    mine, wanted = machine().visible_cores, read_machine_config().visible_cores
    missing = [core for core in wanted if core not in mine]
    if missing:
        raise failed(
            Status.LOAD_NOT_ENOUGH_NC,
            "nrt_allocate_neuron_cores",
            f"NeuronCore(s) not available - Requested:nc{wanted[0]}-nc{wanted[-1]} Available:"
            f"nc{mine[0]}-nc{mine[-1]}. These belong to the process since torch was imported: set "
            f"{NEURON_RT_VISIBLE_CORES.name} before that to all cores that it will use",
        )
    return tuple(map(mine.index, wanted))
