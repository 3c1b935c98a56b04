"""Ranks multiply equal numbers by one method, so that their results have equal bits.

Much of what ranks compute is compared by nobody: the gradients that PowerSGD's hook multiplies out
of reduced factors, layers that are not sharded. Methods of matrix products add in different
orders, and which is faster is measured by each process for itself.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore

import torch_neuronx
from tests.distributed.clients import Env
from tests.distributed.ranks import run_ranks
from tests.distributed.test_clients_ddp import low_rank

_C: Any = torch_neuronx._C

# Few rows on a side, where several methods apply: [batch, m, n, k].
SHAPES = [
    (batch, m, n, k)
    for batch in (1, 3)
    for m in (2, 7, 16, 64)
    for n in (5, 16)
    for k in (2, 3, 24, 130)
]
METHODS = ("panel", "dot", "stream", "aten")


def operands(shape: tuple[int, int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """The same numbers in every process; the right one transposed, as PowerSGD has it."""
    batch, m, n, k = shape
    generator = torch.Generator().manual_seed(sum(shape))
    left = torch.randn(batch, m, k, generator=generator)
    right = torch.randn(batch, n, k, generator=generator).transpose(1, 2)
    return left, right, torch.empty(batch, m, n)


def propose(a: Tensor, b: Tensor, out: Tensor, first: int) -> str:
    """Propose METHODS[first], or the next that applies; the method that counts."""
    for method in METHODS[first:] + METHODS[:first]:
        try:
            counts: str = _C.gemm_probe_propose(a, b, out, method)
        except ValueError:
            continue
        return counts
    raise AssertionError("no method applies")


def proposed(rank: int, shapes: list[tuple[int, int, int, int]]) -> list[str]:
    """For each class, ranks have measured different methods to be the fastest."""
    return [propose(*operands(shape), (i + rank) % 4) for i, shape in enumerate(shapes)]


def digests(device: torch.device | str) -> list[str]:
    """One of the bits of every product."""
    found = []
    for shape in SHAPES:
        a, b, _ = operands(shape)
        bits = (a.to(device) @ b.to(device)).cpu().numpy().tobytes()
        found.append(hashlib.sha256(bits).hexdigest())
    return found


def here(rank: int, world: int) -> Env:
    """The device that run_ranks has set."""
    return Env(rank, world, torch.device("neuron", torch.accelerator.current_device_index()))


def needs_kernels() -> None:
    if _C.gemm_kernels()["Float"] == "none":
        pytest.skip("this processor has no matrix micro-kernels")


def disagreeing(
    rank: int, world: int, mode: str, store: str
) -> tuple[list[str], list[str], list[str], bool]:
    """Proposals of every rank's own before there is a group, and products before and after."""
    torch_neuronx.neuron.set_eager_mode(mode)
    chosen = proposed(rank, SHAPES)
    before = digests("neuron")
    dist.init_process_group("neuron", store=FileStore(store, world), rank=rank, world_size=world)
    after = digests("neuron")
    low_rank(here(rank, world))
    return chosen, before, after, _C.gemm_probe_keeps_rule()


@pytest.mark.parametrize("mode", ["debug", "strict"])
def test_ranks_without_a_common_file_keep_the_rule(tmp_path: Path, mode: str) -> None:
    """Each rank has a cache of its own, with other decisions in it."""
    needs_kernels()
    env, store = {"XDG_CACHE_HOME": f"{tmp_path}/{{rank}}"}, str(tmp_path / "store")
    one, two = run_ranks(2, disagreeing, mode, store, env=env, backend="none", timeout=100)
    assert one[0] != two[0]
    assert one[1] != two[1], "methods whose bits are the same prove nothing"
    assert one[2] == two[2]
    assert one[3]
    assert two[3]


def racing(rank: int, world: int, mode: str) -> tuple[list[str], list[str], bool]:
    """Ranks propose at once, each its own; half of four begin at the other end."""
    torch_neuronx.neuron.set_eager_mode(mode)
    order = list(enumerate(SHAPES))[:: 1 if rank % 4 < 2 else -1]
    dist.barrier()
    chosen = {i: propose(*operands(shape), (i + rank) % 4) for i, shape in order}
    found = digests("neuron")
    if world == 2:
        low_rank(here(rank, world))
    return [chosen[i] for i in range(len(SHAPES))], found, _C.gemm_probe_keeps_rule()


@pytest.mark.parametrize(("world", "mode"), [(2, "debug"), (2, "strict"), (4, "debug")])
def test_ranks_with_a_common_file_take_the_first_proposal(
    tmp_path: Path, world: int, mode: str
) -> None:
    needs_kernels()
    results = run_ranks(world, racing, mode, env={"XDG_CACHE_HOME": str(tmp_path)}, timeout=100)
    assert all(result == results[0] for result in results)
    assert not results[0][2]
    assert len(set(results[0][0])) > 1


def without_place(rank: int, world: int) -> tuple[list[str], str]:
    del rank, world
    return digests("neuron"), _C.gemm_probe_agreement()


def test_ranks_without_a_place_for_a_file_keep_the_rule() -> None:
    needs_kernels()
    env = {"XDG_CACHE_HOME": "/proc/nothing-can-be-made-here"}
    one, two = run_ranks(2, without_place, env=env)
    assert one == two
    assert one[1] == "rule"
