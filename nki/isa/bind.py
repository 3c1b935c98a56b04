"""From a call as the user wrote it to a checked :class:`~nki.isa.spec.Call`."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from neuronxcc.targets import TARGETS
from nki.errors import NkiTypeError, NkiValidationError
from nki.isa.rules import COMMON
from nki.isa.spec import REQUIRED, Call, Instruction, Kind, Operand, Tile, Value

__all__ = ["bind", "check", "make_call"]

Describe = Callable[[Any], Tile | None]

_ABSENT = object()
_NUMBERS = frozenset({Kind.SCALAR_OR_VECTOR, Kind.SCALAR_OR_TILE, Kind.REGISTER_OR_INT})
_REGISTERS = frozenset({Kind.REGISTER, Kind.REGISTER_OR_INT})


def bind(
    instruction: Instruction, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Match arguments to parameters and convert attributes.

    Returns:
        Operands as given (absent ones have their default), and canonical attributes.

    Raises:
        NkiTypeError: an argument is missing, unknown or given twice (NKI101).
        NkiValidationError: an attribute has a value that the instruction does not take (NKI116).
    """
    given: Mapping[str, Any] = kwargs
    if args:
        given = _match(instruction, args, kwargs)
    operands: dict[str, Any] = {}
    attributes: dict[str, Any] = {}
    used = 0
    for parameter in instruction.parameters:
        name = parameter.name
        value = given.get(name, _ABSENT)
        if value is _ABSENT:
            value = parameter.default
            if value is REQUIRED:
                _refuse_unknown(instruction, given)
                raise NkiTypeError(
                    "NKI101",
                    f"{instruction.name} needs an argument {name}",
                    f"its parameters are {_names(instruction)}",
                )
            (operands if type(parameter) is Operand else attributes)[name] = value
            continue
        used += 1
        if type(parameter) is Operand:
            operands[name] = value
            continue
        try:
            attributes[name] = parameter.convert(value)  # type: ignore[union-attr]
        except ValueError as error:
            what, _, remedy = str(error).partition("; ")
            raise NkiValidationError(
                "NKI116",
                f"{instruction.name} {name} {what}",
                remedy or "see the documentation of the instruction",
            ) from None
    if used != len(given):
        _refuse_unknown(instruction, given)
    return operands, attributes


def _match(
    instruction: Instruction, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    names = instruction.names
    if len(args) > len(names):
        raise NkiTypeError(
            "NKI101",
            f"{instruction.name} takes {len(names)} arguments but {len(args)} were given",
            f"its parameters are {_names(instruction)}",
        )
    given = dict(zip(names, args, strict=False))
    for name in given:
        if name in kwargs:
            _refuse(instruction, name, "twice")
    given.update(kwargs)
    return given


def _refuse_unknown(instruction: Instruction, given: Mapping[str, Any]) -> None:
    for name in given:
        if name not in instruction.names:
            _refuse(instruction, name, "which it does not have")


def _refuse(instruction: Instruction, name: str, problem: str) -> NoReturn:
    raise NkiTypeError(
        "NKI101",
        f"{instruction.name} was given {name!r} {problem}",
        f"its parameters are {_names(instruction)}",
    )


def _names(instruction: Instruction) -> str:
    return ", ".join(instruction.names)


def _value(instruction: Instruction, operand: Operand, given: Any, describe: Describe) -> Value:
    kind = operand.kind
    if given is None and (operand.nullable or operand.default is None):
        return None
    if kind is Kind.TILES:
        if isinstance(given, (list, tuple)):
            tiles = tuple(describe(item) for item in given)
            if given and all(tile is not None for tile in tiles):
                return tuple(tile for tile in tiles if tile is not None)
    elif kind in _NUMBERS and isinstance(given, (numbers.Real, np.number)):
        # NumPy's and ml_dtypes' scalars too; the bits of a bool are 0 and 1.
        if isinstance(given, (numbers.Integral, bool)):
            return int(given)
        if kind is not Kind.REGISTER_OR_INT:
            return float(given)
        if float(given).is_integer():
            return int(float(given))
    else:
        tile = describe(given)
        if tile is not None:
            return tile
    raise NkiTypeError(
        "NKI102",
        f"{instruction.name} {operand.name} must be {kind.value}, got {type(given).__name__}",
        "pass a tensor made by nl.ndarray, or a view of one"
        if kind not in _REGISTERS
        else "pass a register made by nisa.register_alloc",
    )


def make_call(
    instruction: Instruction,
    operands: Mapping[str, Any],
    attributes: Mapping[str, Any],
    generation: int,
    describe: Describe,
) -> Call:
    """Describe the operands, choose the engine, and check every rule.

    Args:
        instruction: the row.
        operands: as :func:`bind` returns them.
        attributes: as :func:`bind` returns them.
        generation: 2, 3 or 4.
        describe: makes a :class:`Tile` of a tensor or a register; None of anything else.

    Raises:
        NkiTypeError: an operand is of the wrong kind (NKI102).
        NkiValidationError: a rule is broken.
    """
    values = {
        operand.name: _value(instruction, operand, operands[operand.name], describe)
        for operand in instruction.operands
    }
    allowed = instruction.engines.allowed.get(generation)
    if allowed is None:
        first = min(instruction.engines.allowed)
        chip = next(target.name for target in TARGETS if target.core.isa >= first)
        raise NkiValidationError(
            "NKI112",
            f"{instruction.name} does not exist on NeuronCore-v{generation}",
            f"it needs NeuronCore-v{first} or newer: build for {chip} "
            f"(NEURON_PLATFORM_TARGET_OVERRIDE={chip})",
        )
    call = Call(instruction, values, attributes, generation, allowed[0])
    trigger = instruction.engines.trigger
    asked = "unknown" if trigger else attributes.get("engine", "unknown")
    if asked != "unknown":
        engine = asked
    else:
        choose = instruction.engines.choose
        engine = allowed[0] if choose is None else choose(call)
    if engine not in allowed:
        raise NkiValidationError(
            "NKI113",
            f"{instruction.name} cannot run on the {engine} engine of NeuronCore-v{generation}",
            f"use {' or '.join(f'nisa.engine.{name}' for name in allowed)}, or leave it open",
        )
    call = Call(instruction, values, attributes, generation, engine)
    check(call)
    return call


def check(call: Call) -> None:
    """Check the common rules, then those of the instruction.

    Raises:
        NkiValidationError: the first rule that is broken.
    """
    for rule in (*COMMON, *call.instruction.rules):
        problem = rule.check(call)
        if problem is not None:
            raise NkiValidationError(rule.code, *problem)
