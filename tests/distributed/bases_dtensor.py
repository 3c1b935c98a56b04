"""DTensor through PyTorch's own bases on the neuron backend: its models, converter and orders.

``python -m unittest tests.distributed.bases_dtensor``, see bases_fsdp1.py.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.testing._internal.distributed._tensor import common_dtensor
from torch.testing._internal.distributed._tensor.common_dtensor import (
    DTensorContinuousTestBase,
    DTensorConverter,
    DTensorOpTestBase,
    DTensorTestBase,
    MLPModule,
    MLPStacked,
    ModelArgs,
    Transformer,
    with_comms,
)

from tests.distributed.bases_device import BACKEND, DEVICE, filled, noting, start

RANKS = 4

# Operator, shapes of its operands. All but the last sizes are multiples of the number of ranks.
OPERATORS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "add": (torch.add, ((8, 4), (8, 4))),
    "add broadcast": (torch.add, ((8, 4), (4,))),
    "mul scalar": (torch.mul, ((8, 4), ())),
    "where": (lambda a, b: torch.where(a > 0, a, b), ((8, 4), (8, 4))),
    "gelu": (functional.gelu, ((8, 12),)),
    "mm": (torch.mm, ((8, 4), (4, 12))),
    "bmm": (torch.bmm, ((4, 8, 4), (4, 4, 8))),
    "addmm": (torch.addmm, ((12,), (8, 4), (4, 12))),
    "linear": (functional.linear, ((4, 8, 4), (12, 4), (12,))),
    "sum": (lambda a: a.sum(1), ((8, 4, 4),)),
    "mean": (lambda a: a.mean((0, 2), keepdim=True), ((8, 4, 4),)),
    "amax": (lambda a: a.amax(0), ((8, 4),)),
    "var": (lambda a: a.var(1), ((8, 4),)),
    "softmax": (lambda a: a.softmax(-1), ((8, 4),)),
    "log_softmax": (lambda a: a.log_softmax(0), ((8, 4),)),
    "layer_norm": (lambda a, w, b: functional.layer_norm(a, (8,), w, b), ((4, 8), (8,), (8,))),
    "cumsum": (lambda a: a.cumsum(1), ((8, 4),)),
    "transpose": (lambda a: a.transpose(0, 2), ((8, 4, 4),)),
    "flatten": (lambda a: a.flatten(0, 1), ((8, 4, 4),)),
    "unflatten": (lambda a: a.unflatten(0, (4, 2)), ((8, 4),)),
    "cat": (lambda a, b: torch.cat([a, b], 1), ((8, 4), (8, 4))),
    "stack": (lambda a, b: torch.stack([a, b], 1), ((8, 4), (8, 4))),
    "slice": (lambda a: a[2:7], ((8, 4),)),
    "topk": (lambda a: a.topk(2, 1).values, ((8, 4),)),
    "attention": (
        functional.scaled_dot_product_attention,
        ((4, 4, 8, 4), (4, 4, 8, 4), (4, 4, 8, 4)),
    ),
}


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def tokens() -> Tensor:
    return torch.randint(0, 8, (4, 8), generator=torch.Generator().manual_seed(1)).to(DEVICE)


def whole(t: Any) -> Any:
    return t.full_tensor() if isinstance(t, DTensor) else t


class OnDevice:
    """Where the bases run, by their own points of override."""

    world_size = RANKS
    device_type: Any = DEVICE

    @property
    def backend(self) -> str:
        return BACKEND

    @classmethod
    def backend_str(cls) -> str:
        return BACKEND


class TestProcesses(OnDevice, DTensorTestBase):
    """The base that starts its ranks for every test."""

    @with_comms
    def test_mlp(self) -> None:
        start(self.rank)
        mesh = self.build_device_mesh()
        alone = filled(MLPModule(DEVICE))
        split = parallelize_module(
            copy.deepcopy(alone), mesh, {"net1": ColwiseParallel(), "net2": RowwiseParallel()}
        )
        x = numbers(4, 10)
        expected, output = alone(x), split(x)
        self.assertEqual(output, expected)
        for out in (expected, output):
            out.sum().backward()
        for one, other in zip(alone.parameters(), split.parameters(), strict=True):
            self.assertEqual(whole(other.grad), one.grad)


class TestModels(OnDevice, DTensorContinuousTestBase):
    """The base whose ranks run all tests of a class."""

    @classmethod
    def _init_pg(cls, rank: int, world_size: int, rdvz_file: str) -> None:
        start(rank)
        super()._init_pg(rank, world_size, rdvz_file)  # type: ignore[no-untyped-call]

    def same(self, alone: nn.Module, split: nn.Module, x: Tensor) -> None:
        """Outputs and gradients of both are equal."""
        expected, output = alone(x), whole(split(x))
        self.assertEqual(output, expected)
        for out in (expected, output):
            out.square().mean().backward()
        for (name, one), (_, other) in zip(
            alone.named_parameters(), split.named_parameters(), strict=True
        ):
            with noting(name):
                self.assertEqual(whole(other.grad), one.grad)

    def test_stacked(self) -> None:
        alone = filled(MLPStacked(DEVICE, 3))
        plan: Any = {
            f"layers.{i}.{net}": style()
            for i in range(3)
            for net, style in (("net1", ColwiseParallel), ("net2", RowwiseParallel))
        }
        split = parallelize_module(copy.deepcopy(alone), self.build_device_mesh(), plan)
        self.same(alone, split, numbers(8, 10))

    def test_transformer(self) -> None:
        """By the plan of its own, with and without sequence parallelism."""
        for sequence, local, tied in itertools.product((False, True), repeat=3):
            with noting(f"{sequence=} {local=} {tied=}"):
                alone = filled(Transformer(ModelArgs(dropout_p=0.0, weight_tying=tied))).to(DEVICE)
                split = Transformer.parallelize(
                    copy.deepcopy(alone),
                    self.build_device_mesh(),
                    use_seq_parallel=sequence,
                    local_output_for_attn=local,
                )
                self.same(alone, split, tokens())

    def test_experts(self) -> None:
        """Experts split by tensor parallelism.

        The plan leaves their input's gradient in parts, and its sequence parallel form takes no
        DTensor, on the CPU too.
        """
        alone = filled(Transformer(ModelArgs(dropout_p=0.0, num_experts=4))).to(DEVICE)
        split = Transformer.parallelize(
            copy.deepcopy(alone), self.build_device_mesh(), use_seq_parallel=False
        )
        self.assertEqual(whole(split(tokens())), alone(tokens()))

    def test_whole_experts(self) -> None:
        """Experts dealt out to ranks, which see their own tokens: dispatch and combine."""
        mesh = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("ep", "tp"))
        for tensor_parallel in (None, mesh["tp"]):
            args = ModelArgs(dropout_p=0.0, num_experts=4)
            alone = filled(Transformer(args)).to(DEVICE)
            split = Transformer.parallelize(
                copy.deepcopy(alone), tensor_parallel, use_seq_parallel=False, ep_mesh=mesh["ep"]
            )
            mine = tokens()[mesh["ep"].get_local_rank() :: 2]
            with noting(f"{tensor_parallel=}"):
                self.assertEqual(whole(split(mine)), alone(mine))

    def test_shard_orders(self) -> None:
        """A dimension split over several of the mesh's in any order, and back."""
        mesh = init_device_mesh(DEVICE, (2, 2))
        data = numbers(8, 4, 3)
        for order in common_dtensor.generate_shard_orders(mesh, 3):
            with noting(str(order)):
                split = common_dtensor.patched_distribute_tensor(data, mesh, None, order)
                self.assertEqual(common_dtensor.make_full_tensor(split), data)

    def test_rules(self) -> None:
        """The base's comparison of operators on shards with one on the whole, and backward."""
        mesh = self.build_device_mesh()
        a, b = numbers(8, 4), numbers(4, 12, seed=1)
        self._test_op_on_dtensor(
            torch.mm, distribute_tensor(a, mesh, [Shard(0)]), distribute_tensor(b, mesh, [Shard(1)])
        )
        for places in itertools.product((Replicate(), Shard(0), Shard(1)), repeat=2):
            with noting(str(places)):
                good = common_dtensor.validate_sharding_rule_sample_backward(
                    torch.mm, (a, b), {}, places, mesh
                )
                self.assertTrue(good)
        rules = ((Shard(0), Replicate(), Shard(0)), (Replicate(), Shard(1), Shard(1)))
        for left, right, out in rules:
            good = common_dtensor.validate_sharding_rule_sample(
                torch.mm, (a, b), {}, (left, right), (out,), mesh
            )
            self.assertTrue(good)
        wrong = common_dtensor.validate_sharding_rule_sample(
            torch.mm, (a, b), {}, (Replicate(), Shard(1)), (Replicate(),), mesh
        )
        self.assertFalse(wrong)


class TestThreads(OnDevice, DTensorOpTestBase):
    """Ranks that are threads of one process, with operators on every even sharding."""

    def test_operators(self) -> None:
        mesh: DeviceMesh = self.build_device_mesh()  # type: ignore[no-untyped-call]
        # The mesh takes a core per rank; PyTorch's cache of sharding belongs to all threads.
        start(0)
        for name, (operator, shapes) in OPERATORS.items():
            operands = tuple(numbers(*shape, seed=i) for i, shape in enumerate(shapes))
            expected = operator(*operands)
            converter: Any = DTensorConverter(mesh, operands, {})
            for arguments, _ in converter:
                with noting(f"{name} {[a.placements for a in arguments]}"):
                    self.assertTrue(converter.successful())
                    self.assertEqual(operator(*arguments).full_tensor(), expected)
