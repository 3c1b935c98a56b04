"""The operators of ``torch.ops.symm_mem`` that asynchronous tensor parallelism calls.

Each rank puts what the others need into a workspace in symmetric memory, which they read in place:
a product takes its operand from the memory of the rank that has it, without a gathered copy, and a
reduction reads the partial products where they were computed. Reductions fold in the order of
ranks, in float32 for narrower types, and round once, as the collectives do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from torch_neuronx.distributed.all_to_all import (
    all_to_all_vdev,
    all_to_all_vdev_2d,
    all_to_all_vdev_2d_offset,
)
from torch_neuronx.distributed.exchange import Exchange

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import GroupName

Product = Callable[[Tensor, Tensor], Tensor]  # of rows and a matrix


def _size(group_name: GroupName) -> int:
    """How many ranks the group has."""
    return dist.distributed_c10d._get_group_size_by_name(group_name)  # noqa: SLF001


def _rows(tensor: Tensor, dim: int) -> Tensor:
    """`tensor` with `dim` in front, contiguous."""
    return tensor.movedim(dim, 0).contiguous()


def _gather(shard: Tensor, group_name: GroupName, use: Callable[[int, Tensor], object]) -> None:
    """Call ``use(rank, shard of that rank)`` for every rank; the shards are read in place."""
    exchange = Exchange(group_name, shard.device, shard.nbytes)
    exchange.part(exchange.rank, shard).copy_(shard)
    exchange.barrier()
    for rank in exchange.order():
        use(rank, shard if rank == exchange.rank else exchange.part(rank, shard))
    exchange.barrier()  # nobody fills its workspace while others read it


def _gather_products(
    shard: Tensor,
    dim: int,
    group_name: GroupName,
    products: list[Callable[[int, Tensor], Tensor]],
    *,
    keep: bool,
) -> tuple[Tensor | None, list[Tensor]]:
    """Products of a gathered operand, computed shard by shard.

    Args:
        shard: this rank's, of any rank >= 2.
        dim: along which shards are put together; not the last.
        group_name: of the ranks.
        products: each takes a rank and its shard as rows [M, K] and returns [M, N].
        keep: whether the gathered operand is wanted.

    Returns:
        The gathered operand or ``None``, and the products, with `dim` where it was.
    """
    rows = _rows(shard, dim)
    ranks = _size(group_name)
    gathered = rows.new_empty((ranks, *rows.shape)) if keep else None
    parts: list[list[Tensor]] = [[torch.empty(0)] * ranks for _ in products]

    def use(rank: int, theirs: Tensor) -> None:
        if gathered is not None:
            gathered[rank].copy_(theirs)
        for row, product in zip(parts, products, strict=True):
            row[rank] = product(rank, theirs.flatten(0, -2)).unflatten(0, rows.shape[:-1])

    _gather(rows, group_name, use)
    whole = None if gathered is None else gathered.flatten(0, 1).movedim(0, dim)
    return whole, [torch.cat(row).movedim(0, dim) for row in parts]


def fused_all_gather_matmul(
    A: Tensor,  # noqa: N803 - the schema's name
    Bs: list[Tensor],  # noqa: N803 - the schema's name
    gather_dim: int,
    group_name: GroupName,
    *,
    return_A: bool = True,  # noqa: N803 - the schema's name
) -> tuple[Tensor | None, list[Tensor]]:
    """``all_gather(A, gather_dim) @ B`` for each `B`.

    Args:
        A: this rank's shard, at least two-dimensional.
        Bs: matrices [K, N].
        gather_dim: dimension of `A` along which shards are put together.
        group_name: the group's.
        return_A: whether the gathered `A` is wanted.

    Returns:
        The gathered `A` or ``None``, and the products.
    """
    dim = _dimension("fused_all_gather_matmul", A, gather_dim, *Bs)
    if dim < A.dim() - 1:

        def times(matrix: Tensor) -> Callable[[int, Tensor], Tensor]:
            return lambda _, rows: rows @ matrix

        return _gather_products(A, dim, group_name, [times(B) for B in Bs], keep=return_A)
    # Along the summed dimension there is nothing to do before all of it is there.
    ranks = _size(group_name)
    whole = A.new_empty((*A.shape[:-1], ranks * A.shape[-1]))
    columns = whole.unflatten(-1, (ranks, A.shape[-1]))
    _gather(A.contiguous(), group_name, lambda rank, theirs: columns[..., rank, :].copy_(theirs))
    return whole if return_A else None, [whole @ B for B in Bs]


def _reduce_products(
    produce: Callable[[int], Tensor], reduce_op: str, group_name: GroupName, like: Tensor
) -> Tensor:
    """The reduction over ranks of what each produces for this one.

    Args:
        produce: the partial result for a rank; shape and dtype are those of `like`.
        reduce_op: "sum" or "avg".
        group_name: the group's.
        like: an (uninitialised) result.
    """
    if reduce_op not in ("sum", "avg"):
        raise ValueError(f"reduce_op must be 'sum' or 'avg', but got {reduce_op!r}")
    ranks = _size(group_name)
    exchange = Exchange(group_name, like.device, ranks * like.nbytes)
    for rank in exchange.order():
        exchange.part(exchange.rank, like, rank).copy_(produce(rank))
    exchange.barrier()
    wide = torch.float32 if like.is_floating_point() and like.itemsize < 4 else like.dtype
    total = exchange.part(0, like, exchange.rank).to(wide, copy=True)
    for rank in range(1, ranks):
        total += exchange.part(rank, like, exchange.rank).to(wide)
    exchange.barrier()
    if reduce_op == "avg":
        total *= 1.0 / ranks
    return total.to(like.dtype)


def fused_matmul_reduce_scatter(
    A: Tensor,  # noqa: N803 - the schema's name
    B: Tensor,  # noqa: N803 - the schema's name
    reduce_op: str,
    scatter_dim: int,
    group_name: GroupName,
) -> Tensor:
    """``reduce_scatter(A @ B, reduce_op, scatter_dim)``.

    Args:
        A: at least two-dimensional.
        B: a matrix [K, N].
        reduce_op: "sum" or "avg".
        scatter_dim: dimension of the product that is divided among the ranks.
        group_name: the group's.
    """
    dim = _dimension("fused_matmul_reduce_scatter", A, scatter_dim, B)
    ranks = _size(group_name)
    shape = [*A.shape[:-1], B.shape[1]]
    if shape[dim] % ranks != 0:
        raise ValueError(
            f"dimension {dim} of the product {tuple(shape)} can't be divided among {ranks} ranks"
        )
    shape[dim] //= ranks
    if dim == A.dim() - 1:
        pieces = B.chunk(ranks, 1)
        return _reduce_products(
            lambda rank: A @ pieces[rank], reduce_op, group_name, A.new_empty(shape)
        )
    rows = A.chunk(ranks, dim)
    return _reduce_products(lambda rank: rows[rank] @ B, reduce_op, group_name, A.new_empty(shape))


def low_contention_all_gather(tensor: Tensor, group_name: GroupName) -> Tensor:
    """The tensors of all ranks along dimension 0, each read from its rank's memory."""
    ranks = _size(group_name)
    out = tensor.new_empty((ranks * tensor.shape[0], *tensor.shape[1:]))
    parts = out.chunk(ranks)
    _gather(tensor.contiguous(), group_name, lambda rank, theirs: parts[rank].copy_(theirs))
    return out


def low_contention_reduce_scatter(tensor: Tensor, reduce_op: str, group_name: GroupName) -> Tensor:
    """The reduction over ranks of this rank's part of dimension 0."""
    ranks = _size(group_name)
    if tensor.shape[0] % ranks != 0:
        raise ValueError(f"dimension 0 of {tuple(tensor.shape)} has no {ranks} equal parts")
    parts = tensor.chunk(ranks)
    like = torch.empty_like(parts[0], memory_format=torch.contiguous_format)
    return _reduce_products(lambda rank: parts[rank], reduce_op, group_name, like)


def get_remote_tensors(x: Tensor, group_name: GroupName) -> list[Tensor]:
    """`x`, a tensor in symmetric memory, as it is on every rank of the group.

    Raises:
        ValueError: `x` is in other memory.
    """
    from torch.distributed._symmetric_memory import rendezvous  # noqa: PLC0415 - late, for speed

    memory = rendezvous(x, group_name)
    if memory is None:
        raise ValueError("the tensor is not in symmetric memory; make it with symm_mem.empty()")
    return [memory.get_remote_tensor(r, x.shape, x.dtype) for r in range(memory.world_size)]


def _dimension(name: str, first: Tensor, dim: int, *matrices: Tensor) -> int:
    """`dim` counted from the front, after a look at the operands."""
    if first.dim() < 2 or not -first.dim() <= dim < first.dim():
        raise ValueError(f"{name}: A has {first.dim()} dimensions; needs two and dimension {dim}")
    for matrix in matrices:
        if matrix.dim() != 2:
            raise ValueError(
                f"{name}: every B must be a matrix, but one has shape {tuple(matrix.shape)}"
            )
    return dim % first.dim()


_KERNELS: dict[str, Callable[..., Any]] = {
    "fused_all_gather_matmul": fused_all_gather_matmul,
    "fused_matmul_reduce_scatter": fused_matmul_reduce_scatter,
    "_low_contention_all_gather": low_contention_all_gather,
    "_low_contention_reduce_scatter": low_contention_reduce_scatter,
    "get_remote_tensors": get_remote_tensors,
    "all_to_all_vdev": all_to_all_vdev,
    "all_to_all_vdev_2d": all_to_all_vdev_2d,
    "all_to_all_vdev_2d_offset": all_to_all_vdev_2d_offset,
}
_libraries: list[torch.library.Library] = []


def register() -> None:
    """Register allocator and kernels for the device; once."""
    from torch_neuronx import _C  # noqa: PLC0415 - as in group.py

    if _libraries:
        return
    _C.register_symmetric_memory()
    library = torch.library.Library("symm_mem", "IMPL")
    for name, kernel in _KERNELS.items():
        library.impl(name, kernel, "PrivateUse1")
    _libraries.append(library)  # registrations last as long as it does
