"""The entry of a native function of tapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from neuronxcc.ir.arithmetic import Array
from neuronxcc.program.errors import NeffError

Params = tuple[int, ...]

MOST = 1 << 40  # of any parameter that counts elements: their products fit into 64 bits


@dataclass(frozen=True, slots=True)
class NativeSlot:
    """The bytes [low, high) from a slot's pointer that a function touches."""

    low: int
    high: int
    written: bool = False


class NativeError(Exception):
    """A native function found something wrong in the data; the runner adds the user's line.

    Attributes:
        code: Of `nki.errors.CODES`.
        what: What is wrong, with the numbers.
        remedy: What to do about it.
    """

    def __init__(self, code: str, what: str, remedy: str) -> None:
        self.code, self.what, self.remedy = code, what, remedy
        super().__init__(code, what, remedy)


@dataclass(frozen=True, slots=True)
class Native:
    """One function.

    Attributes:
        declare: From the parameters to its slots; NeffError for parameters that it does not take.
            What it says for given parameters never changes.
        run: The meaning. Gets the parameters and for every slot the bytes from its pointer to the
            end of the buffer (uint8); writes in place; raises NativeError.
    """

    declare: Callable[[Params], tuple[NativeSlot, ...]]
    run: Callable[[Params, Sequence[Array]], None]


def named(names: str, params: Params, least: Sequence[int]) -> Params:
    """Check the number of parameters, and that each is at least so large, at most MOST.

    Args:
        names: Of the parameters, for the error.
        params: The parameters.
        least: The least value of each.

    Raises:
        NeffError: They are not so.
    """
    wrong = len(params) != len(least) or any(
        not low <= value <= MOST for value, low in zip(params, least, strict=True)
    )
    if wrong:
        raise NeffError(f"the parameters {list(params)} are no ({names})")
    return params
