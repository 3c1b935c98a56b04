"""`torch_neuronx.trace`: compile a function ahead of time into a `torch.jit.ScriptModule`."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.jit._recursive import create_script_module
from torch.utils import _pytree as pytree

from neuronxcc.cache.cache import CompileCache, open_cache
from neuronxcc.environment.compilation import NEURON_CC_FLAGS
from neuronxcc.files import write_whole
from neuronxcc.frontends.hlo.exporter import export_hlo
from neuronxcc.ir.text import to_text
from neuronxcc.neff import NeffInfo, write_neff
from neuronxcc.options import Options, parse
from neuronxcc.program.program import Program
from neuronxcc.program.text import program_to_text
from neuronxcc.progress import Progress
from torch_neuronx._compile_only import collecting
from torch_neuronx.dynamo.collect import collect, hollow
from torch_neuronx.dynamo.native import Report, called, compile_imported
from torch_neuronx.inference import loading
from torch_neuronx.inference.batching import dynamic_batch
from torch_neuronx.inference.capture import Captured, Held, capture, export
from torch_neuronx.inference.errors import TraceError
from torch_neuronx.inference.inline import with_weights
from torch_neuronx.inference.manifest import Manifest, TensorFacts, View, lend_states
from torch_neuronx.inference.placement import ATTRIBUTE
from torch_neuronx.inference.signature import Source, make_source, split_examples

Arguments = str | Sequence[str] | None


def trace(
    func: Callable[..., Any] | ExportedProgram,
    example_inputs: Any,
    *_: Any,
    input_output_aliases: Mapping[torch.Tensor, int] = {},
    compiler_workdir: str | Path | None = None,
    compiler_args: Arguments = None,
    partitioner_config: Any = None,
    inline_weights_to_neff: bool = True,
    cpu_backend: bool = False,
) -> torch.jit.ScriptModule:
    """Compile a function or module for NeuronCores, for inference.

    The result is called as the function is, with tensors of the examples' shapes and types. It can
    be saved with `torch.jit.save`, and loaded with `torch.jit.load` by a process that has only
    torch and this package. With any input on the CPU all outputs are on the CPU; if all inputs are
    on one neuron device, the outputs are there too.

    Args:
        func: A module or function, or what torch.export.export returned. If that has a dynamic
            first dimension, the result takes any batch (`dynamic_batch`).
        example_inputs: A tensor, a tuple of arguments, or a dictionary of keyword arguments.
        input_output_aliases: States: parameters or buffers of the module, or tensors among the
            example inputs, and the numbers of the outputs that are their new values. They are
            updated in place by every call; outputs that update parameters or buffers are not
            returned.
        compiler_workdir: Directory to leave the graph, the NEFF and a log in.
        compiler_args: Options of the compiler, as a command line or as words; they win over
            NEURON_CC_FLAGS.
        partitioner_config: A `PartitionerConfig`: operators that NeuronCores do not have stay on
            the CPU.
        inline_weights_to_neff: False keeps the weights as parameters of the result, which
            `replace_weights` can exchange.
        cpu_backend: Compile without loading the result onto a core; needs `--target` among
            `compiler_args`.

    Raises:
        TraceError: The function cannot be captured, or returns what TorchScript has no type for.
        OptionError: An option of the compiler is unknown or has a wrong value.
        ValueError: cpu_backend without `--target`; a limit of `partitioner_config` is violated.
    """
    if _:
        raise TypeError(f"trace() takes 2 positional arguments, {2 + len(_)} were given")
    settings = compiler_options(compiler_args, cpu_backend=cpu_backend)
    args, kwargs = examples_of(func, example_inputs)
    function, dynamic = func, False
    if isinstance(func, ExportedProgram):
        function, dynamic = func.module(), dynamic_batch_of(func)
    if partitioner_config is not None:
        # Imported late: it needs this module.
        from torch_neuronx.inference.partition import trace_in_parts  # noqa: PLC0415

        if input_output_aliases:
            raise ValueError("input_output_aliases are not possible with a partitioner_config")
        options = {
            "compiler_workdir": compiler_workdir,
            "compiler_args": compiler_args,
            "inline_weights_to_neff": inline_weights_to_neff,
            "cpu_backend": cpu_backend,
        }
        return trace_in_parts(function, args, kwargs, partitioner_config, trace, options)
    script, _source, _lent = _trace_whole(
        function, args, kwargs, input_output_aliases, settings,
        None if compiler_workdir is None else Path(compiler_workdir),
        inline=inline_weights_to_neff, place=not cpu_backend,
    )  # fmt: skip
    return dynamic_batch(script) if dynamic else script


def trace_with_source(
    func: Callable[..., Any],
    example_inputs: Any,
    *,
    input_output_aliases: Mapping[torch.Tensor, int],
    compiler_workdir: Path | None,
    compiler_args: Arguments,
    lend: bool = False,
) -> tuple[torch.jit.ScriptModule, Source, tuple[TensorFacts, ...]]:
    """As `trace`, and more of what is needed to put several models into one.

    Args:
        func: As for `trace`, like most of the rest.
        example_inputs: See there.
        input_output_aliases: See there.
        compiler_workdir: See there.
        compiler_args: See there.
        lend: The states of `input_output_aliases` are not the model's: they become its last inputs,
            in the order of the dictionary.

    Returns:
        The module, the source of its `forward`, and the states that are lent to it.
    """
    args, kwargs = examples_of(func, example_inputs)
    settings = compiler_options(compiler_args)
    return _trace_whole(
        func, args, kwargs, input_output_aliases, settings, compiler_workdir,
        inline=True, place=True, lend=lend,
    )  # fmt: skip


def _trace_whole(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    aliases: Mapping[torch.Tensor, int],
    settings: Options,
    compiler_workdir: Path | None,
    *,
    inline: bool,
    place: bool,
    lend: bool = False,
) -> tuple[torch.jit.ScriptModule, Source, tuple[TensorFacts, ...]]:
    program = export(function, args, kwargs)
    by_name, by_input = _aliases(program, (args, kwargs), aliases)
    name = getattr(function, "__name__", type(function).__name__)
    captured = capture(program, by_name, by_input, settings, name)
    source = make_source(
        function,
        (captured.in_spec, captured.given),
        (captured.out_spec, captured.returned),
    )
    with Progress(f"compiling {name}"):
        compiled = _compile(captured, settings)
    info = NeffInfo(name, settings.target, settings.lnc, settings.flags())
    neff = write_neff(compiled, info, compress=not settings.enable_fast_loading_neuron_binaries)
    if compiler_workdir is not None:
        inlined = with_weights(compiled, captured) if inline else compiled
        _leave(compiler_workdir, captured, inlined, info, settings)
    loading.trust(neff, called(captured.imported.graph))
    separate = captured.weights if not inline else ()
    held = captured.weights if inline else ()
    manifest = _manifest(captured, source.names, settings, separate=not inline)
    lent = tuple(by_name) if lend else ()
    manifest = lend_states(manifest, lent)
    states = [item for item in captured.states if item.name not in lent]
    model = torch.classes.neuron.Model(
        manifest.to_json(),
        torch.from_numpy(np.frombuffer(neff, np.uint8).copy()),
        [_plain(item.value, copy=not place) for item in held],
        [_plain(item.value, copy=not place) for item in states],
    )
    script = _script(source, model, separate)
    if place:
        # Where a program that has just traced it works, so that its tensors fit.
        model.set_cores([torch.neuron.current_device()])  # type: ignore[attr-defined]
    return script, source, manifest.inputs[len(manifest.inputs) - len(lent) :]


def examples_of(func: Any, example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments and keyword arguments of what `trace` was given; warns where it has to guess."""
    if isinstance(func, ExportedProgram):
        if example_inputs is None and func.example_inputs is not None:
            args, kwargs = func.example_inputs
            return tuple(args), dict(kwargs)
        args, kwargs, inferred = split_examples(func.module(), example_inputs)
    else:
        args, kwargs, inferred = split_examples(func, example_inputs)
    if inferred:
        names = ", ".join(map(repr, inferred))
        warnings.warn(
            f"example_inputs has arguments by place for {names}, which the function takes by name "
            "only. They are passed by name; give example_inputs as a dictionary, since a later "
            "release may refuse this",
            UserWarning,
            stacklevel=3,
        )
    return args, kwargs


def compiler_options(compiler_args: Arguments, *, cpu_backend: bool = False) -> Options:
    """The options of a trace: NEURON_CC_FLAGS, then `compiler_args`."""
    words = shlex.split(compiler_args) if isinstance(compiler_args, str) else compiler_args or ()
    if cpu_backend and not any(str(word).split("=")[0] == "--target" for word in words):
        raise ValueError(
            "cpu_backend=True compiles for a machine that is not asked: name it with "
            "compiler_args='--target trn2'"
        )
    settings = parse(NEURON_CC_FLAGS.text(), [str(word) for word in words])
    for note in settings.notes:
        warnings.warn(f"compiler options: {note}", UserWarning, stacklevel=3)
    if settings.stochastic_rounding:
        warnings.warn(
            "NEURON_RT_STOCHASTIC_ROUNDING_EN has no effect on traced models: they round to the "
            "nearest value",
            UserWarning,
            stacklevel=3,
        )
        settings = replace(settings, stochastic_rounding=False)
    return settings


def dynamic_batch_of(program: ExportedProgram) -> bool:
    """Return whether an exported program has a dynamic first dimension.

    Raises:
        TraceError: Another dimension is dynamic, or not that of all inputs (NCC_EMOD025).
    """
    names = set(program.graph_signature.user_inputs)
    symbols: set[str] = set()
    static = 0
    for node in program.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if node.name not in names or not isinstance(value, torch.Tensor):
            continue
        sizes: Sequence[Any] = value.shape
        dynamic = [d for d, n in enumerate(sizes) if not isinstance(n, int)]
        if dynamic and dynamic != [0]:
            shape = f"[{', '.join(map(str, value.shape))}]"
            raise TraceError(
                f"NCC_EMOD025: Dynamic shape is not supported: input {node.name!r} has shape "
                f"{shape}. All dimensions but the first must be static: export the program without "
                "dynamic_shapes for them, and pad inputs to a few sizes"
            )
        static += not dynamic
        symbols |= {str(value.shape[0])} if dynamic else set()
    if symbols and (static or len(symbols) > 1):
        raise TraceError(
            "NCC_EMOD025: Dynamic shape is not supported: a dynamic first dimension must be that "
            f"of all inputs; here it is {', '.join(sorted(symbols))}"
            + (f", and {static} inputs have none" if static else "")
        )
    return bool(symbols)


def _aliases(
    program: ExportedProgram, examples: Any, aliases: Mapping[torch.Tensor, int]
) -> tuple[dict[str, int], dict[int, int]]:
    """Aliases by the name of what the module holds, and by the number of an input."""
    held = {
        str(spec.target): {**program.state_dict, **program.constants}[str(spec.target)]
        for spec in program.graph_signature.input_specs
        if spec.target is not None
    }
    given = pytree.tree_leaves(examples)
    count = len(program.graph_signature.output_specs)
    by_name: dict[str, int] = {}
    by_input: dict[int, int] = {}
    number: Any
    for tensor, number in aliases.items():
        if not isinstance(number, int) or not 0 <= number < count:
            raise ValueError(f"input_output_aliases names output {number}; there are {count}")
        names = [name for name, value in held.items() if _is_same(value, tensor)]
        places = [i for i, value in enumerate(given) if value is tensor]
        if names:
            by_name[names[0]] = number
        elif places:
            by_input[places[0]] = number
        else:
            shape = f"{tensor.dtype}{list(tensor.shape)}"
            raise ValueError(
                f"input_output_aliases has a tensor {shape} for output {number} that is neither "
                "a parameter or buffer of the module nor one of the example inputs"
            )
    return by_name, by_input


def _is_same(one: Any, other: torch.Tensor) -> bool:
    return one is other or (
        isinstance(one, torch.Tensor)
        and one.data_ptr() == other.data_ptr()
        and one.shape == other.shape
        and one.numel() > 0
    )


def _compile(captured: Captured, settings: Options) -> Program:
    # Names and the user's lines are in the program, so that equal calls give equal bytes only if
    # they are in the key too.
    parts = {"trace": to_text(captured.imported.graph)}
    cache = open_cache(settings.wrapper)
    if not collecting():
        return compile_imported(captured.imported, settings, cache, Report(), parts).program
    # Something must be returned: a model of the same inputs and outputs that gives zeros.
    collect(captured.imported, settings, cache, parts)
    nowhere = CompileCache(None)
    return compile_imported(hollow(captured.imported), settings, nowhere, Report()).program


def _manifest(
    captured: Captured, names: Sequence[str], settings: Options, *, separate: bool
) -> Manifest:
    def source(number: int) -> tuple[str, int]:
        for kind, count in (("weight", len(captured.weights)), ("state", len(captured.states))):
            if number < count:
                return kind, number
            number -= count
        return "input", number

    def facts(held: Sequence[Held]) -> tuple[TensorFacts, ...]:
        return tuple(TensorFacts.of(item.name, item.value) for item in held)

    outputs: list[tuple[tuple[str, int], View | None]] = []
    for output in captured.imported.outputs:
        if output.kind == "constant":
            raise TraceError(f"a tensor that is returned became {output.value!r}")
        view = output.view
        place = ("result", output.index) if output.kind == "result" else source(output.index)
        outputs.append((place, None if view is None else (view.size, view.stride, view.offset)))
    arguments = captured.imported.arguments
    return Manifest(
        captured.imported.graph.name,
        settings.target,
        tuple(
            TensorFacts.of(name, value) for name, value in zip(names, captured.inputs, strict=True)
        ),
        facts(captured.weights),
        facts(captured.states),
        tuple(source(number) for number in arguments if isinstance(number, int)),
        tuple(outputs),
        separate,
    )


def _plain(value: torch.Tensor, *, copy: bool) -> torch.Tensor:
    """The tensor as models hold it: dense, in row-major order.

    Args:
        value: A weight or state.
        copy: Do not share memory with it. Without this, what is on the CPU is shared.
    """
    plain = value.detach().resolve_conj().resolve_neg().contiguous()
    shared = plain.data_ptr() == value.data_ptr()
    return plain.clone() if shared and (copy or plain.device.type != "cpu") else plain


def _script(source: Source, model: Any, weights: Sequence[Held]) -> torch.jit.ScriptModule:
    """The TorchScript module around a model, with the weights that are kept beside it."""
    module = torch.nn.Module()
    setattr(module, ATTRIBUTE, model)
    paths = []
    for held in weights:
        *parents, name = held.name.split(".")
        owner, path = module, "self"
        for parent in parents:
            if not hasattr(owner, parent):
                owner.add_module(parent, torch.nn.Module())
            owner, path = getattr(owner, parent), f"getattr({path}, '{parent}')"
        value = torch.nn.Parameter(_plain(held.value, copy=True), requires_grad=False)
        owner.register_parameter(name, value)
        paths.append(f"getattr({path}, '{name}')")
    module.eval()
    # A type of its own: torch.jit.script gives modules with equal attributes one, with one forward.
    script = create_script_module(module, lambda _: [], share_types=False)
    call, rest = "torch.ops.neuron.forward_v2", f", self.{ATTRIBUTE}"
    if weights:
        call, rest = "torch.ops.neuron.forward_weights", f", [{', '.join(paths)}]{rest}"
    text = source.text.format(call=call, rest=rest)
    script._c._define(script._concrete_type, text, source.types.get)  # noqa: SLF001
    return script  # type: ignore[no-any-return]


def _leave(
    folder: Path, captured: Captured, program: Program, info: NeffInfo, settings: Options
) -> None:
    """Write the files of `compiler_workdir`."""
    folder.mkdir(parents=True, exist_ok=True)
    compress = not settings.enable_fast_loading_neuron_binaries
    files: dict[str, str | bytes] = {
        "graph.fx.txt": captured.gm.print_readable(print_output=False),
        "graph.ir.txt": to_text(captured.imported.graph),
        "graph.hlo.pb": export_hlo(captured.imported.graph),
        "program.txt": program_to_text(program),
        "graph.neff": write_neff(program, info, compress=compress),
        "command.txt": shlex.join(["neuronx-cc", "compile", *settings.flags()]) + "\n",
        Path(settings.logfile).name: "".join(
            f"{line}\n"
            for line in (
                f"neuronx-cc: {info.name} for {info.target}, LNC {info.lnc}",
                f"{len(program.steps)} steps, {program.scratch_bytes} bytes of scratchpad",
                *(f"note: {note}" for note in settings.notes),
                "Compiler status PASS",
            )
        ),
    }
    for name, content in files.items():
        data = content.encode() if isinstance(content, str) else content
        write_whole(folder / name, data)
