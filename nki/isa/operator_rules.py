"""The rules of instructions whose math operators are chosen by the user."""

from __future__ import annotations

from nki.isa.alu import ALU
from nki.isa.spec import Call, Fields, Rule

__all__ = ["alu_rules"]


class _Operators:
    """The conditions; each method returns None, or what is wrong."""

    def __init__(
        self, fields: tuple[tuple[str, str | None], ...], integers: tuple[str, ...]
    ) -> None:
        self.fields = fields
        self.integers = integers

    def used(self, call: Call) -> list[str]:
        """Return the operators of a call."""
        given = [call.attributes[attribute] for attribute, _ in self.fields]
        return [op for op in given if op not in (None, "bypass")]

    def too_new(self, call: Call) -> Fields | None:
        for op in self.used(call):
            first = ALU[op].first_generation
            if call.generation < first:
                return {"op": op, "first": first}
        return None

    def bitvec(self, call: Call) -> Fields | None:
        found = [op for op in self.used(call) if ALU[op].bitvec]
        return {"op": found[0]} if found else None

    def mixed(self, call: Call) -> Fields | None:
        ops = self.used(call)
        kinds = {ALU[op].bitvec for op in ops}
        return {"ops": " and ".join(ops)} if len(kinds) > 1 else None

    def no_integers(self, call: Call) -> Fields | None:
        if self.bitvec(call) is None:
            return None
        for name in self.integers:
            tile = call.tile(name)
            if not (tile.info.is_int or tile.dtype == "bool_"):
                return {"operand": name, "got": tile.dtype, "op": self.used(call)[0]}
        return None

    def useless_operand(self, call: Call) -> Fields | None:
        for attribute, operand in self.fields:
            op = call.attributes[attribute]
            unary = op not in (None, "bypass") and ALU[op].unary
            if unary and operand is not None and call.operands[operand] not in (None, 0):
                return {"op": op, "operand": operand}
        return None


def alu_rules(
    *fields: tuple[str, str | None],
    arithmetic_only: bool = False,
    integers: tuple[str, ...] = (),
) -> tuple[Rule, ...]:
    """Make the rules of an instruction with math operators.

    Args:
        *fields: attribute and the operand that it uses, which must be absent or 0 for a unary one.
        arithmetic_only: bitvec operators are not supported.
        integers: the tensors that must be integers for bitvec operators.
    """
    conditions = _Operators(fields, integers)
    common = (
        Rule(
            "NKI114",
            "{instruction} operator {op} does not exist on {nc}",
            "it needs NeuronCore-v{first} (trn3) or newer",
            conditions.too_new,
        ),
        Rule(
            "NKI116",
            "{instruction} {operand} must be None or 0, because {op} is a unary operator",
            "leave the operand out, or use a binary operator",
            conditions.useless_operand,
        ),
    )
    if arithmetic_only:
        return (
            *common,
            Rule(
                "NKI114",
                "{instruction} operator {op} works on bit patterns, which it does not support",
                "use nisa.tensor_tensor or nisa.tensor_scalar for bitvec operators",
                conditions.bitvec,
            ),
        )
    return (
        *common,
        Rule(
            "NKI107",
            "{instruction} {operand} has data type {got}; the bitvec operator {op} needs integers",
            "reinterpret its bits with .view(nl.uint32) or a type of its own size",
            conditions.no_integers,
        ),
        Rule(
            "NKI115",
            "{instruction} mixes bitvec and arithmetic operators: {ops}",
            "issue two instructions",
            conditions.mixed,
        ),
    )
