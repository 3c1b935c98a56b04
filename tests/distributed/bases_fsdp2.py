"""FSDP2 through PyTorch's FSDP bases on the neuron backend, over the models of common_fsdp.

``python -m unittest tests.distributed.bases_fsdp2``, see bases_fsdp1.py.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_param_group
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal import common_fsdp
from torch.testing._internal.common_fsdp import (
    MLP,
    DoubleLinear,
    FSDPTestContinuous,
    FSDPTestMultiThread,
    MLPStack,
    check_sharded_parity,
)
from torch.testing._internal.distributed._tensor.common_dtensor import ModelArgs, Transformer

from tests.distributed.bases_device import BACKEND, DEVICE, filled, noting, start

RANKS = 2
internals: Any = _fsdp_param_group
WIDTH = 6

common_fsdp.DEVICE_TYPE = DEVICE
common_fsdp.DISTRIBUTED_BACKEND = BACKEND
common_fsdp.DEVICE_COUNT = RANKS


def stack() -> MLPStack:
    return MLPStack(WIDTH)


def two_outputs() -> nn.Module:
    return DoubleLinear(WIDTH, use_second_linear=True)


def one_unused() -> nn.Module:
    return DoubleLinear(WIDTH, use_second_linear=False)


def with_buffer() -> nn.Module:
    return nn.Sequential(MLP(WIDTH, with_buffer=True), MLP(WIDTH, bias=False))


def transformer(*, recompute: bool = False) -> nn.Module:
    return Transformer(ModelArgs(dropout_p=0.0, checkpoint_activations=recompute))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "stack": stack,
    "two outputs": two_outputs,
    "one layer unused": one_unused,
    "buffer": with_buffer,
    "transformer": transformer,
    "transformer that recomputes": functools.partial(transformer, recompute=True),
}


def example(model: nn.Module, step: int, rank: int) -> Tensor:
    """What the rank feeds the model with in a step."""
    generator = torch.Generator().manual_seed(step * RANKS + rank)
    if isinstance(model, Transformer):
        return torch.randint(0, 8, (2, 8), generator=generator).to(DEVICE)
    return torch.randn(4, WIDTH, generator=generator).to(DEVICE)


def loss_of(output: Any) -> Tensor:
    outputs = output if isinstance(output, tuple) else (output,)
    return torch.stack([o.float().square().mean() for o in outputs]).sum()


def units(model: nn.Module) -> list[nn.Module]:
    """What is sharded on its own before the whole is."""
    return list(model.layers) if isinstance(model, Transformer) else list(model.children())


def pair(make: Callable[[], nn.Module], **options: Any) -> tuple[Any, Any]:
    """A model and the same sharded by FSDP2."""
    alone = filled(make()).to(DEVICE)
    sharded = copy.deepcopy(alone)
    for unit in units(sharded):
        if not isinstance(unit, nn.ReLU):
            fully_shard(unit, **options)
    return alone, fully_shard(sharded, **options)


class TestSharding(FSDPTestContinuous):
    world_size = RANKS

    @classmethod
    def _init_pg(cls, rank: int, world_size: int, rdvz_file: str) -> None:
        start(rank)
        super()._init_pg(rank, world_size, rdvz_file)  # type: ignore[no-untyped-call]

    def trains_alike(self, alone: nn.Module, sharded: nn.Module, steps: int = 3) -> None:
        """Both take the same steps, on the mean of all ranks' gradients; they stay equal."""
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (alone, sharded)]
        for step in range(steps):
            x = example(alone, step, self.rank)
            losses = [loss_of(model(x)) for model in (alone, sharded)]
            self.assertEqual(losses[0], losses[1])
            for loss in losses:
                loss.backward()
            for parameter in alone.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
            check_sharded_parity(self, alone, sharded)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        check_sharded_parity(self, alone, sharded)

    def test_models(self) -> None:
        for name, make in MODELS.items():
            for reshard in (True, False):
                with noting(f"{name}, reshard_after_forward={reshard}"):
                    self.trains_alike(*pair(make, reshard_after_forward=reshard))

    def test_placement_of_shards(self) -> None:
        """Along the last dimension, which the ranks divide, instead of the first."""
        layers: Any = MLPStack(2 * RANKS)
        alone, sharded = pair(
            lambda: nn.Sequential(*(m.in_proj for m in layers)),
            shard_placement_fn=lambda p: Shard(p.ndim - 1),
        )
        self.assertEqual({p.placements for p in sharded.parameters()}, {(Shard(0),), (Shard(1),)})
        check_sharded_parity(self, alone, sharded)

    def test_offload(self) -> None:
        alone, sharded = pair(stack, offload_policy=CPUOffloadPolicy(pin_memory=False))
        self.assertEqual({p.device.type for p in sharded.parameters()}, {"cpu"})
        x = example(alone, 0, self.rank)
        for model in (alone, sharded):
            loss_of(model(x)).backward()
        for whole, shard in zip(alone.parameters(), sharded.parameters(), strict=True):
            dist.all_reduce(whole.grad, dist.ReduceOp.AVG)
            self.assertEqual(shard.grad.device.type, "cpu")
            self.assertEqual(shard.grad.full_tensor(), whole.grad.cpu())

    def test_mixed_precision(self) -> None:
        """Parameters and outputs are bfloat16 within the model; gradients are summed in float32."""
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        alone, sharded = pair(stack, mp_policy=policy)
        seen: list[torch.dtype] = []
        original = dist.reduce_scatter_single

        def check(output: Tensor) -> None:
            seen.append(output.dtype)

        assertion = functools.partial(common_fsdp.reduce_scatter_with_assert, self, original, check)
        low = copy.deepcopy(alone).bfloat16()
        x = example(alone, 0, self.rank)
        with common_fsdp.patch_reduce_scatter(assertion):
            output = sharded(x)
            loss_of(output).backward()
        self.assertEqual(output.dtype, torch.bfloat16)
        self.assertEqual(set(seen), {torch.float32})
        expected = low(x.bfloat16())
        self.assertEqual(output, expected)
        loss_of(expected).backward()
        for whole, shard in zip(low.parameters(), sharded.parameters(), strict=True):
            mean = whole.grad.float()
            dist.all_reduce(mean, dist.ReduceOp.AVG)
            self.assertEqual(shard.grad.full_tensor(), mean)

    def test_order_of_work(self) -> None:
        """Units gather and let go when FSDP2 says, seen by the patches of common_fsdp."""
        alone, sharded = pair(stack)
        events: list[str] = []
        calls: Counter[str] = Counter()

        def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
            def run(group: Any, *args: Any, **kwargs: Any) -> Any:
                events.append(f"{name} {group._module_fqn or 'root'}")
                return function(group, *args, **kwargs)

            return run

        def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                calls[name] += 1
                return function(*args, **kwargs)

            return run

        group = internals.FSDPParamGroup
        x = example(alone, 0, self.rank)
        with contextlib.ExitStack() as patches:
            for patch in (
                common_fsdp.patch_unshard(noted("unshard", group.unshard)),
                common_fsdp.patch_reshard(noted("reshard", group.reshard)),
                common_fsdp.patch_post_backward(noted("post", group.post_backward)),
                common_fsdp.patch_all_gather(counted("gather", dist.all_gather_single)),
                common_fsdp.patch_foreach_all_gather(
                    counted("each gather", internals.foreach_all_gather)
                ),
                common_fsdp.patch_foreach_reduce(counted("each reduce", internals.foreach_reduce)),
                common_fsdp.patch_reduce_scatter(counted("reduce", dist.reduce_scatter_single)),
                common_fsdp.patch_all_reduce(counted("sum", dist.all_reduce)),
            ):
                patches.enter_context(patch)
            loss_of(sharded(x)).backward()
        layers = [str(i) for i in range(len(stack()))]
        self.assertEqual(calls["each gather"], 2 * len(layers))
        self.assertEqual(calls["gather"], 2 * len(layers))
        self.assertEqual(calls["each reduce"], len(layers))
        self.assertEqual(calls["reduce"], len(layers))
        self.assertEqual(calls["sum"], 0)
        posts = [e for e in events if e.startswith("post") and e != "post root"]
        self.assertEqual(posts, [f"post {layer}" for layer in reversed(layers)])
        first = [events.index(f"unshard {layer}") for layer in layers]
        freed = [events.index(f"reshard {layer}") for layer in layers]
        self.assertEqual(first, sorted(first))
        for begin, end in zip(first, freed, strict=True):
            self.assertLess(begin, end)


class TestPlane(FSDPTestContinuous):
    """FSDP2 with tensor parallelism, by the plan that MLPStack has of its own."""

    world_size = 4

    @classmethod
    def _init_pg(cls, rank: int, world_size: int, rdvz_file: str) -> None:
        start(rank)
        super()._init_pg(rank, world_size, rdvz_file)  # type: ignore[no-untyped-call]

    def test_with_tensor_parallelism(self) -> None:
        mesh = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("dp", "tp"))
        for sequence, recompute, reshard in itertools.product((False, True), repeat=3):
            with noting(f"{sequence=} {recompute=} {reshard=}"):
                alone = filled(MLPStack(8, with_seq_parallel=sequence)).to(DEVICE)
                both = copy.deepcopy(alone).parallelize(
                    mesh["tp"], mesh["dp"], recompute, reshard_after_forward=reshard
                )
                row = mesh["dp"].get_local_rank()
                x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(row)).to(DEVICE)
                expected, output = alone(x), both(x)
                if isinstance(output, DTensor):
                    output = output.full_tensor()
                if sequence and output.shape != expected.shape:
                    pieces = [torch.empty_like(output) for _ in range(2)]
                    dist.all_gather(pieces, output.contiguous(), group=mesh["tp"].get_group())
                    output = torch.cat(pieces, 1)
                self.assertEqual(output, expected)


class TestThreads(FSDPTestMultiThread):
    """Ranks that are threads of one process, and share a core."""

    @property
    def world_size(self) -> int:
        return RANKS

    def test_shards(self) -> None:
        self.run_subtests({"reshard": [True, False]}, self.check)  # type: ignore[no-untyped-call]

    def check(self, reshard: bool) -> None:
        alone, sharded = pair(stack, reshard_after_forward=reshard)
        check_sharded_parity(self, alone, sharded)
        for parameter in sharded.parameters():
            self.assertIsInstance(parameter, DTensor)
            self.assertEqual(parameter.device.type, DEVICE)
        x = example(alone, 0, 0)
        self.assertEqual(sharded(x), alone(x))
