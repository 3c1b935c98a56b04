"""Streams and events, with the constructors that code written for CUDA uses."""

from types import TracebackType
from typing import Self

import torch

from torch_neuronx import _C
from torch_neuronx.neuron._utils import DeviceLike, _get_device_index


class Stream(torch.Stream):
    """A sequence of work on one device.

    Args:
        device: the device; the current one if ``None``.
        priority: below zero is high.

    PyTorch passes ``stream_id``, ``device_index`` and ``device_type`` instead, to wrap an existing
    stream.
    """

    def __new__(cls, device: DeviceLike = None, priority: int = 0, **ids: int) -> Self:
        """Take a stream of the device's pool."""
        if ids:
            return super().__new__(cls, priority=priority, **ids)
        index = _get_device_index(device, optional=True)
        return super().__new__(cls, torch.device("neuron", index), priority=priority)

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Record an event, a new one if none is given, and return it."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def __repr__(self) -> str:
        return f"torch.neuron.Stream(device={self.device}, stream_id={self.stream_id})"


class _EventType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event)


class Event(torch.Event, metaclass=_EventType):
    """A point in the work of a stream that can be waited for and timed.

    Args:
        enable_timing: whether :meth:`elapsed_time` will be asked for.
        blocking: accepted for compatibility; waiting never spins.
        interprocess: whether other processes will wait for it.

    What it makes is a ``torch.Event``: PyTorch's own streams and events refuse a subclass.
    """

    def __new__(  # type: ignore[misc]
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> torch.Event:
        """Make an event of the current device; it means nothing until it is recorded."""
        return torch.Event(
            torch.device("neuron", _C.current_device()),
            enable_timing=enable_timing,
            blocking=blocking,
            interprocess=interprocess,
        )


def _wrap(stream: torch.Stream) -> Stream:
    return Stream(
        stream_id=stream.stream_id,
        device_index=stream.device_index,
        device_type=stream.device_type,
    )


def current_stream(device: DeviceLike = None) -> Stream:
    """Return the stream that this thread issues work for a device to."""
    return _wrap(torch.accelerator.current_stream(_get_device_index(device, optional=True)))


def default_stream(device: DeviceLike = None) -> Stream:
    """Return the stream that work goes to unless another is selected."""
    return _wrap(_C.default_stream(_get_device_index(device, optional=True)))


def set_stream(stream: torch.Stream | None) -> None:
    """Select a stream, and its device, for this thread; ``None`` does nothing.

    Prefer :func:`stream`, which restores what was selected before.
    """
    if stream is not None:
        torch.accelerator.set_stream(stream)


def is_current_stream_capturing() -> bool:
    """Return False: nothing is captured on this device, calls run when they are made."""
    return False


class StreamContext:
    """Select a stream and its device inside a ``with`` block; ``None`` leaves both as they are."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._previous: tuple[int, torch.Stream] | None = None

    def __enter__(self) -> None:
        if self.stream is None:
            return
        previous_device = _C.current_device()
        # Streams are per device: what has to be restored is the target device's own selection.
        self._previous = (
            previous_device,
            torch.accelerator.current_stream(self.stream.device_index),
        )
        torch.accelerator.set_stream(self.stream)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._previous is None:
            return
        previous_device, previous_stream = self._previous
        self._previous = None
        torch.accelerator.set_stream(previous_stream)
        _C.set_device(previous_device)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Return a context that selects a stream and its device."""
    return StreamContext(stream)
