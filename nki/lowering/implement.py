"""The table of implementations: what each instruction becomes.

An implementation is a function of a `Work`, registered under the instruction's name::

    @implements("reciprocal")
    def _reciprocal(work: Work) -> None:
        lanes = work.lanes("dst", "data")                       # one kernel, partition by partition
        value = alu.apply("reciprocal", lanes.read("data"), None)   # float32
        lanes.write("dst", value)                               # cast as the engines do
        lanes.finish()                                          # note the action

A work may make any number of kernels (`work.lanes`, `work.flat`, `LoopMaker`), native functions and
products (`work.add`), with scratch memory between them (`work.temporary`). Numbers (`lanes.number`,
`lanes.read` of an operand that is a number) are data, not part of the kernel, so that kernels are
shared. Files `rows_*.py` of this package register themselves when this module's `load` is called.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache

from nki.lowering.work import Variant, Work
from nki.recording import Template

__all__ = ["IMPLEMENT", "Implementation", "implements", "load", "work_of"]

Implementation = Callable[[Work], None]

IMPLEMENT: dict[str, Implementation] = {}


def implements(*names: str) -> Callable[[Implementation], Implementation]:
    """Register an implementation of instructions."""

    def register(function: Implementation) -> Implementation:
        for name in names:
            assert name not in IMPLEMENT, f"{name} has two implementations"
            IMPLEMENT[name] = function
        return function

    return register


@cache
def load() -> None:
    """Import all families."""
    package = importlib.import_module("nki.lowering")
    for module in pkgutil.iter_modules(package.__path__):
        if module.name.startswith("rows_"):
            importlib.import_module(f"nki.lowering.{module.name}")


def work_of(template: Template, variant: Variant) -> Work:
    """Return what a template becomes. Whoever calls it keeps the result."""
    load()
    work = Work(template, variant)
    IMPLEMENT[template.row.name](work)
    work.finish()
    return work
