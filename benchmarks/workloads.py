"""The table of what is measured, and the smallest speed-up that counts as met.

Every entry builds the same tensors on either device (drawn on the host from a fixed seed), and
returns a step that takes no argument. Nothing here knows how the device is built.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks import models
from benchmarks.harness import Step, Workload, at_least, time_at_most

if TYPE_CHECKING:
    from collections.abc import Callable

M = TypeVar("M", bound=nn.Module)
BIG = (4096, 4096)
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}

# M x K x N of a linear layer: activations [M, K] times weight [N, K].
LINEAR = ((256, 768, 3072), (256, 3072, 768), (1024, 1024, 1024))
SMALL_BATCH = (4, 768, 3072)
# Sizes that models really have, and awkward ones: rows, columns, primes, tiny and thin.
NEVER_SLOWER = (
    (1, 768, 768),
    (1, 768, 3072),
    (1, 4096, 4096),
    (2, 768, 768),
    (3, 100, 10),
    (8, 768, 768),
    (8, 4096, 1024),
    (16, 16, 16),
    (16, 1024, 1024),
    (17, 31, 29),
    (32, 128, 10),
    (32, 32, 32),
    (32, 512, 512),
    (64, 64, 64),
    (64, 784, 128),
    (64, 2048, 1000),
    (100, 100, 100),
    (127, 127, 127),
    (128, 128, 128),
    (128, 128, 512),
    (128, 768, 768),
    (128, 768, 50257),
    (200, 3, 64),
    (256, 256, 256),
    (256, 384, 1152),
    (256, 768, 2304),
    (257, 769, 255),
    (333, 777, 555),
    (512, 64, 512),
    (512, 512, 512),
    (512, 2048, 512),
    (768, 768, 768),
    (1000, 1000, 1),
    (1024, 64, 64),
    (1024, 128, 1024),
    (2048, 384, 1536),
    (2048, 1536, 384),
    (2048, 2048, 2048),
    (4096, 16, 4096),
    (4096, 768, 64),
)


def tensor(device: torch.device, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normally distributed values, the same on every device."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(device, dtype)


def small_add(device: torch.device) -> Step:
    a, b = tensor(device, 16), tensor(device, 16)
    return lambda: a + b


def small_add_inplace(device: torch.device) -> Step:
    a, b = tensor(device, 16), torch.zeros(16, device=device)
    return lambda: a.add_(b)


def small_view(device: torch.device) -> Step:
    a = tensor(device, 16)
    return lambda: a.view(4, 4)


def big_gelu(device: torch.device, dtype: torch.dtype) -> Step:
    x = tensor(device, *BIG, dtype=dtype)
    return lambda: functional.gelu(x)


def big_add(device: torch.device, dtype: torch.dtype) -> Step:
    x, y = tensor(device, *BIG, dtype=dtype), tensor(device, *BIG, dtype=dtype)
    return lambda: x + y


def big_softmax(device: torch.device, dtype: torch.dtype) -> Step:
    x = tensor(device, *BIG, dtype=dtype)
    return lambda: torch.softmax(x, dim=-1)


def big_layer_norm(device: torch.device, dtype: torch.dtype) -> Step:
    x = tensor(device, *BIG, dtype=dtype)
    weight, bias = tensor(device, BIG[1], dtype=dtype), tensor(device, BIG[1], dtype=dtype)
    return lambda: functional.layer_norm(x, (BIG[1],), weight, bias)


def linear(device: torch.device, shape: tuple[int, int, int], dtype: torch.dtype) -> Step:
    m, k, n = shape
    x, weight = tensor(device, m, k, dtype=dtype), tensor(device, n, k, dtype=dtype)
    bias = tensor(device, n, dtype=dtype)
    return lambda: functional.linear(x, weight, bias)


def transposed(device: torch.device, left: bool, right: bool) -> Step:
    """512 x 768 x 1024 with either operand stored the other way round."""
    a = tensor(device, 768, 512).t() if left else tensor(device, 512, 768)
    b = tensor(device, 1024, 768).t() if right else tensor(device, 768, 1024)
    return lambda: a @ b


def batched(device: torch.device, shape: tuple[int, int, int, int], right: bool) -> Step:
    batch, m, k, n = shape
    a = tensor(device, batch, m, k)
    b = tensor(device, batch, n, k).mT if right else tensor(device, batch, k, n)
    return lambda: torch.bmm(a, b)


def weight_gradient(device: torch.device) -> Step:
    """The backward of a linear layer: both of its matrix products."""
    x = tensor(device, 256, 768).requires_grad_()
    weight = tensor(device, 3072, 768).requires_grad_()
    out = functional.linear(x, weight)
    gradient = tensor(device, 256, 3072)
    return lambda: torch.autograd.grad(out, (x, weight), gradient, retain_graph=True)


def built(device: torch.device, make: Callable[[], M]) -> M:
    """A model whose weights are drawn on the host from a fixed seed."""
    torch.manual_seed(0)
    return make().to(device)


def gpt2(device: torch.device) -> Step:
    """GPT-2 small with its language model head, random weights, 1 x 256 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel  # noqa: PLC0415 - seconds to import

    model = built(device, lambda: GPT2LMHeadModel(GPT2Config())).eval()
    ids = torch.arange(256, device=device).unsqueeze(0)

    def step() -> object:
        with torch.no_grad():
            return model(ids, use_cache=False).logits

    return step


def training_step(device: torch.device) -> Step:
    """Forward, loss, backward and AdamW of a 6-layer transformer of width 384, 8 x 256 tokens."""
    return training(built(device, models.Transformer), device, 8)


def training(model: nn.Module, device: torch.device, batch: int) -> Step:
    """A step of AdamW over a model of tokens that is on the device, wrapped or not.

    Args:
        model: makes scores [batch, 256, 256] of token ids [batch, 256].
        device: of its parameters.
        batch: sequences of a step, the same in all.
    """
    ids = torch.randint(256, (batch, 257), generator=torch.Generator().manual_seed(0)).to(device)

    def loss() -> Tensor:
        logits = model(ids[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    return adamw_on(model, loss)


def adamw_on(model: nn.Module, loss: Callable[[], Tensor]) -> Step:
    """A step of AdamW over all parameters of a model, for a loss that `loss` computes anew."""
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> object:
        value = loss()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        return value

    return step


def resnet(device: torch.device) -> Step:
    """ResNet-18's shape in eval mode on 8 images of 224 x 224."""
    model = built(device, models.resnet18).eval()
    images = tensor(device, 8, 3, 224, 224)

    def step() -> object:
        with torch.no_grad():
            return model(images)

    return step


def adamw(device: torch.device) -> Step:
    """One AdamW step over 50 tensors of a million elements, torch's default settings."""
    parameters = [nn.Parameter(torch.zeros(1_000_000, device=device)) for _ in range(50)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    return torch.optim.AdamW(parameters).step


def _overhead() -> list[Workload]:
    target = time_at_most(1.3)
    return [
        Workload("add, 16 elements", target, small_add),
        Workload("add_, 16 elements", target, small_add_inplace),
        Workload("view, 16 elements", target, small_view),
    ]


def _elementwise() -> list[Workload]:
    work = {"gelu": big_gelu, "add": big_add, "softmax": big_softmax, "layer_norm": big_layer_norm}
    return [
        Workload(f"{name} 4096x4096 {short}", at_least(4), partial(make, dtype=dtype))
        for short, dtype in DTYPES.items()
        for name, make in work.items()
    ]


def _linear(shape: tuple[int, int, int], short: str, target: float) -> Workload:
    name = f"linear {'x'.join(map(str, shape))} {short}"
    return Workload(name, at_least(target), partial(linear, shape=shape, dtype=DTYPES[short]))


def _products() -> list[Workload]:
    half = at_least(1.5)
    heads, scores = (12, 256, 64, 256), (12, 256, 256, 64)
    return [
        *(_linear(shape, "f32", 2.2) for shape in LINEAR),
        _linear(SMALL_BATCH, "f32", 4),
        *(_linear(shape, "bf16", 1.1) for shape in (*LINEAR, SMALL_BATCH)),
        Workload("mm A.T @ B 512x768x1024", half, partial(transposed, left=True, right=False)),
        Workload("mm A @ B.T 512x768x1024", half, partial(transposed, left=False, right=True)),
        Workload("mm A.T @ B.T 512x768x1024", half, partial(transposed, left=True, right=True)),
        Workload("linear backward 256x768x3072", half, weight_gradient),
        Workload("bmm 12x256x64x256, B.T", half, partial(batched, shape=heads, right=True)),
        Workload("bmm 12x256x256x64", half, partial(batched, shape=scores, right=False)),
        *(_linear(shape, short, 0.95) for short in DTYPES for shape in NEVER_SLOWER),
    ]


def _models() -> list[Workload]:
    return [
        Workload("GPT-2 small forward 1x256 f32", at_least(2.2), gpt2),
        Workload("transformer training step 8x256 f32", at_least(1.7), training_step),
        Workload("ResNet-18 shape forward 8x3x224x224 f32", at_least(1.2), resnet),
        Workload("AdamW step, 50 x 1M", at_least(4), adamw),
    ]


def table() -> list[Workload]:
    """All workloads in the order of the report. Names are unique."""
    return [*_overhead(), *_elementwise(), *_products(), *_models()]
