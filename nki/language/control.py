"""Loops that the device runs, the launch grid, and printing: what only a recorder can answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar, Token
from typing import Any

from nki.arguments import as_function
from nki.context import KernelRun, current_run
from nki.errors import NkiError, NkiTypeError
from nki.isa.objects import VirtualRegister
from nki.objects import NKIObject
from nki.tensor import NkiTensor

__all__ = [
    "device_print",
    "dynamic_range",
    "fori_loop",
    "no_reorder",
    "num_programs",
    "program_id",
    "program_ndim",
    "while_loop",
]

_in_order: ContextVar[bool] = ContextVar("nki_no_reorder", default=False)


def _recorder(function: str) -> KernelRun:
    recorder = current_run()
    if recorder is None:
        raise NkiError(
            "NKI246",
            f"nl.{function} is called outside of a kernel",
            "call it in a function that is decorated with nki.jit or passed to nki.simulate",
        )
    return recorder


def _loop(function: str) -> KernelRun:
    recorder = _recorder(function)
    if _in_order.get():
        raise NkiError(
            "NKI245",
            f"nl.{function} stands within nl.no_reorder()",
            "put `with nl.no_reorder():` into the body of the loop",
        )
    return recorder


class no_reorder(NKIObject):  # noqa: N801 (the documented name)
    """``with nl.no_reorder():`` keeps the order of instructions.

    Recordings keep it anyway. Loops that the device runs are not possible within the block.
    """

    __slots__ = ("_token",)

    def __init__(self) -> None:
        self._token: Token[bool] | None = None

    def __enter__(self) -> None:
        """Begin."""
        self._token = _in_order.set(True)

    def __exit__(self, *_: object) -> None:
        """End."""
        assert self._token is not None
        _in_order.reset(self._token)


def fori_loop(
    lower: int | VirtualRegister,
    upper: int | VirtualRegister,
    body_fun: Callable[[VirtualRegister], Any],
    step: int = 1,
) -> None:
    """Let the device run a function for counters lower, lower + step... below upper.

    The function is called once, to record its instructions. What one iteration leaves to the next
    lies in tensors that were made before the loop.

    Args:
        lower: an int, or a register that has a value.
        upper: likewise.
        body_fun: takes the counter, a register that cannot be written, and returns None.
        step: an int of at least 1.

    Raises:
        NkiError: outside of a kernel (NKI246), within `no_reorder` or a body that returns something
            (NKI245), a step that is none (NKI200).
        NkiTypeError: a bound that is neither an int nor a register (NKI202), or no function
            (NKI240).
    """
    as_function(body_fun, "nl.fori_loop body_fun")
    with _loop("fori_loop").for_loop(lower, upper, step) as counter:
        result = body_fun(counter)
        if result is not None:
            raise NkiError(
                "NKI245",
                f"the body of nl.fori_loop returned {result!r}",
                "write results to tensors that are made before the loop, and return nothing",
            )


def while_loop(
    init: VirtualRegister, body_fun: Callable[[VirtualRegister], VirtualRegister]
) -> None:
    """Let the device run a function while a register is not 0.

    The function is called once, to record its instructions.

    Args:
        init: decides whether there is a first iteration.
        body_fun: takes a register with the current condition, and returns the one that decides
            about the next iteration; it may be the same register, written.

    Raises:
        NkiError: outside of a kernel (NKI246), within `no_reorder` (NKI245), or a body that returns
            nothing (NKI201).
        NkiTypeError: a condition that is no register (NKI202), or no function (NKI240).
    """
    as_function(body_fun, "nl.while_loop body_fun")
    with _loop("while_loop").while_loop(init) as (current, following):
        result = body_fun(current)
        if result is not None:
            following.append(result)


def dynamic_range(
    start: int | VirtualRegister, stop: int | VirtualRegister | None = None, step: int = 1
) -> Iterator[VirtualRegister]:
    """Return what ``for i in nl.dynamic_range(...)`` iterates over: a loop that the device runs.

    Deprecated in NKI 0.6: use `fori_loop`. The body of the Python loop runs once, to be recorded.

    Args:
        start: the first counter, or `stop` if that is not given; an int or a register.
        stop: the counter stays below it.
        step: an int of at least 1.

    Raises:
        NkiError: outside of a kernel (NKI246), within `no_reorder` (NKI245), a step that is none
            (NKI200); at the end of the kernel, if the loop was left by break or return (NKI245).
        NkiTypeError: a bound that is neither an int nor a register (NKI202).
    """
    recorder = _loop("dynamic_range")
    lower, upper = (0, start) if stop is None else (start, stop)
    return _dynamic(recorder, lower, upper, step)


def _dynamic(recorder: KernelRun, lower: Any, upper: Any, step: Any) -> Iterator[VirtualRegister]:
    with recorder.for_loop(lower, upper, step) as counter:
        try:
            yield counter
        except GeneratorExit:
            recorder.fail(
                NkiError(
                    "NKI245",
                    "a loop over nl.dynamic_range is left by break or return",
                    "the device runs all iterations: use nl.while_loop with a condition",
                )
            )
            raise


def program_id(axis: int = 0) -> int:
    """Return the number of this program along an axis of the launch grid; 0 without a grid.

    Raises:
        NkiError: outside of a kernel (NKI246), or there is no such axis (NKI203).
    """
    return _recorder("program_id").program_id(axis)


def num_programs(axes: int | tuple[int, ...] | None = 0) -> int:
    """Return the number of programs along axes of the launch grid, None meaning all; 1 without one.

    Raises:
        NkiError: outside of a kernel (NKI246), or there is no such axis (NKI203).
    """
    return _recorder("num_programs").num_programs(axes)


def program_ndim() -> int:
    """Return the number of axes of the launch grid, 0 without one.

    Raises:
        NkiError: outside of a kernel (NKI246).
    """
    return _recorder("program_ndim").program_ndim()


def device_print(print_prefix: Any, tensor: Any) -> None:
    """Print a prefix and the values of a tensor when the kernel runs.

    Args:
        print_prefix: a string that is known when the kernel is built.
        tensor: in SBUF or HBM.

    Raises:
        NkiTypeError: the prefix is no string, or there is no tensor (NKI240).
        NkiError: outside of a kernel (NKI246), or the tensor is in PSUM (NKI240).
    """
    recorder = _recorder("device_print")
    problem = None
    if not isinstance(print_prefix, str):
        problem = f"print_prefix must be a string, got {print_prefix!r}"
    elif not isinstance(tensor, NkiTensor):
        problem = f"tensor must be a tensor, got {type(tensor).__name__}"
    elif tensor.buffer.name == "psum":
        problem = f"tensor must be in sbuf or hbm, got {tensor!r} in psum"
    if problem is not None:
        raise NkiTypeError(
            "NKI240",
            f"nl.device_print {problem}",
            'write nl.device_print("name", tile); copy a tile of PSUM with nl.copy first',
        )
    recorder.device_print(print_prefix, tensor)
