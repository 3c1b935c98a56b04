"""`PartitionerConfig`: operators that NeuronCores do not have stay on the CPU."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.graph import CodeGen
from torch.fx.passes.split_module import split_module
from torch.jit._recursive import create_script_module
from torch.utils import _pytree as pytree

from torch_neuronx.inference.capture import export
from torch_neuronx.inference.errors import TraceError
from torch_neuronx.inference.operators import failure_of, operator_of
from torch_neuronx.inference.signature import make_source

_ANALYZE = frozenset({"compiler_workdir", "additional_ignored_ops", "max_workers"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionerConfig:
    """How `trace` splits a function into parts for NeuronCores and for the CPU.

    Attributes:
        trace_kwargs: Arguments of `trace` for the parts on NeuronCores.
        model_support_percentage_threshold: At least this share of operators must be supported, from
            0 to 1.
        min_subgraph_size: Operators that every part must have; -1: any number.
        max_subgraph_count: Parts that there may be; -1: any number.
        ops_to_partition: Operators ("aten::sort") that go to the CPU anyway.
        analyze_parameters: Of `analyze`: "additional_ignored_ops" are taken for supported;
            "compiler_workdir" and "max_workers" are accepted.
    """

    trace_kwargs: Mapping[str, Any] | None = None
    model_support_percentage_threshold: float = 0.5
    min_subgraph_size: int = -1
    max_subgraph_count: int = -1
    ops_to_partition: Collection[str] | None = None
    analyze_parameters: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Check the limits.

        Raises:
            ValueError: One has no meaning.
        """
        if not 0 <= self.model_support_percentage_threshold <= 1:
            raise ValueError(
                "model_support_percentage_threshold must be from 0 to 1, got "
                f"{self.model_support_percentage_threshold}"
            )
        for name in ("min_subgraph_size", "max_subgraph_count"):
            value = getattr(self, name)
            if value != -1 and value < 1:
                raise ValueError(f"{name} must be -1 or at least 1, got {value}")
        unknown = sorted(set(self.analyze_parameters or ()) - _ANALYZE)
        if unknown:
            raise ValueError(
                f"analyze_parameters has {', '.join(unknown)}; allowed: {sorted(_ANALYZE)}"
            )


def trace_in_parts(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    config: PartitionerConfig,
    trace: Callable[..., torch.jit.ScriptModule],
    options: Mapping[str, Any],
) -> torch.jit.ScriptModule:
    """Trace a function whose unsupported operators stay on the CPU.

    Args:
        func: A module or function.
        args: Example arguments.
        kwargs: Example keyword arguments.
        config: What goes where.
        trace: `torch_neuronx.trace`.
        options: Its keyword arguments for the parts.

    Raises:
        ValueError: A limit of `config` is violated.
        TraceError: The function cannot be captured, or returns something but tensors.
    """
    program = export(func, args, kwargs)
    on_cpu = _unsupported(program.graph, config)
    gm = program.module(check_guards=False)
    gm.graph.set_codegen(CodeGen())
    split = _split(gm, on_cpu, config)
    leaves = [v for v in pytree.tree_leaves((args, dict(kwargs))) if isinstance(v, torch.Tensor)]
    examples = _examples(split, leaves)
    module = torch.nn.Module()
    for name, given in examples.items():
        part = split.get_submodule(name)
        if name.endswith("_cpu"):
            with torch.no_grad(), warnings.catch_warnings():
                # That TorchScript is deprecated is nothing the user can change here. PyTorch's
                # category of it is another one since 2.14.
                warnings.simplefilter("ignore", DeprecationWarning)
                warnings.simplefilter("ignore", FutureWarning)
                traced = torch.jit.trace(part, given, check_trace=False)
        else:
            traced = trace(part, given, **{**options, **(config.trace_kwargs or {})})
        module.add_module(name, traced)
    module.eval()
    script = create_script_module(module, lambda _: [], share_types=False)
    spec = program.call_spec
    assert spec.in_spec is not None
    assert spec.out_spec is not None
    count = len(split.graph.output_node().all_input_nodes)
    if count != spec.out_spec.num_leaves or len(leaves) != spec.in_spec.num_leaves:
        raise TraceError("a function that is traced in parts must take and return tensors only")
    source = make_source(
        func, (spec.in_spec, range(len(leaves))), (spec.out_spec, range(spec.out_spec.num_leaves))
    )
    define = script._c._define  # noqa: SLF001
    define(script._concrete_type, _run(split), source.types.get)  # noqa: SLF001
    text = source.text.format(call="self.run_parts", rest="")
    define(script._concrete_type, text, source.types.get)  # noqa: SLF001
    return script  # type: ignore[no-any-return]


def _unsupported(graph: torch.fx.Graph, config: PartitionerConfig) -> set[str]:
    """Names of the nodes that go to the CPU."""
    wanted = frozenset(config.ops_to_partition or ())
    ignored = frozenset((config.analyze_parameters or {}).get("additional_ignored_ops", ()))
    found: set[str] = set()
    count = 0
    for node in graph.nodes:
        name = operator_of(node)
        if not name:
            continue
        count += 1
        if name in wanted or (name not in ignored and failure_of(node)[0]):
            found.add(node.name)
    share = 1 - len(found) / count if count else 1.0
    if share < config.model_support_percentage_threshold:
        raise ValueError(
            f"{100 * share:.2f}% of the model's operators are supported, less than the "
            f"{100 * config.model_support_percentage_threshold:.2f}% that "
            "model_support_percentage_threshold asks for"
        )
    return found


def _split(gm: GraphModule, on_cpu: set[str], config: PartitionerConfig) -> GraphModule:
    """Runs of operators of one kind as submodules "part_0_neuron", "part_1_cpu"."""
    kinds: list[bool] = []
    sizes: list[int] = []
    numbers: dict[str, int] = {}
    for node in gm.graph.nodes:
        if node.op in {"placeholder", "output", "get_attr"}:
            continue
        source = node.args[0] if node.target is operator.getitem else None
        if isinstance(source, Node) and source.name in numbers:
            numbers[node.name] = numbers[source.name]
            continue
        cpu = node.name in on_cpu
        if not kinds or kinds[-1] != cpu:
            kinds.append(cpu)
            sizes.append(0)
        sizes[-1] += bool(operator_of(node))
        numbers[node.name] = len(kinds) - 1
    limit, least = config.max_subgraph_count, config.min_subgraph_size
    if limit != -1 and len(kinds) > limit:
        raise ValueError(
            f"the model has {len(kinds)} parts; max_subgraph_count={limit} allows fewer"
        )
    if least != -1 and sizes and min(sizes) < least:
        raise ValueError(
            f"a part of the model has {min(sizes)} operators, less than min_subgraph_size={least}"
        )
    result = split_module(gm, gm, lambda node: numbers.get(node.name, 0), keep_original_order=True)
    for number, cpu in enumerate(kinds):
        old, new = f"submod_{number}", f"part_{number}_{'cpu' if cpu else 'neuron'}"
        if not hasattr(result, old):
            continue
        result.add_module(new, result.get_submodule(old))
        for node in result.graph.find_nodes(op="call_module", target=old):
            node.target = new
    _move_weights(result)
    result.recompile()
    return result


def _move_weights(split: GraphModule) -> None:
    """Make tensors that the whole holds and hands to its parts the parts' own."""
    for call in [node for node in split.graph.nodes if node.op == "call_module"]:
        part = split.get_submodule(str(call.target))
        assert isinstance(part, GraphModule)
        places = part.graph.find_nodes(op="placeholder")
        kept = []
        for place, argument in zip(places, list(call.args), strict=True):
            if not isinstance(argument, Node) or argument.op != "get_attr":
                kept.append(argument)
                continue
            name = str(argument.target).replace(".", "_")
            value: Any = split
            for step in str(argument.target).split("."):
                value = getattr(value, step)
            part.register_buffer(name, value.detach())
            with part.graph.inserting_before(place):
                held = part.graph.get_attr(name)
            held.meta = dict(place.meta)
            place.replace_all_uses_with(held)
            part.graph.erase_node(place)
        call.args = tuple(kept)
        part.recompile()
    for node in split.graph.find_nodes(op="get_attr"):
        if not node.users:
            split.graph.erase_node(node)


def _examples(split: GraphModule, leaves: Sequence[torch.Tensor]) -> dict[str, tuple[Any, ...]]:
    """The arguments that every part is called with for the examples."""
    found: dict[str, tuple[Any, ...]] = {}

    class PartCalls(Interpreter):
        def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
            found[str(target)] = tuple(args)
            return super().call_module(target, args, kwargs)

    with torch.no_grad():
        PartCalls(split).run(*leaves)
    return found


def _run(split: GraphModule) -> str:
    """A method that runs all parts; those on the CPU get their tensors there."""
    lines = ["def run_parts(self, inputs: List[Tensor]) -> List[Tensor]:"]
    names: dict[Node, str] = {}
    for node in split.graph.nodes:
        if node.op == "placeholder":
            names[node] = f"inputs[{len(names)}]"
        elif node.op == "call_module":
            cpu = str(node.target).endswith("_cpu")
            given = [f"{names[a]}.cpu()" if cpu else names[a] for a in node.args]
            names[node] = f"v{len(names)}"
            lines.append(f"    {names[node]} = self.{node.target}({', '.join(given)})")
        elif node.target is operator.getitem:
            names[node] = f"{names[node.args[0]]}[{node.args[1]}]"
        elif node.op != "output":
            raise TraceError(f"{node.op} {node.target} between the parts of a traced model")
    outputs = ", ".join(names[node] for node in pytree.tree_leaves(split.graph.output_node().args))
    lines += [
        f"    outs = [{outputs}]",
        "    on_core = len(inputs) > 0",
        "    for tensor in inputs:",
        "        on_core = on_core and not tensor.device.type == 'cpu'",
        "    if on_core:",
        "        return [tensor.to(inputs[0].device) for tensor in outs]",
        "    return [tensor.cpu() for tensor in outs]",
    ]
    return "\n".join(lines) + "\n"
