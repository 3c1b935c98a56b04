"""The rules of instructions whose math operators are chosen by the user."""

from __future__ import annotations

from nki.isa.alu import ALU
from nki.isa.spec import Call, Fields, Rule

__all__ = ["alu_rules", "bitvec_integers"]


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
        for name, number in call.operands.items():
            if isinstance(number, float) and not number.is_integer():
                return {"operand": name, "got": f"float ({number})", "op": self.used(call)[0]}
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
    integers: tuple[str, ...] = (),
) -> tuple[Rule, ...]:
    """Make the rules of an instruction with math operators, those that it can break.

    Args:
        *fields: attribute and the operand that a unary operator must not have, if there is one.
        integers: the tensors that must be integers for bitvec operators; none where the attributes
            accept arithmetic operators only.
    """
    conditions = _Operators(fields, integers)
    rules = [
        Rule(
            "NKI114",
            "{instruction} operator {op} does not exist on {nc}",
            "it needs NeuronCore-v{first} (trn3) or newer",
            conditions.too_new,
        )
    ]
    if any(operand is not None for _, operand in fields):
        rules.append(
            Rule(
                "NKI116",
                "{instruction} {operand} must be None or 0, because {op} is a unary operator",
                "leave the operand out, or use a binary operator",
                conditions.useless_operand,
            )
        )
    if integers:
        rules.append(bitvec_integers(*(name for name, _ in fields), integers=integers))
    if integers and len(fields) > 1:
        rules.append(
            Rule(
                "NKI115",
                "{instruction} mixes bitvec and arithmetic operators: {ops}",
                "issue two instructions",
                conditions.mixed,
            )
        )
    return tuple(rules)


def bitvec_integers(*fields: str, integers: tuple[str, ...]) -> Rule:
    """Make the rule that bitvec operators, named by attributes, work on integers."""
    return Rule(
        "NKI107",
        "{instruction} {operand} has data type {got}; the bitvec operator {op} needs integers",
        "give an integer; reinterpret a tensor's bits with .view(nl.uint32) or a type of its size",
        _Operators(tuple((name, None) for name in fields), integers).no_integers,
    )
