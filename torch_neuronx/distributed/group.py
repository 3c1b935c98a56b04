"""Registration of the backend with PyTorch, and the creation of groups."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from torch_neuronx.distributed import planning, symmetric

if TYPE_CHECKING:
    from torch._C._distributed_c10d import _DistributedBackendOptions as BackendOptions

BACKEND = "neuron"


def register() -> None:
    """Make ``neuron`` a backend of ``torch.distributed`` and the default one of the device.

    A PyTorch that was built without distributed support is left alone.
    """
    if dist.is_available() and not hasattr(dist.Backend, BACKEND.upper()):
        # The devices must be a list: PyTorch takes a string apart into letters.
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=[BACKEND])
        symmetric.register()


def _create(options: BackendOptions, backend_options: Any) -> Any:
    """Join one group: called by PyTorch in every rank of it, after the store is up."""
    from torch_neuronx import _C  # noqa: PLC0415 - the core is loaded by now, whoever imports this

    if planning.ACTIVE:
        return planning.fake_group(options.group_rank, options.group_size)
    timeout = options.timeout
    if backend_options is not None:
        timeout = backend_options._timeout  # noqa: SLF001 - PyTorch's only name for it
    return _C.create_process_group(
        options.store,
        options.group_rank,
        options.group_size,
        options.group_id,
        _positive(timeout),
        options.global_ranks_in_group,
    )


def _positive(timeout: timedelta) -> timedelta:
    if timeout.total_seconds() <= 0 or math.isinf(timeout.total_seconds()):
        raise ValueError(f"the timeout of a neuron group must be positive, but got {timeout}")
    return timeout
