"""`DataParallel`: a batch over several cores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_neuronx import _C
from torch_neuronx.inference.batching import why_not
from torch_neuronx.inference.manifest import read_manifest
from torch_neuronx.inference.placement import DYNAMIC_BATCH, models


class DataParallel(torch.nn.Module):
    """Replicates a traced module on cores, and runs parts of every batch on them at the same time.

    Attributes:
        num_workers: Threads that run parts; twice the cores by default.
        split_size: Rows of a part; by default max(1, rows // cores).
        device_ids: The cores.
        dim: The dimension that is split.
    """

    def __init__(
        self,
        model: torch.jit.ScriptModule,
        device_ids: Sequence[int | str] | None = None,
        dim: int = 0,
        set_dynamic_batching: bool = True,
    ) -> None:
        """Place the model on the cores, in place.

        Args:
            model: What `trace` or `torch.jit.load` returned.
            device_ids: Numbers of cores or "nc:0", as this process counts them; None: all.
            dim: Along which inputs are split and outputs joined.
            set_dynamic_batching: With dim 0, let the model take parts of any size, if it can.

        Raises:
            ValueError: There is no such core, or none.
        """
        super().__init__()
        self.device_ids = _cores(device_ids)
        self.dim = dim
        self.num_workers = 2 * len(self.device_ids)
        self.split_size: int | None = None
        self.model = model
        self._models = models(model)
        self._pool: tuple[int, ThreadPoolExecutor] | None = None
        # Why parts must have the traced size; "" if they need not.
        self._fixed = "dynamic batching is disabled"
        if dim == 0 and set_dynamic_batching:
            reasons = [text for text in map(why_not, self._models) if text]
            self._fixed = reasons[0] if reasons else ""
        elif dim != 0:
            self._fixed = f"dynamic batching is for dimension 0, not for {dim}"
        for held in self._models:
            held.set_option(DYNAMIC_BATCH, not self._fixed)
            held.set_cores(self.device_ids)

    def disable_dynamic_batching(self) -> None:
        """From now on every part must have the size that was traced."""
        self._fixed = self._fixed or "dynamic batching is disabled"
        for held in self._models:
            held.set_option(DYNAMIC_BATCH, not self._fixed)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Split all tensors along `dim`, run the parts, and join their results.

        Raises:
            InputError: A part does not fit the traced model.
            ValueError: Tensors have different sizes there, or parts would not have the traced size
                and dynamic batching is off.
        """
        leaves, spec = pytree.tree_flatten((args, kwargs))
        rows = self._rows(leaves)
        size = self.split_size or max(1, rows // len(self.device_ids))
        if self._fixed:
            self._check_fixed(rows, size)
        starts = range(0, rows, size) if rows else range(1)

        at_once = min(len(starts), len(self.device_ids), self.num_workers)
        share = max(1, torch.get_num_threads() // at_once)

        def part(start: int) -> Any:
            def cut(leaf: Any) -> Any:
                if not isinstance(leaf, torch.Tensor):
                    return leaf
                return leaf.narrow(self.dim, start, min(size, rows - start))

            some, named = pytree.tree_unflatten([cut(leaf) for leaf in leaves], spec)
            return self.model(*some, **named)

        def apart(start: int) -> Any:
            # Each part with all of the host's threads would only have them wait for each other.
            _C.set_thread_share(share)
            return part(start)

        results = [part(0)] if len(starts) == 1 else list(self._executor().map(apart, starts))
        return self._join(results)

    def _rows(self, leaves: Sequence[Any]) -> int:
        sizes = [leaf.size(self.dim) for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if not sizes:
            raise ValueError("DataParallel needs at least one tensor to split")
        if len(set(sizes)) > 1:
            raise ValueError(
                f"all inputs must have the same size in dimension {self.dim}, got {sizes}"
            )
        return int(sizes[0])

    def _check_fixed(self, rows: int, size: int) -> None:
        if len(self._models) != 1:
            return  # the parts of a partitioned model check for themselves
        facts = read_manifest(self._models[0].manifest()).inputs
        shape = facts[0].shape if facts else ()
        traced = shape[self.dim] if -len(shape) <= self.dim < len(shape) else 0
        cores = len(self.device_ids)
        if size != traced or rows % size:
            raise ValueError(
                f"{rows} rows over {cores} cores in parts of {size} do not fit the traced model, "
                f"which takes {traced} ({self._fixed}): the size must be {traced} * {cores} = "
                f"{traced * cores}, or trace the model with another one"
            )

    def _executor(self) -> ThreadPoolExecutor:
        if self._pool is None or self._pool[0] != self.num_workers:
            if self._pool is not None:
                self._pool[1].shutdown()
            self._pool = (self.num_workers, ThreadPoolExecutor(self.num_workers))
        return self._pool[1]

    def _join(self, results: Sequence[Any]) -> Any:
        first = results[0]
        if len(results) == 1:
            return first
        if isinstance(first, torch.Tensor):
            if not first.dim():
                return torch.stack(list(results))
            return torch.cat(list(results), self.dim)
        if isinstance(first, Mapping):
            return {key: self._join([result[key] for result in results]) for key in first}
        if isinstance(first, list | tuple):
            items = [self._join(parts) for parts in zip(*results, strict=True)]
            make: Callable[..., Any] = type(first)
            return make(*items) if hasattr(first, "_fields") else make(items)
        return first


def _cores(device_ids: Sequence[int | str] | None) -> list[int]:
    available = _C.device_count()
    if device_ids is None:
        if not available:
            raise ValueError("there is no NeuronCore in this process")
        return list(range(available))
    found = []
    for item in device_ids:
        text = str(item).removeprefix("nc:")
        core = int(text) if text.isdecimal() else -1
        if not 0 <= core < available or isinstance(item, bool):
            raise ValueError(
                f"device_ids has {item!r}; it must be a number or 'nc:#' from 0 to {available - 1}"
            )
        found.append(core)
    if not found:
        raise ValueError("device_ids names no core")
    return found
