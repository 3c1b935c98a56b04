"""Which operators a program may name: it may come from a file that anyone wrote.

Of PyTorch's own namespaces these are the functions of tensors, numbers and named modes that change
nothing. The rule reads schemas, so it holds for operators that PyTorch adds. Everything else is
allowed only if the graph that the program was made for, which is in this process, calls it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from neuronxcc.ir.calls import CHECKS
from neuronxcc.program.errors import NeffError
from neuronxcc.program.program import CallStep, Program, all_steps
from neuronxcc.program.steps.operator import AtenStep

NAMESPACES = frozenset({"aten", "prims"})

# Types of arguments, without "optional" and "list of". Strings are a matter of their own, below;
# storages, streams and objects of classes are no data of a program.
_KINDS = frozenset(
    {
        "TensorType",
        "NumberType",
        "IntType",
        "SymIntType",
        "FloatType",
        "ComplexType",
        "BoolType",
        "ScalarTypeType",
        "LayoutType",
        "MemoryFormatType",
        "DeviceObjType",
        "GeneratorType",
    }
)
# Names of string arguments that choose what is computed. Not among them: names of files, texts to
# be printed.
_MODES = frozenset(
    {
        "approximate",
        "activation",
        "algorithm",
        "driver",
        "equation",
        "indexing",
        "interpolation",
        "mode",
        "norm",
        "ord",
        "p",
        "pad_mode",
        "padding",
        "padding_mode",
        "padding_side",
        "reduce",
        "rounding_mode",
        "side",
        "UPLO",
        "assert_msg",
        "api_name",
    }
)
# Kernels that read what their arguments promise instead of looking, and that no model needs by
# name: parts of others, for other processors' formats, or for modules that PyTorch has replaced.
_TRUSTING = frozenset(
    {
        "_autocast_to_full_precision",
        "_autocast_to_reduced_precision",
        "_efficientzerotensor",  # without memory
        "_foreach_copy",
        "_dyn_quant_matmul_4bit",
        "_dyn_quant_pack_4bit_weight",
        "_nnpack_spatial_convolution",
        "_slow_conv2d_backward",
        "_slow_conv2d_forward",
        "_thnn_differentiable_gru_cell_backward",
        "_thnn_differentiable_lstm_cell_backward",
        "gru",
        "lstm",
        "mkldnn_rnn_layer",
        "mkldnn_rnn_layer_backward",
        "quantized_gru_cell",
        "quantized_lstm_cell",
        "quantized_rnn_relu_cell",
        "quantized_rnn_tanh_cell",
        "rnn_relu",
        "rnn_tanh",
    }
)
_TRUSTING_PREFIXES = ("fbgemm_", "_cslt_", "_mkldnn", "mkldnn_", "_sparse_", "sparse_", "prim_")


def operator(target: str) -> Callable[..., Any]:
    """The operator of a qualified name with overload."""
    namespace, rest = target.split("::")
    name, _, overload = rest.partition(".")
    found: Callable[..., Any] = getattr(
        getattr(getattr(torch.ops, namespace), name), overload or "default"
    )
    return found


def check_operators(program: Program, known: frozenset[str] = frozenset()) -> None:
    """Check the operators of a program and of the bodies in it.

    Args:
        program: The program.
        known: Further operators, "namespace::name.overload", that it may use: those of the graph
            it was made for.

    Raises:
        NeffError: It names another one; status 2 (NRT_INVALID).
    """
    for number, step in enumerate(all_steps(program.steps)):
        if isinstance(step, CallStep):
            for body in step.bodies:
                check_operators(body, known)
        elif isinstance(step, AtenStep) and not _is_known(step.target, known):
            why = refusal(step.target)
            if why:
                raise NeffError(
                    f"NRT_INVALID (status 2): program {program.name!r}, step {number} names "
                    f"{step.target}, {why}. A program from a file may use aten and prims operators "
                    "that change nothing but their results, and others only if the graph it is "
                    "loaded for calls them: compile the model in this process with "
                    f'torch.compile(backend="neuron"){_remedy(step.target)}'
                )


def _remedy(target: str) -> str:
    """The remedy for operators that are not PyTorch's."""
    base = _base(target)
    if base.partition("::")[0] in NAMESPACES:
        return ""
    return (
        ", or, if you trust the file, allow it before loading: "
        f"torch_neuronx.allow_operators({base!r})"
    )


# What allow_operators was given.
_ALLOWED: set[str] = set()


def allow_operators(*names: str) -> None:
    """Let programs from files use operators of your own, in this process from now on.

    A traced model keeps the calls of operators that are not PyTorch's, and runs them on the host.
    The process that loads it must have registered them, and must say here that it trusts files that
    call them.

    Args:
        names: "namespace::name" for all overloads, or "namespace::name.overload".

    Raises:
        ValueError: A name has another form, names no operator of this process, or one of PyTorch's,
            of which those are refused that read files, print or change memory.
    """
    for name in names:
        base, _, overload = name.partition(".")
        namespace, _, operator = base.partition("::")
        if namespace in NAMESPACES:
            raise ValueError(
                f"allow_operators got {name!r}: it is for operators of your own; which of "
                f"{namespace} a file may use is decided by what they do"
            )
        found = getattr(getattr(torch.ops, namespace, None), operator, None) if operator else None
        if found is None or (overload and overload not in found.overloads()):
            raise ValueError(
                f"allow_operators got {name!r}: there is no such operator in this process; import "
                "the library that registers it first, and name it 'namespace::name'"
            )
    _ALLOWED.update(names)


def _base(target: str) -> str:
    return target.partition(".")[0]


def _is_known(target: str, known: frozenset[str]) -> bool:
    return target in CHECKS or target in known or target in _ALLOWED or _base(target) in _ALLOWED


@functools.cache
def refusal(target: str) -> str:
    """Why a program may not use an operator unless its graph does; "" if it may."""
    namespace, _, name = target.partition("::")
    if namespace not in NAMESPACES:
        return f"of the namespace {namespace!r}"
    name, _, overload = name.partition(".")
    if name in _TRUSTING or name.startswith(_TRUSTING_PREFIXES):
        return "whose kernel trusts its caller"
    try:
        schema = torch._C._get_schema(
            f"{namespace}::{name}", "" if overload == "default" else overload
        )
    except RuntimeError:
        return "which this PyTorch does not have"
    why = next(filter(None, map(_refusal_of_argument, schema.arguments)), "")
    return why or ("" if schema.returns else "which returns nothing")


def _refusal_of_argument(argument: Any) -> str:
    if argument.alias_info is not None and argument.alias_info.is_write:
        return f"which writes to its argument {argument.name!r}"
    kind = _element(argument.type).kind()
    if kind == "StringType" and argument.name not in _MODES:
        return f"whose argument {argument.name!r} is a free text"
    if kind not in _KINDS and kind != "StringType":
        return f"whose argument {argument.name!r} is of type {argument.type}"
    return ""


def _element(type_: Any) -> Any:
    """The type inside of optional types and lists."""
    while type_.kind() in {"OptionalType", "ListType"}:
        type_ = type_.getElementType()
    return type_
