"""The two places where the first generation means something else than Python.

``mask=a and b`` joins masks, and ``acc = nl.loop_reduce(...)`` reads what it is assigned to. A
kernel that writes either is compiled again with the meaning spelled out: ``mask=a & b``, and
``acc = nl.loop_reduce(..., _into=lambda: acc, _named=True)``. All other kernels run as they are.
"""

from __future__ import annotations

import ast
import dis
import inspect
import types
from collections.abc import Callable
from typing import Any, TypeVar

from nki.source import is_as_written, source_of

__all__ = ["is_first_generation", "spelled_out"]

Node = TypeVar("Node", bound=ast.AST)


class _Rewriter(ast.NodeTransformer):
    """Spells both out, and remembers whether there was anything to do."""

    def __init__(self) -> None:
        self.changed = False

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        """Join the parts of a mask."""
        self.generic_visit(node)
        if node.arg == "mask" and isinstance(node.value, ast.BoolOp):
            self.changed = True
            operator = ast.BitAnd if isinstance(node.value.op, ast.And) else ast.BitOr
            joined = node.value.values[0]
            for value in node.value.values[1:]:
                joined = ast.copy_location(ast.BinOp(joined, operator(), value), node.value)
            node.value = joined
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """Hand `loop_reduce` its destination."""
        self.generic_visit(node)
        call = node.value
        if len(node.targets) == 1 and isinstance(call, ast.Call) and _is_loop_reduce(call):
            self.changed = True
            target = ast.parse(ast.unparse(node.targets[0]), mode="eval").body
            empty = ast.arguments([], [], None, [], [], None, [])
            into = ast.Lambda(empty, target)
            for made in ast.walk(into):
                if isinstance(made, (ast.expr, ast.arg)):
                    ast.copy_location(made, call)
            named = ast.Constant(isinstance(node.targets[0], ast.Name))
            for word, value in (("_into", into), ("_named", ast.copy_location(named, call))):
                call.keywords.append(ast.copy_location(ast.keyword(word, value), call))
        return node


def _is_loop_reduce(call: ast.Call) -> bool:
    name = call.func
    found = name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "")
    return found == "loop_reduce"


def _may_need(code: types.CodeType) -> bool:
    """Return whether a function or one within it could contain either."""
    if "loop_reduce" in code.co_names or any(
        "mask" in c for c in code.co_consts if type(c) is tuple
    ):
        return True
    return any(_may_need(c) for c in code.co_consts if isinstance(c, types.CodeType))


def spelled_out(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel with both spelled out; the function itself where there is nothing to do.

    Where Python has no source of the function, it is returned as it is: then a mask joined by
    ``and`` and `nl.loop_reduce` are refused when they are met.
    """
    if not isinstance(function, types.FunctionType) or not _may_need(function.__code__):
        return function
    source = source_of(function)
    if source is None or not isinstance(source.node, ast.FunctionDef):
        return function
    rewriter = _Rewriter()
    definition = rewriter.visit(source.node)
    if not rewriter.changed or not is_as_written(function):
        return function
    definition.decorator_list = []
    definition.args.defaults = []
    definition.args.kw_defaults = [None] * len(definition.args.kwonlyargs)
    definition.returns = None
    for argument in ast.walk(definition.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    return _compiled(function, definition, source.first)


def _compiled(
    function: types.FunctionType, definition: ast.FunctionDef, first: int
) -> Callable[..., Any]:
    """Compile a definition where the free names of the original are those of an outer function."""
    free = function.__code__.co_freevars
    module = ast.parse(f"def _outer({', '.join(free)}): pass")
    outer = module.body[0]
    assert isinstance(outer, ast.FunctionDef)
    outer.body = [definition]
    ast.fix_missing_locations(module)
    ast.increment_lineno(module, first - 1)
    code = compile(module, function.__code__.co_filename, "exec")
    inner = next(c for c in code.co_consts if isinstance(c, types.CodeType))
    body = next(c for c in inner.co_consts if isinstance(c, types.CodeType))
    cells = dict(zip(free, function.__closure__ or (), strict=True))
    made = types.FunctionType(
        body,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        tuple(cells[name] for name in body.co_freevars),
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__dict__.update(function.__dict__)
    made.__qualname__, made.__module__ = function.__qualname__, function.__module__
    made.__doc__, made.__annotations__ = function.__doc__, function.__annotations__
    return made


# What kernels import, and where its functions and classes are defined.
_PACKAGES = ("neuronxcc.nki.", "nki.first_generation.")


def is_first_generation(function: Any) -> bool:
    """Return whether a function names something of `neuronxcc.nki`, or imports it in its body."""
    plain = inspect.unwrap(function) if callable(function) else function
    if not isinstance(plain, types.FunctionType):
        return False
    known = inspect.getclosurevars(plain)
    values = (*known.globals.values(), *known.nonlocals.values())
    if any(_belongs(value) for value in values):
        return True
    return any(
        instruction.opname == "IMPORT_NAME" and f"{instruction.argval}.".startswith(_PACKAGES)
        for instruction in dis.get_instructions(plain)
    )


def _belongs(value: Any) -> bool:
    name = value.__name__ if isinstance(value, types.ModuleType) else type(value).__module__
    name = getattr(value, "__module__", None) or name
    return f"{name}.".startswith(_PACKAGES)
