"""A program as data: one JSON document, and the raw bytes of its literals beside it.

The document is made of tables. Rows refer to earlier rows by number, so shared expressions are
stored once, and no nesting is as deep as a graph:

    {"format": 1, "schema": {"Buffer": ["kind", ...], ...},
     "literals": [[dtype, shape], ...],
     "scalars":  [[what, dtype, operands, op, access, value, dim, direction], ...],
     "kernels":  [Kernel, ...],
     "programs": [Program, ...]}          the last one is the program, the others are bodies

A dataclass is the list of its fields' values. Reading executes nothing: every row is checked for
type and range, and anything unexpected is a `NeffError` that says what.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuronxcc.codegen.check import check_scalar, extents_size
from neuronxcc.codegen.loop import Access, Kernel, Scalar, scalars
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Literal
from neuronxcc.ir.op import Op
from neuronxcc.neff.packing import Blob
from neuronxcc.neff.schema import Schema, shown, wrong
from neuronxcc.program.check import check_program
from neuronxcc.program.errors import NeffError, unsupported
from neuronxcc.program.memory import View
from neuronxcc.program.program import CallStep, Program, all_steps

FORMAT = 1
# More than any program needs; a wrong number must not fill the memory.
MOST_DOCUMENT_BYTES = 1 << 28

_TABLES = ("literals", "scalars", "kernels", "programs")
_SCALAR_COLUMNS = ["what", "dtype", "srcs", "op", "access", "value", "dim", "direction"]


@dataclass(frozen=True, slots=True)
class Encoded:
    """A program as bytes: the JSON document, and the literals in its order."""

    document: bytes
    literals: tuple[Literal, ...]

    @property
    def contents(self) -> tuple[memoryview, ...]:
        """The elements of each literal, in C order."""
        return tuple(literal.content for literal in self.literals)


def encode(program: Program) -> Encoded:
    """Write a program; equal programs give equal bytes.

    Raises:
        NeffError: The program holds something that a NEFF cannot, or contradicts itself.
    """
    try:
        check_program(program)
        return _Writer().write(program)
    except RecursionError:
        raise NeffError("the program's values are nested too deeply") from None


def decode(document: Blob, contents: Sequence[Blob]) -> Program:
    """Read what `encode` wrote: the document and the contents of its literals.

    Raises:
        NeffError: Anything else.
    """
    if len(document) > MOST_DOCUMENT_BYTES:
        raise NeffError(f"the document has {len(document)} bytes, more than {MOST_DOCUMENT_BYTES}")
    try:
        program = _Reader(contents).read(json.loads(bytes(document)))
        check_program(program)
    except (RecursionError, MemoryError) as error:
        raise NeffError(f"the document is too deep or too large: {type(error).__name__}") from None
    except UnicodeDecodeError as error:
        raise NeffError(f"the document is no text: {error.reason}") from None
    except NeffError:
        raise
    except ValueError as error:  # json's own errors, and integers of thousands of digits
        raise NeffError(f"the document is no JSON: {error}") from None
    return program


class _Writer:
    """The tables of one document while it is written."""

    def __init__(self) -> None:
        self.literals: dict[Literal, int] = {}
        self.scalars: dict[Scalar, int] = {}
        self.kernels: dict[Kernel, int] = {}
        self.programs: dict[Program, int] = {}
        self.rows: dict[str, list[Any]] = {name: [] for name in _TABLES}
        self.schema = Schema(
            {
                Literal: (self.literal, _unread),
                Scalar: (self.scalar, _unread),
                Kernel: (self.kernel, _unread),
                Program: (self.program, _unread),
            },
            anywhere=(DType, View),
        )
        self.encode_kernel = self.schema.fields(Kernel)[0]
        self.encode_program = self.schema.fields(Program)[0]
        self.encode_access = self.schema.codec(Access)[0]

    def write(self, program: Program) -> Encoded:
        # Bodies first, without recursion.
        stack = [(program, False)]
        while stack:
            item, expanded = stack.pop()
            if expanded:
                self.program(item)
            elif item not in self.programs:
                stack.append((item, True))
                stack.extend((body, False) for body in reversed(_bodies(item)))
        document = {
            "format": FORMAT,
            "schema": {**self.schema.describe(), "Scalar": _SCALAR_COLUMNS},
            **self.rows,
        }
        text = json.dumps(document, separators=(",", ":"), allow_nan=False)
        return Encoded(text.encode(), tuple(self.literals))

    def literal(self, literal: Any) -> int:
        if type(literal) is not Literal:
            raise wrong(literal, "a Literal")
        number = self.literals.get(literal)
        if number is None:
            number = self.literals[literal] = len(self.literals)
            kind = literal.type
            self.rows["literals"].append([kind.dtype.value, list(kind.shape)])
        return number

    def scalar(self, scalar: Any) -> int:
        number = self.scalars.get(scalar)
        if number is None:
            raise wrong(scalar, "a Scalar of the kernel")
        return number

    def kernel(self, kernel: Any) -> int:
        if type(kernel) is not Kernel:
            raise wrong(kernel, "a Kernel")
        number = self.kernels.get(kernel)
        if number is None:
            for scalar in scalars(kernel):
                self.add_scalar(scalar)
            number = self.kernels[kernel] = len(self.kernels)
            self.rows["kernels"].append(self.encode_kernel(kernel))
        return number

    def add_scalar(self, scalar: Scalar) -> None:
        """Append the row of an expression whose operands have theirs."""
        if scalar in self.scalars:
            return
        self.rows["scalars"].append(
            [
                scalar.what,
                scalar.dtype.value,
                [self.scalars[src] for src in scalar.srcs],
                None if scalar.op is None else scalar.op.value,
                None if scalar.access is None else self.encode_access(scalar.access),
                self.schema.encode_any(scalar.value),
                scalar.dim,
                scalar.direction,
            ]
        )
        self.scalars[scalar] = len(self.scalars)

    def program(self, program: Any) -> int:
        if type(program) is not Program:
            raise wrong(program, "a Program")
        number = self.programs.get(program)
        if number is None:
            row = self.encode_program(program)
            number = self.programs[program] = len(self.programs)
            self.rows["programs"].append(row)
        return number


class _Reader:
    """The tables of one document while it is read."""

    def __init__(self, blobs: Sequence[Blob]) -> None:
        self.blobs = blobs
        self.literals: list[Literal] = []
        self.scalars: list[Scalar] = []
        self.kernels: list[Kernel] = []
        self.programs: list[Program] = []
        self.schema = Schema(
            {
                Literal: (_unwritten, _row(self.literals, "literal")),
                Scalar: (_unwritten, _row(self.scalars, "scalar")),
                Kernel: (_unwritten, _row(self.kernels, "kernel")),
                Program: (_unwritten, _row(self.programs, "program")),
            },
            anywhere=(DType, View),
        )
        self.decode_kernel = self.schema.fields(Kernel)[1]
        self.decode_program = self.schema.fields(Program)[1]
        self.decode_access = self.schema.codec(Access)[1]
        self.decode_dtype = self.schema.codec(DType)[1]
        self.decode_op = self.schema.codec(Op | None)[1]
        self.decode_scalars = self.schema.codec(tuple[Scalar, ...])[1]
        self.decode_shape = self.schema.codec(tuple[int, ...])[1]

    def read(self, document: Any) -> Program:
        if type(document) is not dict or document.get("format") != FORMAT:
            given = document.get("format") if type(document) is dict else document
            raise unsupported(f"program format {shown(given)}; this version reads {FORMAT}")
        expected = {**self.schema.describe(), "Scalar": _SCALAR_COLUMNS}
        if document.get("schema") != expected:
            raise unsupported("the program was written by another version of TorchNeuron")
        unknown = document.keys() - {"format", "schema", *_TABLES}
        if unknown:
            raise NeffError(f"unknown table {shown(min(unknown))}")
        readers: tuple[tuple[str, Callable[[Any], Any], list[Any]], ...] = (
            ("literals", self.literal, self.literals),
            ("scalars", self.scalar, self.scalars),
            ("kernels", self.decode_kernel, self.kernels),
            ("programs", self.decode_program, self.programs),
        )
        for name, reader, table in readers:
            rows = document.get(name)
            if type(rows) is not list:
                raise wrong(rows, f"the table {name!r}")
            for number, row in enumerate(rows):
                try:
                    table.append(reader(row))
                except NeffError as error:
                    raise NeffError(f"{name}[{number}]: {error}", error.status) from None
        if not self.programs:
            raise NeffError("there is no program")
        if len(self.literals) != len(self.blobs):
            raise NeffError(f"{len(self.literals)} literals, but {len(self.blobs)} contents")
        return self.programs[-1]

    def literal(self, row: Any) -> Literal:
        if type(row) is not list or len(row) != 2:
            raise wrong(row, "[dtype, shape]")
        dtype, shape = self.decode_dtype(row[0]), self.decode_shape(row[1])
        number = len(self.literals)
        size = extents_size(shape)
        if number >= len(self.blobs) or len(self.blobs[number]) != size * dtype.itemsize:
            raise NeffError(f"its content has not the {size * dtype.itemsize} bytes of its shape")
        data = np.frombuffer(self.blobs[number], np.uint8)
        if dtype is DType.PRED and data.size and data.max() > 1:
            raise NeffError("a truth value that is neither 0 nor 1")
        return Literal(data.view(dtype.numpy).reshape(shape), owned=not data.flags.writeable)

    def scalar(self, row: Any) -> Scalar:
        if type(row) is not list or len(row) != len(_SCALAR_COLUMNS):
            raise wrong(row, "[" + ", ".join(_SCALAR_COLUMNS) + "]")
        what, dtype, srcs, op, access, value, dim, direction = row
        if type(what) is not str or type(dim) is not int or type(direction) is not str:
            raise wrong(row, "a scalar expression")
        scalar = Scalar.make(
            what,
            self.decode_dtype(dtype),
            self.decode_scalars(srcs),
            op=self.decode_op(op),
            access=None if access is None else self.decode_access(access),
            value=self.schema.decode_any(value),
            dim=dim,
            direction=direction,
        )
        check_scalar(scalar)
        return scalar


def _bodies(program: Program) -> list[Program]:
    steps = all_steps(program.steps)
    return [body for step in steps if isinstance(step, CallStep) for body in step.bodies]


def _row(table: list[Any], name: str) -> Callable[[Any], Any]:
    """A decoder of row numbers. Rows that come later are not there yet, so there are no cycles."""

    def decode_number(number: Any) -> Any:
        if type(number) is not int or not 0 <= number < len(table):
            raise NeffError(f"{name} {shown(number)} does not exist before this row")
        return table[number]

    return decode_number


def _unread(_: Any) -> Any:
    raise AssertionError("a writer does not read")


def _unwritten(_: Any) -> Any:
    raise AssertionError("a reader does not write")
