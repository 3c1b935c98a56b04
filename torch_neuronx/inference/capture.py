"""A function or module to a graph of tensor IR, by torch.export and AOTAutograd.

The function is captured where it is (the CPU, as a rule), then the graph is moved to the device and
AOTAutograd makes it functional there, so that it becomes the very graph that `torch.compile` would
have made. Nothing is computed and no memory of the device is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._functorch.aot_autograd import aot_export_module
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from neuronxcc.options import Options
from torch_neuronx.dynamo.backend import torch_settings
from torch_neuronx.dynamo.decompositions import decompositions
from torch_neuronx.dynamo.importer import Imported, import_graph
from torch_neuronx.dynamo.portability import check_graph, check_host_calls, check_limits
from torch_neuronx.dynamo.session import compile_session
from torch_neuronx.inference.errors import TraceError

aten = torch.ops.aten
_CORE = torch.device("neuron", 0)  # in graphs; programs run on any


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor that the function holds: a weight, or a state that it updates.

    Attributes:
        name: Its name in the module's `state_dict`, or one that export gave a constant.
        value: The tensor.
    """

    name: str
    value: torch.Tensor


@dataclass(frozen=True, slots=True)
class Captured:
    """The facts about a traced function.

    Attributes:
        imported: The tensor IR; its arguments count the weights, the states, then the inputs.
        weights: Tensors that do not change.
        states: Tensors that every call updates.
        inputs: The (fake) tensors that are given, in order.
        names: Their names.
        given: For every leaf of the arguments the number of its tensor, or ("constant", value).
        in_spec: Structure of (args, kwargs).
        out_spec: Structure of the result.
        returned: For every leaf of the result the number of the graph's output, or ("constant",
            value), or ("dropped", None): a state that is updated instead.
        gm: The functional FX graph, for people.
    """

    imported: Imported
    weights: tuple[Held, ...]
    states: tuple[Held, ...]
    inputs: tuple[torch.Tensor, ...]
    names: tuple[str, ...]
    given: tuple[int | tuple[str, Any], ...]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    returned: tuple[int | tuple[str, Any], ...]
    gm: torch.fx.GraphModule


class _Function(torch.nn.Module):
    """A function as a module, which torch.export wants."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def export(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> ExportedProgram:
    """Capture with PyTorch what `func` computes for these examples.

    Raises:
        TraceError: PyTorch cannot capture it.
    """
    if isinstance(func, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        raise TraceError(
            "trace() takes a torch.nn.Module or a function, not TorchScript, whose source is gone: "
            "trace the module that the TorchScript was made of"
        )
    module = func if isinstance(func, torch.nn.Module) else _Function(func)
    args, kwargs = _beside(module, (args, dict(kwargs)))
    try:
        with torch.no_grad(), compile_session():
            return torch.export.export(module, args, kwargs, strict=False)
    except Exception as error:
        name = getattr(func, "__name__", type(func).__name__)
        raise TraceError(
            f"{name} cannot be traced: {type(error).__name__}: {error}\n\n{_remedy(str(error))}"
        ) from error


def _remedy(text: str) -> str:
    """The remedy for an error of torch.export."""
    if "which is not a known type" in text:
        return (
            "A traced function takes and returns tensors in tuples, lists, dictionaries and "
            "dataclasses. Models of transformers return their cache: set model.config.use_cache = "
            "False, or trace a function that returns what you need"
        )
    return (
        "A traced function has one fixed flow of control: what depends on values of tensors has "
        "to be written with torch.where or torch.cond"
    )


def _beside(module: torch.nn.Module, values: Any) -> Any:
    """The examples on the device of the module's tensors; on the CPU if it has none."""
    held = [*module.parameters(), *module.buffers()]
    device = next((t.device for t in held if t.device.type == "neuron"), torch.device("cpu"))

    def moved(value: Any) -> Any:
        return value.detach().to(device) if isinstance(value, torch.Tensor) else value

    return pytree.tree_map(moved, values)


def capture(
    program: ExportedProgram,
    aliases: Mapping[str, int],
    input_aliases: Mapping[int, int],
    options: Options,
    name: str = "graph",
) -> Captured:
    """Bring an exported program to the device and to tensor IR.

    Args:
        program: Without symbolic sizes.
        aliases: By name, tensors of the module that a call updates with the output of that number.
        input_aliases: The same by number of the input.
        options: What it is compiled with, for the portability modes.
        name: For people.

    Raises:
        TraceError: It has symbolic sizes, or inputs that are no tensors.
    """
    graph = program.graph_module
    specs = program.graph_signature.input_specs
    placeholders = graph.graph.find_nodes(op="placeholder")
    tensors = {**program.state_dict, **program.constants}
    _refuse_symbols(placeholders)
    returned = _plan_result(graph, placeholders, specs, aliases, input_aliases)
    _to_core(graph)
    order = _Order.of(placeholders, specs, tensors)
    gm = _functional(graph, placeholders)
    mutated = {number for number, _ in _mutations(gm)}
    told = check_graph(gm, lambda: options)
    imported = import_graph(gm, name, order.held, plain_results=True)
    check_host_calls(imported.host_calls)
    check_limits(imported.graph, lambda: options, told)
    return _finish(program, gm, imported, order, mutated, returned)


@dataclass(frozen=True, slots=True)
class _Order:
    """The arguments of the captured graph."""

    held: frozenset[int]
    names: tuple[str, ...]
    values: tuple[Any, ...]
    inputs: tuple[int, ...]

    @classmethod
    def of(
        cls, placeholders: Sequence[torch.fx.Node], specs: Sequence[Any], tensors: Mapping[str, Any]
    ) -> _Order:
        kinds = [spec.kind for spec in specs]
        names = tuple(
            str(node.name if spec.kind == InputKind.USER_INPUT else spec.target)
            for node, spec in zip(placeholders, specs, strict=True)
        )
        values = tuple(
            node.meta["val"] if kind == InputKind.USER_INPUT else tensors[name]
            for node, kind, name in zip(placeholders, kinds, names, strict=True)
        )
        inputs = tuple(i for i, kind in enumerate(kinds) if kind == InputKind.USER_INPUT)
        held = frozenset(range(len(kinds))) - frozenset(inputs)
        for number in held:
            if not isinstance(values[number], torch.Tensor):
                raise TraceError(f"{names[number]} is a {type(values[number]).__name__}, no tensor")
        return cls(held, names, values, inputs)


def _refuse_symbols(placeholders: Sequence[torch.fx.Node]) -> None:
    for node in placeholders:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and not all(isinstance(n, int) for n in value.shape):
            raise TraceError(
                f"input {node.name!r} has the shape [{', '.join(map(str, value.shape))}]: a "
                "NeuronCore needs static shapes (NCC_EMOD025); only the first dimension may be "
                "dynamic, in an exported program, and then in all inputs"
            )


def _plan_result(
    graph: torch.fx.GraphModule,
    placeholders: Sequence[torch.fx.Node],
    specs: Sequence[Any],
    aliases: Mapping[str, int],
    input_aliases: Mapping[int, int],
) -> tuple[int | tuple[str, Any], ...]:
    """Leave only tensors among the graph's outputs, and have states updated with theirs."""
    output = graph.graph.output_node()
    leaves = list(output.args[0])  # type: ignore[arg-type]
    by_name = {
        str(spec.target): node
        for node, spec in zip(placeholders, specs, strict=True)
        if spec.kind != InputKind.USER_INPUT
    }
    given = [n for n, s in zip(placeholders, specs, strict=True) if s.kind == InputKind.USER_INPUT]
    targets = {number: (by_name[name], True) for name, number in aliases.items()}
    targets |= {number: (given[i], False) for i, number in input_aliases.items()}
    kept: list[torch.fx.Node] = []
    returned: list[int | tuple[str, Any]] = []
    for number, leaf in enumerate(leaves):
        value = leaf.meta.get("val") if isinstance(leaf, torch.fx.Node) else leaf
        if not isinstance(value, torch.Tensor):
            if number in targets:
                raise TraceError(f"output {number} is aliased to a state, but is no tensor")
            returned.append(("constant", value))
            continue
        if number in targets:
            target, is_state = targets[number]
            _update(graph, output, target, leaf, number)
            if is_state:
                returned.append(("dropped", None))
                continue
            leaf = target  # noqa: PLW2901 - the caller's own tensor, now updated
        returned.append(len(kept))
        kept.append(leaf)
    output.args = (tuple(kept),)
    graph.recompile()
    return tuple(returned)


def _update(
    graph: torch.fx.GraphModule,
    output: torch.fx.Node,
    target: torch.fx.Node,
    value: torch.fx.Node,
    number: int,
) -> None:
    wanted, got = target.meta["val"], value.meta["val"]
    if (wanted.shape, wanted.dtype) != (got.shape, got.dtype):
        raise TraceError(
            f"output {number} is {got.dtype}{list(got.shape)}, but the state {target.name!r} that "
            f"it is aliased to is {wanted.dtype}{list(wanted.shape)}"
        )
    with graph.graph.inserting_before(output):
        node = graph.graph.call_function(aten.copy_.default, (target, value))
    node.meta["val"] = target.meta["val"]


def _to_core(graph: torch.fx.GraphModule) -> None:
    """Replace the CPU by the device in what the graph's operators are called with."""

    def moved(value: Any) -> Any:
        if isinstance(value, torch.device) and value.type == "cpu":
            return _CORE
        return value

    for module in graph.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.nodes:
            node.args = pytree.tree_map(moved, node.args)
            node.kwargs = pytree.tree_map(moved, node.kwargs)
            if node.target is torch.ops.higher_order.wrap_with_autocast and node.args[0] == "cpu":
                node.args = ("neuron", *node.args[1:])
        module.recompile()


def functional_graph(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A graph of exported operators on the CPU as one of functional operators on the device.

    Args:
        graph: All placeholders and results are tensors; it is changed.
    """
    _to_core(graph)
    return _functional(graph, graph.graph.find_nodes(op="placeholder"))


def _functional(
    graph: torch.fx.GraphModule, placeholders: Sequence[torch.fx.Node]
) -> torch.fx.GraphModule:
    """The graph of functional operators; updates of arguments are `copy_` at its end."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(node: torch.fx.Node) -> Any:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return value
        with mode:
            # Traced models take dense tensors, whatever the strides of the examples.
            return torch.empty(value.shape, dtype=value.dtype, device=_CORE)

    held = _held_tensors(graph)
    for name, value in held.items():
        setattr(graph, name, value.to(_CORE))
    fakes = [fake(node) for node in placeholders]
    with torch.no_grad(), compile_session(), torch_settings():
        gm, signature = aot_export_module(
            graph, fakes, trace_joint=False, decompositions=dict(decompositions())
        )
    assert isinstance(gm, torch.fx.GraphModule)
    updated = {**signature.user_inputs_to_mutate, **signature.buffers_to_mutate}
    output = gm.graph.output_node()
    leaves = list(output.args[0])  # type: ignore[arg-type]
    by_name = {node.name: node for node in gm.graph.find_nodes(op="placeholder")}
    for leaf in leaves[: len(updated)]:
        target = by_name[updated[leaf.name]]
        with gm.graph.inserting_before(output):
            node = gm.graph.call_function(aten.copy_.default, (target, leaf))
        node.meta["val"] = target.meta["val"]
    # What the caller gets of an updated argument is the argument.
    output.args = (tuple(leaves[len(updated) :]),)
    gm.recompile()
    return gm


def _held_tensors(graph: torch.fx.GraphModule) -> dict[str, torch.Tensor]:
    """Tensors that the graph itself holds."""
    found = {}
    for node in graph.graph.find_nodes(op="get_attr"):
        value = getattr(graph, str(node.target), None)
        if isinstance(value, torch.Tensor):
            found[str(node.target)] = value
    return found


def _mutations(gm: torch.fx.GraphModule) -> list[tuple[int, torch.fx.Node]]:
    numbers = {node: i for i, node in enumerate(gm.graph.find_nodes(op="placeholder"))}
    copies = gm.graph.find_nodes(op="call_function", target=aten.copy_.default)
    return [(numbers[node.args[0]], node) for node in copies if node.args[0] in numbers]


def _finish(
    program: ExportedProgram,
    gm: torch.fx.GraphModule,
    imported: Imported,
    order: _Order,
    mutated: set[int],
    returned: tuple[int | tuple[str, Any], ...],
) -> Captured:
    """Number the arguments as weights, states, inputs."""
    weights: list[Held] = []
    states: list[Held] = []
    places: dict[int, int] = {}
    for number in sorted(order.held - mutated):
        places[number] = len(weights)
        weights.append(Held(order.names[number], order.values[number].detach()))
    extra = [source for source in imported.arguments if isinstance(source, torch.Tensor)]
    constants = [Held(f"constant{i}", t.detach().cpu()) for i, t in enumerate(extra)]
    first_extra = len(weights)
    weights += constants
    for number in sorted(order.held & mutated):
        places[number] = len(weights) + len(states)
        states.append(Held(order.names[number], order.values[number].detach()))
    given: list[int | tuple[str, Any]] = []
    tensors: list[int] = []
    for number in order.inputs:
        value = order.values[number]
        if isinstance(value, torch.Tensor):
            places[number] = len(weights) + len(states) + len(tensors)
            given.append(len(tensors))
            tensors.append(number)
        else:
            given.append(("constant", value))
    numbers = iter(range(first_extra, first_extra + len(extra)))
    arguments = tuple(
        next(numbers) if isinstance(source, torch.Tensor) else places[source]
        for source in imported.arguments
    )
    outputs = tuple(
        replace(output, index=places[output.index]) if output.kind == "argument" else output
        for output in imported.outputs
    )
    assert program.call_spec.in_spec is not None
    assert program.call_spec.out_spec is not None
    return Captured(
        replace(imported, arguments=arguments, outputs=outputs, argument_count=len(places)),
        tuple(weights),
        tuple(states),
        tuple(order.values[i] for i in tensors),
        tuple(order.names[i] for i in tensors),
        tuple(given),
        program.call_spec.in_spec,
        program.call_spec.out_spec,
        returned,
        gm,
    )
