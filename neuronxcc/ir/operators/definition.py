"""The block that says all there is to say of an operator."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from neuronxcc.error_codes import CODES
from neuronxcc.ir.arithmetic import Array
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.checks import Types
from neuronxcc.targets import Engine, Target

Rule = Callable[[Op, Types, Mapping[str, Any]], Types]
Meaning = Callable[..., Any]
Groups = tuple[tuple[int, ...], ...]


class Kind(enum.Enum):
    """The family of an operator."""

    LEAF = "leaf"
    PART = "part"  # one of several results
    UNARY = "unary"  # elementwise, the result is of the operand's type
    CONVERSION = "conversion"  # elementwise, the result is of another type or an attribute matters
    BINARY = "binary"  # elementwise, two operands of one type
    CHOICE = "choice"  # elementwise, by a comparison or from several operands
    MOVEMENT = "movement"  # an element of the result is one of an operand's
    CONTRACTION = "contraction"
    REDUCTION = "reduction"  # combines elements of a tensor
    CONTROL = "control"
    CALL = "call"
    COLLECTIVE = "collective"


ELEMENTWISE = frozenset({Kind.UNARY, Kind.CONVERSION, Kind.BINARY, Kind.CHOICE})


class Cost(enum.Enum):
    """The quantity that the work of an operator is proportional to."""

    FREE = "free"
    ELEMENTS = "elements"  # of the result
    OPERANDS = "operands"  # elements of the operands: reductions
    BYTES = "bytes"  # moved
    PRODUCTS = "products"  # multiplications
    WINDOWS = "windows"  # elements of the result times elements of a window
    SORT = "sort"  # n log n along the dimension
    NESTED = "nested"  # of the graphs it calls
    COLLECTIVE = "collective"  # bytes and ranks
    EXTERNAL = "external"  # known to who runs it only


class Rounding(enum.Enum):
    """How near an elementwise result is to the exact one."""

    NONE = "none"  # it is a value of the type, however narrow that is
    ONCE = "once"  # rounded once
    FUNCTION = "function"  # within some ulp


class Xla(enum.Enum):
    """Return whether XLA has an elementwise operator, under the name of ours."""

    YES = "yes"
    YOUNG = "young"  # it does now; compilers that read our HLO may be older
    NO = "no"  # only the front end of PyTorch has it


@dataclass(frozen=True, slots=True)
class Gap:
    """One documented limit of the real compiler.

    Attributes:
        code: The documented code.
        applies: Whether a node of the operator is hit.
        on: Which targets have the limit.
        says: What is wrong, where the message of the code is too general.
        typed: It is about element types or a missing operator alone. Of PyTorch's operators
            `torch_neuronx.ops` says that: a lowering may go through float64 where the vendor's
            compiler does not.
        accept: The item of --implicit-integer-downcast with which the compiler goes on, with a
            loss; "" if nothing makes it.
    """

    code: str
    applies: Callable[[Node], bool]
    on: Callable[[Target], bool] = lambda _: True
    accept: str = ""
    says: str = ""
    typed: bool = False

    @property
    def text(self) -> str:
        """The sentence that says what is wrong."""
        return self.says or CODES[self.code].message

    @property
    def remedy(self) -> str:
        """The sentence that says what to do."""
        return CODES[self.code].remedy


# Integers that engines compute in float32.
WIDE = frozenset({DType.S32, DType.U32, DType.S64, DType.U64})
INT64 = frozenset({DType.S64, DType.U64})
IN_F32 = "; they are converted to f32, exact to 2^24"


def takes(node: Node, dtypes: frozenset[DType]) -> bool:
    """Return whether the first operand has one of these types."""
    return node.srcs[0].dtype in dtypes


def more_than_one(node: Node, name: str) -> bool:
    """Return whether an attribute of several numbers has one above 1."""
    return any(n > 1 for n in node[name])


@dataclass(frozen=True, slots=True)
class Case:
    """The parts of a sample graph of an operator.

    Attributes:
        name: What is particular.
        types: Of the operands, each a parameter.
        attrs: The attributes, complete.
        special: Strew in infinities, NaN, the extremes of integers.
        low: Least ordinary integer among the values.
    """

    name: str
    types: Types = ()
    attrs: Mapping[str, Any] | None = None
    special: bool = True
    low: int = -9


def tensor(dtype: DType, *shape: int) -> TensorType:
    """The type of a tensor, for cases."""
    return TensorType(dtype, shape)


class Exchange(Protocol):
    """Lets the ranks of a group see each other's values."""

    def __call__(self, name: str, group: Groups, value: Array) -> tuple[int, Sequence[Array]]:
        """Return the caller's place in its group, and the values of the group's ranks, in order.

        Args:
            name: Of the process group, "" if the graph has none.
            group: The groups of ranks, each in its order; (): all ranks are one.
            value: The caller's.
        """


class Evaluator(Protocol):
    """The evaluator of a graph, as operators that call graphs or meet other ranks need it."""

    exchange: Exchange

    def run(self, graph: Graph, args: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The results of a graph."""

    def external(self, node: Node, operands: list[Array]) -> Sequence[Array]:
        """The results of a custom or host call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """All that is known of an operator.

    Attributes:
        op: Its name.
        kind: Its family.
        engine: Who executes it on a NeuronCore.
        cost: What its work is proportional to.
        attrs: Names of the attributes that every node of it has.
        optional: Names of those that a node may have.
        rule: Operand types and attributes -> result types; None where the builder gives the types.
        check: What is wrong with a node, None if nothing: for operators without a rule.
        meaning: The NumPy reference: node, operands -> result or results.
        evaluate: The reference of operators that call graphs or meet other ranks.
        cases: What sample graphs are made of.
        gaps: Documented limits on real targets, with those of several operators in `ir.gaps`.
        complex: Whether the real compiler takes complex64 (since SDK 2.32).
        commutative: Whether operands may change places.
        rounding: How near an elementwise result is to the exact one.
        xla: Whether XLA has it, if it is elementwise.
        instructions: Per vector of an elementwise result, roughly, in the code that we generate.
    """

    op: Op
    kind: Kind
    engine: Engine
    cost: Cost
    attrs: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    rule: Rule | None = None
    check: Callable[[Node], str | None] | None = None
    meaning: Meaning | None = None
    evaluate: Callable[[Evaluator, Node, list[Array]], Sequence[Array]] | None = None
    cases: Callable[[], Iterable[Case]] = tuple
    gaps: tuple[Gap, ...] = ()
    complex: bool = False
    commutative: bool = False
    rounding: Rounding = Rounding.FUNCTION
    xla: Xla = Xla.YES
    instructions: int = 1


def names(text: str) -> frozenset[str]:
    """Names of attributes, between spaces."""
    return frozenset(text.split())


LIBRARY = 200  # instructions, if the C library computes an element at a time


def each_type(count: int, shape: tuple[int, ...], **attrs: object) -> Iterable[Case]:
    """A case for every element type; the sampler drops those that the operator does not take."""
    for dtype in DType:
        of = f" {attrs['direction']}" if attrs else ""
        yield Case(dtype.value + of, (TensorType(dtype, shape),) * count, attrs)
