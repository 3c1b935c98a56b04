"""The classes of the instruction table: what a row says, and what a call of it looks like.

A row (:class:`Instruction`) is data: the documented parameters in order, the engines that can run
it per generation, the rules that a call must keep, its cost and its meaning. Nothing here knows
tensors: a call is checked on :class:`Tile`, a description, and run on NumPy arrays.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from neuronxcc.targets import TARGETS
from nki.dtypes import DTypeInfo, info
from nki.isa.cast import Array
from nki.isa.state import Step

__all__ = [
    "ANY_DTYPE",
    "GENERATIONS",
    "REQUIRED",
    "Attribute",
    "Call",
    "Cost",
    "Engines",
    "Instruction",
    "Kind",
    "Operand",
    "Role",
    "Rule",
    "Tile",
    "Value",
]

#: The published sets of instructions, by the NeuronCore that they came with.
GENERATIONS: Final = tuple(sorted({target.core.isa for target in TARGETS}))
PMAX: Final = 128
ON_CHIP: Final = frozenset({"sbuf", "psum"})
HBM: Final = frozenset({"hbm", "private_hbm", "shared_hbm"})
REGISTER: Final = frozenset({"register"})


@dataclass(frozen=True, slots=True)
class Tile:
    """The facts about a tensor operand that rules and costs use.

    A register is described as one element of int32 in the region ``register``.

    Attributes:
        shape: sizes; the first is the partition dimension if the tensor is on chip.
        dtype: NKI's name.
        region: ``sbuf``, ``psum``, ``hbm``, ``private_hbm`` or ``shared_hbm``.
        partition: its first partition, None if it is not decided yet.
        indirect: it gathers or scatters by an index tensor in SBUF (``.indirect``) or by a
            ``vector_offset``.
        index: the index tensor of that, if any.
        dynamic: its start depends on a register or on a tensor (``scalar_offset``).
    """

    shape: tuple[int, ...]
    dtype: str
    region: str = "sbuf"
    partition: int | None = None
    indirect: bool = False
    index: Tile | None = None
    dynamic: bool = False

    @property
    def partitions(self) -> int:
        """The size of the partition dimension, or of the first one in HBM."""
        return self.shape[0] if self.shape else 1

    @property
    def free(self) -> int:
        """Elements per partition."""
        return math.prod(self.shape[1:])

    @property
    def size(self) -> int:
        """All elements."""
        return math.prod(self.shape)

    @property
    def info(self) -> DTypeInfo:
        """The facts about its data type."""
        return info(self.dtype)

    @property
    def on_chip(self) -> bool:
        """It is in SBUF or PSUM."""
        return self.region in ON_CHIP


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Final = _Required()
ANY_DTYPE: Final = None

Value = Tile | float | int | None | tuple[Tile, ...]


class Role(enum.Enum):
    """How an instruction uses an operand."""

    READ = "read"
    WRITE = "write"
    READWRITE = "readwrite"  # elements that are not written keep their value, or are accumulated to


class Kind(enum.Enum):
    """The kinds of values that an operand may have."""

    TILE = "a tensor"
    VECTOR = "a tensor of one element per partition"
    SCALAR_OR_VECTOR = "a number or a tensor of one element per partition"
    SCALAR_OR_TILE = "a number or a tensor"
    TILES = "a list of tensors"
    REGISTER = "a register"
    REGISTER_OR_INT = "a register or an integer"


@dataclass(frozen=True, slots=True)
class Operand:
    """A parameter that the hardware reads or writes.

    Attributes:
        name: as documented.
        role: read, written, or both.
        kind: what may be given.
        regions: memories in which it may lie.
        dtypes: names of types, None for any.
        default: REQUIRED, or the value if absent.
        nullable: None may be given; it may be where None is the default.
        indirect: tensor indirection (NeuronCore-v4) is documented for it.
        any_start: it is not bound to the start partitions of the engines' access patterns.
    """

    name: str
    role: Role = Role.READ
    kind: Kind = Kind.TILE
    regions: frozenset[str] = ON_CHIP
    dtypes: frozenset[str] | None = ANY_DTYPE
    default: Any = REQUIRED
    nullable: bool = False
    indirect: bool = False
    any_start: bool = False


@dataclass(frozen=True, slots=True)
class Attribute:
    """A parameter that is known when the kernel is built.

    Attributes:
        name: as documented.
        convert: takes what the user gave to the canonical value; raises ValueError with a text
            that continues "nc_matmul perf_mode ".
        default: REQUIRED, or the canonical value if absent.
    """

    name: str
    convert: Callable[[Any], Any]
    default: Any = REQUIRED


@dataclass(frozen=True, slots=True)
class Call:
    """One use of an instruction, with canonical attributes and an engine chosen."""

    instruction: Instruction
    operands: Mapping[str, Value]
    attributes: Mapping[str, Any]
    generation: int
    engine: str

    def tile(self, name: str) -> Tile:
        """Return an operand that is a tensor; KeyError if it is a number or absent."""
        value = self.operands.get(name)
        if not isinstance(value, Tile):
            raise KeyError(name)
        return value

    def get(self, name: str) -> Tile | None:
        """Return an operand if it is a tensor."""
        value = self.operands.get(name)
        return value if isinstance(value, Tile) else None

    def tiles(self) -> Iterator[tuple[str, Operand, Tile]]:
        """Iterate over all tensors with the name that the user knows and their declaration."""
        for operand in self.instruction.operands:
            value = self.operands.get(operand.name)
            if isinstance(value, Tile):
                yield operand.name, operand, value
            elif isinstance(value, tuple):
                for position, tile in enumerate(value):
                    yield f"{operand.name}[{position}]", operand, tile


Fields = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition of the hardware or of the interface.

    Attributes:
        code: a key of `nki.errors.CODES`; it never changes its meaning.
        text: what is wrong, with fields in braces; ``{instruction}`` and ``{nc}`` (the NeuronCore
            version, as in "NeuronCore-v3") are always there.
        remedy: what to do, with the same fields.
        broken: returns None if the call keeps the rule, else the fields.
        generations: where the rule holds.
    """

    code: str
    text: str
    remedy: str
    broken: Callable[[Call], Fields | None]
    generations: tuple[int, ...] = GENERATIONS

    def check(self, call: Call) -> tuple[str, str] | None:
        """Return None, or what is wrong and what to do."""
        if call.generation not in self.generations:
            return None
        fields = self.broken(call)
        if fields is None:
            return None
        known = {"instruction": call.instruction.name, "nc": f"NeuronCore-v{call.generation}"}
        return self.text.format(**known, **fields), self.remedy.format(**known, **fields)


@dataclass(frozen=True, slots=True)
class Engines:
    """Which engines can run an instruction.

    Attributes:
        allowed: by generation; a generation that is missing has no such instruction.
        choose: picks one where the user leaves it open; by default the first.
        trigger: the user's `engine` names who starts the instruction, not who runs it.
    """

    allowed: Mapping[int, tuple[str, ...]]
    choose: Callable[[Call], str] | None = None
    trigger: bool = False


@dataclass(frozen=True, slots=True)
class Cost:
    """How long an instruction takes.

    Attributes:
        cycles: the formula; in cycles of the engine that runs it, or in nanoseconds for DMA.
        source: where the formula is published, or what it is derived from.
        unit: ``cycles`` or ``ns``.
    """

    cycles: Callable[[Call], float]
    source: str
    unit: str = "cycles"


Meaning = Callable[[Step, Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Instruction:
    """A row of the table.

    Attributes:
        name: as in `nki.isa`.
        parameters: operands and attributes in the documented order.
        engines: who runs it.
        meaning: from a :class:`~nki.isa.state.Step`, arrays by operand name (numbers as arrays
            without dimensions, absent operands missing, lists as tuples) and attributes, to what
            is written, by operand name: float32 or integers, cast by `nki.isa.cast.write`, or the
            stored items themselves. It must not read an operand of role WRITE except for its
            shape. None where the runtime does it: several cores take part, or no tensor does.
        cost: None where nothing is published and nothing can be derived.
        rules: those of this instruction, after the common ones.
        findings: rules that break nothing here: what hardware does then is not known.
    """

    name: str
    parameters: tuple[Operand | Attribute, ...]
    engines: Engines
    meaning: Meaning | None
    cost: Cost | None = None
    rules: tuple[Rule, ...] = ()
    findings: tuple[Rule, ...] = ()
    # Parts of `parameters`: what the hardware reads or writes, what is known when the kernel is
    # built, and their names.
    operands: tuple[Operand, ...] = field(init=False, repr=False, compare=False)
    attributes: tuple[Attribute, ...] = field(init=False, repr=False, compare=False)
    names: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = {
            "operands": tuple(p for p in self.parameters if isinstance(p, Operand)),
            "attributes": tuple(p for p in self.parameters if isinstance(p, Attribute)),
            "names": tuple(p.name for p in self.parameters),
        }
        for name, part in parts.items():
            object.__setattr__(self, name, part)


def empty(tile: Tile) -> Array:
    """Return an array for a tensor, holding what uninitialised memory holds in the simulator.

    That is NaN for floating point and 4 for integers, as documented; zero bits for packed types.
    """
    kind = tile.info
    if kind.is_packed:
        return np.zeros(tile.shape, kind.numpy)
    return np.full(tile.shape, np.nan if kind.is_float else 4).astype(kind.numpy)
