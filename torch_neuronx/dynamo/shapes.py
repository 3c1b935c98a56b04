"""Graphs with symbolic sizes: one static program per concrete shape, up to a bound."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from torch_neuronx.dynamo.arguments import fake_call
from torch_neuronx.dynamo.errors import DynamicShapeError
from torch_neuronx.dynamo.jagged import (
    has_jagged,
    is_jagged,
    is_length,
    sizes,
    with_symbolic_lengths,
)
from torch_neuronx.dynamo.locations import location
from torch_neuronx.dynamo.registry import flat
from torch_neuronx.dynamo.variants import Variants
from torch_neuronx.ops import get_portability


class ShapeLimitWarning(UserWarning):
    """A graph was called with more shapes than it is compiled for; the rest runs in eager mode."""


class DataShapeWarning(UserWarning):
    """Shapes in a graph depend on numbers, mostly those of a gradient: it runs in eager mode."""


_BY_DATA = (
    "what {} returns is a number, or has a shape that depends on numbers, in the function that is "
    "compiled or in its gradient: it runs operator by operator. Compile what is before and after "
    "it, or leave torch.compile(dynamic=True) and Dynamo's capture_scalar_outputs and "
    "capture_dynamic_output_shape_ops out: then only the operator itself is left out"
)


# Of a graph's meta: not all of its symbolic sizes are arguments.
SIZES_OF_TENSORS = "neuron_sizes_of_tensors"


def warn_of_data(operator: Any) -> None:
    """Say that a graph runs operator by operator, because of this operator."""
    warnings.warn(_BY_DATA.format(operator), DataShapeWarning, stacklevel=5)


def has_shapes_of_data(gm: torch.nn.Module) -> bool:
    """Whether Dynamo left an operator in the graph of which it can't know what it gives."""
    return isinstance(gm, torch.fx.GraphModule) and any(
        node.meta.get("unbacked_bindings") for node in gm.graph.nodes
    )


def has_symbolic(inputs: Sequence[Any]) -> bool:
    """Return whether any size among Dynamo's example inputs is symbolic."""
    return any(_symbolic(x) for x in inputs)


def _symbolic(x: Any) -> bool:
    if isinstance(x, torch.SymInt | torch.SymFloat | torch.SymBool):
        return True
    return isinstance(x, torch.Tensor) and not all(isinstance(n, int) for n in x.shape)


class Specializer:
    """Compiles Dynamo's graph for each set of sizes that it is called with.

    Dynamo passes every symbolic size as an argument of its own, and symbolic Python floats as
    tensors of one number that the graph reads: these are the key.
    """

    def __init__(
        self, gm: torch.fx.GraphModule, compile_static: Callable[..., Callable[..., Any]]
    ) -> None:
        refuse_symbolic(gm)
        self.gm = gm
        self.compile_static = compile_static
        self.floats = _float_arguments(gm)
        arguments = gm.graph.find_nodes(op="placeholder")
        self.varying = [
            i for i, node in enumerate(arguments) if _symbolic(node.meta.get("example_value"))
        ]
        self.sizes_of_tensors = bool(gm.meta.get(SIZES_OF_TENSORS))
        self.jagged = any(is_jagged(node.meta.get("example_value")) for node in arguments)
        self.without_memory = fake_call(gm)
        if self.jagged:
            refuse_shapes_of_data(gm)
        self.variants = Variants(gm)

    def __call__(self, *args: Any) -> Any:
        """Run the program for these sizes, compiling it first if they are new."""
        if self.without_memory(args):
            mode = detect_fake_mode(args)
            assert mode is not None
            with mode:
                return self.gm(*args)
        key = tuple(
            # Digits tell 0.0 from -0.0 and make NaN equal to itself.
            float(a).hex() if i in self.floats else a
            for i, a in enumerate(args)
            if i in self.floats or not (isinstance(a, torch.Tensor) or is_length(a))
        )
        if self.sizes_of_tensors:
            key += tuple(
                tuple(args[i].shape) for i in self.varying if isinstance(args[i], torch.Tensor)
            )
        if self.jagged:
            key += sizes(args)
        function = self.variants.get(key, lambda: self._compile(args), partial(self._warn, args))
        return function(*args)

    def _compile(self, args: Sequence[Any]) -> Callable[..., Any]:
        known = {i: float(args[i]) for i in self.floats}
        gm = _with_numbers(self.gm, known) if known else self.gm
        return compile_anew(gm, args, partial(self.compile_static, numbers=True))

    def _warn(self, args: Sequence[Any], limit: int) -> None:
        changing = [args[i] for i in self.varying]
        shapes = ", ".join(str(list(a.shape)) for a in changing if isinstance(a, torch.Tensor))
        warnings.warn(
            f"a compiled graph was called with more than {limit} different shapes; further "
            f"ones run operator by operator, first: {shapes[:300]}. A NeuronCore needs static "
            "shapes: pad inputs to a few sizes, or set TORCH_NEURONX_MAX_SHAPES to compile more "
            "programs",
            ShapeLimitWarning,
            stacklevel=5,
        )


def compile_anew(
    gm: torch.fx.GraphModule, args: Sequence[Any], compile_static: Callable[..., Any]
) -> Callable[..., Any]:
    """Compile Dynamo's graph for the arguments of a call, outside of Dynamo."""
    jagged = has_jagged(gm)
    mode = FakeTensorMode(shape_env=_shape_env(jagged))
    # The tracing context of the compilation that made this graph is gone; AOTAutograd keeps in
    # the new one what it finds out about the graph.
    with torch._guards.tracing(torch._guards.TracingContext(mode)):
        try:
            inputs = with_symbolic_lengths(mode, args) if jagged else list(args)
            return compile_static(gm, inputs)  # type: ignore[no-any-return]
        except (DynamicOutputShapeException, DataDependentOutputException) as error:
            # Of a graph without symbolic sizes Dynamo hears of it, and breaks the graph there.
            warn_of_data(error.func)
            return gm


def _shape_env(with_jagged: bool) -> ShapeEnv:
    """One as Dynamo has it: without one, tracing a `while_loop` fails.

    The lengths of jagged tensors are symbols, also where the graph makes the first one. Nothing
    else may become one.
    """
    if with_jagged:
        return ShapeEnv()
    return ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)


def _reads(node: torch.fx.Node) -> bool:
    return node.op == "call_method" and node.target == "item"


_Body = tuple[torch.fx.Node, torch.fx.GraphModule, list[torch.fx.Node | None]]


def _bodies(gm: torch.fx.GraphModule, node: torch.fx.Node) -> list[_Body]:
    """The graphs that an operator runs (a checkpoint's, both of a condition), and their arguments.

    Each comes with the node that names it. Such operators have their graphs first, and what they
    pass on last. An argument that is none of the operator's is None.
    """
    if node.op != "call_function":
        return []
    operands: list[torch.fx.Node] = []
    found: list[tuple[torch.fx.Node, torch.fx.GraphModule]] = []
    for x in flat((node.args, node.kwargs)):
        if not isinstance(x, torch.fx.Node):
            continue
        body = getattr(gm, str(x.target), None) if x.op == "get_attr" else None
        if isinstance(body, torch.fx.GraphModule):
            found.append((x, body))
        else:
            operands.append(x)
    if node.target is torch.ops.higher_order.autograd_function_apply:
        (forward, body), (backward, gradient) = found
        return [
            (forward, body, [*operands]),
            (backward, gradient, _operands_of_backward(body, gradient, operands)),
        ]
    counts = [len(body.graph.find_nodes(op="placeholder")) for _, body in found]
    return [
        (name, body, [*operands[len(operands) - count :]])
        for (name, body), count in zip(found, counts, strict=True)
    ]


def _operands_of_backward(
    forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, operands: list[torch.fx.Node]
) -> list[torch.fx.Node | None]:
    """What the backward graph of an `autograd.Function` is given, as operands of the function.

    These are the gradients of its results, and then what the forward graph returns beside its
    results: values of its own, and its arguments.
    """
    arguments = dict(zip(forward.graph.find_nodes(op="placeholder"), operands, strict=True))
    (output,) = forward.graph.find_nodes(op="output")
    _, saved = output.args[0]
    given = [arguments.get(value) for value in saved]
    gradients = len(backward.graph.find_nodes(op="placeholder")) - len(given)
    return [*(None for _ in range(gradients)), *given]


def _float_arguments(gm: torch.fx.GraphModule) -> frozenset[int]:
    """Arguments that are Python floats in disguise: tensors that the graph does `item()` on."""
    arguments = gm.graph.find_nodes(op="placeholder")
    read = {node for node in arguments if any(_reads(user) for user in node.users)}
    for node in gm.graph.nodes:
        for _, body, operands in _bodies(gm, node):
            passed_on = (operands[i] for i in _float_arguments(body))
            read |= {operand for operand in passed_on if operand is not None}
    return frozenset(i for i, node in enumerate(arguments) if node in read)


def _with_numbers(gm: torch.fx.GraphModule, known: dict[int, float]) -> torch.fx.GraphModule:
    """The graph with what it, and those that it runs, read from these arguments filled in."""
    known_gm = torch.fx.GraphModule(gm, copy.deepcopy(gm.graph))
    known_gm.meta = dict(gm.meta)
    graph = known_gm.graph
    arguments = graph.find_nodes(op="placeholder")
    numbers = {arguments[i]: value for i, value in known.items()}
    for node in list(graph.nodes):
        for name, body, operands in _bodies(known_gm, node):
            inner = {
                i: numbers[x] for i, x in enumerate(operands) if x is not None and x in numbers
            }
            if not inner:
                continue
            # Another use of the same graph may be given other numbers.
            own = f"{name.target}_of_{node.name}"
            known_gm.add_submodule(own, _with_numbers(body, inner))
            with graph.inserting_before(node):
                node.replace_input_with(name, graph.get_attr(own))
    for argument, value in numbers.items():
        for read in [user for user in argument.users if _reads(user)]:
            for user in list(read.users):

                def number(node: torch.fx.Node, read: Any = read, value: float = value) -> Any:
                    return value if node is read else node

                user.args = torch.fx.map_arg(user.args, number)
                user.kwargs = torch.fx.map_arg(user.kwargs, number)
            graph.erase_node(read)
    known_gm.recompile()
    return known_gm


def refuse_shapes_of_data(gm: torch.fx.GraphModule) -> None:
    """Raise for the first tensor whose size is one of a jagged tensor's lengths.

    Raises:
        DynamicShapeError: the graph unbinds a jagged tensor, or the like.
    """
    for node in gm.graph.nodes:
        if node.meta.get("unbacked_bindings"):
            values = flat(node.meta.get("example_value"))
            shape = next((_shape(v) for v in values if isinstance(v, torch.Tensor)), "unknown")
            raise DynamicShapeError(node.name, shape, location(node))


def _shape(value: torch.Tensor) -> str:
    return f"[{', '.join(map(str, value.shape))}]"


def refuse_symbolic(gm: torch.fx.GraphModule) -> None:
    """Raise for the first symbolic tensor of a Dynamo graph, in strict portability.

    Raises:
        DynamicShapeError: always in strict portability.
    """
    if get_portability() != "strict":
        return
    tensors = [
        (node, node.meta["example_value"])
        for node in gm.graph.nodes
        if isinstance(node.meta.get("example_value"), torch.Tensor)
        and _symbolic(node.meta["example_value"])
    ]
    # The first one that is computed has a line of the user's; arguments have none.
    tensors.sort(key=lambda pair: pair[0].op == "placeholder")
    if not tensors:
        raise DynamicShapeError(gm._get_name(), "symbolic")
    node, value = tensors[0]
    raise DynamicShapeError(node.name, _shape(value), location(node))
