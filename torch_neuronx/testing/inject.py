"""Asking for a fault: as a context manager, or by `TORCH_NEURONX_FAULTS`."""

from __future__ import annotations

import contextlib
import difflib
import errno
import math
import os
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from neuronxcc import faults as compiler
from neuronxcc.environment.machine import RANK, TORCHELASTIC_RESTART_COUNT
from neuronxcc.environment.observation import TORCH_NEURONX_FAULTS
from torch_neuronx import _C
from torch_neuronx.testing.table import COMPILERS, FAULTS, Action, Fault, Point

# Options of every fault: how the text of TORCH_NEURONX_FAULTS is read.
_COMMON: dict[str, Callable[[str], Any]] = {
    "at": lambda text: [int(number) for number in text.split("+")],
    "every": int,
    "probability": float,
    "seed": int,
    "times": int,
    "core": int,
    "rank": lambda text: [int(number) for number in text.split("+")],
    "attempt": int,
    "match": str,
    "point": str,
    "lasting": lambda text: {"0": False, "1": True}[text],
}
_FOREVER = 1e9  # seconds


class FaultError(ValueError):
    """A fault was asked for that there is not, or with an option that it does not have."""


class inject(contextlib.ContextDecorator):  # noqa: N801 - used as a function
    """Have a fault happen within a `with` block, or between `arm()` and `disarm()`.

        with torch_neuronx.testing.inject("hbm_error", at=3):
            train()  # the third execution raises torch.AcceleratorError

    While a fault is armed, operators are not joined to regions, and each is counted at its point.
    Without `at`, `every` and `probability` it happens every time. Where operators are enqueued
    (eager modes strict and fused), it happens when they run, and its error comes up where somebody
    waits; the block begins and ends behind all that was enqueued, so its faults are those of its
    calls, and an error that nobody waited for comes up at the next wait behind it.

    Args:
        fault: A name in `torch_neuronx.testing.FAULTS`.
        at: The times that it happens, counted from 1: one number, or several.
        every: It happens at every so-maniest time.
        probability: It happens by chance, 0 to 1, at the same times for the same `seed`.
        seed: Of the chance.
        times: It happens so often at most.
        core: Only times on this core count.
        rank: It happens in this rank only, or in these.
        attempt: It happens only in this start of an elastic job: 0 is the first.
        match: Only times count whose name contains this: of an operator ("aten::mm"), of a
            program, of a collective ("all_reduce"), of a model.
        point: Where it happens, if the fault can happen at several points.
        lasting: Whether it happens every time after the first; by default as in the table.
        options: Those that the fault has of its own, as the table lists them.

    Raises:
        FaultError: There is no such fault or option, or a value is not possible.
    """

    def __init__(
        self,
        fault: str,
        *,
        at: int | Iterable[int] = (),
        every: int = 0,
        probability: float | None = None,
        seed: int = 0,
        times: int | None = None,
        core: int | None = None,
        rank: int | Iterable[int] | None = None,
        attempt: int | None = None,
        match: str = "",
        point: str | None = None,
        lasting: bool | None = None,
        **options: float,
    ) -> None:
        self.fault = _known(fault)
        self._ranks = None if rank is None else _numbers("rank", rank, 0)
        self._attempt = attempt
        own = _own_options(self.fault, options)
        _check(every >= 0, f"every is {every}; it must not be negative")
        numbers = _numbers("at", at, 1)
        likely = probability or 0.0
        _check(0 <= likely <= 1, f"probability is {probability}; it must be 0 to 1")
        if probability == 0 and not (numbers or every):
            times = 0
        self._rule: dict[str, Any] = {
            "point": _point(self.fault, point).value,
            "action": self.fault.action.value,
            "core": -1 if core is None else core,
            "match": match,
            "at": numbers,
            "every": every,
            "probability": likely,
            "seed": seed % (1 << 64),
            "most": -1 if times is None else times,
            "lasting": self.fault.lasting if lasting is None else lasting,
            "status": 0 if self.fault.status is None else int(self.fault.status),
            "text": self.fault.text,
            "seconds": min(own.get("seconds", 0.0), _FOREVER),
            "bytes_per_second": own.get("bandwidth", 0.0),
            "value": own.get("value", 0.0),
        }
        self._number: int | None = None
        self._counted = (0, 0)

    def arm(self) -> Self:
        """Begin. Nothing happens in ranks and attempts that are not meant."""
        if self._number is None and self._is_meant():
            _C.drain_queues()
            self._number = _C.add_fault(**self._rule)
            if self.fault.action is Action.ELSEWHERE:
                _ELSEWHERE[self._number] = self
                compiler.watch(_reached)
        return self

    def disarm(self) -> None:
        """End, also of hangs that are under way."""
        if self._number is not None:
            if self.fault.action is not Action.HANG:  # the end of a block is that of its hang
                _C.drain_queues()
            self._counted = _C.remove_fault(self._number)
            _ELSEWHERE.pop(self._number, None)
            if not _ELSEWHERE:
                compiler.watch(None)
            self._number = None

    __enter__ = arm

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.disarm()

    @property
    def reached(self) -> int:
        """How often its point was reached and counted."""
        return self._counts()[0]

    @property
    def acted(self) -> int:
        """How often it happened."""
        return self._counts()[1]

    def _counts(self) -> tuple[int, int]:
        return self._counted if self._number is None else _C.fault_counts(self._number)

    def _is_meant(self) -> bool:
        ranks = self._ranks is None or _rank() in self._ranks
        attempt = int(TORCHELASTIC_RESTART_COUNT.text() or 0)
        return ranks and self._attempt in {None, attempt}

    def act(self, data: bytes) -> bytes:
        """Do what the native core leaves to Python; returns what becomes of the data."""
        match self.fault.name:
            case "compile_error":
                raise RuntimeError(f"{self.fault.text} (a fault that was asked for)")
            case "slow_compile":
                time.sleep(self._rule["seconds"])
            case "broken_cache":
                middle = len(data) // 2
                return data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :]
            case "unreadable_cache":
                raise OSError(errno.EIO, f"{os.strerror(errno.EIO)} (a fault that was asked for)")
            case "disk_full":
                said = f"{os.strerror(errno.ENOSPC)} (a fault that was asked for)"
                raise OSError(errno.ENOSPC, said)
        return data


# Armed faults that act in Python, by the number of their rule.
_ELSEWHERE: dict[int, inject] = {}


def _reached(point: str, name: str, data: bytes) -> bytes:
    for number in _C.due_faults(COMPILERS[point].value, name):
        if (fault := _ELSEWHERE.get(number)) is not None:
            data = fault.act(data)
    return data


def _rank() -> int:
    import torch.distributed as dist  # noqa: PLC0415 - few faults are for ranks

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return int(RANK.text() or 0)


def _check(fine: bool, text: str) -> None:
    if not fine:
        raise FaultError(text)


def _known(name: str) -> Fault:
    if name not in FAULTS:
        near = difflib.get_close_matches(name, FAULTS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(FAULTS)}"
        raise FaultError(f"there is no fault {name!r}; {hint}")
    return FAULTS[name]


def _point(fault: Fault, word: str | None) -> Point:
    points = {point.word: point for point in (fault.point, *fault.elsewhere)}
    _check(
        word is None or word in points,
        f"{fault.name} cannot happen at {word!r}; it can at {', '.join(points)}",
    )
    return fault.point if word is None else points[word]


def _own_options(fault: Fault, given: dict[str, float]) -> dict[str, float]:
    allowed = dict(fault.options)
    for name, value in given.items():
        has = f"it has {', '.join(allowed)}" if allowed else "it has none of its own"
        _check(name in allowed, f"{fault.name} has no option {name!r}; {has}")
        if name != "value":
            _check(
                math.isfinite(value) and value >= 0,
                f"{name} is {value}; it must be a number that is not negative",
            )
    return allowed | given


def _numbers(name: str, given: int | Iterable[int], least: int) -> list[int]:
    numbers = [given] if isinstance(given, int) else list(given)
    for number in numbers:
        _check(number >= least, f"{name} is {number}; the first is {least}")
    return numbers


def parse(text: str) -> list[inject]:
    """Read `TORCH_NEURONX_FAULTS`: "lost_rank:rank=1,at=20,attempt=0; slow_rank:seconds=0.2".

    Raises:
        FaultError: The text says something that there is not.
    """
    found = []
    for each in filter(None, map(str.strip, text.split(";"))):
        name, _, rest = each.partition(":")
        options: dict[str, Any] = {}
        for pair in filter(None, map(str.strip, rest.split(","))):
            key, equals, value = pair.partition("=")
            _check(bool(equals), f"{pair!r} in {TORCH_NEURONX_FAULTS.name} is no option=value")
            try:
                options[key.strip()] = _COMMON.get(key.strip(), float)(value.strip())
            except (ValueError, KeyError):
                raise FaultError(
                    f"{pair!r} in {TORCH_NEURONX_FAULTS.name} has a value that cannot be read"
                ) from None
        found.append(inject(name.strip(), **options))
    return found


def arm_from_environment() -> None:
    """Arm what `TORCH_NEURONX_FAULTS` asks for, until the process ends.

    Raises:
        FaultError: The variable says something that there is not.
    """
    try:
        found = parse(TORCH_NEURONX_FAULTS.get())
    except FaultError as error:
        raise FaultError(f"{TORCH_NEURONX_FAULTS.name}: {error}") from error
    for fault in found:
        fault.arm()
