"""The signature of a traced function, as TorchScript source.

Tensors in tuples, lists and dictionaries keep their places. What TorchScript has no type for comes
back as the nearest that it has: dataclasses and transformers' ModelOutput as a dictionary without
the fields that are None.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import keyword
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_neuronx.inference.errors import TraceError

Leaf = int | tuple[str, Any]  # number of a tensor, or ("constant", value), ("dropped", None)

_SCALARS = {bool: "bool", int: "int", float: "float", str: "str"}


class _Dropped:
    """Stands for an output that updates a state and is not returned."""


_DROPPED = _Dropped()


@dataclass(slots=True)
class Source:
    """A method `forward` in TorchScript.

    Attributes:
        text: Its source; `{call}` stands for what runs the model.
        names: Of the tensors that it takes, in their order.
        types: What names in the source stand for.
    """

    text: str = ""
    names: tuple[str, ...] = ()
    types: dict[str, Any] = field(default_factory=dict)


def make_source(
    func: Callable[..., Any],
    arguments: tuple[pytree.TreeSpec, Sequence[Leaf]],
    results: tuple[pytree.TreeSpec, Sequence[Leaf]],
) -> Source:
    """Write `forward` for a function.

    Args:
        func: The function; the names of its parameters are those of `forward`.
        arguments: Structure and leaves of (args, kwargs).
        results: Structure and leaves of what it returns.

    Raises:
        TraceError: TorchScript cannot express it.
    """
    writer = _Writer()
    args, kwargs = writer.values(*arguments)
    parameters = [*zip(parameter_names(func, len(args)), args, strict=True), *kwargs.items()]
    declared = [writer.parameter(name, value) for name, value in parameters]
    tensors = ", ".join(expression for _, expression in sorted(writer.tensors))
    returned = writer.values(*results)
    kept = _without_dropped(returned)
    type_, value = writer.result(None if kept is _DROPPED else kept)
    lines = [
        f"def forward({', '.join(['self', *declared])}) -> {type_}:",
        *writer.checks,
        f"    outs = {{call}}([{tensors}]{{rest}})",
        *writer.statements,
        f"    return {value}",
    ]
    names = tuple(name for _, name in sorted(writer.names))
    return Source("\n".join(lines) + "\n", names, writer.types)


def parameter_names(func: Callable[..., Any], count: int) -> list[str]:
    """Names for `count` positional arguments of a function."""
    names: list[str] = []
    for parameter in _parameters(func):
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}_{i}" for i in range(count - len(names))]
        elif parameter.kind in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD}:
            names.append(parameter.name)
    names += [f"arg_{i}" for i in range(len(names), count)]
    return [_identifier(name) for name in names[:count]]


def _parameters(func: Callable[..., Any]) -> list[inspect.Parameter]:
    target = func.forward if isinstance(func, torch.nn.Module) else func
    try:
        return list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):  # builtin functions have no signature
        return []


def split_examples(
    func: Callable[..., Any], examples: Any
) -> tuple[tuple[Any, ...], dict[str, Any], list[str]]:
    """Positional and keyword arguments of what `trace` was given as examples.

    Returns:
        Arguments, keyword arguments, and the names of the latter that were given by place though
        the function takes them by name only.

    Raises:
        TraceError: The function does not take so many.
    """
    parameters = _parameters(func)
    by_name = {p.name for p in parameters if p.kind not in {p.VAR_POSITIONAL, p.POSITIONAL_ONLY}}
    if isinstance(examples, Mapping):
        free = any(p.kind is p.VAR_KEYWORD for p in parameters)
        if all(isinstance(k, str) and (k in by_name or free) for k in examples):
            return (), dict(examples), []
        return (examples,), {}, []
    args = tuple(examples) if type(examples) in {tuple, list} else (examples,)
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return args, {}, []
    places = [p for p in parameters if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}]
    rest = args[len(places) :]
    named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    if not rest or not parameters:
        return args, {}, []
    if len(rest) > len(named):
        raise TraceError(
            f"example_inputs has {len(args)} arguments, but the function takes "
            f"{len(places) + len(named)}"
        )
    inferred = named[: len(rest)]
    return args[: len(places)], dict(zip(inferred, rest, strict=True)), inferred


def _identifier(name: str) -> str:
    if not name.isidentifier() or keyword.iskeyword(name) or name in {"self", "outs", "torch"}:
        name = "".join(c if c.isalnum() else "_" for c in name)
        return f"arg_{name}"
    return name


def _without_dropped(value: Any) -> Any:
    """The structure without dropped leaves, and without containers that this has emptied."""
    if isinstance(value, torch.Tensor) or not isinstance(value, Mapping | list | tuple):
        return value
    items = value.items() if isinstance(value, Mapping) else enumerate(value)
    pruned = {key: _without_dropped(item) for key, item in items}
    kept = {key: item for key, item in pruned.items() if item is not _DROPPED}
    if len(kept) == len(pruned):
        if isinstance(value, Mapping):
            return dict(pruned)
        return value if _is_named(value) else type(value)(pruned.values())
    if not kept:
        return _DROPPED
    if isinstance(value, Mapping):
        return kept
    return next(iter(kept.values())) if len(kept) == 1 else tuple(kept.values())


def _is_named(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


class _Writer:
    """The parts of the source while it is written."""

    def __init__(self) -> None:
        self.tensors: list[tuple[int, str]] = []
        self.names: list[tuple[int, str]] = []
        self.checks: list[str] = []
        self.statements: list[str] = []
        self.types: dict[str, Any] = {
            "torch": torch, "Tensor": torch.Tensor, "Any": Any, "Dict": dict, "List": list,
            "Optional": typing.Optional, "Tuple": tuple, "ValueError": ValueError,
        }  # fmt: skip
        for name in ("Dict", "List", "Tuple"):
            self.types[name] = getattr(typing, name)
        self.numbers: dict[int, int] = {}  # of tensors, by id of what stands for them
        self.keep: list[torch.Tensor] = []
        self.temporaries = 0

    def values(self, spec: pytree.TreeSpec, leaves: Sequence[Leaf]) -> Any:
        """The structure, with a tensor of its own for every tensor."""
        return pytree.tree_unflatten(list(self._stand_ins(leaves)), spec)

    def _stand_ins(self, leaves: Sequence[Leaf]) -> Iterator[Any]:
        for leaf in leaves:
            if isinstance(leaf, int):
                self.keep.append(torch.empty(0))
                self.numbers[id(self.keep[-1])] = leaf
                yield self.keep[-1]
            else:
                yield _DROPPED if leaf[0] == "dropped" else leaf[1]

    # ---- what is taken ---------------------------------------------------------------------------

    def parameter(self, name: str, value: Any) -> str:
        """Declaration of a parameter."""
        name = _identifier(name)
        type_ = self._take(name, name, value)
        return f"{name}: {type_}" + (" = None" if value is None else "")

    def _take(self, path: str, name: str, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            self.tensors.append((self.numbers[id(value)], path))
            self.names.append((self.numbers[id(value)], name))
            return "Tensor"
        if value is None:
            self._check(f"{path} is not None", f"input {name!r} was None when the model was traced")
            return "Optional[Tensor]"
        if type(value) in _SCALARS:
            text = f"input {name!r} was {value!r} when the model was traced, and is fixed"
            self._check(f"{path} != {_literal(value)}", text)
            return _SCALARS[type(value)]
        if isinstance(value, Mapping) and not dataclasses.is_dataclass(value):
            return self._take_dict(path, name, value)
        if isinstance(value, list | tuple):
            types = [self._take(f"{path}[{i}]", f"{name}[{i}]", v) for i, v in enumerate(value)]
            if isinstance(value, tuple):
                return f"Tuple[{', '.join(types) or '()'}]"
            if len(set(types)) == 1:
                # The check comes before those of the elements.
                text = f"input {name!r} must be a list of {len(value)}"
                self._check(f"len({path}) != {len(value)}", text, first=True)
                return f"List[{types[0]}]"
        raise TraceError(
            f"input {name!r} is a {type(value).__name__}: a traced model takes tensors in tuples, "
            "in lists and dictionaries of one type of elements, with text as keys; give the "
            "function tensors instead"
        )

    def _take_dict(self, path: str, name: str, value: Mapping[Any, Any]) -> str:
        types = {
            self._take(f"{path}[{_literal(k)}]", f"{name}[{k!r}]", v) for k, v in value.items()
        }
        keys = {type(k) for k in value}
        if len(types) != 1 or keys - {str}:
            raise TraceError(
                f"input {name!r} is a dictionary of different types or with keys that are no text, "
                "which TorchScript does not have: give the function its parts"
            )
        text = f"input {name!r} must have the keys {sorted(value)}"
        self._check(f"sorted({path}.keys()) != {json.dumps(sorted(value))}", text, first=True)
        return f"Dict[str, {types.pop()}]"

    def _check(self, wrong: str, text: str, *, first: bool = False) -> None:
        # Not `raise`, of which the caller would get another class than of our other checks.
        lines = [f"    if {wrong}:", f"        torch.ops.neuron.refuse({_literal(text)})"]
        self.checks[: 0 if first else len(self.checks)] = lines if first else [*self.checks, *lines]

    # ---- what is returned ------------------------------------------------------------------------

    def result(self, value: Any) -> tuple[str, str]:  # noqa: PLR0911 - one for each type
        """Type and expression of a value."""
        if isinstance(value, torch.Tensor):
            return "Tensor", f"outs[{self.numbers[id(value)]}]"
        if value is None:
            return "Optional[Tensor]", "None"
        if type(value) in _SCALARS:
            return _SCALARS[type(value)], _literal(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, Mapping | type):
            value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            value = {name: item for name, item in value.items() if item is not None}
        if isinstance(value, Mapping):
            return self._dict(dict(value))
        if isinstance(value, list):
            return self._list(value)
        if isinstance(value, tuple):
            parts = [self.result(item) for item in value]
            if _is_named(value):
                return self._named(value, parts)
            types, items = ", ".join(t for t, _ in parts), ", ".join(e for _, e in parts)
            return f"Tuple[{types or '()'}]", f"({items}{',' if len(parts) == 1 else ''})"
        raise TraceError(
            f"the function returns a {type(value).__name__}; a traced model returns tensors, "
            "numbers and texts in tuples, lists, dictionaries and dataclasses"
        )

    def _list(self, value: list[Any]) -> tuple[str, str]:
        parts = [self.result(item) for item in value]
        types = {t for t, _ in parts}
        if len(types) == 1:
            return f"List[{types.pop()}]", f"[{', '.join(e for _, e in parts)}]"
        element = "Any" if types else "Tensor"
        name = self._temporary(f"List[{element}]", "[]")
        self.statements += [f"    {name}.append({expression})" for _, expression in parts]
        return f"List[{element}]", name

    def _dict(self, value: dict[Any, Any]) -> tuple[str, str]:
        keys = {type(key) for key in value} or {str}
        if len(keys) > 1 or not keys <= {str, int}:
            raise TraceError(
                f"the function returns a dictionary with the keys {list(value)}; a traced model "
                "returns dictionaries whose keys are all texts or all integers"
            )
        parts = {key: self.result(item) for key, item in value.items()}
        types = {t for t, _ in parts.values()}
        element = types.pop() if len(types) == 1 else ("Any" if types else "Tensor")
        type_ = f"Dict[{_SCALARS[keys.pop()]}, {element}]"
        name = self._temporary(type_, "{{}}")
        self.statements += [f"    {name}[{_literal(k)}] = {e}" for k, (_, e) in parts.items()]
        return type_, name

    def _temporary(self, type_: str, value: str) -> str:
        name = f"result_{self.temporaries}"
        self.temporaries += 1
        self.statements.append(f"    {name} = torch.jit.annotate({type_}, {value})")
        return name

    def _named(self, value: Any, parts: Sequence[tuple[str, str]]) -> tuple[str, str]:
        name = type(value).__name__
        fields = [
            (key, eval(t, dict(self.types)))  # noqa: S307 - a type that this class has written
            for key, (t, _) in zip(value._fields, parts, strict=True)
        ]
        # TorchScript wants the class itself, with types of its fields.
        self.types[name] = typing.NamedTuple(name, fields)
        return name, f"{name}({', '.join(e for _, e in parts)})"


def _literal(value: Any) -> str:
    """A number or text in TorchScript; braces are doubled, since the source is formatted."""
    text = json.dumps(value) if isinstance(value, str) else repr(value)
    return text.replace("{", "{{").replace("}", "}}")
