"""The backend "neuron" of `torch.compile`, found through the entry points of pyproject.toml."""

from __future__ import annotations

import importlib
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, cast

import torch
from torch._dynamo import disable
from torch._dynamo.utils import counters, flatten_graph_inputs
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.schemas import AOTDispatchCompiler
from torch._functorch.aot_autograd import aot_module_simplified
from torch._inductor import config as inductor_config
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils import _pytree as pytree

from neuronxcc.environment.compilation import TORCH_NEURONX_GRAPH_FACTS
from torch_neuronx._compile_only import settings_of
from torch_neuronx.dynamo import beyond, dump, sparse, storages
from torch_neuronx.dynamo.accepted import check_devices, check_types
from torch_neuronx.dynamo.arguments import takes_any_tensor, written_out
from torch_neuronx.dynamo.assertions import give_texts
from torch_neuronx.dynamo.async_tp import fuse_collectives
from torch_neuronx.dynamo.autograd_metadata import (
    MisnumberedResultsError,
    argument_names,
    correct_results,
    metadata,
    returned,
    without_gradients,
    written_arguments,
)
from torch_neuronx.dynamo.collectives import functionalize
from torch_neuronx.dynamo.decompositions import decompositions
from torch_neuronx.dynamo.errors import DynamicShapeError
from torch_neuronx.dynamo.executors import make_executable, makes_instructions
from torch_neuronx.dynamo.importer import Imported, import_graph
from torch_neuronx.dynamo.partition import partition
from torch_neuronx.dynamo.places import ByPlace, graphs_of, reads_by_place
from torch_neuronx.dynamo.polyfills import register as register_polyfills
from torch_neuronx.dynamo.portability import check_graph, check_host_calls, check_limits
from torch_neuronx.dynamo.python_numbers import with_random_numbers
from torch_neuronx.dynamo.refusals import check_states, refuse_lossy_capture
from torch_neuronx.dynamo.session import compile_session
from torch_neuronx.dynamo.shapes import (
    Specializer,
    compile_anew,
    has_shapes_of_data,
    has_symbolic,
    warn_of_data,
)
from torch_neuronx.dynamo.stolen import takes_symbolic, with_flat_arguments
from torch_neuronx.dynamo.streams import compile_parts, uses_streams
from torch_neuronx.dynamo.subject import META, about, traced_subject
from torch_neuronx.dynamo.windows import returns_windows
from torch_neuronx.dynamo.wrapper import boxed
from torch_neuronx.nki.tracing import register as register_kernel_calls
from torch_neuronx.ops import get_portability

Compiled = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class CompiledGraph:
    """One graph that was compiled, for those who watch.

    Attributes:
        name: "graph3.forward" and so on.
        kind: "inference", "forward" or "backward".
        gm: The FX graph.
        imported: The tensor IR and how it is called.
        executable: What runs it.
    """

    name: str
    kind: str
    gm: torch.fx.GraphModule
    imported: Imported
    executable: Any


# Called with every compiled graph, and with every graph that Dynamo captured before that.
# `torch_neuronx.explain` and tests listen here.
OBSERVERS: list[Callable[[CompiledGraph], None]] = []


def _write_facts(compiled: CompiledGraph) -> None:
    """For `neuron_parallel_compile --command analyze`. By name: the tools are above this module."""
    importlib.import_module("torch_neuronx.tools.graph_facts").write_facts(compiled)


if TORCH_NEURONX_GRAPH_FACTS.get():
    OBSERVERS.append(_write_facts)
# Of torch.compile.
MODES = (None, *torch._inductor.list_mode_options())
CAPTURES: list[Callable[[torch.fx.GraphModule], None]] = []
_numbers = itertools.count()

# Dynamo loads this module when it first looks the backend up: before it traces for it.
register_polyfills()
register_kernel_calls()


def neuron(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Compiled:
    """Compile what Dynamo captured: forward and backward into one native program each.

    Args:
        gm: Dynamo's graph.
        example_inputs: Fake tensors, and integers for sizes.
        options: What `torch.compile(options=...)` was given; see docs/compiler.md.
        mode: One of PyTorch's, for code that passes one; they all mean the same.

    Raises:
        DynamicShapeError: symbolic sizes in strict portability.
        CaptureError: what PyTorch captured is known to be wrong.
        RefusedTypesError: a function does not take the types of its arguments, as in eager mode.
        ValueError: There is no such mode.
    """
    if mode not in MODES:
        known = ", ".join(repr(name) for name in MODES if name is not None)
        raise ValueError(
            f"torch.compile(mode={mode!r}, backend='neuron'): there is no such mode. Known are "
            f"{known}, which all mean the same here: leave mode out, or choose one of these"
        )
    gm.meta[META] = traced_subject()
    refuse_lossy_capture(gm)
    for observer in CAPTURES:
        observer(gm)
    nested = any(isinstance(x, list | tuple | dict) for x in example_inputs)  # compiled autograd
    if not nested:
        check_devices(gm)
        check_states(gm)
        check_types(gm)  # the types of compiled autograd's are PyTorch's, not the user's
    functionalize(gm)
    give_texts(gm)
    example_inputs = with_random_numbers(gm, example_inputs)
    frozen = own_options(options or {})
    if nested:
        # It passes objects of its own, too, for which nothing can be traced anew.
        compile_flat = partial(_compile_flat, options=frozen, compile_one=compile_static)
        leaves = pytree.tree_leaves(list(example_inputs))
        if has_symbolic(leaves) or takes_symbolic(gm):
            return with_flat_arguments(gm, example_inputs, compile_flat)
        return flatten_graph_inputs(gm, example_inputs, compile_flat)
    return _compile_flat(gm, example_inputs, frozen)


def own_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options without those of Inductor, about which it warns.

    A library that tunes `torch.compile(f, options={"max_autotune": True})` for PyTorch's default
    backend gets this one where it is the default (`torch.compiler.set_default_backend("neuron")`).
    """
    foreign = [name for name in options if name.replace("-", "_") in _inductor_options()]
    if foreign:
        named = ", ".join(foreign)
        warnings.warn(f"the backend neuron ignores options of Inductor: {named}", stacklevel=2)
    return {name: value for name, value in options.items() if name not in foreign}


@cache
def _inductor_options() -> frozenset[str]:
    return frozenset(inductor_config.get_config_copy())


def _compile_flat(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    options: Mapping[str, Any],
    compile_one: Callable[..., Compiled] | None = None,
) -> Compiled:
    """Compile a module whose arguments are tensors and integers; `compile_placed` if None."""
    one = partial(compile_one or compile_placed, options=options)
    if has_symbolic(example_inputs):
        specializer = Specializer(gm, one)
        return disable(specializer, reason="it compiles for the sizes that it is called with")  # type: ignore[no-any-return]
    try:
        return one(gm, example_inputs)
    except DynamicShapeError as error:
        # Dynamo was asked to leave such operators in the graph (`capture_scalar_outputs`).
        if get_portability() == "strict" or not has_shapes_of_data(gm):
            raise
        warn_of_data(error.instruction)
        return disable(gm, reason="shapes in it depend on numbers")  # type: ignore[no-any-return]


def compile_placed(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any],
    numbers: bool = False,
) -> Compiled:
    """Compile as `compile_static` does; again where it matters that arguments lie elsewhere."""
    compiled = compile_static(gm, example_inputs, options=options, numbers=numbers)
    by_offset = reads_by_place(gm)
    if not by_offset and written_arguments() == frozenset():
        return compiled
    one = partial(compile_static, options=options, numbers=True)
    by_place = ByPlace(
        partial(compile_anew, gm, compile_static=one), gm,
        all_offsets=by_offset, at_once=not any(map(uses_streams, graphs_of(gm))),
    )  # fmt: skip
    by_place.add(example_inputs, compiled)
    return disable(by_place, reason="it compiles for the places that it is called with")  # type: ignore[no-any-return]


def compile_static(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any],
    numbers: bool = False,
    compile_one: Callable[..., Compiled] | None = None,
) -> Compiled:
    """Run AOTAutograd, which compiles the forward and the backward graph.

    Args:
        gm: Dynamo's graph.
        example_inputs: Fake tensors.
        options: As for `neuron`.
        numbers: All sizes and numbers among the inputs are numbers, whatever else is a symbol.
        compile_one: Compiles one of AOTAutograd's graphs; `compile_graph` if None.
    """
    number = next(_numbers)
    one = compile_graph if compile_one is None else compile_one

    # Lists among the arguments come in a wrapper, which has no `meta`.
    subject = getattr(gm, "meta", {}).get(META, "")

    def compiler(kind: str) -> Callable[..., Compiled]:
        named = partial(one, kind=kind, name=f"graph{number}.{kind}", options=options)
        return about(subject, named)

    given = len(example_inputs) + len([*gm.parameters(), *gm.buffers()])

    def forward(kind: str) -> Callable[..., Compiled]:
        compile_now = compiler(kind)

        def checked(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Compiled:
            with unset_fake_temporarily():
                correct_results(gm, given)
            return compile_now(gm, inputs)

        return checked

    def backward(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        # Called while Dynamo or autograd is at work: neither may trace it or what it returns.
        with compile_session():
            compile_now = disable(compiler("backward"), reason="compiles the backward graph")
            compiled = compile_now(gm, inputs)
        return disable(compiled, reason="runs the backward graph")

    def trace(*, writes: bool) -> Any:
        """Run AOTAutograd; what is written to arguments is in its graphs if that is wanted."""
        return aot_module_simplified(
            gm,
            example_inputs,
            fw_compiler=forward("forward"),
            bw_compiler=cast("AOTDispatchCompiler", backward),
            inference_compiler=forward("inference"),
            decompositions=dict(decompositions(instructions=makes_instructions())),
            partition_fn=partition,
            keep_inference_input_mutations=writes,
            ignore_shape_env=numbers,
        )

    # PyTorch's DDPOptimizer learns from this that the first call of the result is to be a fake one.
    counters["aot_autograd"]["total"] += 1
    guess = functorch_config.guess_tangent_strides_as_outputs and not returns_windows(gm)
    with (
        torch_settings(),
        functorch_config.patch(guess_tangent_strides_as_outputs=guess),
    ):
        try:
            # AOTAutograd refuses its own graph where what is written to an argument passes a wait.
            compiled = trace(writes=not any(map(uses_streams, graphs_of(gm))))
        except MisnumberedResultsError:
            compiled = trace(writes=False)
    counters["aot_autograd"]["ok"] += 1
    return disable(compiled, reason="runs compiled graphs")  # type: ignore[no-any-return]


def static_arguments(gm: torch.fx.GraphModule) -> frozenset[int] | None:
    """Which arguments of one of AOTAutograd's graphs are parameters and buffers of modules.

    AOTAutograd knows them by their numbers among the arguments of the forward graph, and gives all
    its graphs the same names. None if it is not at work.
    """
    meta = metadata()
    if meta is None:
        return None
    static = frozenset(meta.static_input_indices or ())
    names = {name for i in static for name in argument_names(i)}
    arguments = gm.graph.find_nodes(op="placeholder")
    return frozenset(i for i, node in enumerate(arguments) if node.name in names)


@contextmanager
def torch_settings() -> Iterator[None]:
    """PyTorch's own switches, as this backend needs them."""
    with (
        # Our partitioner never draws random numbers again; this pass refuses graphs where it would.
        functorch_config.patch(remat_using_tags_for_fwd_loss_bwd_graph=False),
        # An unused random operator advances the generator in eager mode, so it may not vanish.
        inductor_config.patch(fallback_random=True),
    ):
        yield


def compile_graph(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    kind: str = "inference",
    name: str = "graph",
    options: Mapping[str, Any] | None = None,
    whole: bool = True,
) -> Compiled:
    """Compile one functional ATen graph; takes its arguments as a list, which it empties.

    A part of one is not `whole`: what AOTAutograd knows of results is not about those of parts.
    """
    del example_inputs  # the placeholders carry them
    with unset_fake_temporarily():
        observe = dump.observer(name)
        if observe is not None:
            observe("fx", lambda: str(gm.print_readable(print_output=False)))
        fuse_collectives(gm)
        if uses_streams(gm):
            return compile_parts(
                gm,
                lambda part, number: compile_graph(
                    part, (), kind=kind, name=f"{name}.part{number}", options=options, whole=False
                ),
            )
        settings = partial(settings_of, options or {})
        told = check_graph(gm, settings)
        traced, lazy = gm, written_out(gm)
        cut_storages = beyond.cut_storages(gm)
        gm, pass_stretches = beyond.split(gm)
        gm, give_memory = storages.split(gm)
        gm, complete = sparse.split(gm)
        imported = import_graph(gm, name, static_arguments(gm))
        check_host_calls(imported.host_calls)
        check_limits(imported.graph, settings, told)
        executable = make_executable(imported, dict(options or {}))
    compiled = CompiledGraph(name, kind, gm, imported, executable)
    for observer in OBSERVERS:
        observer(compiled)
    forward = whole and kind == "forward"
    run = boxed(
        imported,
        executable,
        inference=kind == "inference",
        returned=returned() if forward else None,
        without_gradients=without_gradients() if forward else (),
        # Hooks may bring what is saved back without the gaps that it had (`save_on_cpu`).
        any_layout=kind == "backward",
    )
    for rest in (complete, give_memory, pass_stretches, cut_storages):
        run = run if rest is None else rest(run)
    return takes_any_tensor(run, traced, lazy)
