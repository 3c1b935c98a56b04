"""The table of lowerings: ATen operator -> function that emits tensor IR for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
import torch._prims
from torch._ops import HigherOrderOperator, OpOverload

from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, Loc
from neuronxcc.ir.node import Node, Operand, TensorType
from neuronxcc.ir.op import Op
from torch_neuronx.dynamo.dtypes import tensor_type, to_ir
from torch_neuronx.dynamo.errors import RefusedArgumentError
from torch_neuronx.dynamo.locations import operator_name

Lowering = Callable[..., Any]
Target = OpOverload | HigherOrderOperator
F = TypeVar("F", bound=Lowering)

TABLE: dict[Target, Lowering] = {}
# Operators of other libraries, which exist only when these are imported: "namespace::name".
BY_NAME: dict[str, Lowering] = {}


def find(target: object) -> Lowering | None:
    """The lowering of an operator, if there is one."""
    found: Lowering | None = TABLE.get(target)  # type: ignore[call-overload]
    if found is None and isinstance(target, OpOverload):
        found = BY_NAME.get(target._schema.name)
    return found


def lowers_name(name: str) -> Callable[[F], F]:
    """Like `lowers`, for an operator of another library."""

    def enter(function: F) -> F:
        BY_NAME[name] = function
        return function

    return enter


def lowers(*targets: Target) -> Callable[[F], F]:
    """Enter a function in the table.

    It is called with a `Context` and the arguments of the FX node, tensors replaced by IR nodes,
    and returns the IR node of the result, or a tuple of them (None where PyTorch has None).
    """

    def enter(function: F) -> F:
        for target in targets:
            assert target not in TABLE, f"two lowerings for {target}"
            TABLE[target] = function
        return function

    return enter


@dataclass(frozen=True, slots=True)
class HostCall:
    """An operator that the host runs because it has no lowering.

    Attributes:
        op: Qualified name with overload, "aten::linalg_svd".
        loc: The user's line.
        reason: Why there is none, "" if nobody wrote one.
    """

    op: str
    loc: Loc | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Body:
    """A branch or body of a control flow operator, imported.

    Attributes:
        graph: Its results are the tensors that it returns.
        used: Which of the operands are its parameters: those that are tensors.
        values: What it returns, None where that is no tensor.
        checks: Whether the last result of the graph is one more: a number, which needs all checks
            on whose outcome no other result depends.
    """

    graph: Graph
    used: tuple[int, ...]
    values: tuple[Node | None, ...]
    checks: bool = False


@dataclass(slots=True)
class Context:
    """The context of a lowering: the call that it lowers.

    Attributes:
        fx: The FX node.
        value: `fx.meta["val"]`: fake tensors, or a tuple of them, as PyTorch computed them.
        loc: The user's line.
        sequences: Numbers for calls with effects, in order.
        import_body: Imports a GraphModule of a control flow operator, given its operands.
        host: Emits the call of an operator without a lowering: (context, target, args, kwargs).
        host_calls: Names and lines of operators that the host runs, so far.
        effects: Calls with effects, and collectives, so far, in order.
        awaited: Numbers of parameters that a collective outside of the graph may still be filling.
        locs: The users' lines of nodes, so far.
        values: What the FX nodes before this one were lowered to.
    """

    fx: torch.fx.Node
    value: Any
    loc: Loc | None
    sequences: itertools.count[int]
    import_body: Callable[[torch.fx.GraphModule, Sequence[Any], str], Body]
    host: Callable[[Context, Any, Sequence[Any], Mapping[str, Any]], Any]
    host_calls: list[HostCall]
    effects: list[Node]
    awaited: set[int] = field(default_factory=set)
    locs: dict[Node, Loc] = field(default_factory=dict)
    values: Mapping[torch.fx.Node, Any] = field(default_factory=dict)

    def note_host_call(self, op: str, reason: str = "") -> None:
        """Count an operator that the host runs."""
        self.host_calls.append(HostCall(op, self.loc, reason))

    def locate(self, node: Node) -> None:
        """Note the user's line of a step that may fail when it runs."""
        if self.loc is not None:
            self.locs.setdefault(node, self.loc)

    def refused(self, text: str) -> RefusedArgumentError:
        """The error for arguments that eager mode refuses and PyTorch's tracing lets pass."""
        return RefusedArgumentError(operator_name(self.fx.target), self.loc, text)

    def part(self, value: Any, fx: torch.fx.Node | None = None) -> Context:
        """The context of a part of this call: of one result, or of an operator inside."""
        return replace(self, value=value, fx=self.fx if fx is None else fx)

    @property
    def types(self) -> tuple[TensorType, ...]:
        """Types of all tensors of the result, in order; None and numbers are left out."""
        return tuple(tensor_type(v) for v in flat(self.value) if isinstance(v, torch.Tensor))

    @property
    def type(self) -> TensorType:
        """Type of the only (or first) tensor of the result."""
        return tensor_type(self.first)

    @property
    def dtype(self) -> DType:
        """Element type of the only (or first) tensor of the result."""
        return to_ir(self.first.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the only (or first) tensor of the result."""
        return tuple(map(int, self.first.shape))

    @property
    def first(self) -> torch.Tensor:
        """The only (or first) tensor of the result, fake."""
        value = self.value
        while not isinstance(value, torch.Tensor):
            value = next(v for v in value if v is not None)
        return value

    @property
    def on_device(self) -> bool:
        """Return whether the operator runs on the neuron device, not on a graph of CPU tensors."""
        return any(v.device.type == "neuron" for v in flat(self.value) if torch.is_tensor(v))

    def call(
        self,
        target: OpOverload,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        types: Sequence[TensorType] | None = None,
        outs: Sequence[int | None] | None = None,
        host: bool = False,
        device: bool = False,
        effect: bool = False,
    ) -> tuple[Node, ...]:
        """Have an operator of PyTorch's library run as a step of the program.

        Args:
            target: The operator; `args` and `kwargs` follow its schema, tensors as IR nodes.
            args: Positional arguments.
            kwargs: Arguments by name.
            types: Types of the results; by default those of the FX node.
            outs: For each value that the operator returns (a list of tensors counts once per
                tensor): the number of the result that it is, None for values that nobody wants.
                By default all are results in order.
            host: The operator has no lowering.
            device: Run the `neuron` operator rather than the CPU kernel, if the graph is for it.
            effect: It must run once and in order (random numbers).
        """
        operands: list[Node] = []
        frozen_args = _freeze(args, operands)
        # `generator=None` chooses an overload that has no default for it.
        needed = {a.name for a in target._schema.arguments if not a.has_default_value()}
        frozen_kwargs = tuple(
            sorted(
                (k, _freeze(v, operands))
                for k, v in (kwargs or {}).items()
                if _wanted(k, v) or k in needed
            )
        )
        attrs: dict[str, Any] = {
            "target": target._name if "." in target._name else f"{target._name}.default",
            "args": frozen_args,
            "kwargs": frozen_kwargs,
            "device": device and self.on_device,
        }
        dense = tuple(i for i, operand in enumerate(operands) if self._is_made_dense(operand))
        if dense:
            attrs["dense"] = dense
        if effect:
            attrs["sequence"] = next(self.sequences)
        wanted = tuple(self.types if types is None else types)
        if outs is not None and tuple(outs) != tuple(range(len(wanted))):
            attrs["outs"] = tuple(outs)
        op = Op.HOST_CALL if host else Op.CUSTOM_CALL
        node = Node.make(op, wanted, operands, attrs)
        self.locate(node)
        if effect:
            self.effects.append(node)
        return build.results(node)

    def _is_made_dense(self, operand: Node) -> bool:
        """Return whether PyTorch has this argument's elements one by one.

        Here `ones`, `full` and `repeat` are broadcasts, which kernels that look at strides refuse.
        """
        fakes = [n.meta["val"] for n in self.fx.all_input_nodes if self.values.get(n) is operand]
        return any(isinstance(fake, torch.Tensor) and _has_own_elements(fake) for fake in fakes)


def _has_own_elements(fake: torch.Tensor) -> bool:
    """Return whether no dimension of more than one element has a stride of 0."""
    return all(step != 0 or size == 1 for size, step in zip(fake.shape, fake.stride(), strict=True))


def flat(value: Any) -> list[Any]:
    """The leaves of nested lists and tuples."""
    if isinstance(value, list | tuple):
        return [leaf for part in value for leaf in flat(part)]
    return [value]


def positions(value: Any) -> list[int | None]:
    """For each value that the operator returns: the number of its tensor among the tensors."""
    numbers = itertools.count()
    return [next(numbers) if isinstance(v, torch.Tensor) else None for v in flat(value)]


def rebuilt(value: Any, results: Iterator[Node]) -> Any:
    """The return value of an operator: `value` with results in place of its tensors."""
    if isinstance(value, torch.Tensor):
        return next(results)
    if isinstance(value, list | tuple):
        return tuple(rebuilt(v, results) for v in value)
    return value


def _wanted(name: str, value: Any) -> bool:
    """Layout, pinning and memory formats are the program's own business."""
    return name not in {"layout", "pin_memory", "memory_format", "device", "generator"} or (
        name == "generator" and value is not None
    )


def _freeze(value: Any, operands: list[Node]) -> Any:
    if isinstance(value, Node):
        operands.append(value)
        return Operand(len(operands) - 1)
    if isinstance(value, list | tuple):
        return tuple(_freeze(v, operands) for v in value)
    if isinstance(value, torch.dtype):
        return to_ir(value)
    if isinstance(value, torch.device):
        return value.type
    if isinstance(value, torch.memory_format | torch.layout):
        return None
    return value
