"""Writing instructions on tiles: what every family of kernels is made of.

A *value* is what an operator of the tensor IR has for one block of rows and columns: a tile of
(partitions, columns), a vector of one element per partition that stands for all columns, or a
number. Instructions are chosen by which of these the operands are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

import nki.isa as nisa
import nki.language as nl
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from neuronxcc.targets import Target
from nki.context import current_run
from nki.device.types import HELD, INTEGERS32, has_form
from nki.tensor import NkiTensor

__all__ = ["PARTITIONS", "Emitter", "NoLoweringError", "Number", "Operand", "Value", "near"]

PARTITIONS = 128
T = TypeVar("T")
Number = float | int


class NoLoweringError(Exception):
    """There is no instruction for something.

    Attributes:
        reason: a sentence that says what.
        node: what it is about, None if that is not known.
        code: the documented code of the compiler's error, "" where there is none.
    """

    def __init__(self, reason: str, code: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code
        self.node: Node | None = None


class Value(NamedTuple):
    """A tile in SBUF or PSUM.

    Attributes:
        tile: of shape (partitions, columns), or (partitions, 1).
        dtype: the IR's type; the tile may be wider where the value has not been rounded yet.
        vector: the tile has one column, which stands for all.
    """

    tile: NkiTensor
    dtype: DType
    vector: bool = False


Operand = Value | Number


class Emitter:
    """Issues instructions for one block at a time.

    Attributes:
        target: what is recorded for.
        partitions: of the block.
        columns: of the block.
        node: whose instructions are issued.
        core: number of the physical core that instructions are for.
        cores: how many share the work.
    """

    def __init__(
        self, target: Target, places: Mapping[Node, tuple[str, int]] | None = None
    ) -> None:
        """Begin.

        Args:
            target: what is recorded for.
            places: file and line of nodes, which instructions are taken to be at.
        """
        self._places = places or {}
        self.core, self.cores = 0, 1
        self.node: Node | None = None
        # Tiles that the values of nodes are to be written to, which stay on the chip.
        self.goals: dict[Node, NkiTensor] = {}
        self.target = target
        self.isa = target.core.isa
        self.partitions = PARTITIONS
        self.columns = 1
        # Nanoseconds that engines are busy, roughly: whoever may run an instruction, the less busy
        # one does.
        self._clocks = target.core.vector.clock_ghz, target.core.scalar.clock_ghz
        self._vector = self._scalar = 0.0

    def at(self, node: Node) -> None:
        """Let instructions be a node's from here on."""
        self.node = node
        run = current_run()
        if run is not None:
            run.where = self._places.get(node, _NOWHERE)

    def share(self, parts: Sequence[T], core: int | None = None) -> Sequence[T]:
        """Return a core's part of some pieces of work that do not depend on each other.

        Args:
            parts: all of them.
            core: by default that which instructions are issued for.
        """
        number = self.core if core is None else core
        each = -(-len(parts) // self.cores)
        return parts[number * each : (number + 1) * each]

    # --- tiles -----------------------------------------------------------------------------------

    def tile(self, columns: int, dtype: str, partitions: int | None = None) -> NkiTensor:
        """Return a new tile in SBUF."""
        shape = (self.partitions if partitions is None else partitions, columns)
        return nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)

    def new(self, dtype: DType | str, *, vector: bool) -> NkiTensor:
        """Return a new tile for a value of the block."""
        kind = dtype if isinstance(dtype, str) else HELD[dtype]
        if self.node is not None and not vector:
            goal = self.goals.get(self.node)
            if goal is not None and goal.dtype == kind:
                del self.goals[self.node]
                return goal
        return self.tile(1 if vector else self.columns, kind)

    def filled(self, number: Number, dtype: DType | str, *, vector: bool = True) -> NkiTensor:
        """Return a new tile that holds a number everywhere."""
        made = self.new(dtype, vector=vector)
        nisa.memset(made, whole(number) if made.dtype in _WHOLE else float(number))
        return made

    def full(self, x: Operand, dtype: DType | str) -> NkiTensor:
        """Return an operand as a tile of the block's shape; nothing is copied for vectors."""
        if not isinstance(x, Value):
            x = Value(self.filled(x, dtype), DType.F32, vector=True)
        if x.vector and self.columns > 1:
            return x.tile.broadcast(1, self.columns)
        return x.tile

    def shaped(self, x: Operand, dtype: DType | str, *, vector: bool) -> NkiTensor:
        """Return an operand as a tile of one column or of all."""
        if vector:
            return x.tile if isinstance(x, Value) else self.filled(x, dtype)
        return self.full(x, dtype)

    def vector32(self, x: Value) -> NkiTensor:
        """Return a vector in float32, as operands of arithmetic instructions have to be."""
        if x.tile.dtype == "float32":
            return x.tile
        made = self.new("float32", vector=True)
        nisa.tensor_copy(made, x.tile)
        return made

    def on_sbuf(self, tile: NkiTensor) -> NkiTensor:
        """Return a tile in SBUF: GpSimd does not reach PSUM."""
        if tile.buffer is not nl.psum:
            return tile
        made = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.sbuf)
        self.copy(made, tile)
        return made

    # --- who does it -----------------------------------------------------------------------------

    def spend(self, tile: NkiTensor, *, scalar: bool, each: float = 1.0) -> None:
        """Take note that an engine works on the columns of a tile, so many cycles for each."""
        cycles = max(_LEAST, each * (tile.size // tile.shape[0]))
        if scalar:
            self._scalar += (cycles + _OVERHEAD) / self._clocks[1]
        else:
            self._vector += (cycles + _OVERHEAD) / self._clocks[0]

    def scalar_is_free(self, tile: NkiTensor) -> bool:
        """Return whether Scalar would be done with a tile before Vector."""
        columns = max(_LEAST, tile.size // tile.shape[0])
        later = self._scalar + columns / self._clocks[1], self._vector + columns / self._clocks[0]
        return later[0] < later[1]

    def copy(self, dst: NkiTensor, src: NkiTensor) -> None:
        """Copy a tile, converting it: by Vector, or by Scalar if it is less busy."""
        scalar = src.dtype in _FLOATS and dst.dtype in _FLOATS and self.scalar_is_free(dst)
        self.spend(dst, scalar=scalar)
        if not scalar:
            nisa.tensor_copy(dst, src)
        elif self.isa > _V2:
            nisa.tensor_copy(dst, src, engine=nisa.engine.scalar)
        else:
            nisa.activation(dst, op="copy", data=src)

    # --- arithmetic ------------------------------------------------------------------------------

    def binary(self, op: str, a: Operand, b: Operand, dtype: DType, held: str = "") -> Value:
        """Return ``a <op> b`` by Vector, in float32 rounded to the type.

        Args:
            op: of the ALU.
            a: not both operands may be numbers.
            b: likewise.
            dtype: of the result.
            held: type of its tile, if another one.
        """
        kind = held or HELD[dtype]
        vector = all(not isinstance(x, Value) or x.vector for x in (a, b))
        if not isinstance(a, Value) and not isinstance(b, Value):
            a = Value(self.filled(a, "float32"), DType.F32, vector=True)
        made = self.new(kind, vector=vector)
        wide = [isinstance(x, Value) and x.vector == vector for x in (a, b)]
        if all(wide):
            first, second = (x.tile for x in (a, b) if isinstance(x, Value))
            if first.buffer is nl.psum and second.buffer is nl.psum:
                second = self.on_sbuf(second)
            self.spend(made, scalar=False, each=_TWO)
            nisa.tensor_tensor(made, first, second, op=op)
            return Value(made, dtype, vector)
        data, other = (a, b) if wide[0] else (b, a)
        assert isinstance(data, Value)
        operand = self.vector32(other) if isinstance(other, Value) else float(other)
        self._with_scalar(made, data.tile, op, operand, reverse=not wide[0])
        return Value(made, dtype, vector)

    def _with_scalar(
        self,
        made: NkiTensor,
        data: NkiTensor,
        op: str,
        operand: NkiTensor | float,
        *,
        reverse: bool,
    ) -> None:
        """Combine a tile with a number or a vector: Scalar has products and sums."""
        if op == "subtract" and not reverse and isinstance(operand, float):
            op, operand = "add", -operand
        simple = op == "multiply" or (op == "add" and self.isa > _V2)
        floats = data.dtype in _FLOATS and made.dtype in _FLOATS
        scalar = simple and floats and self.scalar_is_free(made)
        shift = op in ("add", "subtract") and isinstance(operand, NkiTensor) and not reverse
        if shift and isinstance(operand, NkiTensor) and floats and self.scalar_is_free(made):
            # function(x + bias): the bias is a vector.
            if op == "subtract":
                negative = self.tile(1, "float32")
                nisa.tensor_scalar(negative, operand, op0="multiply", operand0=-1.0)
                self.spend(negative, scalar=False)
                operand = negative
            self.spend(made, scalar=True)
            nisa.activation(made, op="copy", data=data, bias=operand)
            return
        self.spend(made, scalar=scalar)
        if not scalar:
            nisa.tensor_scalar(made, data, op0=op, operand0=operand, reverse0=reverse)
        elif self.isa > _V2:
            nisa.tensor_scalar(made, data, op0=op, operand0=operand, engine=nisa.engine.scalar)
        else:
            nisa.activation(made, op="copy", data=data, scale=operand)

    def integer(self, op: str, a: Operand, b: Operand, dtype: DType) -> Value:
        """Return ``a <op> b`` of integers by GpSimd, exactly in 32 bits, wrapped to the type."""
        unsigned = dtype in (DType.U32, DType.U64)
        kind = "uint32" if unsigned else "int32"
        vector = all(not isinstance(x, Value) or x.vector for x in (a, b))
        tiles = [self._word(x, kind, vector=vector) for x in (a, b)]
        made = self.new(kind, vector=vector)
        nisa.tensor_tensor(made, *tiles, op=op)
        return self.narrowed(Value(made, DType.S32, vector), dtype)

    def _word(self, x: Operand, kind: str, *, vector: bool) -> NkiTensor:
        tile = self.shaped(x, kind, vector=vector)
        if tile.dtype in ("int32", "uint32"):
            return self.on_sbuf(tile)
        made = nl.ndarray(tile.shape, dtype=kind, buffer=nl.sbuf)
        nisa.tensor_copy(made, tile)
        return made

    def narrowed(self, x: Value, dtype: DType) -> Value:
        """Return 32-bit integers in a type of fewer bits, by their low bits."""
        bits = 8 * dtype.itemsize
        if dtype in INTEGERS32:
            return Value(x.tile, dtype, x.vector)
        low = self.new("int32", vector=x.vector)
        nisa.tensor_scalar(low, x.tile, op0="bitwise_and", operand0=(1 << bits) - 1)
        if dtype.is_signed:
            # (v xor 2^(n-1)) - 2^(n-1) has the sign of the uppermost bit.
            flipped = self.new("int32", vector=x.vector)
            half = 1 << (bits - 1)
            nisa.tensor_scalar(flipped, low, op0="bitwise_xor", operand0=half)
            low = self.new("int32", vector=x.vector)
            nisa.tensor_scalar(low, flipped, op0="subtract", operand0=float(half))
        made = self.new(dtype, vector=x.vector)
        nisa.tensor_copy(made, low)
        return Value(made, dtype, x.vector)

    def activation(
        self,
        function: str,
        x: Operand,
        dtype: DType,
        *,
        scale: float = 1.0,
        bias: Number | NkiTensor = 0.0,
        held: str = "",
    ) -> Value:
        """Return ``function(x * scale + bias)`` by the Scalar Engine."""
        if not isinstance(x, Value):
            x = Value(self.filled(x, "float32"), DType.F32, vector=True)
        made = self.new(held or HELD[dtype], vector=x.vector)
        more: dict[str, Any] = {}
        if scale != 1.0:
            more["scale"] = float(scale)
        if isinstance(bias, NkiTensor):
            more["bias"] = bias
        elif bias:
            # NeuronCore-v2 takes tensors only.
            more["bias"] = float(bias) if self.isa > 2 else self.filled(bias, "float32")
        self.spend(made, scalar=True)
        nisa.activation(made, op=function, data=x.tile, **more)
        return Value(made, dtype, x.vector)

    def copied(self, x: Operand, dtype: DType, held: str = "", *, vector: bool = False) -> Value:
        """Return a new tile with a value converted to a type; a number becomes a vector."""
        if not isinstance(x, Value):
            return Value(self.filled(x, held or dtype, vector=vector), dtype, vector)
        made = self.new(held or dtype, vector=x.vector)
        self.copy(made, x.tile)
        return Value(made, dtype, x.vector)

    def float32(self, x: Operand) -> Operand:
        """Return a value whose tile is float32."""
        if not isinstance(x, Value) or x.tile.dtype == "float32":
            return x
        return self.copied(x, DType.F32)


# Cycles: of the shortest instruction, of any besides its elements, of two operands for each.
_LEAST, _OVERHEAD, _TWO = 64, 20, 1.6
_V2 = 2
_FLOATS = frozenset({"float32", "bfloat16", "float16"})
_NOWHERE = ("<graph>", 0)
_WHOLE = frozenset({"int8", "int16", "int32", "uint8", "uint16", "uint32"})
_RANGE32 = np.iinfo(np.int32).min, np.iinfo(np.uint32).max


def whole(number: Number) -> int:
    """Return an integer that 32 bits hold.

    Raises:
        NoLoweringError: it is too large.
    """
    value = int(number)
    if not _RANGE32[0] <= value <= _RANGE32[1]:
        raise NoLoweringError(
            f"the number {value} has more than 32 bits, which engines do not compute with"
        )
    return value


def near(number: Number, dtype: DType) -> Number:
    """Return a number of a type as its tiles have it: of integers of 64 bits the nearest of 32."""
    if dtype not in (DType.S64, DType.U64):
        return number
    facts = np.iinfo(np.int32 if dtype is DType.S64 else np.uint32)
    return min(max(int(number), int(facts.min)), int(facts.max))


def require_form(dtype: DType) -> None:
    """Refuse types that tiles cannot hold.

    Raises:
        NoLoweringError: the device has no form of the type.
    """
    if not has_form(dtype):
        code = "NCC_ESPP004" if dtype in (DType.F64, DType.C128) else "NCC_EVRF004"
        raise NoLoweringError(f"no engine computes with {dtype.value}", code)


def chunks(total: int, most: int) -> list[tuple[int, int]]:
    """Return (begin, size) of equal parts of a range, but for the last one.

    >>> chunks(300, 128)
    [(0, 128), (128, 128), (256, 44)]
    """
    return [(at, min(most, total - at)) for at in range(0, total, most)]


def even_chunks(total: int, most: int) -> list[tuple[int, int]]:
    """Return (begin, size) of parts as equal as possible."""
    count = max(1, math.ceil(total / most))
    return chunks(total, math.ceil(total / count))
