"""What the ranks of test_matrix.py do: every collective against a slow reference in NumPy.

What a rank gives depends on a seed and its number alone, so every rank knows what all of them gave
and computes what it must get. The reference folds in order of ranks, in float32 for types that are
narrower, divides an average by the number of ranks, and rounds once; integers wrap. Results are
compared bit for bit.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _make_nccl_premul_sum, set_debug_level_from_env
from torch.distributed.distributed_c10d import _coalescing_manager

Array = np.ndarray[Any, Any]

NARROW = {
    torch.bfloat16: ml_dtypes.bfloat16,
    torch.float16: np.float16,
    torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn,
    torch.float8_e4m3fnuz: ml_dtypes.float8_e4m3fnuz,
    torch.float8_e5m2: ml_dtypes.float8_e5m2,
    torch.float8_e5m2fnuz: ml_dtypes.float8_e5m2fnuz,
}
FLOATS = {torch.float32: np.float32, torch.float64: np.float64, **NARROW}
INTEGERS = {
    torch.int8: np.int8, torch.int16: np.int16, torch.int32: np.int32, torch.int64: np.int64,
    torch.uint8: np.uint8, torch.uint16: np.uint16, torch.uint32: np.uint32,
    torch.uint64: np.uint64,
}  # fmt: skip
COMPLEX = {torch.complex64: np.complex64, torch.complex128: np.complex128}
NUMPY: dict[torch.dtype, Any] = {
    **FLOATS, **INTEGERS, **COMPLEX, torch.bool: np.bool_,
    torch.float8_e8m0fnu: ml_dtypes.float8_e8m0fnu,
}  # fmt: skip

OPERATIONS = {
    "sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG, "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX, "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR, "bxor": dist.ReduceOp.BXOR,
    "half": _make_nccl_premul_sum(0.5),
}  # fmt: skip
FOLDS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": np.add, "avg": np.add, "half": np.add, "product": np.multiply, "min": np.minimum,
    "max": np.maximum, "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
}  # fmt: skip
BOOL_FOLDS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": np.logical_or, "max": np.logical_or, "bor": np.logical_or, "product": np.logical_and,
    "min": np.logical_and, "band": np.logical_and, "bxor": np.logical_xor,
}  # fmt: skip


def operations(dtype: torch.dtype) -> list[str]:
    """The reductions that are defined for a type."""
    if dtype in COMPLEX:
        return ["sum", "avg"]
    if dtype is torch.bool:
        return list(BOOL_FOLDS)
    if dtype in INTEGERS:
        return [name for name in OPERATIONS if name != "half"]
    return ["sum", "avg", "product", "min", "max", "half"]


CASES = [
    (dtype, name)
    for dtype in NUMPY
    if dtype is not torch.float8_e8m0fnu  # has no sums worth the name; test_reduce has its bits
    for name in operations(dtype)
]


def given(dtype: torch.dtype, size: int, seed: int, rank: int) -> Array:
    """What a rank gives: `size` elements of any values that can be added without overflow."""
    random = np.random.default_rng([seed, rank])
    kind = NUMPY[dtype]
    if dtype is torch.bool:
        return random.integers(0, 2, size).astype(np.bool_)
    if dtype in INTEGERS:
        low = 0 if np.dtype(kind).kind == "u" else -30
        return random.integers(low, 31, size).astype(kind)
    if dtype in COMPLEX:
        return (random.standard_normal(size) + 1j * random.standard_normal(size)).astype(kind)
    if dtype is torch.float8_e8m0fnu:
        return np.exp2(random.integers(-8, 9, size)).astype(kind)
    if dtype in NARROW:
        values = random.uniform(-2, 2, size).astype(np.float32).astype(kind)
        values[values == 0] = 0  # which of two zeros is the smaller is left open
        return values
    return random.standard_normal(size).astype(kind)


def reduced(dtype: torch.dtype, name: str, all_given: Sequence[Array]) -> Array:
    """The reduction of what all ranks gave."""
    if dtype is torch.bool:
        return np.asarray(reduce(BOOL_FOLDS[name], all_given))
    kind = NUMPY[dtype]
    work = np.float32 if dtype in NARROW else kind
    terms = [one.astype(work) for one in all_given]
    if name == "half":
        terms = [one * work(0.5) for one in terms]
    total = reduce(FOLDS[name], terms)
    if name == "avg":
        if dtype in INTEGERS:
            total = np.trunc(total.astype(np.float64) / len(all_given))
        else:
            # In parts: NumPy would divide by a complex number.
            real = np.zeros(0, work).real.dtype.type
            total = (np.ascontiguousarray(total).view(real) / real(len(all_given))).view(work)
    return np.asarray(total.astype(kind))


def tensor(values: Array, dtype: torch.dtype, device: str = "neuron") -> Tensor:
    """A tensor of an array's bits on the device."""
    if not values.size:
        return torch.empty(0, dtype=dtype, device=device)
    raw = torch.from_numpy(np.ascontiguousarray(values).view(np.uint8).reshape(-1).copy())
    return raw.view(dtype).to(device)


def empty(size: int, dtype: torch.dtype, device: str = "neuron") -> Tensor:
    return torch.full((size * dtype.itemsize,), 0xA5, dtype=torch.uint8).view(dtype).to(device)


class Checker:
    """Compares bits, and keeps a digest of those that every rank must have alike."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.count = 0

    def same(self, got: Tensor, wanted: Array, about: object, *, everywhere: bool = False) -> None:
        bits = got.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        want = np.ascontiguousarray(wanted).view(np.uint8).tobytes()
        if bits != want:
            host = got.detach().cpu()
            raise AssertionError(f"{about}: got {host[:8]}, wanted {wanted[:8]}")
        self.count += 1
        if everywhere:
            self.digest.update(bits)


# One element, a payload that just fits into a slot or doesn't, and one for which copies change.
INLINE = 4096
# Larger ones take NumPy seconds for each operation, and meet nothing that the sum does not.
LARGE = 1 << 20


def sizes(dtype: torch.dtype, world_size: int, large: Sequence[int]) -> list[int]:
    each = dtype.itemsize * world_size
    if world_size > 2 and not large:
        return [1, INLINE // each + 1]
    return [0, 1, INLINE // each, INLINE // each + 1, 20_011, *large]


def reductions(rank: int, world_size: int, large: tuple[int, ...] = ()) -> tuple[int, str]:
    """all_reduce, reduce, reduce_scatter in all forms, by operation and type."""
    check = Checker()
    for seed, (dtype, name) in enumerate(CASES):
        operation = OPERATIONS[name]
        for size in sizes(dtype, world_size, large):
            if size > LARGE and name != "sum":
                continue
            about = (dtype, name, size)
            everybody = [given(dtype, size, seed, r) for r in range(world_size)]
            wanted = reduced(dtype, name, everybody)
            mine = tensor(everybody[rank], dtype)
            dist.all_reduce(mine, operation)
            check.same(mine, wanted, ("all_reduce", *about), everywhere=True)

            root = seed % world_size
            mine = tensor(everybody[rank], dtype)
            dist.reduce(mine, root, operation)
            if rank == root:
                check.same(mine, wanted, ("reduce", *about))
            if dtype in COMPLEX and name == "avg":
                continue  # torch's reduce_scatter of complex numbers knows sums only
            parts = [given(dtype, size * world_size, seed + 1, r) for r in range(world_size)]
            wanted = reduced(dtype, name, parts)[rank * size : (rank + 1) * size]
            out = empty(size, dtype)
            dist.reduce_scatter_single(out, tensor(parts[rank], dtype), operation)
            check.same(out, wanted, ("reduce_scatter_tensor", *about))
            out = empty(size, dtype)
            inputs = [tensor(part, dtype) for part in np.split(parts[rank], world_size)]
            dist.reduce_scatter(out, inputs, operation)
            check.same(out, wanted, ("reduce_scatter", *about))
    return check.count, check.digest.hexdigest()


def movements(rank: int, world_size: int, large: tuple[int, ...] = ()) -> tuple[int, str]:
    """What moves and computes nothing, by type."""
    check = Checker()
    for seed, dtype in enumerate(NUMPY):
        for size in sizes(dtype, world_size, large):
            about = (dtype, size)
            everybody = [given(dtype, size, seed, r) for r in range(world_size)]
            mine = tensor(everybody[rank], dtype)
            for root in range(world_size) if large else [seed % world_size]:
                one = tensor(everybody[rank], dtype)
                dist.broadcast(one, root)
                check.same(one, everybody[root], ("broadcast", root, *about), everywhere=True)
                outputs = [empty(size, dtype) for _ in range(world_size)] if rank == root else None
                dist.gather(mine, outputs, dst=root)
                for source, output in enumerate(outputs or []):
                    check.same(output, everybody[source], ("gather", root, source, *about))
                spread = [given(dtype, size, seed + 100 * (r + 1), root) for r in range(world_size)]
                inputs = [tensor(s, dtype) for s in spread] if rank == root else None
                one = empty(size, dtype)
                dist.scatter(one, inputs, src=root)
                check.same(one, spread[rank], ("scatter", root, *about))
            outputs = [empty(size, dtype) for _ in range(world_size)]
            dist.all_gather(outputs, mine)
            for source, output in enumerate(outputs):
                check.same(output, everybody[source], ("all_gather", *about), everywhere=True)
            whole = empty(size * world_size, dtype)
            dist.all_gather_single(whole, mine)
            check.same(whole, np.concatenate(everybody), ("all_gather_into_tensor", *about))
            _all_to_all(check, rank, world_size, dtype, size, seed)
    return check.count, check.digest.hexdigest()


def _all_to_all(
    check: Checker, rank: int, world_size: int, dtype: torch.dtype, size: int, seed: int
) -> None:
    """Even, uneven (some parts empty), as tensors and as lists."""
    about = (dtype, size)
    parts = [
        [given(dtype, size, seed + 10 * to, r) for to in range(world_size)]
        for r in range(world_size)
    ]
    wanted = [parts[r][rank] for r in range(world_size)]
    out = empty(size * world_size, dtype)
    dist.all_to_all_single(out, tensor(np.concatenate(parts[rank]), dtype))
    check.same(out, np.concatenate(wanted), ("all_to_all_single", *about))
    outputs = [empty(size, dtype) for _ in range(world_size)]
    dist.all_to_all(outputs, [tensor(part, dtype) for part in parts[rank]])
    for source, output in enumerate(outputs):
        check.same(output, wanted[source], ("all_to_all", source, *about))
    # Rank r sends (r + 2 to) mod 3 quarters of the size to rank `to`.
    counts = [
        [size * ((r + 2 * to) % 3) // 4 for to in range(world_size)] for r in range(world_size)
    ]
    cut = [[parts[r][to][: counts[r][to]] for to in range(world_size)] for r in range(world_size)]
    received = [counts[r][rank] for r in range(world_size)]
    out = empty(sum(received), dtype)
    sent = tensor(np.concatenate(cut[rank]), dtype)
    dist.all_to_all_single(out, sent, received, counts[rank])
    wanted = [cut[r][rank] for r in range(world_size)]
    check.same(out, np.concatenate(wanted), ("all_to_all_single uneven", *about))
    outputs = [empty(count, dtype) for count in received]
    dist.all_to_all(outputs, [tensor(part, dtype) for part in cut[rank]])
    for source, output in enumerate(outputs):
        check.same(output, wanted[source], ("all_to_all uneven", source, *about))


def coalesced(rank: int, world_size: int) -> tuple[int, str]:
    """Several collectives as one, and asynchronous ones in order."""
    check = Checker()
    for seed, (dtype, counts) in enumerate(
        [
            (torch.float32, (3, 5000, 1)),
            (torch.bfloat16, (1, 2, 3)),
            (torch.int64, (9000, 7, 0)),
            (torch.float32, tuple(range(100))),  # more than a slot has views for
        ]
    ):
        everybody = [
            [given(dtype, size, seed * 1000 + at, r) for at, size in enumerate(counts)]
            for r in range(world_size)
        ]
        mine = [tensor(one, dtype) for one in everybody[rank]]
        sums = [
            reduced(dtype, "sum", [everybody[r][at] for r in range(world_size)])
            for at in range(len(counts))
        ]
        wholes = [
            np.concatenate([everybody[r][at] for r in range(world_size)])
            for at in range(len(counts))
        ]
        _coalesced_gathers(check, mine, wholes, world_size)
        _coalesced_scatters(check, rank, world_size, dtype, counts, seed)
        copies = [one.clone() for one in mine]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # deprecated, and there
            dist.all_reduce_coalesced(copies)
        for one, wanted in zip(copies, sums, strict=True):
            check.same(one, wanted, "all_reduce_coalesced", everywhere=True)
        copies = [one.clone() for one in mine]
        with _coalescing_manager(device=mine[0].device, async_ops=True) as manager:
            for one in copies:
                dist.all_reduce(one)
        manager.wait()
        for one, wanted in zip(copies, sums, strict=True):
            check.same(one, wanted, "all_reduce in a manager", everywhere=True)
        # In order of issue, whatever is waited for first; and futures give what was written.
        copies = [one.clone() for one in mine]
        works = [dist.all_reduce(one, async_op=True) for one in copies]
        again = [dist.all_reduce(one, dist.ReduceOp.MAX, async_op=True) for one in copies]
        for at in reversed(range(len(works))):
            again[at].wait()
            check.same(copies[at], sums[at], "all_reduce twice", everywhere=True)
            works[at].wait()
            result = works[at].get_future().wait()
            assert result[0].data_ptr() == copies[at].data_ptr()
            assert works[at].is_completed()
    return check.count, check.digest.hexdigest()


def _coalesced_gathers(
    check: Checker, mine: list[Tensor], wholes: list[Array], world_size: int
) -> None:
    dtype = mine[0].dtype
    outputs = [empty(one.numel() * world_size, dtype) for one in mine]
    with _coalescing_manager(device=mine[0].device):
        for one, output in zip(mine, outputs, strict=True):
            dist.all_gather_single(output, one)
    for output, wanted in zip(outputs, wholes, strict=True):
        check.same(output, wanted, "all_gather_into_tensor in a manager", everywhere=True)
    lists = [[empty(one.numel(), dtype) for one in mine] for _ in range(world_size)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        dist.all_gather_coalesced(lists, mine)
    for at, wanted in enumerate(wholes):
        joined = torch.cat([lists[r][at] for r in range(world_size)])
        check.same(joined, wanted, "all_gather_coalesced", everywhere=True)


def _coalesced_scatters(
    check: Checker,
    rank: int,
    world_size: int,
    dtype: torch.dtype,
    counts: Sequence[int],
    seed: int,
) -> None:
    everybody = [
        [given(dtype, size * world_size, seed * 77 + at, r) for at, size in enumerate(counts)]
        for r in range(world_size)
    ]
    outputs = [empty(size, dtype) for size in counts]
    inputs = [tensor(one, dtype) for one in everybody[rank]]
    with _coalescing_manager(device=inputs[0].device):
        for output, one in zip(outputs, inputs, strict=True):
            dist.reduce_scatter_single(output, one)
    for at, size in enumerate(counts):
        wanted = reduced(dtype, "sum", [everybody[r][at] for r in range(world_size)])
        wanted = wanted[rank * size : (rank + 1) * size]
        check.same(outputs[at], wanted, "reduce_scatter_tensor in a manager")


def groups(rank: int, world_size: int) -> tuple[int, str]:
    """Sub-groups, several cores, shapes with more than a dimension, layouts, errors."""
    check = Checker()
    members = [r for r in range(world_size) if r != 1]
    others = dist.new_group(members)
    pairs = [dist.new_group([r, (r + 1) % world_size]) for r in range(world_size)]
    everybody = [given(torch.float32, 3000, 7, r) for r in range(world_size)]
    if rank in members:
        mine = tensor(everybody[rank], torch.float32)
        dist.all_reduce(mine, group=others)
        wanted = reduced(torch.float32, "sum", [everybody[r] for r in members])
        check.same(mine, wanted, "sub-group")
        one = tensor(everybody[rank], torch.float32)
        dist.broadcast(one, members[-1], group=others)
        check.same(one, everybody[members[-1]], "broadcast in a sub-group")
    for r, pair in enumerate(pairs):
        if rank in {r, (r + 1) % world_size}:
            mine = tensor(everybody[rank], torch.float32)
            dist.all_reduce(mine, group=pair)
            two = sorted({r, (r + 1) % world_size})
            wanted = reduced(torch.float32, "sum", [everybody[m] for m in two])
            check.same(mine, wanted, ("pair", r))
    for core in range(torch.accelerator.device_count()):
        # Each rank on another core than its own, and all on one.
        for place in ((rank + core) % torch.accelerator.device_count(), core):
            mine = tensor(everybody[rank], torch.float32, f"neuron:{place}")
            dist.all_reduce(mine)
            check.same(mine, reduced(torch.float32, "sum", everybody), ("core", place))
    mine = tensor(everybody[rank], torch.float32).view(10, 30, 10)
    dist.all_reduce(mine)
    check.same(mine, reduced(torch.float32, "sum", everybody), "three dimensions")
    # The same order of memory on every rank is all that an in-place reduction needs.
    turned = tensor(everybody[rank], torch.float32).view(50, 60).t()
    dist.all_reduce(turned)
    check.same(turned.t(), reduced(torch.float32, "sum", everybody), "transposed")
    part = tensor(everybody[rank], torch.float32)[17:1017]
    dist.all_reduce(part)
    check.same(part, reduced(torch.float32, "sum", everybody)[17:1017], "a slice")
    return check.count, check.digest.hexdigest()


def refusals(rank: int, world_size: int) -> list[str]:
    """What every rank refuses alike, before it talks to another: the texts."""
    del rank
    grid = torch.zeros(8, 8, device="neuron")
    whole = torch.zeros(8 * world_size, device="neuron")
    calls: list[Callable[[], object]] = [
        lambda: dist.all_reduce(grid[:, :3]),
        lambda: dist.broadcast(grid[::2], 0),
        lambda: dist.all_gather_single(grid[:, 1], torch.zeros(8 // world_size, device="neuron")),
        lambda: dist.all_gather_single(whole, torch.zeros(7, device="neuron")),
        lambda: dist.reduce_scatter_single(torch.zeros(7, device="neuron"), whole),
        lambda: dist.all_to_all_single(whole, whole, [1] * world_size, [8] * world_size),
        lambda: dist.all_reduce(torch.zeros(2)),
        lambda: dist.all_reduce(torch.zeros(2, device="neuron"), dist.ReduceOp.BAND),
        lambda: dist.all_gather([torch.zeros(2, device="neuron")], torch.zeros(2, device="neuron")),
    ]
    found = []
    for call in calls:
        try:
            call()
        except (RuntimeError, ValueError, TypeError) as error:
            found.append(f"{type(error).__name__}: {error}")
        else:
            found.append("")
    ones = torch.ones(3, device="neuron")
    dist.all_reduce(ones)  # the group goes on
    assert ones.tolist() == [world_size] * 3
    return found


def everything(rank: int, world_size: int, large: tuple[int, ...] = ()) -> dict[str, Any]:
    """All of the above; twice, where it must not differ."""
    found: dict[str, Any] = {
        "reductions": reductions(rank, world_size, large),
        "movements": movements(rank, world_size, large),
        "coalesced": coalesced(rank, world_size),
        "groups": groups(rank, world_size),
        "refusals": refusals(rank, world_size),
    }
    found["again"] = coalesced(rank, world_size)
    return found


def mismatches(rank: int, world_size: int) -> dict[str, str]:
    """Ranks that do not agree, each time in a group of its own: what this rank is told."""
    set_debug_level_from_env()  # torch was imported before the variable was set
    device = "neuron"
    odd = rank == world_size - 1
    four, five = (torch.zeros(size, device=device) for size in (4, 5))
    whole = torch.zeros(4 * world_size, device=device)
    large = torch.zeros(50_000 + odd, device=device)  # read where it is, not in the slot
    cases: dict[str, Callable[[Any], object]] = {
        "shape": lambda group: dist.all_reduce(five if odd else four, group=group),
        "large shape": lambda group: dist.all_reduce(large, group=group),
        "dtype": lambda group: dist.all_reduce(four.int() if odd else four, group=group),
        "operation": lambda group: dist.all_reduce(
            four, dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM, group=group
        ),
        "order": lambda group: (
            dist.all_gather_single(whole, four, group=group)
            if odd
            else dist.all_reduce(four, group=group)
        ),
        "root": lambda group: dist.broadcast(four, 1 if odd else 0, group=group),
        "gathered shape": lambda group: dist.all_gather_single(
            torch.zeros(5 * world_size, device=device) if odd else whole,
            five if odd else four,
            group=group,
        ),
        "split": lambda group: dist.all_to_all_single(
            torch.zeros(2 * world_size, device=device),
            torch.zeros((3 if odd else 2) * world_size, device=device),
            [2] * world_size,
            [3 if odd else 2] * world_size,
            group=group,
        ),
    }
    found = {}
    for name, call in cases.items():
        group = dist.new_group()
        try:
            call(group)
            torch.accelerator.synchronize()
        except (RuntimeError, ValueError) as error:
            found[name] = f"{type(error).__name__}: {error}"
        else:
            found[name] = ""
    fine = torch.ones(2, device=device)
    dist.all_reduce(fine)  # the default group has no part in it
    assert fine.tolist() == [world_size] * 2
    return found
