"""The coverage of the kernel language, from the tables: ``python -m nki.coverage``.

It prints a page in Markdown: the instructions with engines, operands, rules and costs, who runs
them here, and the codes of errors.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from neuronxcc.unread import ends_quietly
from nki.collectives.rows import ROWS as COLLECTIVES
from nki.dtypes import NAMES
from nki.errors import CODES
from nki.isa.spec import GENERATIONS, Instruction
from nki.isa.table import TABLE
from nki.lowering.implement import IMPLEMENT, load

__all__ = ["main", "page"]


def page() -> str:
    """Return the page."""
    return "\n".join([*_instructions(), *_details(), *_types(), *_errors()]) + "\n"


@ends_quietly
def main() -> int:
    """Print the page."""
    sys.stdout.write(page())
    return 0


def _runs(row: Instruction) -> str:
    """Say who carries an instruction out in replays."""
    if row.name in IMPLEMENT:
        return "natively"
    if row.meaning is not None:
        return "by the reference only"
    return "when cores are merged" if row.operands else "while recording"


def _instructions() -> Iterator[str]:
    load()
    rows = [*TABLE.values(), *COLLECTIVES.values()]
    yield "# Instructions of NKI"
    yield ""
    yield f"{len(TABLE)} instructions and {len(COLLECTIVES)} collectives."
    yield ""
    versions = " | ".join(f"NeuronCore-v{g}" for g in GENERATIONS)
    yield f"| Instruction | {versions} | Runs | Rules | Cost |"
    yield "|---|" + "---|" * len(GENERATIONS) + "---|---|---|"
    for row in rows:
        engines = " | ".join(", ".join(row.engines.allowed.get(g, ("-",))) for g in GENERATIONS)
        codes = ", ".join(sorted({rule.code for rule in row.rules})) or "-"
        cost = "-" if row.cost is None else row.cost.unit
        yield f"| `{row.name}` | {engines} | {_runs(row)} | {codes} | {cost} |"


def _details() -> Iterator[str]:
    for row in [*TABLE.values(), *COLLECTIVES.values()]:
        yield ""
        yield f"## {row.name}"
        if row.operands:
            yield ""
            yield "| Operand | Use | Kind | In | Types |"
            yield "|---|---|---|---|---|"
        for operand in row.operands:
            types = "any" if operand.dtypes is None else ", ".join(sorted(operand.dtypes))
            memory = ", ".join(sorted(operand.regions))
            use, kind = operand.role.value, operand.kind.value
            yield f"| `{operand.name}` | {use} | {kind} | {memory} | {types} |"
        if row.rules:
            yield ""
        for rule in row.rules:
            yield f"- {rule.code}: {rule.text}; {rule.remedy}"
        if row.cost is not None:
            yield ""
            yield f"Cost in {row.cost.unit} after: {row.cost.source}."


def _types() -> Iterator[str]:
    yield from ("", "# Data types", "", ", ".join(f"`{name}`" for name in NAMES))


def _errors() -> Iterator[str]:
    yield from ("", "# Errors", "")
    for code, meaning in sorted(CODES.items()):
        yield f"- {code}: {meaning}"


if __name__ == "__main__":
    sys.exit(main())
