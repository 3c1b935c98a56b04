"""What operators of eager mode are predicted to take: all that PyTorch has samples of, by class.

A chip whose memory is slow, so that bytes decide: then an operator takes at least what it has to
write, and one that works on elements also what it reads. What the table calls a view takes nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._ops import OpOverload
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import torch_neuronx
from neuronxcc.perf.graphs import Machine
from tests.shallow import shallow
from torch_neuronx.distributed.planning.placement import Placement
from torch_neuronx.estimation.operators import operator_us
from torch_neuronx.estimation.session import placed
from torch_neuronx.ops.entry import Engine, base_name
from torch_neuronx.ops.lookup import entry_or_unknown

aten = torch.ops.aten
#: The host waits for what they read; no engine works.
READS = aten._local_scalar_dense.default
#: In place, and their whole first argument is new.
FILLS = frozenset({"copy", "fill", "zero", "uniform", "normal", "exponential", "random"})


def slow(gbps: float = 1e-3) -> Placement:
    """A core of trn2 whose memory is a million times slower."""
    known = placed("trn2", 2)
    return dataclasses.replace(known, target=dataclasses.replace(known.target, hbm_gbps=gbps))


def rate(placement: Placement) -> float:
    """Bytes in a microsecond."""
    return Machine.of(placement.target, placement.lnc).dma_gbps * 1e3


def extent(tensor: Tensor) -> int:
    """Bytes of a tensor's memory: an element that is seen many times counts once."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= size if stride or not size else 1
    return elements * tensor.element_size()


class Called(NamedTuple):
    """One call of an operator, and what is known of it without any model."""

    func: OpOverload
    arguments: list[Any]  # all of its schema's, with meta tensors
    least: int  # bytes that it reads or writes at least

    def us(self, placement: Placement) -> float:
        """Its predicted time."""
        return operator_us(self.func, self.arguments, placement)


def engine_of(func: OpOverload) -> Engine:
    """Who runs an operator, by the table."""
    return entry_or_unknown(base_name(func._schema.name)).engine


def on_meta(func: OpOverload, args: Any, kwargs: Any) -> list[Any]:
    """The arguments of a call as the process that answers has them."""
    fakes: dict[Tensor, Tensor] = {}

    def meta(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if leaf not in fakes:
            fakes[leaf] = torch.empty_strided(
                leaf.shape, leaf.stride(), dtype=leaf.dtype, device="meta"
            )
        return fakes[leaf]

    given, found = list(args), []
    for about in func._schema.arguments:
        value = kwargs.get(about.name, about.default_value)
        if given and not about.kwarg_only:
            value = given.pop(0)
        found.append(torch.device("neuron") if about.name == "device" else tree_map(meta, value))
    return found


class Noted(TorchDispatchMode):
    """Notes the calls of operators that results come of."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Called] = []

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        arguments = on_meta(func, args, kwargs)
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        memory = {leaf.untyped_storage()._cdata: extent(leaf) for leaf in given}
        result = func(*args, **kwargs)
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        fresh = {leaf.untyped_storage()._cdata: extent(leaf) for leaf in made}
        written = sum(size for key, size in fresh.items() if key not in memory)
        read = 0
        name = base_name(func._schema.name)
        if torch.Tag.pointwise in func.tags or (name in FILLS and func._schema.is_mutable):
            written = written or sum(fresh.values())
        if torch.Tag.pointwise in func.tags:
            read = sum(memory.values())
        self.calls.append(Called(func, arguments, read + written))
        return result


@cache
@shallow
def calls() -> list[Called]:
    """By operator and overload its largest call among PyTorch's samples."""
    found: dict[Any, Called] = {}
    for one in _noted():
        if one.func not in found or found[one.func].least < one.least:
            found[one.func] = one
    return list(found.values())


def _noted() -> Iterator[Called]:
    for info in op_db:
        if info.name.startswith("jiterator"):
            continue  # of CUDA alone
        dtype = torch.float32
        if dtype not in info.dtypes:
            dtype = min(info.dtypes, key=str, default=dtype)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what PyTorch will take away, or has as a beta
            sample = next(iter(info.sample_inputs("cpu", dtype, requires_grad=False)))
            # What has no memory or does not run on the CPU is left out.
            with Noted() as noted, contextlib.suppress(RuntimeError, NotImplementedError):
                info.op(sample.input, *sample.args, **sample.kwargs)
        yield from noted.calls


@shallow
def test_an_operator_takes_what_its_bytes_take_and_a_view_nothing() -> None:
    core = slow()
    wrong, judged = [], dict.fromkeys(("view", "moves"), 0)
    for one in calls():
        engine = engine_of(one.func)
        # Who waits for the host is not the core; how much there is, only the run knows.
        unknown = one.func is READS or torch.Tag.dynamic_output_shape in one.func.tags
        if engine is Engine.HOST or unknown:
            continue
        us = one.us(core)
        view = engine is Engine.VIEW
        judged["view" if view else "moves"] += 1
        if us != 0 if view else us * (1 + 1e-9) < one.least / rate(core):
            wrong.append((str(one.func), us, one.least / rate(core)))
    assert not wrong
    assert judged["view"] > 15
    assert judged["moves"] > 300


def f32(*shape: int) -> Tensor:
    return torch.empty(shape, device="meta")


#: By name: the call for n elements or rows of 64, and how many bytes it reads and writes at least.
MOVES: dict[str, Any] = {
    "clone": (aten.clone.default, lambda n: [f32(n), None], 8),
    "clone of a transpose": (
        aten.clone.default, lambda n: [f32(n, 64).t(), torch.contiguous_format], 8 * 64,
    ),
    "copy": (aten.copy_.default, lambda n: [f32(n), f32(n), False], 8),
    "copy of one number": (aten.copy_.default, lambda n: [f32(n), f32(1).expand(n), False], 4),
    "conversion": (
        aten._to_copy.default, lambda n: [f32(n), torch.bfloat16, *[None] * 3, False, None], 6,
    ),
    "fill": (aten.fill_.Scalar, lambda n: [f32(n), 1.0], 4),
    "zero": (aten.zero_.default, lambda n: [f32(n)], 4),
    "zeros": (aten.zeros.default, lambda n: [[n], *[None] * 2, torch.device("neuron"), None], 4),
    "full like": (aten.full_like.default, lambda n: [f32(n), 1.0, *[None] * 5], 4),
    "cat": (aten.cat.default, lambda n: [[f32(n), f32(n)], 0], 16),
    "stack": (aten.stack.default, lambda n: [[f32(n), f32(n)], 0], 16),
    "repeat": (aten.repeat.default, lambda n: [f32(n), [3]], 16),
    "flip": (aten.flip.default, lambda n: [f32(n), [0]], 8),
    "roll": (aten.roll.default, lambda n: [f32(n), [1], [0]], 8),
    "pad": (aten.constant_pad_nd.default, lambda n: [f32(n), [1, 1], 0], 8),
    "view copied": (aten.view_copy.default, lambda n: [f32(n, 2), [2 * n]], 16),
    "permuted copy": (aten.permute_copy.default, lambda n: [f32(n, 64), [1, 0]], 8 * 64),
    "slice written": (
        aten.slice_scatter.default, lambda n: [f32(n, 64), f32(1, 64), 0, 0, 1, 1], 8 * 64,
    ),
    "slice copied": (aten.slice_copy.Tensor, lambda n: [f32(2 * n, 64), 0, 0, n, 1], 8 * 64),
    "split copied": (
        aten.split_with_sizes_copy.default, lambda n: [f32(2 * n), [n, n], 0], 16,
    ),
    "list copied": (
        aten._foreach_copy_.default, lambda n: [[f32(n), f32(n)], [f32(n), f32(n)], False], 16,
    ),
    "list added to": (aten._foreach_add_.Scalar, lambda n: [[f32(n), f32(n)], 1.0], 16),
    "sum": (aten.sum.default, lambda n: [f32(n), None], 4),
    "product": (aten.mm.default, lambda n: [f32(n, 64), f32(64, 64)], 8 * 64),
    "softmax": (aten._softmax.default, lambda n: [f32(n, 64), -1, False], 8 * 64),
    "attention": (
        aten._scaled_dot_product_fused_attention_overrideable.default,
        lambda n: [f32(1, 1, n, 64)] * 3 + [None, 0.0, True, False, None], 8 * 64,
    ),
    "convolution": (
        aten.convolution.default,
        lambda n: [f32(1, 3, n, 64), f32(4, 3, 3, 3), None, [1, 1], [1, 1], [1, 1], False,
                   [0, 0], 1], 4 * 7 * 64,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MOVES)
@settings(max_examples=4)
@given(size=st.integers(1, 20_000), lnc=st.sampled_from([1, 2]))
def test_what_moves_takes_its_bytes_at_least_and_twice_as_much_no_less(
    name: str, size: int, lnc: int
) -> None:
    func, arguments, each = MOVES[name]
    core = placed("trn2", lnc)
    us = [operator_us(func, arguments(n), core) for n in (size, size + 1, 2 * size)]
    assert us == sorted(us)
    assert us[0] >= each * size / rate(core)


@pytest.mark.parametrize(
    ("func", "arguments"),
    [
        (aten.t.default, [f32(64, 64)]),
        (aten.expand.default, [f32(1, 64), [64, 64], False]),
        (aten.select.int, [f32(64, 64), 0, 1]),
        (aten.view.default, [f32(64, 64), [4096]]),
        (aten.view_as_real.default, [torch.empty(64, dtype=torch.complex64, device="meta")]),
        (aten.empty_like.default, [f32(64, 64), *[None] * 5]),
        (aten.resize_.default, [f32(64, 64), [32, 32], None]),
    ],
)
def test_what_moves_nothing_takes_nothing(func: OpOverload, arguments: list[Any]) -> None:
    assert operator_us(func, arguments, placed("trn2")) == 0


def test_of_a_program_what_it_copies_has_a_row_and_a_line() -> None:
    def program(a: Tensor, kept: Tensor) -> Any:
        loss = a.exp().sum()
        kept.copy_(a)
        return loss, a.clone(), a.t(), torch.zeros(512, 256, device=a.device)

    shape = torch.empty(512, 512, device="meta")
    found = torch_neuronx.estimate(program, shape, shape)
    moved = {one.name: one.bytes for one in found.by("operator")}
    size = 4 * 512 * 512
    assert moved["aten.clone"] == moved["aten.copy_"] == 2 * size
    assert moved["aten.zeros"] == size // 2
    assert "aten.transpose.int" not in moved
    assert moved["aten.exp"] == size
