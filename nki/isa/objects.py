"""The objects that `nki.isa` hands to kernels: registers and instruction handles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from nki.context import current_run
from nki.errors import NkiError, NkiTypeError
from nki.objects import NKIObject, RuntimeScalar

__all__ = ["NkiInstruction", "VirtualRegister"]


class VirtualRegister(RuntimeScalar):
    """A 32-bit register, made by `nisa.register_alloc`.

    Its value exists while the kernel runs, so it cannot steer Python: `nl.fori_loop` and
    `nl.while_loop` can, and ``while register:`` is recorded as a loop of the device. ``+``, ``-``
    and ``*`` with integers and registers give another register, which the device computes.

    Attributes:
        value: the signed 32-bit value as far as the kernel has run; None before the first write.
        frozen: the kernel may not write it; so are the counters of loops.
        number: which register of the recording it is.
    """

    __slots__ = ("frozen", "number", "value")

    value: int | None
    frozen: bool
    number: int

    def __init__(self, state: int | None = None, frozen: bool = False, number: int = -1) -> None:
        """Make a register.

        Args:
            state: the first value, from -2**31 to 2**32 - 1, or None.
            frozen: it is read-only for the kernel.
            number: which register of the recording it is, -1 outside of recordings.
        """
        self.number = number
        self.value = None if state is None else ((state + 2**31) & 0xFFFFFFFF) - 2**31
        self.frozen = frozen

    def read(self) -> int:
        """Return the value.

        Raises:
            NkiError: nothing has been written (NKI136).
        """
        if self.value is None:
            raise NkiError(
                "NKI136",
                "a register is read before it was written",
                "give nisa.register_alloc a value, or use nisa.register_load first",
            )
        return self.value

    def assign(self, value: int) -> None:
        """Write the value.

        Raises:
            NkiError: the register is read-only (NKI136).
        """
        if self.frozen:
            raise NkiError(
                "NKI136",
                "a loop's counter is written",
                "the loop advances it: copy it to a register of its own with nisa.register_move",
            )
        self.value = ((value + 2**31) & 0xFFFFFFFF) - 2**31

    def _no_number(self, use: str) -> NoReturn:
        raise NkiTypeError(
            "NKI139",
            f"a register was used as {use}",
            "its value is known on the device only: use nl.fori_loop or nl.while_loop, or compute "
            "with a tensor",
        )

    def __bool__(self) -> bool:
        recorder = current_run()
        if recorder is None or (answer := recorder.decide(self)) is None:
            self._no_number("a condition of Python")
        return answer

    def _compute(self, op: str, other: Any, *, swapped: bool = False) -> Any:
        if isinstance(other, (bool, float, np.floating)):
            self._no_number(f"an operand beside a {type(other).__name__}")
        if not isinstance(other, (int, np.integer, VirtualRegister)):
            return NotImplemented
        recorder = current_run()
        if recorder is None:
            self._no_number("an operand outside of a kernel")
        given = other if isinstance(other, VirtualRegister) else int(other)
        return recorder.compute(op, *((given, self) if swapped else (self, given)))

    def __add__(self, other: Any) -> Any:
        return self._compute("add", other)

    def __radd__(self, other: Any) -> Any:
        return self._compute("add", other, swapped=True)

    def __sub__(self, other: Any) -> Any:
        return self._compute("subtract", other)

    def __rsub__(self, other: Any) -> Any:
        return self._compute("subtract", other, swapped=True)

    def __mul__(self, other: Any) -> Any:
        return self._compute("multiply", other)

    def __rmul__(self, other: Any) -> Any:
        return self._compute("multiply", other, swapped=True)

    def __neg__(self) -> Any:
        return self._compute("subtract", 0, swapped=True)

    def __eq__(self, other: object) -> bool:
        if self is not other and isinstance(other, (int, float, np.number, VirtualRegister)):
            self._no_number("an operand of ==")
        return self is other

    __hash__ = object.__hash__

    def __int__(self) -> int:
        self._no_number("an int")

    def __index__(self) -> int:  # noqa: PLE0305
        self._no_number("an int")

    def __repr__(self) -> str:
        return f"VirtualRegister({'' if self.value is None else self.value})"


def _refused(sign: str) -> Callable[[VirtualRegister, Any], NoReturn]:
    def refuse(self: VirtualRegister, other: Any) -> NoReturn:
        del other
        self._no_number(f"an operand of {sign}")

    return refuse


# A device has no value of them for Python, and the documentation names no instruction either.
for _name, _sign in {
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "floordiv": "//", "mod": "%", "truediv": "/",
    "pow": "**", "lshift": "<<", "rshift": ">>", "and": "&", "or": "|", "xor": "^",
}.items():  # fmt: skip
    for _side in ("", "" if _name in ("lt", "le", "gt", "ge") else "r"):
        setattr(VirtualRegister, f"__{_side}{_name}__", _refused(_sign))


class NkiInstruction(NKIObject):
    """A handle of an instruction that was issued.

    Attributes:
        handle: what the recorder keeps for the instruction.
    """

    __slots__ = ("_producers", "handle")

    handle: Any

    def __init__(self, handle: Any) -> None:
        """Wrap what the recorder keeps."""
        self.handle = handle

    @property
    def producers(self) -> list[NkiInstruction]:
        """Handles of the instructions that must have ended before it starts."""
        # Nearly all instructions have none, and an empty list would take longer than the rest.
        return getattr(self, "_producers", [])

    def depends_on(self, *producers: NkiInstruction) -> NkiInstruction:
        """Let this instruction wait for others; returns itself.

        Raises:
            NkiTypeError: something that is no instruction (NKI102).
        """
        for producer in producers:
            if not isinstance(producer, NkiInstruction):
                raise NkiTypeError(
                    "NKI102",
                    f"depends_on was given a {type(producer).__name__}",
                    "pass what functions of nki.isa returned",
                )
        self._producers = [*self.producers, *producers]
        return self
