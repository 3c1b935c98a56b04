"""How far a program's values may differ: measured by running it with roundings changed.

A bound on the error of a random program can't be written down, since it depends on the condition of
every step. So the program runs several times while each float operator's inputs and
results are changed by about one rounding of their type, and what comes out says how much every element
of every result may move. An element that moves without bound (an index chosen by a comparison
of nearly equal numbers) isn't compared, and the comparison says how many were.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tests.programs.program import Outcome, Program, run

RUNS = 6
#: Before a difference is a finding: of two ways that are drawn, six runs miss one in 32 programs.
MORE_RUNS = 30
#: Times the largest deviation seen: six runs see most of a distribution, not its tails, and operators
#: made of many (a recurrent network) round inside where the noise is only around them.
FACTOR = 16.0
#: Roundings that every element may differ by, whatever the runs saw.
ROUNDINGS = 4.0


class Noise(TorchDispatchMode):
    """Changes floats by up to one rounding before and after every operator that computes."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator on changed inputs and change its results."""
        del types
        kwargs = kwargs or {}
        schema = func._schema
        if any(r.alias_info is not None for r in schema.returns) and not schema.is_mutable:
            return func(*args, **kwargs)  # a view
        written = [
            args[i] if i < len(args) else kwargs.get(a.name)
            for i, a in enumerate(schema.arguments)
            if a.alias_info is not None and a.alias_info.is_write
        ]
        kept = {id(x) for x in pytree.tree_leaves(written)}
        given = args
        args, kwargs = pytree.tree_map(
            lambda x: self._changed(x) if isinstance(x, torch.Tensor) and id(x) not in kept else x,
            (args, kwargs),
        )
        if func in _SAMPLERS:
            args = (args[0], self._moved(args[1]), *args[2:])
        out = _wide(func, args, kwargs) if func in _SUMS else func(*args, **kwargs)
        out = self._in_two_ways(func, given, args, out)
        inner = _INNER.get(func)
        if inner is not None:
            moved = inner(*args) * self._noise(out) * torch.finfo(out.dtype).eps
            out = out + moved.to(out.dtype)
        for x in pytree.tree_leaves(written if schema.is_mutable else out):
            if isinstance(x, torch.Tensor) and _is_float(x) and _writable(x):
                x.copy_(self._changed(x))
        return out

    def _in_two_ways(self, func: Any, given: Any, args: Any, out: Any) -> Any:
        """What kernels of the CPU's make of the same numbers in different ways, one of them drawn."""
        if func in _REMAINDERS:
            # A number is rounded to the tensor's type first, which may make it smaller.
            divisor = args[1] if isinstance(args[1], torch.Tensor) else out.new_tensor(args[1])
            out = torch.where((args[0] / divisor).isinf(), self._either(out), out)
        if func in _STATISTICS and any(map(_overflows_squared, pytree.tree_leaves(args))):
            out = pytree.tree_map(self._either, out)
        if "_polynomial_" in func.name() and isinstance(args[0], torch.Tensor):
            # The CPU returns what a variable that nothing wrote holds.
            either = torch.where(args[0].isnan(), self._either(out), out)
            out = out.copy_(either) if func._schema.is_mutable else either
        if func in _PRODUCTS and any(x is given[0] for x in given[1:]):
            out = out.copy_(self._either(out))
        if func is torch.ops.aten.hardswish_backward.default:
            # Vectors of the CPU's make NaN of it, and the last few elements the gradient.
            out = torch.where(args[1].isnan(), self._either(out), out)
        if func is torch.ops.aten.topk.default:
            out = self._chosen(args, out)
        if func is torch.ops.aten.native_layer_norm.default:
            out = (self._levelled(given, out[0]), *out[1:])
        if func in _CONVOLUTIONS and not bool(args[_CONVOLUTIONS[func]].isfinite().all()):
            out = pytree.tree_map(self._either, out)
        if func is torch.ops.aten.linalg_cross.default:
            out = self._cancelled(out, *given[:2])
        return out

    def _either(self, x: torch.Tensor) -> torch.Tensor:
        """NaN or zeros."""
        chosen = torch.rand((), generator=self._generator) < 0.5
        return torch.full_like(x, torch.nan if chosen else 0.0)

    def _chosen(self, args: Any, out: Any) -> Any:
        """Which of equal elements the largest or smallest ones are, nobody says."""
        x, k, dim, *how = (*args, -1)[:3] if len(args) < 3 else args
        if not x.dim():
            return out
        order = torch.randperm(x.shape[dim], generator=self._generator)
        values, places = torch.topk(x.index_select(dim, order), k, dim, *how)
        return values, order[places]

    def _levelled(self, given: Any, out: torch.Tensor) -> torch.Tensor:
        """Rows of equal elements give zeros exactly, or what rounding the mean has left of them."""
        x, shape, _, bias, _ = given
        dims = tuple(range(-len(shape), 0))
        if not x.numel() or torch.rand((), generator=self._generator) < 0.5:
            return out
        level = x.amax(dims, keepdim=True) == x.amin(dims, keepdim=True)
        return torch.where(level, torch.zeros_like(out) if bias is None else bias, out)

    def _cancelled(self, out: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Products that cancel give zero exactly, or what one of them was rounded by."""
        if not out.numel() or torch.rand((), generator=self._generator) < 0.5:
            return out
        sizes = x.abs().max() * y.abs().max()
        return torch.where(out.abs() <= 4 * torch.finfo(out.dtype).eps * sizes, 0, out)

    def _moved(self, grid: torch.Tensor) -> torch.Tensor:
        """Places between -1 and 1: what is computed with is their distance from -1."""
        moved = grid.double() + self._noise(grid) * torch.finfo(grid.dtype).eps
        return moved.to(grid.dtype)

    def _noise(self, x: torch.Tensor) -> torch.Tensor:
        drawn = torch.rand(x.shape, generator=self._generator, dtype=torch.float64)
        return drawn.to(x.device) * 2 - 1

    def _changed(self, x: torch.Tensor) -> torch.Tensor:
        if not _is_float(x) or x.layout is not torch.strided or x.is_nested or x._is_zerotensor():
            return x
        if not x.numel():
            return x
        eps = torch.finfo(x.dtype).eps
        wide = torch.complex128 if x.dtype.is_complex else torch.float64
        exact = x.to(wide)
        # Exact zeros, infinities and NaN stay, and so do the strides.
        out = (
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
            if _writable(x)
            else torch.empty_like(x)
        )
        changed = exact * (1 + eps * self._noise(x))
        return out.copy_(torch.where(exact.isfinite(), changed, exact))


#: What an operator rounds inside, where that is more than its result: x (1 + erf(x / sqrt(2))) / 2.
_INNER: dict[Any, Any] = {torch.ops.aten.gelu.default: lambda x: x.abs()}


#: Which the CPU's kernels compute in float32 or in float64, depending on operator and layout, so that
#: the squares of large numbers overflow or don't. No engine of a NeuronCore computes in float64.
_STATISTICS = frozenset(
    overload
    for packet in (
        torch.ops.aten.native_batch_norm, torch.ops.aten.native_batch_norm_backward,
        torch.ops.aten.var, torch.ops.aten.std, torch.ops.aten.var_mean, torch.ops.aten.std_mean,
    )
    for overload in (getattr(packet, name) for name in packet.overloads() if "out" not in name)
)  # fmt: skip
#: And which argument is the weight. Of one that is not finite, a transposed convolution of the CPU's
#: makes NaN at the edges, or does not, depending on whether it computes with the padding's zeros.
_CONVOLUTIONS: dict[Any, int] = {
    torch.ops.aten.convolution.default: 1,
    torch.ops.aten.convolution_backward.default: 2,
}
#: Of which the CPU's vectors make NaN where the quotient overflows, and its last few elements the
#: right number.
_REMAINDERS = frozenset(
    overload
    for packet in (torch.ops.aten.fmod, torch.ops.aten.remainder)
    for overload in (packet.Tensor, packet.Scalar)
)
#: Of which the CPU writes over what it still reads, where an operand is the result.
_PRODUCTS = frozenset(
    {
        torch.ops.aten.addmm_.default,
        torch.ops.aten.addmv_.default,
        torch.ops.aten.addbmm_.default,
        torch.ops.aten.baddbmm_.default,
    }
)
_SAMPLERS = frozenset(
    {
        torch.ops.aten.grid_sampler_2d.default,
        torch.ops.aten.grid_sampler_3d.default,
        torch.ops.aten._grid_sampler_2d_cpu_fallback.default,
    }
)


#: What the CPU sums in 16 bits where operands have these: of some hundred terms, and of a small one
#: beside a large one, nothing may be left, and a number that it lowers by half (`mvlgamma`) may
#: meet a pole. Noisy runs compute them in float32.
_SUMS = frozenset(
    getattr(torch.ops.aten, name).default
    for name in (
        "_log_softmax", "mvlgamma", "native_layer_norm_backward", "unfold_backward",
        "embedding_dense_backward", "_embedding_bag_backward", "_embedding_bag_dense_backward",
        "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward",
        "adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward",
        "grid_sampler_2d_backward", "grid_sampler_3d_backward",
        *(f"{kind}_pad{d}d_backward" for kind in ("reflection", "replication") for d in (1, 2, 3)),
    )
)  # fmt: skip


def _wide(func: Any, args: Any, kwargs: Any) -> Any:
    """What an operator gives that computes 16-bit floats in float32 and rounds once."""
    narrow = {torch.bfloat16, torch.float16}
    types = {x.dtype for x in pytree.tree_leaves(args) if isinstance(x, torch.Tensor)} & narrow
    if not types:
        return func(*args, **kwargs)
    out = func(*_cast(args, narrow, torch.float32), **_cast(kwargs, narrow, torch.float32))
    return _cast(out, {torch.float32}, types.pop())


def _cast(values: Any, given: set[torch.dtype], wanted: torch.dtype) -> Any:
    def one(x: Any) -> Any:
        return x.to(wanted) if isinstance(x, torch.Tensor) and x.dtype in given else x

    return pytree.tree_map(one, values)


def _is_float(x: torch.Tensor) -> bool:
    return x.dtype.is_floating_point or x.dtype.is_complex


def _overflows_squared(x: object) -> bool:
    return isinstance(x, torch.Tensor) and bool((x.abs().nan_to_num(0.0, 0.0) > 1e18).any())


def _writable(x: torch.Tensor) -> bool:
    if x.layout is not torch.strided or x.is_nested:
        return False
    return all(s > 0 or n <= 1 for s, n in zip(x.stride(), x.shape, strict=True))


def reruns(
    program: Program, *, backward: bool, seed: int, device: str = "cpu", runs: int = RUNS
) -> list[Outcome]:
    """Outcomes under noise; those that ended in an error are left out."""
    # oneDNN has a recurrent network whole; noise around it shows nothing of what is rounded inside.
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)  # noqa: FBT003 - that is how it is called
    try:
        made = [
            run(program, device, around=lambda n=n: Noise(seed * 100 + n), backward=backward)  # type: ignore[misc]
            for n in range(runs)
        ]
    finally:
        torch._C._set_mkldnn_enabled(before)
    return [m for m in made if m.error is None]


def tolerance(
    expected: torch.Tensor, others: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Bound of every element in float64, and whether it is compared at all.

    Integers and booleans have the bound 0 and are compared where every run agrees. Floats are
    compared where all runs agree on being finite, or on the infinity or NaN that they are. Where
    the noise made an error of every run, nothing is known and nothing compared.
    """
    if not others:
        nothing = torch.zeros(expected.shape, dtype=torch.float64)
        return nothing, nothing.bool()
    if not _is_float(expected):
        same = torch.ones(expected.shape, dtype=torch.bool)
        for other in others:
            same &= other == expected
        return torch.zeros(expected.shape, dtype=torch.float64), same
    eps = torch.finfo(expected.dtype).eps
    wide = torch.complex128 if expected.dtype.is_complex else torch.float64
    reference = expected.to(wide)
    finite = reference.isfinite()
    deviation = torch.zeros(expected.shape, dtype=torch.float64)
    same = torch.ones(expected.shape, dtype=torch.bool)
    for other in others:
        moved = (other.to(wide) - reference).abs()
        agrees = torch.where(finite, other.isfinite(), class_of(other) == class_of(expected))
        same &= agrees
        deviation = torch.maximum(deviation, torch.where(finite & agrees, moved, 0.0))
    sizes = torch.where(finite, reference.abs(), 0.0)
    tiny = float(torch.finfo(expected.dtype).tiny)
    if not bool(finite.any()):
        return torch.zeros_like(deviation), same
    # Inside of an operator (a recurrent network, a decomposition) values of the size of the largest
    # result are rounded, which noise around the operator doesn't show.
    typical = torch.maximum(deviation[finite].median(), eps * sizes.max())
    return FACTOR * torch.maximum(deviation, typical) + ROUNDINGS * eps * (sizes + tiny), same


def class_of(x: torch.Tensor) -> torch.Tensor:
    """Which of NaN, +inf, -inf, finite; complex by parts."""
    if x.dtype.is_complex:
        real = torch.view_as_real(x)
        part = class_of(real)
        return part[..., 0] * 4 + part[..., 1]
    return x.isnan() * 1 + x.isposinf() * 2 + x.isneginf() * 3
