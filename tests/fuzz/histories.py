"""Compiled modules with a history: what happened to a module between two calls must not matter.

A history is a random series of what people do to modules: steps of optimizers, other batches,
frozen and swapped parameters, other types, state loaded, hooks, attributes, autocast. Each thing is
done to two equal modules, one of which is compiled, and then their results, parameters, gradients
and buffers are compared.

    python -m tests.fuzz.histories --seconds 600 --seed 1000
"""

from __future__ import annotations

import argparse
import copy
import io
import random
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from tests.fuzz.history_modules import MODELS, SIZE, Cache, Images, Tied

DEVICE = "neuron"


_RATE = 0.01
OPTIMIZERS: tuple[Callable[[Any], torch.optim.Optimizer], ...] = (
    lambda p: torch.optim.SGD(p, _RATE, momentum=0.9),
    lambda p: torch.optim.AdamW(p, _RATE),
    lambda p: torch.optim.Adam(p, _RATE, foreach=False),
    lambda p: torch.optim.Adam(p, _RATE, fused=True),
    lambda p: torch.optim.RMSprop(p, _RATE),
)


class Side:
    """One of the two: a module, what is called, and its optimizer."""

    def __init__(self, model: nn.Module, rng: random.Random, *, compiled: bool) -> None:
        self.model = model
        self.compiled = compiled
        self.dynamic = rng.choice([None, False, True])
        self.make_optimizer = rng.choice(OPTIMIZERS)
        self.compiles_steps = rng.random() < 0.3
        self.hooks: list[Any] = []
        self.renew()

    def renew(self) -> None:
        """Compile the module (again), with a new optimizer."""
        self.call: Callable[..., Tensor] = self.model
        if self.compiled:
            self.call = torch.compile(self.model, backend="neuron", dynamic=self.dynamic)
        self.optimizer = self.make_optimizer(list(self.model.parameters()))
        self.step: Callable[[], object] = self.optimizer.step
        if self.compiled and self.compiles_steps:
            self.step = torch.compile(self.optimizer.step, backend="neuron")

    def parameters(self) -> list[tuple[nn.Module, str, nn.Parameter]]:
        """Every place of a parameter."""
        return [
            (module, name, parameter)
            for module in self.model.modules()
            for name, parameter in module.named_parameters(recurse=False)
        ]

    @property
    def dtype(self) -> torch.dtype:
        return next(p.dtype for p in self.model.parameters())


Action = Callable[[Side, random.Random], Tensor | None]


def _input(side: Side, rng: random.Random, *, gradient: bool = False) -> Tensor:
    """A batch, sometimes a view with gaps or of something larger."""
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    rows, how = rng.choice([2, 2, 2, 3, 5]), rng.randrange(4)
    x = torch.randn(rows + 2, SIZE + 2, generator=generator).to(DEVICE, side.dtype)
    if how == 0:
        x = x[1:-1, 1:-1]
    elif how == 1:
        x = x[2:, :SIZE].t().contiguous().t()
    elif how == 2:
        x = x[:rows, :SIZE].contiguous()
    else:
        x = x.view(-1)[3 : 3 + rows * SIZE].view(rows, SIZE)
    if isinstance(side.model, Images):
        x = x.contiguous()
    return x.detach().requires_grad_(gradient)


def forward(side: Side, rng: random.Random) -> Tensor:
    """Call it, in one of the ways to do without gradients, or with them."""
    how = rng.choice(["", "", "no_grad", "inference", "autocast"])
    contexts: dict[str, Any] = {
        "": nullcontext(), "no_grad": torch.no_grad(), "inference": torch.inference_mode(),
        "autocast": torch.autocast(DEVICE, torch.bfloat16),
    }  # fmt: skip
    with contexts[how]:
        return side.call(_input(side, rng, gradient=how == "" and rng.random() < 0.5)).clone()


def backward(side: Side, rng: random.Random) -> Tensor:
    """Add gradients up."""
    loss = side.call(_input(side, rng, gradient=rng.random() < 0.3)).float().square().mean()
    loss.backward()
    return loss.detach()


def step(side: Side, rng: random.Random) -> None:
    """Take a step of the optimizer, sometimes with clipped gradients, and forget these."""
    if rng.random() < 0.3:
        nn.utils.clip_grad_norm_(side.model.parameters(), 0.5)
    side.step()
    side.model.zero_grad(set_to_none=rng.random() < 0.7)


def mode(side: Side, rng: random.Random) -> None:
    """Switch between training and evaluation."""
    side.model.train(rng.random() < 0.5)


def freeze(side: Side, rng: random.Random) -> None:
    """Freeze or thaw a parameter; one at least stays thawed."""
    chosen = rng.choice(side.parameters())[2]
    chosen.requires_grad_(not chosen.requires_grad)
    if not any(p.requires_grad for p in side.model.parameters()):
        chosen.requires_grad_()


def swap(side: Side, rng: random.Random) -> None:
    """Give a parameter other memory: of other strides, in a larger storage, or beside another."""
    _, _, parameter = rng.choice(side.parameters())
    old, how = parameter.detach(), rng.randrange(4)
    if how == 0 and old.dim() == 2:
        parameter.data = old.t().contiguous().t() * 0.9
    elif how == 1:
        storage = torch.zeros(old.numel() + 5, device=DEVICE, dtype=old.dtype)
        parameter.data = storage[5:].view(old.shape).copy_(old * 0.9)
    elif how == 2:
        parameter.data = old * 0.9
    else:
        others = [p for _, _, p in side.parameters() if p.shape == old.shape]
        other = rng.choice(others)
        both = torch.stack([old, other.detach()])
        parameter.data, other.data = both[0], both[1]


def scale(side: Side, rng: random.Random) -> None:
    """Write to a parameter in place."""
    _, _, parameter = rng.choice(side.parameters())
    with torch.no_grad():
        if rng.random() < 0.5:
            parameter.mul_(0.9)
        else:
            parameter.data[:1].add_(0.1)


def replaced(side: Side, rng: random.Random) -> None:
    """Put another parameter in the place of one."""
    module, name, parameter = rng.choice(side.parameters())
    setattr(module, name, nn.Parameter(parameter.detach() * 0.9))
    side.renew()


def load(side: Side, rng: random.Random) -> None:
    """Save the state and load it, into the same tensors or in their stead."""
    file = io.BytesIO()
    torch.save(
        {k: v * 0.9 if v.is_floating_point() else v for k, v in side.model.state_dict().items()},
        file,
    )
    file.seek(0)
    state = torch.load(file, map_location=DEVICE if rng.random() < 0.5 else "cpu")
    assign = rng.random() < 0.4
    if assign:
        state = {k: v.to(DEVICE) for k, v in state.items()}
    side.model.load_state_dict(state, assign=assign)
    if assign:
        side.renew()


def convert(side: Side, rng: random.Random) -> None:
    """Change the type of everything."""
    side.model.to(rng.choice([torch.float32, torch.float32, torch.bfloat16]))
    side.renew()


def hook(side: Side, rng: random.Random) -> None:
    """Add a hook, or take all away."""
    if side.hooks and rng.random() < 0.5:
        for handle in side.hooks:
            handle.remove()
        side.hooks.clear()
    else:
        chosen = rng.choice(list(side.model.modules()))
        side.hooks.append(chosen.register_forward_hook(lambda _m, _args, out: out * 1.25))
    side.renew()  # torch.compile does not look for hooks that come later
    if side.compiled:
        torch.compiler.reset()


def attribute(side: Side, rng: random.Random) -> None:
    """Change a number that a module keeps."""
    value = rng.choice([0.5, 1.5, 2.0])
    for module in side.model.modules():
        if isinstance(module, Tied):
            module.scale = value
        elif isinstance(module, Cache):
            module.at = int(value)
        elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.momentum = value / 4
        elif isinstance(module, nn.LayerNorm):
            module.eps = value / 10


def tie(side: Side, rng: random.Random) -> None:
    """Make two weights of one shape one."""
    places = side.parameters()
    module, name, parameter = rng.choice(places)
    other, second, _ = rng.choice([p for p in places if p[2].shape == parameter.shape])
    setattr(other, second, getattr(module, name))
    side.renew()


def copied(side: Side, rng: random.Random) -> None:
    """Go on with a copy of the module."""
    del rng
    side.model = copy.deepcopy(side.model)
    side.hooks.clear()
    for module in side.model.modules():
        module._forward_hooks.clear()
    side.renew()


def forget(side: Side, rng: random.Random) -> None:
    """Forget what was compiled."""
    del rng
    if side.compiled:
        torch.compiler.reset()


#: What is done, and what follows it. In between the two modules are made equal again: an optimizer
#: divides gradients by their size, and would blow up what rounding makes of those that are 0.
ACTIONS: tuple[tuple[Action, ...], ...] = (
    *[(forward,)] * 5, *[(backward, step)] * 4, (backward, backward, step), (backward,), (mode,),
    (freeze,), (swap,), (swap,), (scale,), (replaced,), (load,), (convert,), (hook,), (attribute,),
    (tie,), (copied,), (forget,),
)  # fmt: skip


def _state(side: Side) -> Iterator[tuple[str, Tensor | None]]:
    for name, parameter in side.model.named_parameters(remove_duplicate=False):
        yield name, parameter.detach()
    for name, buffer in side.model.named_buffers():
        yield name, buffer
    for name, parameter in side.model.named_parameters(remove_duplicate=False):
        yield f"{_GRADIENT} {name}", parameter.grad


_GRADIENT = "gradient of"


def _differences(
    ours: list[tuple[str, Tensor | None]], two: list[Tensor | None], dtype: torch.dtype
) -> Iterator[str]:
    gradients = [x for name, x in ours if name.startswith(_GRADIENT) and x is not None]
    most = max((float(x.abs().max()) for x in gradients), default=0.0)
    for (name, x), y in zip(ours, two, strict=True):
        # A gradient that is 0 but for roundings is as exact as those that it was made of, and an
        # optimizer divides it by its size: a parameter is as exact as the steps that it takes.
        scale = most if name.startswith(_GRADIENT) else 0.0 if name == "result" else _RATE
        if found := _differs(x, y, scale, dtype):
            yield f"{name}: {found}"


def _differs(one: Tensor | None, two: Tensor | None, scale: float, dtype: torch.dtype) -> str:
    """How two tensors differ beyond roundings to a type, of numbers of a size or of their own."""
    if one is None or two is None:
        missing = one if two is None else two
        return "" if missing is None or not missing.any() else "there is only one"
    if one.dtype != two.dtype or one.shape != two.shape:
        return f"{one.dtype} {tuple(one.shape)}, compiled {two.dtype} {tuple(two.shape)}"
    if not one.is_floating_point():
        return "" if torch.equal(one, two) else f"{one.tolist()}, compiled {two.tolist()}"
    bound = 64 * max(torch.finfo(one.dtype).eps, torch.finfo(dtype).eps)
    x, y = one.detach().cpu().double(), two.detach().cpu().double()
    most = max(scale, float(x.abs().nan_to_num().max()) if x.numel() else 0.0)
    if torch.allclose(x, y, rtol=bound, atol=bound * most, equal_nan=True):
        return ""
    return f"largest difference {float((x - y).abs().max()):.3g} of {most:.3g}"


def _do(action: Action, side: Side, seed: int) -> tuple[Tensor | None, Exception | None]:
    torch.manual_seed(seed)
    try:
        return action(side, random.Random(seed)), None  # noqa: S311 - it makes tests
    except Exception as error:  # noqa: BLE001 - it is compared with the other one's
        return None, error


#: What ended histories because eager mode refuses it, too.
REFUSED: Counter[str] = Counter()


def history(seed: int) -> str:
    """Make a history and return what differs, with what led to it; "" if nothing."""
    with torch._dynamo.config.patch(recompile_limit=100):  # what is compiled then is compared, too
        return _history(seed)


def _history(seed: int) -> str:
    rng = random.Random(seed)  # noqa: S311 - it makes tests
    torch.compiler.reset()
    torch.manual_seed(seed)
    model = rng.choice(MODELS)().to(DEVICE)
    settings = rng.randrange(1 << 30)
    sides = [
        Side(copy.deepcopy(model), random.Random(settings), compiled=c)  # noqa: S311
        for c in (False, True)
    ]
    done: list[str] = [f"{type(model).__name__}, dynamic={sides[1].dynamic}"]
    actions = [action for _ in range(rng.randrange(6, 20)) for action in rng.choice(ACTIONS)]
    for action in actions:
        number = rng.randrange(1 << 30)
        done.append(action.__name__)
        (one, first), (two, second) = (_do(action, side, number) for side in sides)
        if first is not None or second is not None:
            if type(first) is type(second):
                REFUSED[f"{action.__name__}: {type(first).__name__}"] += 1
                return ""  # what they did before they refused may differ
            error = first or second
            assert error is not None
            told = "".join(traceback.format_exception(error)[-3:])
            return f"{' '.join(done)}: {'eager' if first else 'compiled'} raises {told[:1500]}"
        ours, theirs = (list(_state(side)) for side in sides)
        for difference in _differences(
            [("result", one), *ours], [two, *(tensor for _, tensor in theirs)], sides[0].dtype
        ):
            return f"{' '.join(done)}: {difference}"
        with torch.no_grad():  # what follows starts from equal numbers
            for (_, x), (_, y) in zip(ours, theirs, strict=True):
                if x is not None and y is not None:
                    y.copy_(x)
    return ""


def main() -> int:
    """Make histories until the time is over; 1 if anything differed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    end, seed, findings = time.monotonic() + given.seconds, given.seed, 0
    while time.monotonic() < end:
        if found := history(seed):
            findings += 1
            sys.stdout.write(f"{seed}: {found}\n")
            sys.stdout.flush()
        seed += 1
    sys.stdout.write(f"{seed - given.seed} histories from {given.seed}, {findings} findings\n")
    for what, count in REFUSED.most_common():
        sys.stdout.write(f"{count} ended where both refuse: {what}\n")
    return int(findings > 0)


if __name__ == "__main__":
    sys.exit(main())
