"""Programs that JAX wrote for a mesh with `shard_map`: the part of one rank is what is compiled.

Such a module takes whole arrays and goes over to the shapes of one rank by a custom call:
`xla.sdy.GlobalToLocalShape` and `LocalToGlobalShape`, before Shardy `SPMDFullToShardShape` and
`SPMDShardToFullShape`. Where it does so for parameters and results of the program, these get the
shapes of a rank, and the calls go. Annotations that only say how arrays lie on ranks mean nothing
to the result and are passed over; a program that has nothing but these computes the whole on every
rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neuronxcc.frontends.hlo.errors import unsupported
from neuronxcc.frontends.hlo.site import Handler, Site, Value, type_of_value

_IN = frozenset({"xla.sdy.GlobalToLocalShape", "SPMDFullToShardShape"})
_OUT = frozenset({"xla.sdy.LocalToGlobalShape", "SPMDShardToFullShape"})
_MARKS = frozenset({"Sharding", "xla.sdy.FuncResultSharding", "xla.sdy.PropagationBarrier"})
_MOST_EXITS = 16  # JAX makes one; each is a look through the program


def localise(proto: Any) -> None:
    """Give parameters and results of the entry computation the shapes of one rank, in place."""
    entries = [c for c in proto.computations if c.id == proto.entry_computation_id]
    if len(entries) == 1:
        _Entry(entries[0]).run()


def _calls(instruction: Any, targets: frozenset[str]) -> bool:
    return instruction.opcode == "custom-call" and instruction.custom_call_target in targets


class _Entry:
    def __init__(self, proto: Any) -> None:
        self.proto = proto
        self.by_id = {i.id: i for i in proto.instructions}
        self.users: dict[int, int] = {}
        for instruction in proto.instructions:
            for operand in instruction.operand_ids:
                self.users[operand] = self.users.get(operand, 0) + 1

    def run(self) -> None:
        for instruction in self.proto.instructions:
            if _calls(instruction, _IN):
                self._enter(instruction)
        for call in [i for i in self.proto.instructions if _calls(i, _OUT)][:_MOST_EXITS]:
            self._leave(call)

    def _enter(self, call: Any) -> None:
        shapes = self._shapes(call)
        chains = [self._from_parameter(number) for number in call.operand_ids]
        if len(shapes) != len(chains) or not all(chains):
            return  # refused where it is imported
        for shape, chain in zip(shapes, chains, strict=True):
            for instruction in chain:
                instruction.shape.CopyFrom(shape)

    def _from_parameter(self, number: int) -> list[Any]:
        """The nodes from a parameter to its only use, with both; [] if it's no parameter."""
        chain: list[Any] = []
        while len(chain) < len(self.by_id):
            instruction = self.by_id.get(number)
            if instruction is None or self.users.get(number) != 1:
                return []
            chain.append(instruction)
            if instruction.opcode == "parameter":
                return chain
            if not _calls(instruction, _MARKS) or len(instruction.operand_ids) != 1:
                return []
            number = instruction.operand_ids[0]
        return []

    @staticmethod
    def _shapes(call: Any) -> list[Any]:
        return list(call.shape.tuple_shapes) or [call.shape]

    def _leave(self, call: Any) -> None:
        given = [self.by_id.get(number) for number in call.operand_ids]
        shapes = self._shapes(call)
        if None in given or len(shapes) != len(given) or not self._ends(call.id):
            return
        for shape, instruction in zip(shapes, given, strict=True):
            shape.CopyFrom(instruction.shape)  # type: ignore[union-attr]
        changed = {call.id}
        for instruction in self.proto.instructions:  # operands come first
            if changed.isdisjoint(instruction.operand_ids):
                continue
            changed.add(instruction.id)
            operands = [self.by_id[n].shape for n in instruction.operand_ids if n in self.by_id]
            _PASSED[instruction.opcode](instruction, operands)

    def _ends(self, number: int) -> bool:
        """Return whether nothing is computed of a value, only a result made of it."""
        reached = {number}
        for instruction in self.proto.instructions:
            if reached.isdisjoint(instruction.operand_ids):
                continue
            if instruction.opcode == "custom-call" and not _calls(instruction, _MARKS):
                return False
            if instruction.opcode not in _PASSED or instruction.id in instruction.operand_ids:
                return False
            reached.add(instruction.id)
        return self.proto.root_id in reached


def _tuple(instruction: Any, operands: list[Any]) -> None:
    for shape, operand in zip(instruction.shape.tuple_shapes, operands, strict=False):
        shape.CopyFrom(operand)


def _element(instruction: Any, operands: list[Any]) -> None:
    parts = operands[0].tuple_shapes
    if 0 <= instruction.tuple_index < len(parts):
        instruction.shape.CopyFrom(parts[instruction.tuple_index])


def _same(instruction: Any, operands: list[Any]) -> None:
    instruction.shape.CopyFrom(operands[0])


_PASSED: dict[str, Callable[[Any, list[Any]], None]] = {
    "tuple": _tuple,
    "get-tuple-element": _element,
    "custom-call": _same,
    "copy": _same,
}


def _pass_on(site: Site) -> Value:
    """The operands; their shapes are those of the result once a module is localised."""
    value: Value = site.operands[0] if len(site.operands) == 1 else site.operands
    if isinstance(site.type, tuple) and not isinstance(value, tuple):
        value = (value,)
    if type_of_value(value) != site.type:
        raise unsupported(
            f"{site.proto.custom_call_target} between computations of whole arrays and of a rank's",
            "give the module that XLA has partitioned "
            "(compiled.runtime_executable().hlo_modules()[0] in JAX)",
        )
    return value


TARGETS: dict[str, Handler] = dict.fromkeys([*_IN, *_OUT, *_MARKS], _pass_on)
