"""Pairs of a start and a done: the work is done at the start, which is what the result means.

What a start returns besides (its operands, numbers of semaphores) is for its done alone. The
emulation's compiler finds out by itself what may run while a collective is under way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from neuronxcc.frontends.hlo.errors import invalid
from neuronxcc.frontends.hlo.site import Handler, Site, Value, type_of_value, unflatten
from neuronxcc.frontends.hlo.types import Type, leaves
from neuronxcc.ir import build


def _filled(type_: Type) -> Value:
    """A value of a type that nobody reads."""
    return unflatten(type_, [build.splat(0, leaf) for leaf in leaves(type_)])


def _state(site: Site, values: tuple[Value, ...]) -> Value:
    """The operands and the result, then what else the declared tuple has."""
    declared = site.type
    if not isinstance(declared, tuple) or len(declared) < len(values):
        raise invalid(f"{site.opcode} returns a tuple of {len(values)} or more")
    return (*values, *map(_filled, declared[len(values) :]))


def _part(site: Site, index: int) -> Value:
    (value,) = site.operands if len(site.operands) == 1 else (None,)
    if not isinstance(value, tuple) or len(value) <= index:
        raise invalid(f"{site.opcode} takes what its start returns")
    part: Value = value[index]
    return part


def _copy_start(site: Site) -> Value:
    return _state(site, (site.one, site.one))


def _copy_done(site: Site) -> Value:
    return _part(site, 0)


def _same(site: Site) -> Value:
    if len(site.operands) != 1:
        raise invalid(f"{site.opcode} takes what its start returns")
    return site.operands[0]


def _async_start(site: Site) -> Value:
    """Calls a computation; the state is (operands, result, ...)."""
    operands = tuple(site.operands)
    return _state(site, (operands, site.run(site.callee(), operands)))


def _done(site: Site) -> Value:
    return _part(site, 1)


def _started(handler: Handler) -> Handler:
    """A start whose state is (operand, result, ...), several of each as tuples."""

    def handle(site: Site) -> Value:
        declared = site.type
        if not isinstance(declared, tuple) or len(declared) < 2:
            raise invalid(f"{site.opcode} returns its operands and its results")
        opcode = site.opcode.removesuffix("-start")
        value = handler(_as(site, opcode, declared[1]))
        given: Value = site.operands[0] if len(site.operands) == 1 else site.operands
        if isinstance(declared[0], tuple) and not isinstance(type_of_value(given), tuple):
            given = (given,)
        return _state(site, (given, value))

    return handle


def _plain_start(handler: Handler) -> Handler:
    """A start whose state is its result."""
    return lambda site: handler(_as(site, site.opcode.removesuffix("-start"), site.type))


def _as(site: Site, opcode: str, type_: Type) -> Site:
    """An instruction as if it were its synchronous form."""
    proto = type(site.proto)()
    proto.CopyFrom(site.proto)
    proto.opcode = opcode
    return replace(site, proto=proto, type=type_)


def table(handlers: Mapping[str, Handler]) -> dict[str, Handler]:
    """The importers of starts and dones.

    Args:
        handlers: Of the synchronous instructions.
    """
    made: dict[str, Handler] = {
        "copy-start": _copy_start,
        "copy-done": _copy_done,
        "async-start": _async_start,
        "async-update": _same,
        "async-done": _done,
        "all-reduce-start": _plain_start(handlers["all-reduce"]),
        "all-reduce-done": _same,
    }
    for opcode in ("all-gather", "collective-permute"):
        made[f"{opcode}-start"] = _started(handlers[opcode])
        made[f"{opcode}-done"] = _done
    return made
