"""A function or class of a kernel's text, as rules see it: its names and what they stand for."""

from __future__ import annotations

import ast
import builtins
import inspect
import types
from collections.abc import Iterator
from typing import Any

__all__ = ["Scope", "of_user"]

# Packages whose functions are no part of a kernel's text.
_NOT_OF_USERS = frozenset(
    {
        "nki",
        "neuronxcc",
        "neuron_dtypes",
        "torch_neuronx",
        "torch",
        "numpy",
        "ml_dtypes",
        "jax",
        "builtins",
    }
)
_BODY = {"fori_loop": 2, "while_loop": 1}
Function = ast.FunctionDef | ast.Lambda


class Scope:
    """One function, or the methods of one class, as rules see it.

    Attributes:
        root: the node of the function or class.
        kernel: it is the kernel itself, and not something that it calls.
        bodies: functions that are bodies of loops on the device, with the name of the loop.
        registers: names that are assigned results of `nisa.register_alloc`.
    """

    def __init__(self, owner: Any, root: ast.AST, *, kernel: bool) -> None:
        self.root = root
        self.kernel = kernel
        self._owner = owner
        self._around: dict[ast.AST, ast.AST] = {}
        self._node: ast.AST = root
        for parent in ast.walk(root):
            for child in ast.iter_child_nodes(parent):
                self._around[child] = parent
        self._locals = {
            node.id
            for node in ast.walk(root)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        } | {node.arg for node in ast.walk(root) if isinstance(node, ast.arg)}
        self._functions = {n.name: n for n in ast.walk(root) if isinstance(n, ast.FunctionDef)}
        self.bodies: dict[ast.AST, str] = dict(self._loop_bodies())
        self.registers = frozenset(self._registers())

    def _loop_bodies(self) -> Iterator[tuple[ast.AST, str]]:
        for node in ast.walk(self.root):
            name = self.names(node.func) if isinstance(node, ast.Call) else None
            if not isinstance(node, ast.Call) or name not in _BODY:
                continue
            place = _BODY[name]
            named = [k.value for k in node.keywords if k.arg == "body_fun"]
            body = node.args[place] if len(node.args) > place else next(iter(named), None)
            if isinstance(body, ast.Lambda):
                yield body, name
            elif isinstance(body, ast.Name) and body.id in self._functions:
                yield self._functions[body.id], name

    def _registers(self) -> Iterator[str]:
        for node in ast.walk(self.root):
            assigned = node.value if isinstance(node, ast.Assign) else None
            if isinstance(assigned, ast.Call) and self.names(assigned) == "register_alloc":
                targets = node.targets if isinstance(node, ast.Assign) else ()
                yield from (t.id for t in targets if isinstance(t, ast.Name))

    def at(self, node: ast.AST) -> None:
        """Say which node is looked at."""
        self._node = node

    def within(self, name: str) -> bool:
        """Return whether the node stands in a ``with`` block of a certain name."""
        node = self._node
        while node in self._around:
            node = self._around[node]
            items = node.items if isinstance(node, ast.With) else ()
            if any(self.names(item.context_expr) == name for item in items):
                return True
        return False

    def names(self, node: ast.AST) -> str | None:
        """Return the last part of a name, or of the name that is called; None of others."""
        if isinstance(node, ast.Call):
            node = node.func
        if isinstance(node, ast.Attribute):
            return node.attr
        return node.id if isinstance(node, ast.Name) else None

    def resolve(self, node: ast.AST) -> Any:
        """Return what a name stands for as far as that is known without running; else None."""
        if isinstance(node, ast.Attribute):
            base = self.resolve(node.value)
            known = isinstance(base, (types.ModuleType, type))
            return getattr(base, node.attr, None) if known else None
        if not isinstance(node, ast.Name) or node.id in self._locals:
            return None
        return self._visible().get(node.id, getattr(builtins, node.id, None))

    def _visible(self) -> dict[str, Any]:
        function = self._owner
        found = dict(getattr(function, "__globals__", {}))
        for name, cell in zip(
            getattr(getattr(function, "__code__", None), "co_freevars", ()),
            getattr(function, "__closure__", None) or (),
            strict=True,
        ):
            try:
                found[name] = cell.cell_contents
            except ValueError:  # not assigned yet, as a function is in its own closure
                continue
        return found

    def captures(self, node: Function) -> list[str]:
        """Return the variables of the outer function that an inner one uses."""
        own = {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
        stored = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
        own |= {n.id for n in stored if isinstance(n.ctx, ast.Store)}
        used = {n.id for n in stored if isinstance(n.ctx, ast.Load)}
        return sorted((used - own) & (self._locals | set(self._functions)) - own)

    def of_user(self, value: Any) -> bool:
        """Return whether a function or class is part of a kernel's text."""
        return of_user(value)


def of_user(value: Any) -> bool:
    """Return whether a function or class was written by the user, and not by a package."""
    module = getattr(value, "__module__", None) or ""
    if module.partition(".")[0] in _NOT_OF_USERS:
        return False
    try:
        file = inspect.getsourcefile(value) or ""
    except TypeError:
        return False
    standard = inspect.getsourcefile(inspect) or ""
    return not file.startswith(standard.rpartition("/")[0]) or "site-packages" in file
