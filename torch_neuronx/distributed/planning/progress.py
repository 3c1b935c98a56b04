"""Where a training script is: in which step, which part of it, and in which module.

PyTorch's global hooks tell: those of modules before and after forward, those of optimizers before
and after a step. Whether backward runs is asked at every operator, as it has no hook.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._pytree import tree_leaves

from torch_neuronx.distributed.planning.memory import Memory

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle


class Enough(BaseException):
    """Ends a script after its steps; not an `Exception`, which a script might handle."""


class Progress:
    """Follows a script by PyTorch's global hooks; `open` and `close` install and remove them.

    Attributes:
        memory: The planned core's memory; its `phase` and `step` are where the script is.
        steps: Finished steps of the optimizer that made the most.
        module: Name of the module whose forward runs, empty outside of any.
        forwards: How often a forward began that is in no other module's, backward left out.
        tokens: Elements of the first tensor of integers that the last of them was given, 0 if none.
    """

    def __init__(self, last_step: int | None) -> None:
        self.memory = Memory()
        self.module = ""
        self.steps = 0
        self.forwards = 0
        self.tokens = 0
        self._last = last_step
        self._counts: dict[int, int] = {}
        self._optimizers: list[Optimizer] = []  # keeps their ids theirs
        self._stepped = False
        self._stack: list[str] = []
        self._names: dict[int, str] = {}
        self._handles: list[RemovableHandle] = []

    def open(self) -> None:
        """Install the hooks."""
        self._handles = [
            hooks.register_module_forward_pre_hook(self._before_forward),
            hooks.register_module_forward_hook(self._after_forward, always_call=True),
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @property
    def in_backward(self) -> bool:
        """Return whether the calling thread runs a backward pass."""
        return torch._C._current_graph_task_id() != -1

    def notice(self) -> None:
        """Take note of the phase, with every operator."""
        if self.in_backward:
            self.memory.phase = "backward"
        elif self.memory.phase == "backward":
            self.memory.phase = "optimizer"

    def _before_forward(self, module: nn.Module, inputs: object) -> None:
        if not self._stack:
            self._enter(module)
            if not self.in_backward:
                self.forwards += 1
                self.tokens = _tokens(inputs)
        path = self._names.get(id(module), type(module).__name__)
        self._stack.append(path)
        self.module = path

    def _enter(self, root: nn.Module) -> None:
        """A forward begins that is in no other module's."""
        if id(root) not in self._names:
            for path, child in root.named_modules():
                self._names.setdefault(id(child), path or type(root).__name__)
            # This is before FSDP's own hook: the parameters are the sharded ones.
            for name, parameter in root.named_parameters():
                self.memory.name(parameter, "parameters", name)
            for name, buffer in root.named_buffers():
                self.memory.name(buffer, "buffers", name)
        if self.in_backward:
            return
        if self._stepped or self.memory.phase == "setup":
            self.memory.step += 1
            self._stepped = False
        self.memory.phase = "forward"

    def _after_forward(self, _module: nn.Module, _inputs: object, _outputs: object) -> None:
        if self._stack:
            self._stack.pop()
        self.module = self._stack[-1] if self._stack else ""

    def _before_step(self, optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        self.memory.phase = "optimizer"
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self.memory.name(parameter, "parameters")
                self.memory.name(parameter.grad, "gradients")

    def _after_step(self, optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    self.memory.name(value, "optimizer state")
        if id(optimizer) not in self._counts:
            self._optimizers.append(optimizer)
        self._counts[id(optimizer)] = self._counts.get(id(optimizer), 0) + 1
        self.steps = max(self._counts.values())
        self._stepped = True
        if self._last is not None and min(self._counts.values()) >= self._last:
            raise Enough


def _tokens(inputs: object) -> int:
    """Elements of the first tensor of integers."""
    for leaf in tree_leaves(inputs):
        if isinstance(leaf, Tensor) and not leaf.dtype.is_floating_point and leaf.dim():
            return leaf.numel()
    return 0
