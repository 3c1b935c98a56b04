"""Distributed state dicts by the helpers that PyTorch's own tests of them use.

``python -m unittest tests.distributed.bases_checkpoint``, see bases_fsdp1.py.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.common_distributed import MultiProcContinuousTest
from torch.testing._internal.common_fsdp import MLPStack
from torch.testing._internal.distributed.checkpoint_utils import (
    with_checkpoint_logging,
    with_temp_dir,
)
from torch.testing._internal.distributed.common_state_dict import (
    FusionEmbedding,
    FusionEmbeddingWithModifier,
    VerifyStateDictMixin,
)

from tests.distributed.bases_device import BACKEND, DEVICE, filled, start

WIDTH = 6


class TestStateDicts(MultiProcContinuousTest, VerifyStateDictMixin):
    world_size = 2

    @classmethod
    def backend_str(cls) -> str:
        return BACKEND

    @classmethod
    def device_type(cls) -> str:
        return DEVICE

    @classmethod
    def _init_pg(cls, rank: int, world_size: int, rdvz_file: str) -> None:
        start(rank)
        super()._init_pg(rank, world_size, rdvz_file)

    def trained(self) -> tuple[Any, Any, Any, Any]:
        """A model and its optimizer after a step, and the same sharded by FSDP2."""
        alone = filled(MLPStack(WIDTH)).to(DEVICE)
        sharded = copy.deepcopy(alone)
        for layer in sharded:
            fully_shard(layer)
        fully_shard(sharded)
        x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1)).to(DEVICE)
        result: list[Any] = []
        for model in (alone, sharded):
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
            model(x).square().mean().backward()
            optimizer.step()
            result += [model, optimizer]
        return tuple(result)

    def test_same_as_unsharded(self) -> None:
        alone, optimizer, sharded, sharded_optimizer = self.trained()
        for offload in (False, True):
            options = StateDictOptions(cpu_offload=offload)
            state = get_model_state_dict(sharded, options=options)
            self._verify_msd(alone.state_dict(), state, options, offload_to_cpu=offload)
        state = get_optimizer_state_dict(sharded, sharded_optimizer)
        self._verify_osd(alone, optimizer, optimizer.state_dict(), state)
        fresh = torch.optim.AdamW(alone.parameters(), lr=0.1)
        self._verify_osd_by_load(alone, optimizer, fresh, state)

    @with_temp_dir
    @with_checkpoint_logging
    def test_saved_and_loaded(self) -> None:
        alone, _, sharded, _ = self.trained()
        path = Path(self.temp_dir)
        dcp.save(get_model_state_dict(sharded), checkpoint_id=path)
        with torch.no_grad():
            for parameter in sharded.parameters():
                parameter.zero_()
        state = get_model_state_dict(sharded)
        dcp.load(state, checkpoint_id=path)
        set_model_state_dict(sharded, state)
        self._verify_msd(alone.state_dict(), get_model_state_dict(sharded))
        dist.barrier()

    def test_renamed_keys(self) -> None:
        """A module whose hooks rename keys, and which says how."""
        for kind in (FusionEmbedding, FusionEmbeddingWithModifier):
            model: nn.Module = filled(kind(4, 4, 2)).to(DEVICE)
            expected = {k: v.clone() for k, v in model.state_dict().items()}
            self._verify_msd(expected, get_model_state_dict(fully_shard(model)))
