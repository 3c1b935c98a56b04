"""FSDPTest of PyTorch on the neuron backend: FSDP1 trains as DDP does, over its own models.

``python -m unittest tests.distributed.bases_fsdp1``, in a process of its own: the base reads what
device to use from variables of its module, which knows CUDA, HPU and XPU only.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import enable_wrap
from torch.testing._internal import common_fsdp
from torch.testing._internal.common_fsdp import (
    AlwaysWrapNestedWrappedModule,
    DEVICEInitMode,
    DummyDDP,
    FSDPInitMode,
    FSDPTest,
    FSDPTestContinuous,
    MixtureOfExperts,
    NestedWrappedModule,
    NonUniformReqGradNWM,
    SkipModel,
    TransformerWithSharedParams,
)

from tests.distributed.bases_device import BACKEND, DEVICE, start

RANKS = 2

common_fsdp.DEVICE_TYPE = DEVICE
common_fsdp.DISTRIBUTED_BACKEND = BACKEND
common_fsdp.DEVICE_COUNT = RANKS

STRATEGIES = (
    ShardingStrategy.FULL_SHARD,
    ShardingStrategy.SHARD_GRAD_OP,
    ShardingStrategy.NO_SHARD,
)
MODELS = (
    NestedWrappedModule,
    AlwaysWrapNestedWrappedModule,
    NonUniformReqGradNWM,
    TransformerWithSharedParams,
    MixtureOfExperts,
)
HALF = MixedPrecision(param_dtype=torch.float16, reduce_dtype=torch.float16)


class TestProcesses(FSDPTest):
    """The base that starts its ranks for every test."""

    @classmethod
    def _run(cls, rank: int, *args: Any, **kwargs: Any) -> None:
        start(rank)
        super()._run(rank, *args, **kwargs)  # type: ignore[no-untyped-call]

    def test_nested(self) -> None:
        self._test_fsdp_parity(
            NestedWrappedModule, FSDPInitMode.RECURSIVE, DEVICEInitMode.DEVICE_BEFORE
        )
        model: Any = TransformerWithSharedParams.init(
            self.process_group, FSDPInitMode.RECURSIVE, DEVICEInitMode.DEVICE_AFTER
        )
        common_fsdp._assert_module_states(model.module, self.process_group, self.check_shards)

    def check_shards(self, first: torch.Tensor, other: torch.Tensor) -> None:
        self.assertEqual(first.shape, other.shape)


class TestParity(FSDPTestContinuous):
    """The base whose ranks run all tests of a class."""

    world_size = RANKS

    @classmethod
    def _init_pg(cls, rank: int, world_size: int, rdvz_file: str) -> None:
        start(rank)
        super()._init_pg(rank, world_size, rdvz_file)  # type: ignore[no-untyped-call]

    def parity(self, model: type[Any], **options: Any) -> None:
        """Trains ``model`` as options of the base say; tells what it was if it goes wrong."""
        options.setdefault("device_init_mode", DEVICEInitMode.DEVICE_BEFORE)
        if model is NonUniformReqGradNWM:
            # Frozen parameters can be in one unit with trained ones if FSDP shows the originals.
            options["use_orig_params"] = True
        elif model is MixtureOfExperts:
            options["ref_init_fn"] = DummyDDP  # it sums the gradients of what is shared itself
        try:
            self._test_fsdp_parity(model, FSDPInitMode.RECURSIVE, **options)
        except Exception as error:
            error.add_note(f"{model.__name__} {options}")
            raise

    def test_models_and_strategies(self) -> None:
        after = itertools.cycle((DEVICEInitMode.DEVICE_BEFORE, DEVICEInitMode.DEVICE_AFTER))
        for model, strategy in itertools.product(MODELS, STRATEGIES):
            # PyTorch 2.13 loses a unit's parameters here if all are frozen, on the CPU too.
            if (model, strategy) == (NonUniformReqGradNWM, ShardingStrategy.NO_SHARD):
                continue
            self.parity(model, sharding_strategy=strategy, device_init_mode=next(after))

    def test_offload(self) -> None:
        """Parameters on the host; the base expects an error where the model was moved later."""
        offload = CPUOffload(offload_params=True)
        for model, strategy, when in (
            (NestedWrappedModule, ShardingStrategy.FULL_SHARD, DEVICEInitMode.DEVICE_BEFORE),
            (NestedWrappedModule, ShardingStrategy.FULL_SHARD, DEVICEInitMode.DEVICE_AFTER),
            (NestedWrappedModule, ShardingStrategy.FULL_SHARD, DEVICEInitMode.DEVICE_NEVER),
            (TransformerWithSharedParams, ShardingStrategy.SHARD_GRAD_OP, None),
            (MixtureOfExperts, ShardingStrategy.FULL_SHARD, None),
        ):
            self.parity(
                model,
                cpu_offload=offload,
                sharding_strategy=strategy,
                device_init_mode=when or DEVICEInitMode.DEVICE_BEFORE,
            )

    def test_prefetch(self) -> None:
        for model, backward, forward, original in (
            (NestedWrappedModule, BackwardPrefetch.BACKWARD_PRE, True, False),
            (AlwaysWrapNestedWrappedModule, BackwardPrefetch.BACKWARD_POST, False, True),
            (TransformerWithSharedParams, BackwardPrefetch.BACKWARD_PRE, False, True),
        ):
            self.parity(
                model,
                backward_prefetch=backward,
                forward_prefetch=forward,
                use_orig_params=original,
            )

    def test_half_precision(self) -> None:
        """Against autocast, which the base leaves to the default type of the device."""
        default = torch.get_autocast_dtype(DEVICE)
        torch.set_autocast_dtype(DEVICE, torch.float16)
        try:
            for model, strategy in itertools.product(MODELS[:3], STRATEGIES[:2]):
                self.parity(model, sharding_strategy=strategy, mixed_precision=HALF)
        finally:
            torch.set_autocast_dtype(DEVICE, default)

    def test_scaled_gradients(self) -> None:
        scale = {"init_scale": 2.0**4, "growth_interval": 1}
        for model, original in itertools.product(MODELS[:3], (False, True)):
            self.parity(
                model,
                enable_sharded_grad_scaler=True,
                sharded_grad_scaler_kwargs=scale,
                use_orig_params=original,
            )
        # One step: the gradients' sums are rounded in another order than DDP's.
        self.parity(NestedWrappedModule, use_pure_fp16=True, num_iters=1, save_model=False)

    def test_wrapped_by_hand(self) -> None:
        """A model that asks for its wrapping itself, by PyTorch's ``wrap``."""
        torch.manual_seed(0)
        with enable_wrap(wrapper_cls=FullyShardedDataParallel):
            model = FullyShardedDataParallel(SkipModel(double_nest=True))
        units = [m for m in model.modules() if isinstance(m, FullyShardedDataParallel)]
        self.assertEqual(len(units), 3)
        x = torch.randn(4, 10, device=DEVICE)
        wanted = x
        with FullyShardedDataParallel.summon_full_params(model):
            layers = [m.weight.detach().clone() for m in model.modules() if type(m) is nn.Linear]
        for weight in layers:
            wanted = wanted @ weight.T
        self.assertEqual(model(x), wanted)
