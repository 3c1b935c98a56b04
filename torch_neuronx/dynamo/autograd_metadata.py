"""What AOTAutograd knows of the graphs that are being compiled, and what it has wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch._functorch._aot_autograd.functional_utils import ViewMetaSequence
from torch._functorch._aot_autograd.schemas import MutationType, OutputType
from torch._guards import TracingContext
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

_WHOLE = (OutputType.non_alias, OutputType.unsafe_view_alias)
_OF_RESULTS = OutputType.alias_of_intermediate_base_is_user_output
_OF_INTERMEDIATES = (
    OutputType.alias_of_intermediate,
    OutputType.alias_of_intermediate_save_as_output,
)


def metadata() -> Any:
    """AOTAutograd's `ViewAndMutationMeta`; None if it is not at work."""
    context = TracingContext.try_get()
    return None if context is None else context.fw_metadata


def returned() -> int | None:
    """How many results of AOTAutograd's forward graph are not kept for the backward pass."""
    meta = metadata()
    return None if meta is None else int(meta.num_forward)


def without_gradients() -> frozenset[int]:
    """Which results of AOTAutograd's forward graph its caller gets as tensors without gradients."""
    meta = metadata()
    if meta is None or meta.tokens:
        return frozenset()
    written = [x for x in meta.input_info if x.mutation_type is MutationType.MUTATED_OUT_GRAPH]
    of = [*written, *meta.output_info]
    return frozenset(i for i, info in enumerate(of) if not info.requires_grad)


def written_arguments() -> frozenset[str] | None:
    """What AOTAutograd's graphs call the arguments that are written to; None if nobody knows."""
    meta = metadata()
    if meta is None:
        return None
    kinds = enumerate(info.mutation_type for info in meta.input_info)
    written = (i for i, kind in kinds if kind is not MutationType.NOT_MUTATED)
    return frozenset(name for i in written for name in argument_names(i))


class MisnumberedResultsError(RuntimeError):
    """AOTAutograd has put an argument in the place of another result of its graph."""


def correct_results(gm: torch.fx.GraphModule, given: int) -> None:
    """Put right what AOTAutograd has wrong of the results of a graph.

    Args:
        gm: Its graph without gradients, or forward. It returns what was written to arguments, then
            the user's results, then intermediate tensors that are bases.
        given: How many arguments it was traced with.

    Raises:
        MisnumberedResultsError: that can't be; it has to trace once more, without writes.
    """
    meta = metadata()
    if meta is None:
        return
    _check_numbers(meta)
    if not meta.tokens:
        results = gm.graph.output_node().args[0]
        assert isinstance(results, Sequence)
        _correct_bases(meta, results)
        if len(meta.input_info) < given:
            _correct_views(meta, results, gm.graph.find_nodes(op="placeholder"))


def argument_names(number: int) -> tuple[str, str]:
    """What AOTAutograd's graphs call an argument: those with gradients, and those without."""
    return f"primals_{number + 1}", f"arg{number}_1"


def _check_numbers(meta: Any) -> None:
    """Compare the numbers of results that are arguments with those that AOTAutograd has.

    Where what was written to an argument leaves the graph as a result, and another argument that is
    written to in the graph is returned, AOTAutograd forgets that the former come first, and puts
    the argument in another result's place, which is gone. With all that is written leaving the
    graph it does not.
    """
    if not meta.num_mutated_inp_runtime_indices:
        return
    arguments = [o.base_idx for o in meta.output_info if o.output_type is OutputType.is_input]
    if any(meta.input_info[i].mutation_type is MutationType.MUTATED_IN_GRAPH for i in arguments):
        raise MisnumberedResultsError


def _correct_bases(meta: Any, results: Sequence[Any]) -> None:
    """Name the right base of each result that is a view of what its graph makes.

    Where arguments share memory and one is written to, or one is given twice, AOTAutograd numbers
    the arguments anew, and these bases with them, although they are numbers of results. The view is
    then made of another result, and the gradients through it are lost without a word.
    """
    first, count = meta.num_mutated_inp_runtime_indices, len(meta.output_info)
    memory = [_memory(x) for x in results]
    users, bases = memory[first : first + count], memory[first + count :]
    bases = bases[: meta.num_intermediate_bases]
    whole = [info.output_type in _WHOLE for info in meta.output_info]
    for i, info in enumerate(meta.output_info):
        if info.output_type is _OF_RESULTS:
            same = [j for j, x in enumerate(users) if whole[j] and x == users[i]]
        elif info.output_type in _OF_INTERMEDIATES:
            same = [j for j, x in enumerate(bases) if x == users[i]]
        else:
            continue
        if users[i] is not None and same and info.base_idx not in same:
            meta.output_info[i] = replace(info, base_idx=same[0])


def _correct_views(meta: Any, results: Sequence[Any], placeholders: Sequence[Any]) -> None:
    """Make results that are views of arguments views of the memory that several arguments share.

    Where one of these is written to, AOTAutograd gives its graph that memory in their stead, so
    that it has fewer arguments than were given. It goes on to make the results by what they were
    of the user's argument: of other rows, or by another shape.
    """
    arguments = {str(node.target): node for node in placeholders}
    results = results[meta.num_mutated_inp_runtime_indices :]
    for i, info in enumerate(meta.output_info):
        if info.output_type is OutputType.alias_of_input:
            names = argument_names(info.base_idx)
            base = next((arguments[name] for name in names if name in arguments), None)
            views = _right_views(info.view_meta_sequence, base, results[i])
            meta.output_info[i] = replace(info, view_meta_sequence=views)


def _right_views(views: Any, base: object, result: object) -> Any:
    """How a result is a view of its base: as AOTAutograd says if that is right, else by strides.

    Where it says nothing it would take the offset of what the graph returns, which is a tensor of
    its own here.
    """
    given, wanted = (getattr(node, "meta", {}).get("val") for node in (base, result))
    if not isinstance(given, torch.Tensor) or not isinstance(wanted, torch.Tensor):
        return views
    if given.dtype != wanted.dtype or given.storage_offset() or not given.is_contiguous():
        return views
    # PyTorch leaves those with symbols out.
    if views is not None and (
        any(view.has_symbolic_inputs for view in views.sequence) or _leads(views, given, wanted)
    ):
        return views
    with FunctionalTensorMode():
        whole = FunctionalTensor.to_functional(given.detach())
        # From where the base begins, which is elsewhere in its storage for another call.
        rest = whole.view(-1)[wanted.storage_offset() :]
        view = rest.as_strided(wanted.shape, wanted.stride())
        return ViewMetaSequence(cast("FunctionalTensor", view))


def _leads(views: Any, given: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Whether views of one tensor give another one."""
    try:
        got = torch._C._functionalization.apply_view_meta_sequence(given, views.sequence)
    except RuntimeError:  # they are of other sizes
        return False
    return _layout(got) == _layout(wanted)


def _layout(x: torch.Tensor) -> tuple[Any, ...]:
    return (x.shape, x.stride(), x.storage_offset(), x.dtype)


def _memory(node: object) -> int | None:
    """What identifies the storage of a node's tensor."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    return int(value.untyped_storage()._cdata)
