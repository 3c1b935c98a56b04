"""Whole models, unmodified, in each mode of eager execution and on cpu.

    python -m benchmarks.eager_models [--zoo] [--only REGEX] [--repeats N] [--allow-load]

With `--zoo` the models are the tests' architectures, tiny ones, forward and backward.
Milliseconds of a step with its work, the fastest of interleaved runs; of `strict` also how long
Python takes to issue one. A ratio is time in debug mode / time in the other mode: above 1 the other
is faster. The last line has the geometric mean of the ratios.
"""

from __future__ import annotations

import re
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import torch_neuronx
from benchmarks import models, quiet, workloads
from benchmarks.harness import SAMPLE_SECONDS, Step
from examples import digits_vit, small_pipelines

MODES = ("debug", "strict", "fused")
neuron = torch_neuronx.neuron


def _without_gradients(call: Callable[[], object]) -> Step:
    def step() -> object:
        with torch.no_grad():
            return call()

    return step


def gpt2_token(device: torch.device) -> Step:
    """Decode one token after 128 others with GPT-2 small."""
    from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel  # noqa: PLC0415 - seconds

    model = workloads.built(device, lambda: GPT2LMHeadModel(GPT2Config())).eval()
    ids = torch.arange(128, device=device).unsqueeze(0)
    cache = DynamicCache()
    with torch.no_grad():
        model(ids, past_key_values=cache, use_cache=True)

    def step() -> object:
        logits = model(ids[:, :1], past_key_values=cache, use_cache=True).logits
        cache.crop(-1)
        return logits.argmax().item()

    return _without_gradients(step)


def minilm(device: torch.device) -> Step:
    """MiniLM's shape (6 layers of 384) on 8 sentences of 32 tokens."""
    from transformers import BertConfig, BertModel  # noqa: PLC0415 - seconds to import

    config = BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    model = workloads.built(device, lambda: BertModel(config)).eval()
    ids = torch.arange(8 * 32, device=device).view(8, 32)
    mask = torch.ones_like(ids)
    return _without_gradients(lambda: model(ids, attention_mask=mask).last_hidden_state)


class LlamaBlock(nn.Module):
    """A block with RMS norm and rotary embedding written out, [batch, tokens, width]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = (nn.Parameter(torch.ones(width)) for _ in range(2))
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 11 * width // 4, bias=False) for _ in range(2))
        self.down = nn.Linear(11 * width // 4, width, bias=False)

    @staticmethod
    def rms(x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return weight * wide.to(x.dtype)

    @staticmethod
    def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-second, first), dim=-1) * sin

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        h = self.rms(x, self.norm1)
        shape = (batch, tokens, self.heads, width // self.heads)
        q, k, v = (w(h).view(shape).transpose(1, 2) for w in (self.q, self.k, self.v))
        q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(x.shape))
        h = self.rms(x, self.norm2)
        out: Tensor = x + self.down(functional.silu(self.gate(h)) * self.up(h))
        return out


class Llama(nn.Module):
    """Token ids [batch, tokens] -> logits [batch, tokens, 1000]."""

    def __init__(self, width: int = 1024, depth: int = 16, heads: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads) for _ in range(depth))
        self.head = nn.Linear(width, 1000, bias=False)
        self.size = width // heads

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        places = torch.arange(ids.shape[1], device=ids.device, dtype=torch.float32)
        rates = 1e4 ** (-torch.arange(0, self.size, 2, device=ids.device) / self.size)
        angles = torch.outer(places, rates).repeat(1, 2)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        logits: Tensor = self.head(x)
        return logits


def llama(device: torch.device) -> Step:
    """Llama's shape in bfloat16, 16 layers of 1024, on 128 tokens."""
    model = workloads.built(device, lambda: Llama().bfloat16()).eval()
    ids = torch.arange(128, device=device).unsqueeze(0)
    return _without_gradients(lambda: model(ids))


def _training(model: nn.Module, inputs: Tensor, labels: Tensor) -> Step:
    def loss() -> Tensor:
        with torch.autocast(inputs.device.type, torch.bfloat16):
            return functional.cross_entropy(model(inputs), labels)

    return workloads.adamw_on(model, loss)


def vit(device: torch.device) -> Step:
    """Train the vision transformer of the demonstration on 64 digits, autocast to bfloat16."""
    model = workloads.built(device, digits_vit.VisionTransformer)
    labels = torch.arange(64, device=device) % 10
    return _training(model, workloads.tensor(device, 64, 1, 8, 8), labels)


def resnet(device: torch.device) -> Step:
    """Train ResNet-18's shape on 8 images of 64 x 64, autocast to bfloat16."""
    model = workloads.built(device, models.resnet18)
    return _training(model, workloads.tensor(device, 8, 3, 64, 64), torch.arange(8, device=device))


def sdxl(device: torch.device) -> Step:
    """Denoise once with SDXL's UNet of widths 64 and 128 on latents of 32 x 32."""
    model: Any = workloads.built(device, lambda: small_pipelines.sdxl_unet((64, 128))).eval()
    latents = workloads.tensor(device, 2, 4, 32, 32)
    text = workloads.tensor(device, 2, 77, 2 * small_pipelines.HIDDEN)
    added = {
        "text_embeds": workloads.tensor(device, 2, small_pipelines.HIDDEN),
        "time_ids": workloads.tensor(device, 2, 6),
    }
    time_step = torch.tensor(7.0, device=device)
    return _without_gradients(
        lambda: model(latents, time_step, text, added_cond_kwargs=added).sample
    )


def pointwise(device: torch.device, dtype: torch.dtype) -> Step:
    """Run a chain of six operators on 4096 x 4096 elements and wait for it.

    Without waiting, steps whose results nobody reads would not be computed at all.
    """
    x, y = (workloads.tensor(device, 4096, 4096).to(dtype) for _ in range(2))

    def chain() -> Tensor:
        result: Tensor = ((x * y + x).relu() * 0.5 + y) - x
        torch.accelerator.synchronize()
        return result

    return _without_gradients(chain)


def half_block(device: torch.device, dropout: float) -> Step:
    """Train gelu, dropout, a residual and layer_norm on 4096 x 1024 elements, and wait for it."""
    norm = workloads.built(device, lambda: nn.LayerNorm(1024))
    x, residual, grad = (workloads.tensor(device, 4096, 1024) for _ in range(3))
    x.requires_grad_()
    residual.requires_grad_()
    inputs = [x, residual, *norm.parameters()]

    def step() -> object:
        h = functional.dropout(functional.gelu(x), dropout)
        gradients = torch.autograd.grad(norm(h + residual), inputs, grad)
        torch.accelerator.synchronize()
        return gradients

    return step


WORK: dict[str, Callable[[torch.device], Step]] = {
    "GPT-2 small, 1x256 tokens": workloads.gpt2,
    "GPT-2 small, one token": gpt2_token,
    "MiniLM's shape, 8x32 tokens": minilm,
    "Llama, 16 layers of 1024, bf16, 1x128": llama,
    "ViT on digits, training, batch 64": vit,
    "SDXL's UNet, small, 2x32x32": sdxl,
    "ResNet-18's shape, training, 8x64x64": resnet,
    "transformer training 8x256": workloads.training_step,
    "six pointwise operators, float32": partial(pointwise, dtype=torch.float32),
    "six pointwise operators, bfloat16": partial(pointwise, dtype=torch.bfloat16),
    "gelu, dropout, residual, layer_norm": partial(half_block, dropout=0.1),
    "gelu, residual, layer_norm": partial(half_block, dropout=0.0),
}


def zoo() -> dict[str, Callable[[torch.device], Step]]:
    """The architectures of the tests, forward and backward."""
    from tests.compiler.zoo import ZOO, Entry, build, first_output, inputs  # noqa: PLC0415 - seconds

    def work(device: torch.device, entry: Entry) -> Step:
        model: Any = workloads.built(device, lambda: build(entry))
        arguments = {name: value.to(device) for name, value in inputs(entry).items()}

        def step() -> object:
            model.zero_grad()
            return first_output(model(**arguments)).float().square().mean().backward()

        return step

    return {entry.name: partial(work, entry=entry) for entry in ZOO}


def _sample(step: Step, times: int) -> tuple[float, float]:
    """Return milliseconds per step to issue it, and with its work."""
    torch.accelerator.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        step()
    issued = time.perf_counter() - start
    torch.accelerator.synchronize()
    return issued / times * 1e3, (time.perf_counter() - start) / times * 1e3


def measure(make: Callable[[torch.device], Step], repeats: int) -> tuple[dict[str, float], float]:
    """Return the milliseconds of a step on cpu and in each mode, and those to issue it."""
    on_cpu, on_neuron = (make(torch.device(name)) for name in ("cpu", "neuron"))

    def run(column: str, times: int) -> tuple[float, float]:
        if column == "cpu":
            return _sample(on_cpu, times)
        with neuron.eager_mode(column):
            return _sample(on_neuron, times)

    columns = ("cpu", *MODES)
    for _ in range(10):  # regions that come again are compiled beside execution
        run("fused", 1)
        time.sleep(0.2)
    once = max(run(column, 3)[1] for column in columns)
    times = max(1, round(SAMPLE_SECONDS * 1e3 / once))
    samples = [{column: run(column, times) for column in columns} for _ in range(repeats)]
    fastest = {column: min(each[column][1] for each in samples) for column in columns}
    return fastest, min(each["strict"][0] for each in samples)


def main() -> int:
    """Measure and print the table."""
    parser = quiet.parser(__doc__, repeats=15)
    parser.add_argument("--zoo", action="store_true", help="the tests' architectures")
    args = parser.parse_args()
    work = zoo() if args.zoo else WORK

    def table(watch: quiet.Watch) -> int:
        ratios: dict[str, list[float]] = {mode: [] for mode in MODES[1:]}
        heads = " ".join(f"{name:>8}" for name in ("cpu", *MODES, "issued"))
        print(f"{'':38} {heads}  debug/strict, /fused")
        for name, make in work.items():
            if not re.search(args.only, name):
                continue
            fastest, issued = measure(make, args.repeats)
            for mode, row in ratios.items():
                row.append(fastest["debug"] / fastest[mode])
            times = " ".join(f"{fastest[column]:8.2f}" for column in ("cpu", *MODES))
            last = " ".join(f"{row[-1]:.3f}" for row in ratios.values())
            print(f"{name:38} {times} {issued:8.2f}  {last}", flush=True)
            torch.accelerator.empty_cache()
        means = [f"{mode} {statistics.geometric_mean(row):.3f}" for mode, row in ratios.items()]
        print(f"geometric means: {', '.join(means)}; {watch.facts()}")
        return 0

    return quiet.main(args, table)


if __name__ == "__main__":
    sys.exit(main())
