"""An FX graph of ATen operators, as AOTAutograd leaves it, to a graph of tensor IR."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import unset_fake_temporarily

import torch_neuronx.dynamo.lowerings  # noqa: F401  (fills the table)
from neuronxcc.ir import build
from neuronxcc.ir.calls import CHECKS
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, Loc, parameter
from neuronxcc.ir.node import Node, topological
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.checks import ShapeError
from torch_neuronx.dynamo import effects, emit
from torch_neuronx.dynamo.accepted import refusal, several_devices
from torch_neuronx.dynamo.dtypes import tensor_type
from torch_neuronx.dynamo.errors import (
    CaptureError,
    DynamicShapeError,
    LoweringError,
    RefusedArgumentError,
    RefusedTypesError,
    UnsupportedDTypeError,
)
from torch_neuronx.dynamo.jagged import is_length
from torch_neuronx.dynamo.literals import literal_of
from torch_neuronx.dynamo.locations import location, operator_name
from torch_neuronx.dynamo.outputs import Output, plan_outputs
from torch_neuronx.dynamo.registry import Body, Context, HostCall, find, flat, positions, rebuilt
from torch_neuronx.program.dtypes import TO_IR

aten = torch.ops.aten
CPU = torch.device("cpu")

# They check or hint something when run in Python, and compute nothing.
SKIPPED = frozenset(
    {
        aten._assert_scalar.default,
        aten._assert_tensor_metadata.default,
        aten.sym_constrain_range.default,
        aten.sym_constrain_range_for_size.default,
    }
)


@dataclass(frozen=True, slots=True)
class Imported:
    """An imported graph, for the compiler and for the caller of the program.

    Attributes:
        graph: The tensor IR.
        arguments: For each parameter of the graph: the number of the FX graph's argument, or a
            tensor that the FX graph holds itself.
        outputs: For each output of the FX graph: where it comes from.
        param_strides: Strides of the parameters, in elements.
        result_strides: Strides that the results must have, in elements.
        result_devices: Where the FX graph has the results: "neuron" or "cpu".
        result_locs: What asked for each result, if it is known: a copy of a parameter is no node of
            the graph.
        host_calls: Operators without a lowering.
        device: The core that the program runs on; the CPU if no tensor is on one.
        argument_count: How many arguments the FX graph takes.
        awaited: Parameters that a collective outside of the graph may still be filling.
        constant_params: Parameters of the graph that are weights: passed unchanged many times. None
            if nobody knows.
    """

    graph: Graph
    arguments: tuple[int | torch.Tensor, ...]
    outputs: tuple[Output, ...]
    param_strides: tuple[tuple[int, ...], ...]
    result_strides: tuple[tuple[int, ...], ...]
    result_devices: tuple[str, ...]
    host_calls: tuple[HostCall, ...]
    device: torch.device = CPU
    argument_count: int = 0
    constant_params: frozenset[int] | None = None
    awaited: tuple[int, ...] = ()
    result_locs: tuple[Loc | None, ...] = ()


def import_graph(
    gm: torch.fx.GraphModule,
    name: str = "graph",
    weights: Collection[int] | None = None,
    *,
    plain_results: bool = False,
) -> Imported:
    """Translate a graph whose nodes carry fake tensors in `meta["val"]`.

    Args:
        gm: Functional ATen operators, static shapes; `copy_` to arguments at the end is allowed.
        name: For people.
        weights: Which arguments are parameters and buffers of modules; None if unknown.
        plain_results: No output sees what the program makes as another type, or conjugated or
            negated: such ones are results by themselves.

    Raises:
        DynamicShapeError: a size is symbolic.
        UnsupportedDTypeError: a tensor has a type that the compiler does not have.
        LoweringError: a lowering does not give what PyTorch says.
    """
    imported = _Importer(gm, name, plain_results=plain_results).run()
    if weights is None:
        return imported
    constant = (
        i
        for i, source in enumerate(imported.arguments)
        if isinstance(source, torch.Tensor) or source in weights
    )
    return replace(imported, constant_params=frozenset(constant))


class _Importer:
    def __init__(
        self,
        gm: torch.fx.GraphModule,
        name: str,
        sequences: itertools.count[int] | None = None,
        *,
        plain_results: bool = False,
    ) -> None:
        self.gm = gm
        self.inside = False  # a body of a control flow operator
        self.given: list[Any] = []  # its operands, where numbers among them are known
        self.name = name
        self.plain_results = plain_results
        self.values: dict[torch.fx.Node, Any] = {}
        self.params: list[Node] = []
        self.arguments: list[int | torch.Tensor] = []
        self.param_strides: list[tuple[int, ...]] = []
        self.placeholders: dict[torch.fx.Node, int] = {}  # tensors: number of the FX argument
        self.parameter_of: dict[torch.fx.Node, int] = {}
        self.written: dict[torch.fx.Node, Node] = {}
        self.locs: dict[Node, Loc] = {}
        self.host_calls: list[HostCall] = []
        self.effects: list[Node] = []
        self.awaited: set[int] = set()
        self.sequences = itertools.count() if sequences is None else sequences

    # ---- nodes ----------------------------------------------------------------------------------

    def run(self) -> Imported:
        return self._finish(self.walk())

    def walk(self) -> list[Any]:
        """Import all nodes; the return value is what the FX graph returns."""
        argument = itertools.count()
        returned: Sequence[Any] = ()
        for node in self.gm.graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node, next(argument))
            elif node.op == "get_attr":
                self.values[node] = self._attribute(node)
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                returned = node.args[0] if isinstance(node.args[0], list | tuple) else node.args
            else:
                raise LoweringError(str(node.target), location(node), f"FX node of kind {node.op}")
        return list(returned)

    def _parameter(
        self, value: torch.Tensor, source: int | torch.Tensor, fx: torch.fx.Node
    ) -> Node:
        if value.dtype not in TO_IR:
            raise UnsupportedDTypeError(value.dtype, location(fx))
        node = parameter(len(self.params), tensor_type(value), fx.name)
        self.params.append(node)
        self.arguments.append(source)
        self.param_strides.append(tuple(map(int, value.stride())))
        return node

    def _placeholder(self, node: torch.fx.Node, number: int) -> None:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            if is_length(value):
                # Of a jagged tensor, which has been taken apart: it goes into results as it came.
                self.values[node] = Output("argument", number)
                return
            known = self.given[number] if self.inside else None
            self.values[node] = _static(node, value if known is None else known)
            return
        if _is_token(node):
            self.values[node] = None
            return
        _static_shape(node, value)
        self.placeholders[node] = number
        self.parameter_of[node] = len(self.params)
        self.values[node] = self._parameter(value, number, node)

    def _attribute(self, node: torch.fx.Node) -> Any:
        value: Any = self.gm
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            return value
        literal = literal_of(value, any_size=self.inside)
        return literal if literal is not None else self._parameter(value, value, node)

    def _call(self, node: torch.fx.Node) -> None:
        target = node.target
        if target is operator.getitem:
            source, index = node.args
            self.values[node] = self.values[source][index]  # type: ignore[index]
            return
        if target is aten.copy_.default:
            self._copy(node)
            return
        if target in SKIPPED:
            self.values[node] = None
            return
        value = node.meta.get("val")
        if isinstance(target, OpOverload | HigherOrderOperator):
            if value is not None and not any(isinstance(v, torch.Tensor) for v in flat(value)):
                self.values[node] = _static(node, value)
                return
            self.values[node] = self._lower(node, target, value)
            return
        self.values[node] = target(*self._mapped(node.args), **self._mapped(node.kwargs))  # type: ignore[operator]

    def _copy(self, node: torch.fx.Node) -> None:
        target, source = node.args[0], self._mapped(node.args[1])
        assert isinstance(target, torch.fx.Node)
        if target not in self.placeholders:
            raise LoweringError("aten.copy_.default", location(node), "it writes no argument")
        kept = self.values[target].type
        value = build.broadcast_to(build.convert(source, kept.dtype), kept.shape)
        self.written[target] = value
        self.values[node] = value

    def _mapped(self, value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return self.values[value]
        if isinstance(value, list | tuple):
            return [self._mapped(v) for v in value]
        if isinstance(value, dict):
            return {k: self._mapped(v) for k, v in value.items()}
        if isinstance(value, slice):
            return slice(*self._mapped((value.start, value.stop, value.step)))
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise DynamicShapeError("argument", str(value))
        return value

    def _lower(self, node: torch.fx.Node, target: Any, value: Any) -> Any:
        loc = location(node)
        context = Context(
            node, value, loc, self.sequences, self._body, self._host, self.host_calls,
            self.effects, self.awaited, self.locs, self.values,
        )  # fmt: skip
        for leaf in flat(value):
            if isinstance(leaf, torch.Tensor):
                _static_shape(node, leaf)
                if leaf.dtype not in TO_IR:
                    raise UnsupportedDTypeError(leaf.dtype, loc)
        _refuse(node, target)
        constant = _of_numbers(node, target, value)
        if constant is not None:
            return constant
        args, kwargs = self._arguments(node, target)
        lowering: Callable[..., Any] | None = find(target)
        if lowering is None and isinstance(target, OpOverload) and target._schema.is_mutable:
            raise CaptureError(
                f"{operator_name(target)}: PyTorch's capture left a write to an argument in the "
                "graph, which the program would not do",
                "do it outside of the compiled function, or call it under torch.compiler.disable",
                loc,
            )
        reason = ""
        if lowering is not None:
            try:
                result = lowering(context, *args, **kwargs)
            except NotImplementedError as error:
                reason = str(error)
            except (emit.NoDimensionError, ShapeError) as error:
                return _refused_or_empty(node, target, value, error)
            else:
                self._check(target, loc, value, result)
                self._locate(result, loc)
                return result
        return self._host(context, target, args, kwargs, reason)

    def _arguments(self, node: torch.fx.Node, target: Any) -> tuple[list[Any], dict[str, Any]]:
        """Arguments with names only where the schema wants them."""
        args, kwargs = self._mapped(node.args), self._mapped(node.kwargs)
        if kwargs and isinstance(target, OpOverload):
            names = [a for a in target._schema.arguments if not a.kwarg_only]
            for argument in names[len(args) :]:
                if argument.name in kwargs:
                    args.append(kwargs.pop(argument.name))
                elif any(a.name in kwargs for a in names[len(args) :]):
                    args.append(argument.default_value)
        return args, kwargs

    def _host(self, context: Context, target: Any, args: Any, kwargs: Any, reason: str = "") -> Any:
        if not isinstance(target, OpOverload):
            raise LoweringError(operator_name(target), context.loc, reason or "no lowering")
        on_cpu = torch._C._dispatch_has_computed_kernel_for_dispatch_key(target._name, "CPU")
        # Of the device only kernels of its own count: every operator has its fallback, to the CPU.
        own = torch._C._dispatch_has_kernel_for_dispatch_key(target._name, "PrivateUse1")
        if not on_cpu and not (own and context.on_device):
            text = f"{reason or 'it has none'}, and PyTorch has no kernel to run instead"
            raise LoweringError(operator_name(target), context.loc, text)
        foreign = target.namespace not in {"aten", "prims"} or not on_cpu
        context.note_host_call(target._name, reason)
        results = iter(
            context.call(
                target, args, kwargs, outs=positions(context.value), host=True, device=foreign,
                effect=not _is_pure(target),
            )
        )  # fmt: skip
        result = rebuilt(context.value, results)
        self._locate(result, context.loc)
        return result

    def _body(self, gm: torch.fx.GraphModule, operands: Sequence[Any], name: str) -> Body:
        """The graph of a control flow operator's branch or body."""
        inner = _Importer(gm, f"{self.name}.{name}", self.sequences)
        inner.inside = True
        inner.given = list(operands)
        inner.effects = self.effects if name == "region" else []
        returned = inner.walk()
        self.host_calls.extend(inner.host_calls)
        self.locs.update(inner.locs)
        values = [inner.values[r] if isinstance(r, torch.fx.Node) else r for r in flat(returned)]
        nodes = [v for v in values if isinstance(v, Node)]
        used = [i for i in inner.arguments if isinstance(i, int)]
        tensors = tuple(v if isinstance(v, Node) else None for v in values)
        pending = [] if name == "region" else effects.unused(inner.effects, nodes)
        for call in pending:
            if call.op is not Op.CUSTOM_CALL or call["target"] not in CHECKS:
                raise CaptureError(
                    f"an operator in the {name!r} graph of control flow that has an effect, and "
                    "whose result nothing uses",
                    "use its result, or call it outside of the control flow",
                    inner.locs.get(call),
                )
        if pending:
            numbers = [build.convert(call, DType.S64) for call in pending]
            nodes.append(functools.reduce(build.add, numbers))
        graph = build.graph(inner.name, inner.params, nodes)
        graph.locs.update(inner.locs)
        return Body(graph, tuple(used), tensors, bool(pending))

    def _locate(self, result: Any, loc: Loc | None) -> None:
        if loc is None:
            return
        for leaf in flat(result):
            if isinstance(leaf, Node):
                self.locs.setdefault(leaf, loc)

    def _check(self, target: Any, loc: Loc | None, value: Any, result: Any) -> None:
        for expected, got in zip(flat(value), flat(result), strict=False):
            if not isinstance(got, Node) or not isinstance(expected, torch.Tensor):
                continue
            wanted = tensor_type(expected)
            if got.types != (wanted,):
                text = f"it gives {got.types[0]}, PyTorch {wanted}"
                raise LoweringError(operator_name(target), loc, text)

    # ---- the whole ------------------------------------------------------------------------------

    def _depends_only_on(self, node: torch.fx.Node, argument: torch.fx.Node) -> bool:
        read = {n for n in topological([self.values[node]]) if n.op is Op.PARAMETER}
        return read == {self.values[argument]}

    def _finish(self, returned: list[Any]) -> Imported:
        plan = plan_outputs(
            returned,
            self.placeholders,
            self.written,
            self.values.__getitem__,
            self._depends_only_on,
            any_type=not self.plain_results,
        )
        results = [self.values[root] for root in plan.roots]
        vals = [root.meta["val"] for root in plan.roots]
        strides = [tuple(map(int, v.stride())) for v in vals]
        devices = [v.device.type for v in vals]
        locs = [location(root) for root in plan.roots]
        aliases: dict[int, int] = {}
        for node, value in self.written.items():
            number = self.parameter_of[node]
            if value is self.params[number]:
                continue
            aliases[len(results)] = number
            results.append(value)
            strides.append(self.param_strides[number])
            devices.append(node.meta["val"].device.type)
        kept = effects.traces(self.effects, results)
        results += kept
        strides += [contiguous_strides(value.shape) for value in kept]
        devices += [_core(self.gm).type] * len(kept)
        graph = build.graph(self.name, self.params, results, aliases)
        graph.locs.update(self.locs)
        return Imported(
            graph,
            tuple(self.arguments),
            plan.outputs,
            tuple(self.param_strides),
            tuple(strides),
            tuple(devices),
            tuple(self.host_calls),
            _core(self.gm),
            len(self.gm.graph.find_nodes(op="placeholder")),
            awaited=tuple(sorted(self.awaited)),
            result_locs=(*locs, *[None] * (len(results) - len(locs))),
        )


def _core(gm: torch.fx.GraphModule) -> torch.device:
    """The neuron device of a graph's tensors; the CPU if none is on one."""
    for node in gm.graph.nodes:
        for value in flat(node.meta.get("val")):
            if isinstance(value, torch.Tensor) and value.device.type == "neuron":
                return value.device
    return CPU


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in row-major order, in elements."""
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))


def _static(node: torch.fx.Node, value: Any) -> Any:
    """A value that is not a tensor, which must be known now."""
    for leaf in flat(value):
        if isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise DynamicShapeError(node.name, str(leaf), location(node))
    return value


def _is_token(node: torch.fx.Node) -> bool:
    """Return whether an argument only orders effects: AOTAutograd passes None for it."""
    effects = torch.ops.higher_order.with_effects
    return bool(node.users) and all(
        user.target is effects and user.args[0] is node for user in node.users
    )


def _static_shape(node: torch.fx.Node, value: torch.Tensor) -> None:
    if any(isinstance(extent, torch.SymInt) for extent in value.shape):
        shape = f"[{', '.join(map(str, value.shape))}]"
        raise DynamicShapeError(node.name, shape, location(node))


def _refuse(node: torch.fx.Node, target: Any) -> None:
    """Raise what eager mode says of the devices or types of a call's arguments, if it does."""
    refused = several_devices(target, [n.meta.get("val") for n in node.all_input_nodes])
    if refused:
        raise RefusedArgumentError(operator_name(target), location(node), refused)
    refused = refusal(node, target)
    if refused:
        raise RefusedTypesError(operator_name(target), location(node), refused)


def _refused_or_empty(
    node: torch.fx.Node, target: Any, value: Any, error: emit.NoDimensionError | ShapeError
) -> Any:
    """The results of a call without a lowering for its types, if none of them has an element.

    ATen does not look at the types of no elements.

    Raises:
        RefusedArgumentError: It names a dimension that there is not.
        RefusedTypesError: Eager mode refuses the types too.
        LoweringError: It takes them.
    """
    loc = location(node)
    if isinstance(error, emit.NoDimensionError):
        raise RefusedArgumentError(operator_name(target), loc, str(error)) from error
    refused = refusal(node, target, any_types=True)
    if refused:
        raise RefusedTypesError(operator_name(target), loc, refused) from error
    tensors = [leaf for leaf in flat(value) if isinstance(leaf, torch.Tensor)]
    pure = isinstance(target, OpOverload) and _is_pure(target)
    if not pure or any(t.numel() for t in tensors):
        raise LoweringError(operator_name(target), loc, str(error)) from error
    return rebuilt(value, (emit.number(0, TO_IR[t.dtype], tuple(t.shape)) for t in tensors))


def _of_numbers(node: torch.fx.Node, target: Any, value: Any) -> Node | None:
    """What an operator gives whose tensors are all numbers, as derivatives of constants are."""
    if not isinstance(target, OpOverload) or not isinstance(value, torch.Tensor) or value.dim():
        return None
    kinds = [str(argument.type) for argument in target._schema.arguments]
    if node.all_input_nodes or "Tensor" not in kinds or not _is_pure(target):
        return None
    if torch.Tag.nondeterministic_seeded in target.tags or "device" in node.kwargs:
        return None
    with unset_fake_temporarily():
        given = [
            torch.tensor(arg, dtype=_WIDE.get(type(arg))) if kind == "Tensor" else arg
            for kind, arg in zip(kinds, node.args, strict=False)
        ]
        found = target(*given, **node.kwargs)
        return literal_of(found.resolve_conj().to(value.dtype))


_WIDE = {complex: torch.complex128, float: torch.float64}


def _is_pure(target: OpOverload) -> bool:
    tags = target.tags
    return torch.Tag.nondeterministic_seeded not in tags and target.namespace in {"aten", "prims"}
