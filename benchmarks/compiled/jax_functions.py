"""The same functions in JAX, on the same numbers. A maker returns a step that awaits its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from benchmarks.compiled import functions as torch_functions
from benchmarks.compiled.functions import CACHE, HEADS, LAYERS, PARAMETERS

Step = Callable[[], Any]
Weights = Mapping[str, Any]


def array(tensor: torch.Tensor) -> Any:
    """A JAX array of a tensor's values and dtype."""
    if tensor.dtype == torch.bfloat16:
        return jnp.asarray(tensor.float().numpy()).astype(jnp.bfloat16)
    return jnp.asarray(tensor.detach().numpy())


def weights_of(model: nn.Module) -> dict[str, Any]:
    """All parameters and buffers by name."""
    return {name: array(value) for name, value in model.state_dict().items()}


def step_of(function: Callable[..., Any], *args: Any) -> Step:
    compiled = jax.jit(function)
    return lambda: jax.block_until_ready(compiled(*args))


def random(*shape: int, dtype: Any = jnp.float32) -> Any:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    return jnp.asarray(values.numpy()).astype(dtype)


def gelu(dtype: Any = jnp.float32) -> Step:
    side = torch_functions.SIZE
    return step_of(partial(jax.nn.gelu, approximate=True), random(side, side, dtype=dtype))


def norm() -> Step:
    def function(x: Any, weight: Any) -> Any:
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * weight

    side = torch_functions.SIZE
    return step_of(function, random(side, side), random(side))


def normalise(x: Any, weight: Any, bias: Any) -> Any:
    """Layer norm over the last dimension, statistics in float32 as torch has them."""
    wide = x.astype(jnp.float32)
    mean = wide.mean(-1, keepdims=True)
    variance = ((wide - mean) ** 2).mean(-1, keepdims=True)
    scaled = (wide - mean) * jax.lax.rsqrt(variance + 1e-5)
    return (scaled * weight + bias).astype(x.dtype)


def layer_norm() -> Step:
    side = torch_functions.SIZE
    return step_of(normalise, random(side, side), random(side), random(side))


def softmax() -> Step:
    side = torch_functions.SIZE
    return step_of(partial(jax.nn.softmax, axis=-1), random(side, side))


def adamw_update(p: Any, g: Any, m: Any, v: Any, count: Any) -> tuple[Any, Any, Any]:
    """torch.optim.AdamW's arithmetic with its default settings."""
    p = p * (1 - 1e-3 * 1e-2)
    m = m + (g - m) * (1 - 0.9)
    v = v * 0.999 + g * g * (1 - 0.999)
    scale = 1e-3 / (1 - 0.9**count)
    root = jnp.sqrt(v) / jnp.sqrt(1 - 0.999**count) + 1e-8
    return p - scale * m / root, m, v


def adamw() -> Step:
    zeros = [jnp.zeros(torch_functions.ELEMENTS) for _ in range(PARAMETERS)]
    ones = [jnp.ones(torch_functions.ELEMENTS) for _ in range(PARAMETERS)]
    update = jax.jit(
        lambda p, g, m, v, count: jax.tree.map(
            lambda p, g, m, v: adamw_update(p, g, m, v, count), p, g, m, v
        ),
        donate_argnums=(0, 2, 3),
    )
    state = [zeros, [x + 0 for x in zeros], [x + 0 for x in zeros]]
    counts = iter(range(1, 1 << 30))

    def step() -> Any:
        updated = update(state[0], ones, state[1], state[2], float(next(counts)))
        for i in range(3):
            state[i] = [leaf[i] for leaf in updated]
        return jax.block_until_ready(state)

    return step


def attend(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Attention over [batch, heads, tokens, size]; scores and softmax in float32."""
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=jnp.float32)
    scores = jnp.where(mask, scores / np.sqrt(q.shape[-1]), -jnp.inf)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, -1).astype(v.dtype), v)


def heads_of(x: Any, heads: int) -> Any:
    batch, tokens, _ = x.shape
    return x.reshape(batch, tokens, 3, heads, -1).transpose(2, 0, 3, 1, 4)


def merged(x: Any) -> Any:
    batch, heads, tokens, size = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, tokens, heads * size)


def gpt2_logits(w: Weights, ids: Any) -> Any:
    """GPT2LMHeadModel's forward on its own state dict."""
    tokens = ids.shape[1]
    x = w["transformer.wte.weight"][ids] + w["transformer.wpe.weight"][:tokens]
    causal = jnp.tril(jnp.ones((tokens, tokens), bool))
    for i in range(LAYERS):
        at = f"transformer.h.{i}."

        def linear(x: Any, name: str, at: str = at) -> Any:
            return x @ w[f"{at}{name}.weight"] + w[f"{at}{name}.bias"]

        y = normalise(x, w[at + "ln_1.weight"], w[at + "ln_1.bias"])
        q, k, v = heads_of(linear(y, "attn.c_attn"), HEADS)
        x = x + linear(merged(attend(q, k, v, causal)), "attn.c_proj")
        y = normalise(x, w[at + "ln_2.weight"], w[at + "ln_2.bias"])
        x = x + linear(jax.nn.gelu(linear(y, "mlp.c_fc"), approximate=True), "mlp.c_proj")
    x = normalise(x, w["transformer.ln_f.weight"], w["transformer.ln_f.bias"])
    return x @ w["lm_head.weight"].T


def gpt2(batch: int, tokens: int, dtype: torch.dtype) -> Step:
    weights = weights_of(torch_functions.gpt2_model(torch.device("cpu"), dtype))
    ids = jnp.arange(batch * tokens).reshape(batch, tokens) * 7 % 50257
    return step_of(gpt2_logits, weights, ids)


def block(w: Weights, at: str, x: Any, heads: int, mask: Any, *, cache: Any = None) -> Any:
    """models.Block; `cache` is (keys and values [2, batch, heads, keys, size], position)."""

    def linear(x: Any, name: str) -> Any:
        return x @ w[f"{at}{name}.weight"].T + w[f"{at}{name}.bias"]

    y = normalise(x, w[at + "norm1.weight"], w[at + "norm1.bias"])
    q, k, v = heads_of(linear(y, "qkv"), heads)
    if cache is not None:
        kept, position = cache
        new = jnp.stack((k, v))
        kept = jax.lax.dynamic_update_slice(kept, new, (0, 0, 0, position, 0))
        k, v = kept
    x = x + linear(merged(attend(q, k, v, mask)), "proj")
    y = normalise(x, w[at + "norm2.weight"], w[at + "norm2.bias"])
    up = jax.nn.gelu(linear(y, "up"), approximate=cache is not None)
    x = x + linear(up, "down")
    return x if cache is None else (x, kept)


def decode(batch: int, dtype: torch.dtype) -> Step:
    torch.manual_seed(0)
    weights = weights_of(torch_functions.Decoder(batch).to(dtype))
    cache = weights.pop("cache")

    def function(cache: Any, w: Weights, ids: Any, position: Any) -> Any:
        x = w["wte.weight"][ids] + w["wpe.weight"][position]
        seen = (jnp.arange(CACHE) <= position).reshape(1, 1, 1, CACHE)
        kept = []
        for i in range(LAYERS):
            x, layer = block(w, f"layers.{i}.", x, HEADS, seen, cache=(cache[i], position))
            kept.append(layer)
        logits = normalise(x, w["norm.weight"], w["norm.bias"])[:, 0] @ w["wte.weight"].T
        return jnp.stack(kept), logits

    # A list of the layers' caches would be donated leaf by leaf; one array is what torch has, too.
    compiled = jax.jit(function, donate_argnums=0)
    ids, position = jnp.arange(batch).reshape(batch, 1), jnp.asarray(CACHE // 2)
    state = [cache]

    def step() -> Any:
        state[0], logits = compiled(state[0], weights, ids, position)
        return jax.block_until_ready(logits)

    return step


def transformer_logits(w: Weights, ids: Any) -> Any:
    """models.Transformer."""
    tokens = ids.shape[1]
    x = w["embed.weight"][ids] + w["position"][:tokens]
    causal = jnp.tril(jnp.ones((tokens, tokens), bool))
    for i in range(6):
        x = block(w, f"blocks.{i}.", x, 6, causal)
    return normalise(x, w["norm.weight"], w["norm.bias"]) @ w["head.weight"].T


def training() -> Step:
    """Loss, gradients and AdamW in one jitted function, state donated."""
    from benchmarks.models import Transformer  # noqa: PLC0415 - as in the torch version

    torch.manual_seed(0)
    weights = weights_of(Transformer())
    ids = jnp.asarray(torch.randint(256, (8, 257), generator=torch.Generator().manual_seed(0)))

    def loss_of(w: Weights, ids: Any) -> Any:
        logits = transformer_logits(w, ids[:, :-1])
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits, -1), ids[:, 1:, None], -1)
        return -chosen.mean()

    def function(w: Weights, m: Weights, v: Weights, count: Any, ids: Any) -> Any:
        loss, g = jax.value_and_grad(loss_of)(w, ids)
        new = {name: adamw_update(w[name], g[name], m[name], v[name], count) for name in w}
        return loss, *({name: new[name][i] for name in w} for i in range(3))

    compiled = jax.jit(function, donate_argnums=(0, 1, 2))
    state = [weights, *({name: jnp.zeros_like(x) for name, x in weights.items()} for _ in "mv")]
    counts = iter(range(1, 1 << 30))

    def step() -> Any:
        loss, *state[:] = compiled(*state, float(next(counts)), ids)
        return jax.block_until_ready(loss)

    return step


def resnet() -> Step:
    """benchmarks.models.resnet18 in eval mode, NCHW as PyTorch has it."""
    from benchmarks.models import resnet18  # noqa: PLC0415

    torch.manual_seed(0)
    w = weights_of(resnet18())

    def conv(w: Weights, name: str, x: Any, stride: int, padding: int) -> Any:
        return jax.lax.conv_general_dilated(
            x, w[name + ".weight"], (stride, stride), [(padding, padding)] * 2
        )

    def batch_norm(w: Weights, name: str, x: Any) -> Any:
        scale = w[name + ".weight"] * jax.lax.rsqrt(w[name + ".running_var"] + 1e-5)
        shift = w[name + ".bias"] - w[name + ".running_mean"] * scale
        return x * scale[:, None, None] + shift[:, None, None]

    def function(w: Weights, x: Any) -> Any:
        x = jax.nn.relu(batch_norm(w, "1", conv(w, "0", x, 2, 3)))
        x = jax.lax.reduce_window(
            x, -jnp.inf, jax.lax.max, (1, 1, 3, 3), (1, 1, 2, 2), [(0, 0), (0, 0), (1, 1), (1, 1)]
        )
        for i in range(4, 12):
            stride = 2 if i in (6, 8, 10) else 1
            y = jax.nn.relu(batch_norm(w, f"{i}.norm1", conv(w, f"{i}.conv1", x, stride, 1)))
            y = batch_norm(w, f"{i}.norm2", conv(w, f"{i}.conv2", y, 1, 1))
            if f"{i}.shortcut.0.weight" in w:
                x = batch_norm(w, f"{i}.shortcut.1", conv(w, f"{i}.shortcut.0", x, stride, 0))
            x = jax.nn.relu(y + x)
        return x.mean((2, 3)) @ w["14.weight"].T + w["14.bias"]

    return step_of(function, w, random(8, 3, 224, 224))


def tiny() -> Step:
    return step_of(lambda x, y: (x + y) * y, random(16), random(16))
