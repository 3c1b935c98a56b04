"""Which types and numbers PyTorch's operators refuse: what eager mode refuses is refused here too.

PyTorch has no table of it, its fake kernels let much pass, and its decompositions more: they are
written of operators that take other types. So what the user called is asked itself, on the CPU and
with tensors of ones; once for each mixture of types and numbers. That is done twice: for the
functions that Dynamo captured, before anything is decomposed, and for operators whose mixture of
types stands out when they are lowered (under autocast the types are known only then).
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from torch_neuronx.dynamo import trusting
from torch_neuronx.dynamo.errors import RefusedArgumentError, RefusedTypesError
from torch_neuronx.dynamo.locations import location, operator_name

# Larger arguments and results are not made for a question.
_ELEMENTS = 1 << 20
# What else an operator may dislike about ones is not known to be wrong with the user's numbers.
_ABOUT_TYPES = re.compile(
    r"dtype|scalar type|data type|not implemented for|[Ii]nput type|floating point|"
    r"(bool|integral|integer) tensor|result type|desired output type|"
    r"(complex|[Bb]oolean|bool) (inputs?|types?|tensors?|numbers)|[Tt]ypes is not supported|"
    r"Expected a long tensor|index tensor of type|Half, Float or Double"
)
# What it says of numbers and names among the arguments, whatever the tensors hold.
_ABOUT_NUMBERS = re.compile(
    r"can only be|cannot be 0 for|p has to be greater|Dimension out of range|"
    r"(has to|must|should) be (between|in the range|one of|non-negative)|"
    r"negative integer powers|must align|Boolean alpha|Expected reduction dim -1 or 0 for scalar|"
    r"appears multiple times|does not support n(egative|on-positive)"
)
# What it says of sizes that fake kernels don't compare.
_ABOUT_SIZES = re.compile(
    r"supposed to be a vector|size equal to the slice|same number of elements|"
    r"match the broadcast shape"
)
# What it says where an argument or a result has no elements, whose sizes are asked for as they are.
_ABOUT_EMPTY = re.compile(
    r"non-zero size|[Nn]on-empty|no identity|is empty|empty tensor|numel\(\) == 0|"
    r"kernel size should be|greater than 0"
)
# The CPU has no kernel at all.
_ABSENT = re.compile(r"Could not run '")
_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
# Functions that the device has kernels of its own for, which take what the CPU's do not.
_OWN = frozenset(
    {
        *("_grouped_mm", "grouped_mm", "_scaled_grouped_mm", "_scaled_grouped_mm_v2"),
        *("scaled_grouped_mm", "_scaled_mm", "_scaled_mm_v2", "scaled_mm"),
    }
)
# The CPU refuses integers here, CUDA takes them, and models of experts count on it.
_TAKE_INTEGERS = frozenset({"histc"})
# Functions whose fake kernels take tensors of several devices, which eager mode refuses; and from
# which tensor on those of the CPU go along, if they have no more dimensions than that.
_NONE, _NUMBERS, _INDICES = (1 << 30, 0), (1, 0), (1, 1 << 30)
_COMPARES_NO_DEVICES: dict[str, tuple[int, int]] = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution"), _NONE),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _NONE),
    **dict.fromkeys(("embedding", "native_dropout_backward", "stack"), _NONE),
    **dict.fromkeys(("masked_scatter", "masked_scatter_", "linalg_pinv", "pinverse"), _NONE),
    **dict.fromkeys(("put", "put_", "masked_fill", "masked_fill_", "complex", "polar"), _NUMBERS),
    **dict.fromkeys(("convolution_overrideable", "_unsafe_masked_index_put_accumulate"), _NONE),
    "_amp_foreach_non_finite_check_and_unscale": _NONE,
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor", "soft_margin_loss"), _NUMBERS),
    **dict.fromkeys(("index_fill", "index_fill_", "binary_cross_entropy_with_logits"), (2, 0)),
    "getitem": _INDICES,
}
# Functions whose fake kernels do not compare sizes: they are asked for each combination of them.
_COMPARES_NO_SIZES = frozenset(
    {
        *("diagonal_scatter", "select_scatter", "slice_scatter", "put", "put_", "soft_margin_loss"),
        "squeeze",  # nor its numbers
    }
)
# What was taken once, by types and numbers. What was not is asked for again: it may have been for
# the sizes, which are no part of these keys.
_TAKEN: set[tuple[object, ...]] = set()

# Where PyTorch's own functions of tensors are from.
_MODULES = frozenset(
    {
        "_operator",
        "torch",
        "torch._C._fft",
        "torch._C._linalg",
        "torch._C._nn",
        "torch._C._special",
        "torch.functional",
        "torch.masked._ops",
        "torch.nn.functional",
    }
)
# They say where a tensor is or what becomes of its gradient, whatever its type.
_NOT_COMPUTING = frozenset({"backward", "cuda", "neuron", "pin_memory", "requires_grad_", "set_"})


def check_devices(gm: torch.fx.GraphModule) -> None:
    """Compare the devices of the tensors of each call where PyTorch does not.

    Args:
        gm: Dynamo's graph. Of a model that was left on the CPU, autograd makes none from it, and an
            internal error instead.

    Raises:
        RefusedArgumentError: Those of one call are on several devices.
    """
    for node in gm.graph.nodes:
        function = _function(node) if node.op in {"call_function", "call_method"} else None
        if function is None:
            continue
        given = [n.meta.get("example_value") for n in node.all_input_nodes]
        text = several_devices(function, given)
        if text:
            raise RefusedArgumentError(operator_name(node.target), location(node), text)


def several_devices(function: object, given: object) -> str:
    """PyTorch's error about tensors of several devices; "" if there is none to add.

    Args:
        function: Of PyTorch's, or an operator.
        given: What it is called with, fake.
    """
    rule = _COMPARES_NO_DEVICES.get(_name(function))
    if rule is None:
        return ""
    tensors, (first, dims) = _tensors(given), rule
    others = (t for t in tensors[first:] if t.dim() > dims or t.device.type != "cpu")
    tensors = [*tensors[:first], *others]
    devices = list(dict.fromkeys(t.device for t in tensors))
    if len(devices) < 2:
        return ""
    return (
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{devices[0]} and {devices[1]}!"
    )


def check_types(gm: torch.fx.GraphModule) -> None:
    """Ask every function of PyTorch's that Dynamo captured whether it takes its arguments' types.

    Args:
        gm: Dynamo's graph.

    Raises:
        RefusedTypesError: One does not.
    """
    for node in _outside_of_autocast(gm):
        value = node.meta.get("example_value")
        function = _function(node)
        if function is None or not _tensors(value):
            continue
        args, kwargs = torch.fx.map_arg(
            (node.args, dict(node.kwargs)), lambda n: n.meta.get("example_value")
        )
        tensors = _tensors((args, kwargs))
        if not all(map(_is_plain, tensors)):
            continue
        text = _answer(function, args, kwargs, value)
        if text:
            kind = RefusedTypesError if _ABOUT_TYPES.search(text) else RefusedArgumentError
            raise kind(operator_name(node.target), location(node), text)


def _outside_of_autocast(gm: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    """The calls whose arguments autocast leaves as they are."""
    if torch.is_autocast_enabled("neuron"):
        return
    entered = 0
    for node in gm.graph.nodes:
        if node.target is torch.amp.autocast_mode._enter_autocast:
            entered += 1
        elif node.target is torch.amp.autocast_mode._exit_autocast:
            entered -= 1
        elif not entered and node.op in {"call_function", "call_method"}:
            yield node


def _function(node: torch.fx.Node) -> Callable[..., Any] | None:
    """The function that a node calls, if it is PyTorch's and computes tensors."""
    target: Any = node.target
    if node.op == "call_method":
        return None if target in _NOT_COMPUTING else getattr(torch.Tensor, target, None)
    if isinstance(target, OpOverload | OpOverloadPacket):
        return target if str(target).startswith("aten.") else None
    return target if getattr(target, "__module__", None) in _MODULES else None


def refusal(node: torch.fx.Node, target: object, *, any_types: bool = False) -> str:
    """The error of PyTorch about the types of a call's arguments, "" if there is none.

    Args:
        node: Of one of AOTAutograd's graphs; arguments carry fake tensors.
        target: What it calls.
        any_types: Ask although no mixture of types stands out: the lowering has failed.
    """
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return ""
    if torch.Tag.nondeterministic_seeded in target.tags or target._schema.is_mutable:
        return ""
    if node.meta.get("autograd_backward"):
        # Its types are not the user's: what autograd saved has those of PyTorch's rules.
        return ""
    args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), lambda n: n.meta.get("val"))
    if not any_types and not _stands_out([t.dtype for t in _tensors((args, kwargs))]):
        return ""
    return _answer(target, args, kwargs, node.meta.get("val"))


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _is_plain(t: torch.Tensor) -> bool:
    """Return whether ones can stand for it: it is dense, and of no class of its own."""
    return type(t) in {torch.Tensor, FakeTensor, torch.nn.Parameter} and t.layout is torch.strided


def _stands_out(types: list[torch.dtype]) -> bool:
    """Return whether these are two types of floats, or no floats at all."""
    floats = {dtype for dtype in types if dtype.is_floating_point or dtype.is_complex}
    return bool(types) and floats <= _FLOATS and len(floats) != 1


def _answer(function: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> str:
    """The error of a function about types of fake arguments; "" if none, or if it isn't asked."""
    given = _tensors((args, kwargs))
    if not given or _takes_more(function, given):
        return ""
    try:
        args, kwargs = pytree.tree_map(_hint, (args, kwargs))
        sizes, results = ([_sizes(t) for t in some] for some in (given, _tensors(result)))
    except _UnknownSizeError:
        return ""
    if max(sum(map(math.prod, sizes)), sum(map(math.prod, results))) > _ELEMENTS:
        return ""
    leaves, shape = pytree.tree_flatten((args, kwargs))
    empty = any(0 in size for size in (*sizes, *results))
    by_sizes = _name(function) in _COMPARES_NO_SIZES or empty
    what = tuple(_kind(leaf, by_sizes=by_sizes) for leaf in leaves)
    key = (function, what, shape, tuple(sizes) if by_sizes else (), empty)
    if key in _TAKEN:
        return ""
    text = _asked(function, args, kwargs, empty=empty)
    if not text:
        _TAKEN.add(key)
    return text


class _UnknownSizeError(Exception):
    """Data decide it."""


def _hint(value: Any) -> Any:
    """What a symbolic number is in the call that the graph was captured in; all else as it is.

    Raises:
        _UnknownSizeError: It is not known yet.
    """
    if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value
    if not value.node.has_hint():
        raise _UnknownSizeError
    return value.node.hint


def _sizes(t: torch.Tensor) -> tuple[int, ...]:
    return tuple(_hint(n) for n in t.shape)


def _name(function: object) -> str:
    """The name of a function, or of an operator without its overload."""
    packet = function.overloadpacket if isinstance(function, OpOverload) else function
    return str(getattr(packet, "__name__", ""))


def _takes_more(function: Callable[..., Any], given: list[torch.Tensor]) -> bool:
    """Return whether the CPU's answer is not that of the device."""
    name = _name(function)
    integers = all(not t.is_floating_point() and not t.is_complex() for t in given)
    truths = any(t.dtype is torch.bool for t in given)
    return name in _OWN or (name in _TAKE_INTEGERS and integers and not truths)


def _kind(leaf: Any, *, by_sizes: bool) -> object:
    """The part of an argument that decides whether it is taken.

    Whole numbers are mostly sizes, of which there are too many to ask for each, unless this is a
    question about sizes. Those that no function of sizes takes, below 1, are asked for.
    """
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype, leaf.dim()
    if isinstance(leaf, bool | str | torch.dtype):
        return leaf
    asked = isinstance(leaf, float) or (isinstance(leaf, int) and (by_sizes or leaf < 1))
    return type(leaf), repr(leaf) if asked else ""


def _asked(function: Callable[..., Any], args: Any, kwargs: Any, *, empty: bool) -> str:
    """The error of a function about tensors of ones, or of zeros if ones are no labels to it.

    `empty`: an argument or a result has no elements.
    """

    def error(fill: Callable[..., torch.Tensor], *, wide: bool = False) -> str | None:
        return _error(function, *_real((args, kwargs), fill, wide=wide))

    with (
        unset_fake_temporarily(),
        _disable_current_modes(),
        torch._C.DisableTorchFunction(),
        torch.no_grad(),
        torch.random.fork_rng(devices=[]),  # numbers drawn here are not the user's
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        text = error(torch.ones)
        if text == "":
            return ""
        said = _known(text, empty=empty)
        if said and _ABOUT_TYPES.search(said):
            return said
        # Whatever its words are, what it takes as float32 it refuses for the type.
        unknown = text is not None and said is None
        if unknown and _has_other_floats((args, kwargs)) and error(torch.ones, wide=True) == "":
            return text or ""
        again = _known(error(torch.zeros), empty=empty)
        # What it says of ones, and not of zeros, is about what tensors hold.
        about_types = again is not None and _ABOUT_TYPES.search(again)
        return (again or "") if again == said or about_types else ""


def _has_other_floats(value: Any) -> bool:
    return any(t.is_floating_point() and t.dtype is not torch.float32 for t in _tensors(value))


def _real(value: Any, fill: Callable[..., torch.Tensor], *, wide: bool) -> Any:
    """Tensors of the CPU in place of fake ones; `wide`: floats as float32."""

    def real(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            dtype = torch.float32 if wide and leaf.is_floating_point() else leaf.dtype
            return fill(_sizes(leaf), dtype=dtype, device="cpu")
        return torch.device("cpu") if isinstance(leaf, torch.device) else leaf

    return pytree.tree_map(real, value)


def _error(function: Callable[..., Any], args: Any, kwargs: Any) -> str | None:
    """The first line of its error about tensors of the CPU, "" if it takes them.

    None if it can't be asked.
    """
    try:
        trusting.call(function, args, kwargs)
    except trusting.UnmetDemandError:
        return None
    except (RuntimeError, TypeError, ValueError, IndexError, AssertionError) as error:
        return str(error).partition("\n")[0]
    return ""


def _known(text: str | None, *, empty: bool) -> str | None:
    """An error's text if it is about types, numbers or sizes, else None; "" if there is none."""
    if not text:
        return text
    about: tuple[re.Pattern[str], ...] = (_ABOUT_TYPES, _ABOUT_NUMBERS, _ABOUT_SIZES)
    if empty:
        about = (*about, _ABOUT_EMPTY)
    known = any(pattern.search(text) for pattern in about)
    return text if known and not _ABSENT.match(text) else None
