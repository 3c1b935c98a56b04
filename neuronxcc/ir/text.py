"""Tensor IR as text, and back: `parse(to_text(graph))` builds the same nodes.

    graph @main(%x: f32[4,8], %bias: f32[8]) {
      %0 = f32[4,8] broadcast_in_dim(%bias) {dims = [1], shape = [4, 8]}
      %1 = f32[4,8] add(%x, %0)  // model.py:12 aten.add.Tensor
      return %1
    }

A result that updates a parameter is written `return %1 => %x`. Graphs that are called stand before
the one that calls them and are named `@name`; the last graph is the main one. Attribute values are
integers, floats, true, false, none, "strings", type names, `$0` (operand number 0 of a call),
`complex(1.0, 2.0)`, @graphs and [lists] of these. Comments run from `//` to the end of the line;
positions in the user's program are written as such and not read back.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from neuronxcc.ir.arithmetic import Array, cast
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph
from neuronxcc.ir.node import Literal, Node, Operand, TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.verify import called_graphs

_NAME = re.compile(r"[A-Za-z_][\w.\-]*\Z")
_MOST_ELEMENTS = 64  # longer literals are written as base64 of their bytes


class ParseError(ValueError):
    """Text is no IR: says the line and what was expected there."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(f"line {line}: {text}")
        self.line = line


# ---- printing -----------------------------------------------------------------------------------


def to_text(graph: Graph, *, elide: int | None = None) -> str:
    """The graph as text.

    Args:
        graph: What to print.
        elide: Literals of more elements than this are written as `...`, which is for people: such
            text cannot be parsed. None prints everything.
    """
    return _Printer(elide).module(graph)


class _Printer:
    def __init__(self, elide: int | None) -> None:
        self.elide = elide
        self.names: dict[int, str] = {}  # id of a graph -> its name in this text
        self.texts: list[str] = []
        self.used: set[str] = set()

    def module(self, graph: Graph) -> str:
        self.graph(graph)
        return "\n".join(self.texts)

    def graph(self, graph: Graph) -> str:
        """Print a graph unless it is printed already; its name."""
        if id(graph) in self.names:
            return self.names[id(graph)]
        nodes = list(graph.nodes())
        for node in nodes:
            for called in called_graphs(node):
                self.graph(called)
        label = graph.name if _NAME.match(graph.name) else json.dumps(graph.name)
        name = f"@{label}"
        count = 1
        while name in self.used:
            count += 1
            name = f"@{label}#{count}"
        self.used.add(name)
        self.names[id(graph)] = name
        self.texts.append("".join(f"{line}\n" for line in self.lines(graph, nodes, name)))
        return name

    def lines(self, graph: Graph, nodes: list[Node], name: str) -> Iterator[str]:
        values: dict[Node, str] = {}
        params: list[str] = []
        taken: set[str] = set()
        for number, param in enumerate(graph.params):
            given = param["name"]
            label = given if _NAME.match(given) and given not in taken else f"arg{number}"
            while label in taken:
                label += "_"
            taken.add(label)
            values[param] = f"%{label}"
            params.append(
                f"%{label}: {param.type}" + ("" if label == given else f" {json.dumps(given)}")
            )
        yield f"graph {name}({', '.join(params)}) {{"
        rest = [node for node in nodes if node not in values]
        values.update({node: f"%{number}" for number, node in enumerate(rest)})
        for node in rest:
            loc = graph.locs.get(node)
            comment = f"  // {loc} {loc.op}".rstrip() if loc is not None else ""
            yield f"  {values[node]} = {self.node(node, values)}{comment}"
        outs = [values[result] for result in graph.results]
        for result, param_number in graph.aliases.items():
            outs[result] += f" => {values[graph.params[param_number]]}"
        yield f"  return {', '.join(outs)}".rstrip()
        yield "}"

    def node(self, node: Node, values: dict[Node, str]) -> str:
        types = ", ".join(map(str, node.types))
        types = types if len(node.types) == 1 else f"({types})"
        if node.op is Op.CONSTANT:
            return f"{types} constant({self.literal(node['literal'])})"
        operands = ", ".join(values[src] for src in node.srcs)
        attrs = ", ".join(f"{k} = {self.value(v)}" for k, v in node.attrs.items())
        return f"{types} {node.op.value}({operands})" + (f" {{{attrs}}}" if attrs else "")

    def value(self, value: Any) -> str:
        if isinstance(value, bool) or value is None:
            return str(value).lower()
        if isinstance(value, Graph):
            return self.names[id(value)]
        if isinstance(value, tuple):
            return f"[{', '.join(map(self.value, value))}]"
        writer = _WRITERS.get(type(value))
        if writer is None:
            raise TypeError(f"an attribute of type {type(value).__name__} has no text: {value!r}")
        return writer(value)

    def literal(self, literal: Literal) -> str:
        array = literal.array
        if self.elide is not None and array.size > self.elide:
            return "..."
        if array.size > _MOST_ELEMENTS:
            return f"base64 {json.dumps(base64.b64encode(array.tobytes()).decode())}"
        items = [_element(item, literal.type.dtype) for item in array.reshape(-1)]
        return items[0] if not array.shape else f"[{', '.join(items)}]"


def _float(value: float) -> str:
    """Digits that give the same number, and the same sign of NaN."""
    return "-nan" if math.isnan(value) and math.copysign(1, value) < 0 else repr(value)


_WRITERS: dict[type, Callable[[Any], str]] = {
    int: str,
    float: _float,
    complex: lambda v: f"complex({_float(v.real)}, {_float(v.imag)})",
    str: json.dumps,
    DType: lambda v: str(v.value),
    Operand: lambda v: f"${v.index}",
}


def _element(item: Any, dtype: DType) -> str:
    """An element such that `_scalar` reads the same bits."""
    if dtype is DType.PRED or dtype.is_integer:
        return str(item).lower()
    shortest = str(item)
    if dtype.is_complex:
        shortest = f"complex({item.real!s}, {item.imag!s})"
    exact = repr(float(item)) if dtype.is_float else ""
    for text in (shortest, exact):
        if text and _same_bits(_scalar(text, dtype), item):
            return text
    return f"0x{np.asarray(item).tobytes()[::-1].hex()}"


def _same_bits(a: Array, b: Any) -> bool:
    return a.tobytes() == np.asarray(b).tobytes()


def _scalar(text: str, dtype: DType) -> Array:
    """Read an element of a literal.

    Raises:
        ValueError: it is none of that type.
    """
    if text.startswith("0x"):
        data = bytes.fromhex(text[2:])[::-1]
        if len(data) != dtype.itemsize:
            raise ValueError(f"{text} has not the size of {dtype.value}")
        return np.frombuffer(data, dtype.numpy).reshape(())
    if dtype is DType.PRED:
        return np.array({"true": True, "false": False}[text])
    if dtype.is_integer:
        return np.array(int(text), dtype.numpy)
    if dtype.is_complex:
        match = re.fullmatch(r"complex\((.*), (.*)\)", text)
        if match is None:
            raise ValueError(f"{text} is not complex(re, im)")
        value = np.empty((), dtype.numpy)
        value.real, value.imag = match[1], match[2]
        return value
    if dtype in (DType.F32, DType.F64, DType.F16):
        return np.array(text, dtype.numpy)
    with np.errstate(all="ignore"):
        return cast(np.array(text, np.float32), dtype)


# ---- parsing ------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<comment>//.*)
      | (?P<string>"(?:[^"\\]|\\.)*")
      | (?P<value>%[\w.\-]+)
      | (?P<graph>@(?:[\w.\-]+|"(?:[^"\\]|\\.)*")(?:\#\d+)?)
      | (?P<operand>\$\d+)
      | (?P<hex>0x[0-9a-f]+)
      | (?P<number>-?(?:inf|nan)\b|-?\d+(?:\.\d*)?(?:e[+\-]?\d+)?)
      | (?P<word>[A-Za-z_]\w*)
      | (?P<mark>=>|[(){}\[\]=:,])
    )""",
    re.VERBOSE,
)
_OPS = {op.value: op for op in Op}
_DTYPES = {dtype.value: dtype for dtype in DType}


def parse(text: str) -> Graph:
    """Read the last graph of a text; nodes are made as written, unchecked (see `verify`).

    Raises:
        ParseError: where the text is no IR.
    """
    parser = _Parser(text)
    graph: Graph | None = None
    while parser.kind != "end":
        graph = parser.graph()
    if graph is None:
        raise ParseError(1, "no graph")
    return graph


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens = self._tokens(text)
        self.graphs: dict[str, Graph] = {}
        self.values: dict[str, Node] = {}
        self.advance()

    @staticmethod
    def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
        for number, line in enumerate(text.splitlines(), 1):
            place = 0
            while line[place:].strip():
                match = _TOKEN.match(line, place)
                if match is None or match.lastgroup is None:
                    raise ParseError(number, f"unexpected {line[place:].strip()!r}")
                place = match.end()
                if match.lastgroup != "comment":
                    yield match.lastgroup, match[match.lastgroup], number
        yield "end", "end of text", text.count("\n") + 1

    def advance(self) -> None:
        self.kind, self.text, self.line = next(self.tokens)

    def fail(self, expected: str) -> ParseError:
        return ParseError(self.line, f"expected {expected}, found {self.text!r}")

    def take(self, kind: str, expected: str) -> str:
        if self.kind != kind:
            raise self.fail(expected)
        text = self.text
        if kind != "end":
            self.advance()
        return text

    def mark(self, text: str) -> None:
        if self.text != text or self.kind not in ("mark", "word"):
            raise self.fail(repr(text))
        self.advance()

    def have(self, text: str) -> bool:
        """Take the mark if it is next."""
        if self.kind == "mark" and self.text == text:
            self.advance()
            return True
        return False

    def many(self, end: str, item: Callable[[], Any]) -> list[Any]:
        """Items between commas, and the closing mark."""
        items: list[Any] = []
        while not self.have(end):
            if items:
                self.mark(",")
            items.append(item())
        return items

    # ---- grammar

    def graph(self) -> Graph:
        self.mark("graph")
        label = self.take("graph", "@name")
        self.values = {}
        self.mark("(")
        params = self.many(")", self.param)
        for number, (value, type_, name) in enumerate(params):
            attrs = {"index": number, "name": name}
            self.values[value] = Node.make(Op.PARAMETER, type_, (), attrs)
        param_nodes = tuple(self.values[value] for value, _, _ in params)
        self.mark("{")
        while self.kind == "value":
            self.node()
        self.mark("return")
        outs = []
        if self.text != "}":
            outs.append(self.out())
            while self.have(","):
                outs.append(self.out())
        self.mark("}")
        plain = label[1:].partition("#")[0] if label[1] != '"' else label[1 : label.rindex('"') + 1]
        name = json.loads(plain) if plain.startswith('"') else plain
        aliases = {i: param_nodes.index(p) for i, (_, p) in enumerate(outs) if p is not None}
        graph = Graph(name, param_nodes, tuple(node for node, _ in outs), aliases)
        self.graphs[label] = graph
        return graph

    def param(self) -> tuple[str, TensorType, str]:
        value = self.take("value", "%parameter")
        self.mark(":")
        type_ = self.type()
        name = json.loads(self.take("string", "name")) if self.kind == "string" else value[1:]
        return value, type_, name

    def out(self) -> tuple[Node, Node | None]:
        node = self.operand()
        if not self.have("=>"):
            return node, None
        param = self.operand()
        if param.op is not Op.PARAMETER:
            raise ParseError(self.line, "'=>' must name a parameter")
        return node, param

    def operand(self) -> Node:
        text = self.take("value", "%value")
        if text not in self.values:
            raise ParseError(self.line, f"{text} is not defined before this line")
        return self.values[text]

    def type(self) -> TensorType:
        name = self.take("word", "type")
        if name not in _DTYPES:
            raise ParseError(self.line, f"unknown type {name!r}")
        self.mark("[")
        return TensorType(_DTYPES[name], tuple(self.many("]", self.integer)))

    def integer(self) -> int:
        text = self.take("number", "integer")
        if not text.isdigit():
            raise ParseError(self.line, f"expected an extent, found {text!r}")
        return int(text)

    def node(self) -> None:
        value = self.take("value", "%value")
        if value in self.values:
            raise ParseError(self.line, f"{value} is defined twice")
        self.mark("=")
        types = self.many(")", self.type) if self.have("(") else [self.type()]
        name = self.take("word", "operator")
        if name not in _OPS:
            raise ParseError(self.line, f"unknown operator {name!r}")
        self.mark("(")
        attrs: dict[str, Any] = {}
        srcs: list[Node] = []
        if _OPS[name] is Op.CONSTANT:
            attrs["literal"] = self.literal(types[0])
            self.mark(")")
        else:
            srcs = self.many(")", self.operand)
        if self.have("{"):
            attrs.update(self.many("}", self.attr))
        self.values[value] = Node.make(_OPS[name], tuple(types), srcs, attrs)

    def attr(self) -> tuple[str, Any]:
        name = self.take("word", "attribute")
        self.mark("=")
        return name, self.value()

    def value(self) -> Any:
        kind, text, line = self.kind, self.text, self.line
        if self.have("["):
            return tuple(self.many("]", self.value))
        if kind not in ("number", "string", "operand", "graph", "word"):
            raise self.fail("a value")
        self.advance()
        if kind == "number":
            return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
        if kind == "string":
            return json.loads(text)
        if kind == "operand":
            return Operand(int(text[1:]))
        known: dict[str, Any] = {"true": True, "false": False, "none": None, **_DTYPES}
        if kind == "graph":
            known = dict(self.graphs)
        elif text == "complex":
            self.mark("(")
            real, imag = self.many(")", self.value)
            return complex(real, imag)
        if text not in known:
            raise ParseError(line, f"unknown value {text!r}")
        return known[text]

    def literal(self, type_: TensorType) -> Literal:
        line = self.line
        try:
            return Literal(self.array(type_))
        except (ValueError, KeyError, OverflowError) as error:
            if isinstance(error, ParseError):
                raise
            raise ParseError(line, f"no literal of type {type_}: {error}") from error

    def array(self, type_: TensorType) -> Array:
        if self.kind == "word" and self.text == "base64":
            self.advance()
            data = base64.b64decode(json.loads(self.take("string", "base64 data")), validate=True)
            return np.frombuffer(data, type_.dtype.numpy).reshape(type_.shape)
        if not type_.shape:
            return _scalar(self.element(), type_.dtype)
        self.mark("[")
        items = [_scalar(text, type_.dtype) for text in self.many("]", self.element)]
        return np.array(items, type_.dtype.numpy).reshape(type_.shape)

    def element(self) -> str:
        if self.kind == "word" and self.text == "complex":
            self.advance()
            self.mark("(")
            parts = self.many(")", self.element)
            return f"complex({', '.join(parts)})"
        if self.kind not in ("number", "word", "hex"):
            raise self.fail("an element")
        text = self.text
        self.advance()
        return text
