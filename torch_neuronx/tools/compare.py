"""Compiled against the CPU, operator by operator: which one is the first that diverges?

A whole program is judged by its results. If they are off, the same graph is compiled once more with
every operator's result as an output, and each operator is computed on the CPU from the operands
that the program itself had: an error that was inherited is not blamed on the operator that received
it. If every operator is right on its own, fusing them is what goes wrong, and a search finds where.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree

from torch_neuronx import neuron
from torch_neuronx.dynamo import backend
from torch_neuronx.dynamo.boxes import takes_list
from torch_neuronx.dynamo.locations import location
from torch_neuronx.tools.backward import run_backward

aten = torch.ops.aten
_flash = aten._scaled_dot_product_flash_attention_for_cpu.default

# Ours may be as many times farther from the float64 result than PyTorch's CPU kernel is, plus so
# many roundings of the largest value.
FACTOR, ROUNDINGS = 8, 32


@dataclass(frozen=True, slots=True)
class Divergence:
    """An operator, or a result of the program, that is farther off than its arithmetic explains.

    Attributes:
        graph: "graph0.forward" and so on.
        name: Of the FX node, or "result 3".
        op: The ATen operator, "" for a result.
        where: The user's line.
        error: Largest difference from the reference (float64 on the CPU), or number of different
            elements for integers and booleans.
        bound: What was allowed.
        fused_only: The operator is right on its own and wrong where it is fused with others.
    """

    graph: str
    name: str
    op: str
    where: str
    error: float
    bound: float
    fused_only: bool = False

    def __str__(self) -> str:
        what = f"{self.op} ({self.name})" if self.op else self.name
        how = ", only where it is fused" if self.fused_only else ""
        at = f" at {self.where}" if self.where else ""
        return f"{self.graph}: {what}{at} is off by {self.error:.3g}, allowed {self.bound:.3g}{how}"


@dataclass(slots=True)
class Comparison:
    """The result of `compare`; print it.

    Attributes:
        graphs: Names of the graphs that ran.
        operators: How many operators they have.
        results: Results of programs that are off.
        first: For every graph with such results, the first operator that is to blame.
    """

    graphs: list[str] = field(default_factory=list)
    operators: int = 0
    results: list[Divergence] = field(default_factory=list)
    first: list[Divergence] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Return whether all results are within their bounds."""
        return not self.results

    def __str__(self) -> str:
        head = f"{len(self.graphs)} graphs, {self.operators} operators compared with the CPU"
        if self.equal:
            return f"{head}: equal"
        return "\n".join([head, *(f"  {d}" for d in (*self.first, *self.results))])


def compare(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Comparison:
    """Run a function compiled and on the CPU, and name the first operator that diverges.

    The function runs once, compiled. Results of random operators are taken as they are.

    Args:
        function: A function or module on the device.
        *args: Its arguments.
        **kwargs: Its keyword arguments.
    """
    found = Comparison()
    torch.compiler.reset()

    def checked(gm: GraphModule, inputs: Sequence[Any], **facts: Any) -> Callable[..., Any]:
        return _checked(gm, inputs, found, facts)

    def compiler(
        gm: GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
    ) -> Callable[..., Any]:
        return backend.compile_static(gm, inputs, options=options or {}, compile_one=checked)

    run_backward(torch.compile(function, backend=compiler)(*args, **kwargs))
    return found


def _checked(
    gm: GraphModule, inputs: Sequence[Any], found: Comparison, facts: dict[str, Any]
) -> Callable[..., Any]:
    run = backend.compile_graph(gm, inputs, **facts)
    name = facts["name"]

    def call(args: list[Any]) -> list[Any]:
        host = [_to_host(x) for x in args]
        drawn = neuron.get_rng_state()
        again = [x.clone() if isinstance(x, torch.Tensor) else x for x in args]
        results = run(args)
        with torch.no_grad():
            _judge(gm, name, host, again, results, found, {**facts, "drawn": drawn})
        return results  # type: ignore[no-any-return]

    return takes_list(call)


def _judge(
    gm: GraphModule,
    name: str,
    host: list[Any],
    again: list[Any],
    results: list[Any],
    found: Comparison,
    facts: dict[str, Any],
) -> None:
    found.graphs.append(name)
    calls = [node for node in gm.graph.nodes if node.op == "call_function"]
    found.operators += len(calls)
    taps: dict[Node, Any] = {}
    random = [node for node in calls if _is_random(node) and _is_tensor(node)]
    if random:
        taps = _tapped(gm, random, again, facts)
    reference = _OnHost(gm, host, torch.float64, taps).values()
    native = _OnHost(gm, host, None, taps).values()
    output = next(node for node in gm.graph.nodes if node.op == "output")
    wrong = []
    for number, (node, got) in enumerate(zip(output.args[0], results, strict=True)):
        if isinstance(node, Node):
            verdict = _off(got, reference.get(node), native.get(node))
            if verdict is not None:
                wrong.append(Divergence(name, f"result {number}", "", "", *verdict))
    if not wrong:
        return
    found.results += wrong
    blamed = _first_alone(gm, name, calls, host, again, facts)
    if blamed is None:
        blamed = _first_fused(gm, name, calls, reference, native, again, facts)
    if blamed is not None:
        found.first.append(blamed)


def _first_alone(
    gm: GraphModule,
    name: str,
    calls: list[Node],
    host: list[Any],
    again: list[Any],
    facts: dict[str, Any],
) -> Divergence | None:
    """The first operator that is wrong given the operands it had."""
    values = _tapped(gm, [node for node in calls if _is_tensor(node)], again, facts)
    known = {node: _to_host(value) for node, value in values.items()}
    exact = _OnHost(gm, host, torch.float64, known)
    native = _OnHost(gm, host, None, known)
    for node in calls:
        if node not in values or _is_random(node):
            continue
        verdict = _off(values[node], exact.alone(node), native.alone(node))
        if verdict is not None:
            return Divergence(name, node.name, str(node.target), _where(node), *verdict)
    return None


def _first_fused(
    gm: GraphModule,
    name: str,
    calls: list[Node],
    reference: Mapping[Node, Any],
    native: Mapping[Node, Any],
    again: list[Any],
    facts: dict[str, Any],
) -> Divergence | None:
    """The first operator whose result is wrong when it alone is made an output of the program."""
    nodes = [node for node in calls if _is_tensor(node) and not _is_random(node)]

    def verdict(node: Node) -> tuple[float, float] | None:
        value = _tapped(gm, [node], again, facts)[node]
        return _off(value, reference.get(node), native.get(node))

    low, high = 0, len(nodes) - 1
    while low < high:
        middle = (low + high) // 2
        if verdict(nodes[middle]) is None:
            low = middle + 1
        else:
            high = middle
    found = verdict(nodes[low])
    if found is None:
        return None
    node = nodes[low]
    return Divergence(name, node.name, str(node.target), _where(node), *found, fused_only=True)


def _tapped(
    gm: GraphModule, nodes: list[Node], args: list[Any], facts: dict[str, Any]
) -> dict[Node, Any]:
    """The values that nodes have in a compiled program of which they are the only results."""
    # Every random operator stays in the program, so that each draws what it drew the first time.
    nodes = list(
        dict.fromkeys(nodes + [n for n in gm.graph.nodes if _is_random(n) and _is_tensor(n)])
    )
    graph = torch.fx.Graph()
    renamed: dict[Node, Node] = {}
    graph.graph_copy(gm.graph, renamed)
    graph.output(tuple(renamed[node] for node in nodes))
    tapped = GraphModule(gm, graph)
    drawn = facts["drawn"]
    given = {key: value for key, value in facts.items() if key != "drawn"}
    run = backend.compile_graph(tapped, [], **{**given, "name": f"{facts['name']}.tapped"})
    copies = [x.clone() if isinstance(x, torch.Tensor) else x for x in args]
    now = neuron.get_rng_state()
    neuron.set_rng_state(drawn)
    try:
        return dict(zip(nodes, run(copies), strict=True))
    finally:
        neuron.set_rng_state(now)


class _OnHost(Interpreter):
    """Runs a graph on CPU tensors, wider if asked; values given as `known` are not computed."""

    def __init__(
        self, gm: GraphModule, args: list[Any], wide: torch.dtype | None, known: Mapping[Node, Any]
    ) -> None:
        super().__init__(gm)
        self.args_given = [copy.copy(x) for x in args]
        self.wide = wide
        self.known = {node: self._widen(_to_host(x)) for node, x in known.items()}
        self.computed: dict[Node, Any] = {}
        self.places = [node for node in gm.graph.nodes if node.op == "placeholder"]

    def _widen(self, value: Any) -> Any:
        floating = isinstance(value, torch.Tensor) and value.dtype in _NARROW
        return value.to(self.wide) if floating and self.wide is not None else value

    def _arguments(self) -> list[Any]:
        return [
            self._widen(x.clone()) if isinstance(x, torch.Tensor) else x for x in self.args_given
        ]

    def values(self) -> dict[Node, Any]:
        """The value of every node."""
        self.run(*self._arguments())
        return self.computed

    def alone(self, node: Node) -> Any:
        """The value of one node from the known values of its operands."""
        if not self.computed:
            self.computed = dict(zip(self.places, self._arguments(), strict=True))
            self.computed |= self.known
        env = {n: self._operand(n) for n in node.all_input_nodes}
        args = torch.fx.map_arg(node.args, env.__getitem__)
        kwargs = torch.fx.map_arg(node.kwargs, env.__getitem__)
        return self.call_function(node.target, args, dict(kwargs))

    def _operand(self, node: Node) -> Any:
        if node not in self.computed:
            if node.op == "get_attr":
                self.computed[node] = self._widen(_to_host(self.fetch_attr(str(node.target))))
            else:
                self.computed[node] = self.alone(node)
        return self.computed[node]

    def run_node(self, n: Node) -> Any:
        if n in self.known:
            value = self.known[n]
        elif _is_random(n):
            value = None  # of several results, which are known
        else:
            value = super().run_node(n)
        self.computed[n] = value
        return value

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self._widen(_to_host(super().get_attr(target, args, kwargs)))

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator, with devices and narrow types replaced."""
        args, kwargs = pytree.tree_map(self._replaced, (tuple(args), dict(kwargs)))
        if target in _HOST_FORMS:
            return _HOST_FORMS[target](*args, **kwargs)
        return super().call_function(target, args, kwargs)

    def _replaced(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            return torch.device("cpu")
        if isinstance(leaf, torch.dtype) and self.wide is not None and leaf in _NARROW:
            return self.wide
        return leaf


def _attention(
    q: Any, k: Any, v: Any, bias: Any = None, dropout: float = 0.0, causal: bool = False,
    return_mask: bool = False, *, scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    del return_mask
    out = _flash(q, k, v, dropout, causal, attn_mask=bias, scale=scale)
    return (*out, None, None, q.shape[2], k.shape[2], None, None, None)


def _attention_backward(
    grad: Any, q: Any, k: Any, v: Any, bias: Any, wanted: Any, out: Any, logsumexp: Any,
    cum_q: Any, cum_k: Any, max_q: int, max_k: int, dropout: float, causal: bool,
    seed: Any, offset: Any, *, scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    del wanted, cum_q, cum_k, max_q, max_k, seed, offset
    # Not the sums of the compiled forward pass, which are those of narrower numbers.
    out, logsumexp = _flash(q, k, v, dropout, causal, attn_mask=bias, scale=scale)
    grads = aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, q, k, v, out, logsumexp, dropout, causal, attn_mask=bias, scale=scale
    )
    return (*grads, None)


# Operators that the CPU has under another name.
_HOST_FORMS: dict[Any, Callable[..., Any]] = {
    aten._scaled_dot_product_fused_attention_overrideable.default: _attention,
    aten._scaled_dot_product_fused_attention_overrideable_backward.default: _attention_backward,
}
_NARROW = frozenset({torch.float32, torch.bfloat16, torch.float16})


def _off(ours: Any, exact: Any, native: Any) -> tuple[float, float] | None:
    """How far off a value is and what is allowed, None if that is kept."""
    if not isinstance(ours, torch.Tensor) or not isinstance(exact, torch.Tensor):
        return None
    got = ours.detach().cpu()
    if not got.is_floating_point() and not got.is_complex():
        different = float((got != exact.to(got.dtype)).sum()) if got.numel() else 0.0
        expected = float((native != exact.to(native.dtype)).sum()) if got.numel() else 0.0
        return (different, expected) if different > expected else None
    if got.numel() == 0:
        return None
    wide = torch.complex128 if got.is_complex() else torch.float64
    a, b, c = got.to(wide), exact.to(wide), native.to(wide)
    same = (a == b) | (a.isnan() & b.isnan())
    # Where PyTorch itself overflows in the narrow type, so may we.
    odd = ~same & ~(b.isfinite() & c.isfinite()) & ((a == c) | (a.isnan() & c.isnan()))
    keep = ~(same | odd)
    if not bool(keep.any()):
        return None
    error = float((a - b)[keep].abs().max())
    theirs = (c - b).abs()
    theirs = theirs[theirs.isfinite()]
    finite = b.abs()[b.isfinite()]
    scale = float(finite.max()) if finite.numel() else 0.0
    eps = torch.finfo(got.dtype).eps
    bound = FACTOR * (float(theirs.max()) if theirs.numel() else 0.0) + ROUNDINGS * eps * scale
    return None if error <= bound else (error, bound)


def _to_host(value: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda x: x.detach().cpu(), value)


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _is_random(node: Node) -> bool:
    """Return whether a node draws random numbers, or is one result of a node that does."""
    if node.target is operator.getitem and isinstance(node.args[0], Node):
        return _is_random(node.args[0])
    if node.target in _HOST_FORMS:  # without dropout, or PyTorch wouldn't have chosen it
        return False
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _where(node: Node) -> str:
    found = location(node)
    return "" if found is None else str(found)


__all__ = ["Comparison", "Divergence", "compare"]
