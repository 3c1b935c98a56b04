"""The rules of the NKI compiler for the Python of a kernel, one row each.

The public documents name some constructs as errors, and of others they say only what is supported:
a rule is `sure` if its source says error. The rest is inferred: no statement of the language guide
covers the construct, and the compiler is documented to refuse what is not covered.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from nki.lint.scope import Scope
from nki.objects import NKIObject
from nki.versions import Version

__all__ = ["RULES", "Rule"]

# A rule's function yields (node, what is wrong) for one node of its kinds.
Found = Iterator[tuple[ast.AST, str]]

_GUIDE = "nki-language-guide"
_MIGRATION = "migration guide"
_SIMULATOR = "nki_simulator"
_GONE = ("arange", "mgrid", "par_dim", "spmd_dim", "nc", "static_cast", "loop_reduce")
_WIDEST = 2**32


@dataclass(frozen=True, slots=True)
class Rule:
    """A construct that is refused.

    Attributes:
        code: a key of `nki.errors.CODES`.
        remedy: what to write instead.
        nodes: the kinds of nodes to look at.
        broken: yields what is wrong with a node.
        source: the public document.
        since: the first version that refuses it.
        sure: the document says that it is an error.
    """

    code: str
    remedy: str
    nodes: tuple[type[ast.AST], ...]
    broken: Callable[[Any, Scope], Found]
    source: str
    since: Version = (0, 2)
    sure: bool = True


# --- expressions -------------------------------------------------------------------------------


def _identity(node: ast.Compare, scope: Scope) -> Found:
    del scope
    for op in node.ops:
        if isinstance(op, (ast.Is, ast.IsNot)):
            yield node, f"`{ast.unparse(node)}` compares identities"


def _keys(node: ast.Dict, scope: Scope) -> Found:
    del scope
    for key in node.keys:
        if isinstance(key, ast.Constant) and not isinstance(key.value, str):
            yield key, f"a dictionary has the key {key.value!r}"


def _constants(node: ast.Constant, scope: Scope) -> Found:
    del scope
    value = node.value
    if isinstance(value, (complex, bytes)):
        yield node, f"{value!r} is {'bytes' if isinstance(value, bytes) else 'a complex number'}"
    elif isinstance(value, int) and value >= _WIDEST:
        yield node, f"the integer {value} needs more than 32 bits"


def _sets(node: ast.AST, scope: Scope) -> Found:
    del scope
    yield node, "a set is made"


def _suspends(node: ast.AST, scope: Scope) -> Found:
    del scope
    names = {"Await": "await", "YieldFrom": "yield from", "Yield": "yield"}
    yield node, f"`{names[type(node).__name__]}` suspends the function"


def _generators(node: ast.GeneratorExp, scope: Scope) -> Found:
    del scope
    yield node, f"`{ast.unparse(node)}` is a generator"


def _walrus(node: ast.NamedExpr, scope: Scope) -> Found:
    del scope
    yield node, f"`{ast.unparse(node)}` assigns within an expression"


def _starred_call(node: ast.Call, scope: Scope) -> Found:
    del scope
    spread = [arg for arg in node.args if isinstance(arg, ast.Starred)]
    if spread or any(keyword.arg is None for keyword in node.keywords):
        yield node, f"`{ast.unparse(node)}` spreads arguments"


# --- statements --------------------------------------------------------------------------------

_STATEMENTS = {
    ast.Try: "try",
    ast.Raise: "raise",
    ast.Import: "import",
    ast.ImportFrom: "import",
    ast.Delete: "del",
    ast.Match: "match",
    ast.AsyncFor: "async for",
    ast.AsyncWith: "async with",
    ast.AsyncFunctionDef: "async def",
    ast.ClassDef: "class",
}


def _statement(node: ast.AST, scope: Scope) -> Found:
    if isinstance(node, ast.ClassDef) and node is scope.root:
        return
    yield node, f"`{_STATEMENTS[type(node)]}` stands in a kernel"


def _with(node: ast.With, scope: Scope) -> Found:
    for item in node.items:
        if scope.names(item.context_expr) != "no_reorder":
            yield node, f"`with {ast.unparse(item.context_expr)}` stands in a kernel"


def _outside(node: ast.Global | ast.Nonlocal, scope: Scope) -> Found:
    del scope
    word = "global" if isinstance(node, ast.Global) else "nonlocal"
    yield node, f"`{word} {', '.join(node.names)}` changes state outside of the function"


# --- functions and classes -----------------------------------------------------------------------


def _keyword_only(node: ast.FunctionDef, scope: Scope) -> Found:
    if node is scope.root and scope.kernel and node.args.kwonlyargs and node.args.vararg is None:
        yield node, f"the signature of {node.name} has parameters after `*`"


def _variadic(node: ast.FunctionDef, scope: Scope) -> Found:
    del scope
    for mark, parameter in (("*", node.args.vararg), ("**", node.args.kwarg)):
        if parameter is not None:
            yield node, f"the signature of {node.name} has `{mark}{parameter.arg}`"


def _list_defaults(node: ast.FunctionDef, scope: Scope) -> Found:
    if node is scope.root and scope.kernel:
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if isinstance(default, (ast.List, ast.ListComp)):
                yield default, f"`{ast.unparse(default)}` is a list as a default of {node.name}"


def _closure(node: ast.FunctionDef | ast.Lambda, scope: Scope) -> Found:
    if node is scope.root or not scope.captures(node):
        return
    # Bodies of loops on the device have to reach the tensors around them, and are documented so.
    if node not in scope.bodies:
        name = getattr(node, "name", "lambda")
        yield node, f"the inner function {name} uses {', '.join(scope.captures(node))} of its outer"


def _bases(node: ast.Call, scope: Scope) -> Found:
    kind = scope.resolve(node.func)
    if not isinstance(kind, type) or not scope.of_user(kind) or issubclass(kind, enum.Enum):
        return
    if issubclass(kind, BaseException):
        return
    if kind.__bases__ != (NKIObject,):
        shown = ", ".join(base.__name__ for base in kind.__bases__)
        yield node, f"the class {kind.__name__} is derived from {shown}"


# --- loops of the device -------------------------------------------------------------------------

_LOOPS = ("fori_loop", "while_loop", "dynamic_range")


def _in_order(node: ast.Call, scope: Scope) -> Found:
    name = scope.names(node.func)
    if name in _LOOPS and scope.within("no_reorder"):
        yield node, f"nl.{name} stands within nl.no_reorder()"


def _returns(function: ast.FunctionDef) -> list[ast.Return]:
    inner = {
        child
        for node in ast.walk(function)
        if isinstance(node, (ast.FunctionDef, ast.Lambda)) and node is not function
        for child in ast.walk(node)
    }
    return [n for n in ast.walk(function) if isinstance(n, ast.Return) and n not in inner]


def _body_result(node: ast.FunctionDef | ast.Lambda, scope: Scope) -> Found:
    loop = scope.bodies.get(node)
    if loop is None or isinstance(node, ast.Lambda):
        return
    values = [r for r in _returns(node) if r.value is not None]
    if loop == "fori_loop" and values:
        yield values[0], f"{node.name}, the body of nl.fori_loop, returns a value"
    if loop == "while_loop" and not values:
        yield node, f"{node.name}, the body of nl.while_loop, returns no condition"


def _counter(node: ast.FunctionDef | ast.Lambda, scope: Scope) -> Found:
    loop = scope.bodies.get(node)
    parameters = node.args.args
    if loop is None or not parameters:
        return
    counter = parameters[0].arg
    for child in ast.walk(node):
        operands: list[ast.AST] = []
        if isinstance(child, ast.BinOp):
            operands = [child.left, child.right]
        elif isinstance(child, ast.Compare):
            operands = [child.left, *child.comparators]
        elif isinstance(child, (ast.UnaryOp, ast.AugAssign)):
            operands = [child.operand if isinstance(child, ast.UnaryOp) else child.target]
        if any(isinstance(o, ast.Name) and o.id == counter for o in operands):
            yield child, f"`{ast.unparse(child)}` computes with {counter}, which is a register"


def _tests(node: ast.While | ast.For, scope: Scope) -> Found:
    if isinstance(node, ast.For):
        if isinstance(node.iter, ast.Call) and scope.names(node.iter.func) == "dynamic_range":
            yield node, "a loop over nl.dynamic_range"
    elif isinstance(node.test, ast.Name) and node.test.id in scope.registers:
        yield node, f"`while {node.test.id}` loops on a register"


# --- names of NKI 0.1 ----------------------------------------------------------------------------


def _legacy(node: ast.Attribute | ast.Name, scope: Scope) -> Found:
    module = getattr(scope.resolve(node), "__name__", "")
    if isinstance(module, str) and module.startswith("neuronxcc.nki"):
        yield node, f"`{ast.unparse(node)}` is the module {module}"


def _removed(node: ast.Attribute, scope: Scope) -> Found:
    base = scope.resolve(node.value)
    if node.attr in _GONE and getattr(base, "__name__", "") == "nki.language":
        yield node, f"`{ast.unparse(node)}` is no name of nki.language"


def _mask(node: ast.Call, scope: Scope) -> Found:
    origin = getattr(scope.resolve(node.func), "__module__", "") or ""
    if origin.startswith(("nki.isa", "nki.language")):
        for keyword in node.keywords:
            if keyword.arg == "mask":
                yield node, f"`{ast.unparse(node.func)}` is given a mask"


_FUNCTIONS: Final = (ast.FunctionDef, ast.Lambda)

RULES: Final[tuple[Rule, ...]] = (
    Rule("NKI251", "write == or !=", (ast.Compare,), _identity, _MIGRATION, (0, 3)),
    Rule("NKI251", "keys are strings: write str(key)", (ast.Dict,), _keys, _MIGRATION),
    Rule(
        "NKI251",
        "use None, booleans, numbers of 32 bits, strings, tuples, lists, dictionaries and tensors",
        (ast.Constant,),
        _constants,
        _GUIDE,
        sure=False,
    ),
    Rule("NKI251", "use a tuple or a list", (ast.Set, ast.SetComp), _sets, _GUIDE, sure=False),
    Rule(
        "NKI251",
        "collect the values in a list and return it",
        (ast.Yield, ast.YieldFrom, ast.Await),
        _suspends,
        _GUIDE,
        sure=False,
    ),
    Rule("NKI251", "write a for loop", (ast.GeneratorExp,), _generators, _GUIDE, sure=False),
    Rule("NKI251", "assign before", (ast.NamedExpr,), _walrus, _GUIDE, sure=False),
    Rule("NKI251", "write the arguments", (ast.Call,), _starred_call, _GUIDE, sure=False),
    Rule(
        "NKI250",
        "kernels consist of assignments, calls, if, for, while, assert, return and functions",
        tuple(_STATEMENTS),
        _statement,
        _GUIDE,
        sure=False,
    ),
    Rule(
        "NKI250", "only nl.no_reorder() is used with `with`", (ast.With,), _with, _GUIDE, sure=False
    ),
    Rule(
        "NKI258",
        "kernels are functions of their arguments: pass the value and return the result",
        (ast.Global, ast.Nonlocal),
        _outside,
        _GUIDE,
        sure=False,
    ),
    Rule(
        "NKI252",
        "remove the `*` and put parameters with defaults last",
        (ast.FunctionDef,),
        _keyword_only,
        _MIGRATION,
        (0, 3),
    ),
    Rule("NKI252", "name the parameters", (ast.FunctionDef,), _variadic, _GUIDE, sure=False),
    Rule("NKI252", "write a tuple", (ast.FunctionDef,), _list_defaults, _MIGRATION, (0, 3)),
    Rule(
        "NKI251",
        "pass what it uses as arguments",
        _FUNCTIONS,
        _closure,
        _SIMULATOR,
        sure=False,
    ),
    Rule(
        "NKI253",
        "derive classes of kernels from nl.NKIObject and nothing else",
        (ast.Call,),
        _bases,
        _GUIDE,
    ),
    Rule("NKI255", "put no_reorder into the body", (ast.Call,), _in_order, _MIGRATION),
    Rule(
        "NKI255",
        "write results to tensors made before the loop; the body of a while_loop returns the "
        "register of the next condition, that of a fori_loop nothing",
        _FUNCTIONS,
        _body_result,
        _MIGRATION,
        (0, 6),
    ),
    Rule(
        "NKI255",
        "use it as scalar_offset, or compute with a tensor: nisa.register_store and "
        "nisa.tensor_scalar",
        _FUNCTIONS,
        _counter,
        _MIGRATION,
        (0, 6),
    ),
    Rule(
        "NKI257",
        "use nl.fori_loop or nl.while_loop",
        (ast.While, ast.For),
        _tests,
        _MIGRATION,
        (0, 6),
        sure=False,
    ),
    Rule(
        "NKI256",
        "import nki.language and nki.isa",
        (ast.Attribute, ast.Name),
        _legacy,
        _MIGRATION,
        (0, 4),
    ),
    Rule("NKI256", "use slices or .ap()", (ast.Attribute,), _removed, _MIGRATION),
    Rule(
        "NKI256",
        "limit slices with min() instead of masking them",
        (ast.Call,),
        _mask,
        _MIGRATION,
    ),
)
