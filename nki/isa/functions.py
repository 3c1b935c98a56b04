"""The functions `nki.isa.tensor_copy` and so on, made from the table.

A function binds its arguments and gives them to whoever runs the kernel: the issuer in force.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from nki.context import surroundings
from nki.errors import NkiError
from nki.isa.bind import bind
from nki.isa.objects import NkiInstruction
from nki.isa.spec import REQUIRED, Attribute, Instruction, Operand
from nki.isa.spellings import FUNCTIONS_BEFORE, SPELLINGS, VERSIONED, Call, respell
from nki.isa.table import TABLE

__all__ = ["FORMER", "FUNCTIONS", "dressed"]


def _parameter(parameter: Operand | Attribute) -> inspect.Parameter:
    required = parameter.default is REQUIRED
    return inspect.Parameter(
        parameter.name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=inspect.Parameter.empty if required else parameter.default,
    )


def _describe(operand: Operand) -> str:
    kinds = "any data type" if operand.dtypes is None else ", ".join(sorted(operand.dtypes))
    memory = ", ".join(sorted(operand.regions))
    return f"    {operand.name}: {operand.role.value}; {operand.kind.value}; in {memory}; {kinds}"


def _document(row: Instruction) -> str:
    """Say what the table knows: this text cannot differ from what is checked."""
    engines = "; ".join(
        f"NeuronCore-v{generation}: {', '.join(names)}"
        for generation, names in row.engines.allowed.items()
    )
    lines = [f"Issue {row.name}. Engines: {engines}."]
    if row.operands:
        lines += ["", "Operands:", *(_describe(operand) for operand in row.operands)]
    if row.attributes:
        lines += ["", "Known when the kernel is built:"]
        lines += [
            f"    {attribute.name}"
            + ("" if attribute.default is REQUIRED else f" = {attribute.default}")
            for attribute in row.attributes
        ]
    if row.cost is not None:
        lines += ["", f"Cost in {row.cost.unit} after: {row.cost.source}."]
    return "\n".join(lines)


# No spelling moves the first arguments.
_IN_PLACE = 2


def _function(row: Instruction) -> Callable[..., Any]:
    had_others = row.name in SPELLINGS or row.name in VERSIONED or "dst" in row.names
    # Most calls are in today's spelling: names that exist, and nothing that stood elsewhere.
    always, known = row.name in VERSIONED, frozenset(row.names)

    def instruction(*args: Any, **kwargs: Any) -> Any:
        here = surroundings().issuer
        if here is None:
            raise NkiError(
                "NKI143",
                f"nisa.{row.name} is called outside of a kernel",
                "call it in a function that is decorated with nki.jit or passed to nki.simulate",
            )
        issuer, again, learn = here
        key = None
        if again is not None:
            key = again(row, args, kwargs)
            if type(key) is NkiInstruction:
                return key
        call = Call(row.name, args, kwargs)
        if had_others and (always or len(args) > _IN_PLACE or not kwargs.keys() <= known):
            call = respell(call)
        issued = TABLE[call.name]
        operands, attributes = bind(issued, call.args, call.kwargs)
        result = issuer(issued, operands, attributes)
        # Of a call that was spelt otherwise the names of the arguments say nothing.
        if key is not None and learn is not None and call.args is args and call.kwargs is kwargs:
            learn(key, (args, kwargs), issued, operands, attributes)
        return result

    return dressed(instruction, row, "nki.isa")


def dressed(instruction: Callable[..., Any], row: Instruction, module: str) -> Callable[..., Any]:
    """Return a function with the signature and the documentation of a row.

    Args:
        instruction: takes any arguments.
        row: of a table.
        module: that the function belongs to.
    """
    instruction.__name__ = instruction.__qualname__ = row.name
    instruction.__module__ = module
    instruction.__doc__ = _document(row)
    parameters = [_parameter(parameter) for parameter in row.parameters]
    # Required parameters follow optional ones nowhere in the documented signatures.
    instruction.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return instruction


FUNCTIONS: dict[str, Callable[..., Any]] = {name: _function(row) for name, row in TABLE.items()}

# Names that are gone, for kernels that still have them; `dir(nki.isa)` does not list them.
FORMER: dict[str, Callable[..., Any]] = {
    old: FUNCTIONS[new] for old, new in FUNCTIONS_BEFORE.items()
}
