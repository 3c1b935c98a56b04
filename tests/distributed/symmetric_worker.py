"""What every rank of test_symmetric.py does."""

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed._symmetric_memory as symm_mem
from torch import Tensor
from torch._C._distributed_c10d import FileStore
from torch.distributed import DistBackendError
from torch.distributed.distributed_c10d import GroupName

DTYPES = [torch.float32, torch.bfloat16]
NEURON = torch.device("neuron")
ops: Any = torch.ops.symm_mem


def name() -> GroupName:
    group = dist.group.WORLD
    assert group is not None
    return group.group_name


def rendezvous(tensor: Tensor) -> Any:
    return symm_mem.rendezvous(tensor, name())


def meet(rank: int, world: int, store: str, generation: int) -> None:
    """Two rendezvous of a group whose store other processes have used for the same before."""
    dist.init_process_group("neuron", store=FileStore(store, -1), rank=rank, world_size=world)
    for number in range(2):
        x = symm_mem.empty(4, dtype=torch.int64, device=NEURON)
        memory = rendezvous(x)
        x.fill_(100 * generation + 10 * number + rank)
        memory.barrier()
        theirs = memory.get_buffer(1 - rank, (4,), torch.int64)
        assert theirs.tolist() == [100 * generation + 10 * number + 1 - rank] * 4
        memory.barrier()


def buffers(rank: int, world: int) -> None:
    """Peers' tensors, read and written in place; what is freed is given back."""
    before = torch.accelerator.memory_allocated()
    x = symm_mem.empty(3, 5, dtype=torch.float32, device=NEURON)
    memory = rendezvous(x)
    assert (memory.rank, memory.world_size) == (rank, world)
    assert rendezvous(x).buffer_ptrs == memory.buffer_ptrs  # once only
    assert symm_mem.is_symm_mem_tensor(x)
    assert not symm_mem.is_symm_mem_tensor(torch.ones(3, device="neuron"))
    assert memory.buffer_ptrs[rank] == x.data_ptr()
    x.fill_(rank)
    memory.barrier()
    for peer in range(world):
        theirs = memory.get_buffer(peer, (3, 5), torch.float32)
        assert theirs.device == x.device
        assert theirs.eq(peer).all()
        assert (theirs @ theirs.t()).eq(5 * peer * peer).all()
    assert memory.get_buffer(1, (4,), torch.float32, 11).tolist() == [1] * 4
    remote = ops.get_remote_tensors(x, name())
    assert [int(t[2, 4]) for t in remote] == list(range(world))
    memory.barrier()
    memory.get_buffer((rank + 1) % world, (5,), torch.float32, 5).fill_(100 + rank)
    memory.barrier()
    assert x[1].eq(100 + (rank - 1) % world).all()
    assert x[0].eq(rank).all()
    del x, memory, theirs, remote
    assert torch.accelerator.memory_allocated() == before


def signals(rank: int, world: int) -> None:
    """A token goes round, on two channels that don't disturb each other; timeouts are told."""
    x = symm_mem.empty(1, dtype=torch.int64, device=NEURON)
    memory = rendezvous(x)
    x.zero_()
    memory.barrier()
    for lap in range(20):
        if rank > 0 or lap > 0:
            memory.wait_signal((rank - 1) % world, channel=1)
            assert int(x) == lap * world + rank
        memory.get_buffer((rank + 1) % world, (1,), torch.int64).fill_(lap * world + rank + 1)
        memory.put_signal((rank + 1) % world, channel=1)
        memory.barrier(channel=2)
    if rank == 0:
        memory.wait_signal(world - 1, channel=1)
    began = time.monotonic()
    with pytest.raises(DistBackendError, match=r"wait_signal .* channel 3: rank . did not answer"):
        memory.wait_signal((rank + 1) % world, channel=3, timeout_ms=50)
    assert time.monotonic() - began < 10
    with pytest.raises(ValueError, match="has no channel 1000000"):
        memory.barrier(channel=1_000_000)
    memory.barrier()
    memory.put_signal((rank + 1) % world, channel=4)
    with pytest.raises(DistBackendError, match=r"put_signal .* channel 4: rank . did not answer"):
        memory.put_signal((rank + 1) % world, channel=4, timeout_ms=50)  # not taken yet
    memory.barrier()
    memory.wait_signal((rank - 1) % world, channel=4)


def mismatch(rank: int, world: int) -> None:
    """Allocations of different sizes are an error on every rank."""
    del world
    x = symm_mem.empty(10 + rank, dtype=torch.float32, device=NEURON)
    with pytest.raises(DistBackendError, match=r"rank \d has \d+ bytes, but rank \d has \d+"):
        rendezvous(x)


def shards(rank: int, *shape: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(rank + 7)
    return torch.randn(shape, generator=generator).to(dtype).to("neuron")


def cases() -> Iterator[tuple[torch.dtype, tuple[int, ...], int]]:
    for dtype in DTYPES:
        for shape in ((6, 8), (2, 4, 8), (4, 2, 3, 8)):
            for dim in (*range(len(shape)), -1, -len(shape)):
                yield dtype, shape, dim


def close(got: Tensor, wanted: Tensor, terms: int) -> None:
    """Equal up to the order of `terms` additions of numbers of size one, and two roundings."""
    eps = torch.finfo(got.dtype).eps
    assert got.shape == wanted.shape
    assert got.dtype == wanted.dtype
    atol = 4 * eps * terms**0.5 + terms * torch.finfo(torch.float32).eps * 4
    torch.testing.assert_close(got.cpu(), wanted.cpu(), rtol=2 * eps, atol=atol)


def fused_gather(rank: int, world: int) -> None:
    """`fused_all_gather_matmul` against all_gather and a product, with and without A."""
    for dtype, shape, dim in cases():
        mine = shards(rank, *shape, dtype=dtype)
        last = dim % len(shape) == len(shape) - 1
        depth = shape[-1] * (world if last else 1)
        matrices = [shards(50, depth, n, dtype=dtype) for n in (5, 16)]
        whole = funcol.wait_tensor(funcol.all_gather_tensor(mine, dim % len(shape), name()))
        gathered, products = ops.fused_all_gather_matmul(mine, matrices, dim, name())
        assert torch.equal(gathered, whole)
        for product, matrix in zip(products, matrices, strict=True):
            close(product, whole @ matrix, depth)
        nothing, again = ops.fused_all_gather_matmul(mine, matrices, dim, name(), return_A=False)
        assert nothing is None
        assert all(torch.equal(a, b) for a, b in zip(again, products, strict=True))


def fused_scatter(rank: int, world: int) -> None:
    """`fused_matmul_reduce_scatter` against a product and reduce_scatter."""
    for dtype, shape, dim in cases():
        scaled = list(shape)
        scaled[dim] *= 1 if dim % len(shape) == len(shape) - 1 else world
        left = shards(rank, *scaled, dtype=dtype)
        right = shards(rank + 20, shape[-1], 4 * world, dtype=dtype)
        for op in ("sum", "avg"):
            wanted = funcol.reduce_scatter_tensor(left @ right, op, dim % len(shape), name())
            got = ops.fused_matmul_reduce_scatter(left, right, op, dim, name())
            # Every rank's partial product is rounded once, as in the reference.
            close(got, funcol.wait_tensor(wanted), world * shape[-1])
    with pytest.raises(ValueError, match="can't be divided among"):
        ops.fused_matmul_reduce_scatter(left[:1], right[:, :1], "sum", left.dim() - 1, name())
    with pytest.raises(ValueError, match="reduce_op must be 'sum' or 'avg', but got 'max'"):
        ops.fused_matmul_reduce_scatter(left, right, "max", 0, name())
    with pytest.raises(ValueError, match="every B must be a matrix"):
        ops.fused_all_gather_matmul(left, [left], 0, name())


def low_contention(rank: int, world: int) -> None:
    """The two plain collectives over symmetric memory, exactly."""
    for dtype in (*DTYPES, torch.int32):
        x = (10 * shards(rank, 2 * world, 3, dtype=torch.float32)).to(dtype)
        gathered = ops._low_contention_all_gather(x, name())
        assert torch.equal(gathered, funcol.wait_tensor(funcol.all_gather_tensor(x, 0, name())))
        got = ops._low_contention_reduce_scatter(x, "sum", name())
        wanted = funcol.wait_tensor(funcol.reduce_scatter_tensor(x, "sum", 0, name()))
        assert torch.equal(got, wanted)


def lost(rank: int, world: int) -> None:
    """A rank that ends is missed, also by who waits without a timeout. The last check."""
    memory = rendezvous(symm_mem.empty(1, device=NEURON))
    memory.barrier()
    if rank == world - 1:
        os._exit(0)
    with pytest.raises(DistBackendError, match=rf"rank {world - 1} has ended.*1200"):
        memory.wait_signal(world - 1, channel=5)


CHECKS: list[Callable[[int, int], None]] = [
    buffers,
    signals,
    mismatch,
    fused_gather,
    fused_scatter,
    low_contention,
]


def check(rank: int, world: int) -> None:
    """All checks but the one that ends a rank."""
    for function in CHECKS:
        function(rank, world)


def lose(rank: int, world: int) -> None:
    """The survivors report and leave; the group can't be destroyed in order any more."""
    lost(rank, world)
