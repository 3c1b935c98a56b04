"""Outputs of a compiled function: results of the program, its arguments, or views of these.

AOTAutograd's graphs return many tensors that are views: transposed weights that the backward pass
wants, three slices of one product. The program computes the tensor that they are views of, once;
the views are made when the program returns.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from neuronxcc.addresses import Addresses, share_a_byte
from neuronxcc.lowering.geometry.layout import span


@dataclass(frozen=True, slots=True)
class Strided:
    """A view of a tensor: how it reads the memory that this one lies in.

    Attributes:
        size: Extents.
        stride: Elements from one to the next along each dimension.
        offset: Elements from where the tensor begins.
        dtype: What its elements are, if they are something else to the tensor.
        conj: They are to be conjugated when read.
        neg: They are to be negated when read.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype | None = None
    conj: bool = False
    neg: bool = False

    def of(self, base: torch.Tensor) -> torch.Tensor:
        """Make the view of a tensor."""
        begin = base.storage_offset()
        if self.dtype is not None:
            line = _bytes(base) // self.dtype.itemsize * self.dtype.itemsize // base.itemsize
            base = base.as_strided((line,), (1,), begin).view(self.dtype)
            begin = base.storage_offset()
        made = base.as_strided(self.size, self.stride, begin + self.offset)
        if self.conj:
            made = made.conj()
        return made._neg_view() if self.neg else made


@dataclass(frozen=True, slots=True)
class Output:
    """One value that the compiled function returns.

    kind "result": number `index` of the program's results; "argument": number `index` of the
    function's own arguments; "constant": `value`. With `view`, a view of that tensor.
    """

    kind: str
    index: int = -1
    view: Strided | None = None
    value: Any = None


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """How to return everything: one entry per output, and the FX nodes to compute for them."""

    outputs: tuple[Output, ...]
    roots: tuple[torch.fx.Node, ...]


def strided(value: torch.Tensor, base: torch.Tensor) -> Strided:
    """How a (fake) tensor is a view of a plain one, `base`, in whose memory it lies."""
    return Strided(
        tuple(map(int, value.shape)),
        tuple(map(int, value.stride())),
        _bytes_between(base, value) // value.element_size(),
        None if value.dtype == base.dtype else value.dtype,
        value.is_conj(),
        value.is_neg(),
    )


def _bytes_between(base: torch.Tensor, value: torch.Tensor) -> int:
    first, other = (int(x.storage_offset()) * x.element_size() for x in (base, value))
    return other - first


def _bytes(value: torch.Tensor) -> int:
    """How much memory a tensor lies in, gaps included."""
    return span(value.shape, value.stride()) * value.element_size()


def plan_outputs(
    returned: Sequence[Any],
    placeholders: Mapping[torch.fx.Node, int],
    mutated: Collection[torch.fx.Node],
    constant: Callable[[torch.fx.Node], Any],
    depends_only_on: Callable[[torch.fx.Node, torch.fx.Node], bool],
    *,
    any_type: bool = True,
) -> OutputPlan:
    """Decide what to compute and how to return it.

    Args:
        returned: What the FX graph returns: nodes and constants.
        placeholders: Tensor arguments and their numbers.
        mutated: Those that the graph updates in place.
        constant: The value of a node that is not a tensor; an `Output` if it is an argument.
        depends_only_on: Whether a tensor is computed from one argument and nothing else. Fake
            tensors do not always tell: PyTorch caches those of a region that is called twice, so
            the results of the second call seem to share memory with arguments of the first.
        any_type: Results may be views of what the program makes that see it as another type, or
            conjugated or negated.
    """
    owners: dict[int, list[torch.fx.Node]] = {}
    for node in placeholders:
        owners.setdefault(storage_of(node), []).append(node)
    returned = [_written(item) for item in returned]
    returned = [
        None if isinstance(n, torch.fx.Node) and constant(n) is None else n for n in returned
    ]
    bases = _bases(returned, owners, mutated, depends_only_on, any_type=any_type)
    roots: dict[torch.fx.Node, int] = {}
    # AOTAutograd says of a tensor object whether it has gradients, so a tensor and what was
    # detached from it have to be two, and only one node is the result itself.
    themselves = {node: node for node, base in bases.items() if node is base}
    outputs: list[Output] = []
    for node in returned:
        if not isinstance(node, torch.fx.Node) or not _is_tensor(node):
            value = constant(node) if isinstance(node, torch.fx.Node) else node
            known = value if isinstance(value, Output) else Output("constant", value=value)
            outputs.append(known)
            continue
        if node in placeholders:
            outputs.append(Output("argument", placeholders[node]))
            continue
        base = bases[node]
        view = strided(node.meta["val"], base.meta["val"])
        if base in placeholders:
            outputs.append(Output("argument", placeholders[base], view))
            continue
        number = roots.setdefault(base, len(roots))
        whole = view == strided(base.meta["val"], base.meta["val"])
        itself = whole and themselves.setdefault(base, node) is node
        outputs.append(Output("result", number, None if itself else view))
    return OutputPlan(tuple(outputs), tuple(roots))


def _written(item: Any) -> Any:
    """`copy_` at the end of a graph returns the argument that it wrote."""
    while isinstance(item, torch.fx.Node) and item.target is torch.ops.aten.copy_.default:
        item = item.args[0]
    return item


def _is_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def storage_of(node: torch.fx.Node) -> int:
    """Return what identifies the storage of a node's tensor."""
    return int(node.meta["val"].untyped_storage()._cdata)


def _bases(
    returned: Sequence[Any],
    owners: Mapping[int, Sequence[torch.fx.Node]],
    mutated: Collection[torch.fx.Node],
    depends_only_on: Callable[[torch.fx.Node, torch.fx.Node], bool],
    *,
    any_type: bool,
) -> dict[torch.fx.Node, torch.fx.Node]:
    """For every returned tensor the node whose tensor is computed for it: itself, or its base."""
    can_show = _viewable if any_type else _same
    bases: dict[torch.fx.Node, torch.fx.Node] = {}
    groups: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    nodes = dict.fromkeys(n for n in returned if isinstance(n, torch.fx.Node) and _is_tensor(n))
    for node in nodes:
        bases[node] = node
        if among := owners.get(storage_of(node)):
            # A view of an argument that is overwritten was meant to show the old values.
            if not any(owner in mutated for owner in among):
                bases[node] = next(
                    (x for x in among if can_show(node, x) and depends_only_on(node, x)), node
                )
            continue
        base = root(node)
        if can_show(node, base) and _is_whole(base.meta["val"]):
            groups.setdefault(base, []).append(node)
    for base, members in groups.items():
        kept = sum(n.meta["val"].nbytes for n in members)
        much = 2 * kept >= base.meta["val"].nbytes
        if base in members or much or _overlap([n.meta["val"] for n in members]):
            bases.update(dict.fromkeys(members, base))
    return bases


def _overlap(members: Sequence[torch.Tensor]) -> bool:
    """Whether two views of one memory share an element, so that a write to one changes the other.

    In doubt they do.
    """
    pairs = itertools.combinations(map(_addresses, members), 2)
    return any(share_a_byte(a, b) is not False for a, b in pairs)


def _addresses(x: torch.Tensor) -> Addresses:
    size = x.element_size()
    strides = [size * int(step) for step in x.stride()]
    return Addresses(tuple(map(int, x.shape)), strides, size, size * int(x.storage_offset()))


def _same(node: torch.fx.Node, base: torch.fx.Node) -> bool:
    """Return whether both are values of one type that are read from memory in one way."""
    one, other = node.meta["val"], base.meta["val"]
    return bool(one.dtype == other.dtype and is_lazy(one) == is_lazy(other))


def _viewable(node: torch.fx.Node, base: torch.fx.Node) -> bool:
    """Return whether a view of `base` can stand for `node`."""
    value, whole = node.meta["val"], base.meta["val"]
    size = value.element_size()
    ends = _bytes_between(whole, value) + _bytes(value)
    if any(is_lazy(whole)) or _bytes_between(whole, value) % size:
        return False
    return bool(value.dtype == whole.dtype or ends <= _bytes(whole) // size * size)


def is_lazy(value: torch.Tensor) -> tuple[bool, bool]:
    """Whether what is read from memory is to be conjugated, and negated."""
    return value.is_conj(), value.is_neg()


def _is_whole(value: torch.Tensor) -> bool:
    """Return whether a tensor fills its storage: computing it makes all that views show."""
    size = value.untyped_storage().nbytes()
    return value.storage_offset() == 0 and int(size) == value.numel() * value.element_size()


def root(node: torch.fx.Node, *, same_type: bool = False) -> torch.fx.Node:
    """Follow views back to the node that made the memory.

    Args:
        node: A tensor.
        same_type: Go back as long as the memory is seen as elements of this one's type.
    """
    storage, dtype = storage_of(node), node.meta["val"].dtype
    while True:
        source = _source(node)
        if source is None or storage_of(source) != storage:
            return node
        if same_type and source.meta["val"].dtype != dtype:
            return node
        node = source


def _source(node: torch.fx.Node) -> torch.fx.Node | None:
    """The tensor that this node may be a view of."""
    if node.op != "call_function" or not node.args:
        return None
    first = node.args[0]
    if isinstance(first, torch.fx.Node) and not _is_tensor(first) and first.args:
        first = first.args[0]  # an element of what a splitting operator returned
    return first if isinstance(first, torch.fx.Node) and _is_tensor(first) else None
