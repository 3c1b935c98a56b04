"""The interface of a program for its callers: inputs and outputs by name.

Some inputs are not the caller's: the rank of the process (`partition-id` of HLO) and the state of
stochastic rounding. The compiler notes them in the program's `meta`, and the loader fills them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from neuronxcc.ir.dtypes import DType
from neuronxcc.program.errors import NeffError
from neuronxcc.program.program import Program

#: Entry of `Program.meta`: number of the input, by what fills it.
SUPPLIED = "supplied"
RANK, ROUNDING = "rank", "stochastic_rounding"
_TYPES: dict[str, tuple[DType, tuple[int, ...]]] = {
    RANK: (DType.S32, ()),
    ROUNDING: (DType.U32, (2,)),
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor that a program takes or gives.

    Attributes:
        name: Unique among the inputs, or among the outputs.
        dtype: Of its elements.
        shape: Its extents.
        alias: Of an output: number of the input whose memory it is; -1 for memory of its own.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    alias: int = -1

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype.numpy.name}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Interface:
    """Inputs and outputs of a program in the order of its arguments and results.

    Attributes:
        inputs: All of them.
        outputs: All of them.
        supplied: The inputs that the loader fills: what with, by number of the input.
    """

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    supplied: dict[int, str]

    @property
    def given(self) -> tuple[TensorInfo, ...]:
        """The inputs that the caller brings."""
        return tuple(info for i, info in enumerate(self.inputs) if i not in self.supplied)


def with_supplied(program: Program, *, by_rank: bool, rounding: bool) -> Program:
    """Note which inputs of a new program the loader is to fill: its last ones.

    Args:
        program: As compiled.
        by_rank: It takes the rank behind the caller's inputs,
        rounding: and the state of stochastic rounding behind that.
    """
    names = [name for name, there in ((RANK, by_rank), (ROUNDING, rounding)) if there]
    if not names:
        return program
    first = sum(buffer.kind == "input" for buffer in program.buffers) - len(names)
    supplied = {name: first + place for place, name in enumerate(names)}
    return replace(program, meta={**program.meta, SUPPLIED: supplied})


def interface(program: Program) -> Interface:
    """Inputs and outputs of a program.

    A tensor without a name, or with that of an earlier one, is called `input_2` or `output_0`.

    Raises:
        NeffError: The program's note about inputs that are not the caller's is wrong.
    """
    buffers = sorted((b for b in program.buffers if b.kind == "input"), key=lambda b: b.index)
    inputs = tuple(_named("input", ((b.name, b.dtype, b.shape, -1) for b in buffers)))
    places = {id(buffer): buffer.index for buffer in buffers}
    results = [program.buffers[number] for number in program.results]
    outputs = _named(
        "output",
        (
            (b.name * (id(b) not in places), b.dtype, b.shape, places.get(id(b), -1))
            for b in results
        ),
    )
    return Interface(inputs, tuple(outputs), _supplied(program, inputs))


def _named(
    kind: str, facts: Iterator[tuple[str, DType, tuple[int, ...], int]]
) -> Iterator[TensorInfo]:
    used: set[str] = set()
    for number, (name, dtype, shape, alias) in enumerate(facts):
        chosen = name if name and name not in used else f"{kind}_{number}"
        while chosen in used:
            chosen += "_"
        used.add(chosen)
        yield TensorInfo(chosen, dtype, shape, alias)


def _supplied(program: Program, inputs: tuple[TensorInfo, ...]) -> dict[int, str]:
    noted: Any = program.meta.get(SUPPLIED, {})
    found: dict[int, str] = {}
    for name, place in noted.items() if isinstance(noted, dict) else [("", None)]:
        if type(place) is not int or not 0 <= place < len(inputs) or place in found:
            raise _no_supplied(noted)
        if _TYPES.get(name) != (inputs[place].dtype, inputs[place].shape):
            raise _no_supplied(noted)
        found[place] = name
    return found


def _no_supplied(noted: Any) -> NeffError:
    return NeffError(f"{noted!r} are no inputs that a loader could fill"[:200])
