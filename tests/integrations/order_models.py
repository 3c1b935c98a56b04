"""Small models of clients, with what they may be asked for, to be called in any order.

A case makes its module anew from a fixed seed, on the CPU and in evaluation mode, and gives the
arguments of several calls: plain ones and ones that ask for more outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import diffusers
import torch
import transformers

from examples import small_pipelines as small

Arguments = dict[str, Any]
WORDS = 40
_TOKENS = torch.tensor([[3, 17, 5, 9, 1, 22, 1]])
_SHAPE: Arguments = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
_GROUPED: Arguments = {**_SHAPE, "num_key_value_heads": 2, "head_dim": 8}
_T5: Arguments = {
    "vocab_size": WORDS,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
}
_VISION: Arguments = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 8,
    "projection_dim": 32,
}


@dataclass(frozen=True)
class Case:
    """A model of a client.

    Attributes:
        make: Makes the module.
        calls: Arguments of its calls.
        asked: Whether these differ by what is asked for, and not only by sizes or containers.
    """

    make: Callable[[], torch.nn.Module]
    calls: tuple[Arguments, ...]
    asked: bool = False

    def module(self) -> torch.nn.Module:
        torch.manual_seed(0)
        return self.make().eval().requires_grad_(requires_grad=False)


def _normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def _encoder(make: Callable[[], torch.nn.Module], inputs: Arguments) -> Case:
    """A model of transformers, which can be asked for what its layers compute."""
    more: tuple[Arguments, ...] = (
        {},
        {"output_hidden_states": True},
        {"output_hidden_states": True, "output_attentions": True},
    )
    return Case(make, tuple({**inputs, **asked} for asked in more), asked=True)


def _text(kind: str, config: str, **options: Any) -> Case:
    def make() -> torch.nn.Module:
        # Other ways to compute attention don't tell its weights.
        chosen = getattr(transformers, config)(**options, attn_implementation="eager")
        made: torch.nn.Module = getattr(transformers, kind)(chosen)
        return made

    inputs: Arguments = {"input_ids": _TOKENS}
    if config in {"Qwen3Config", "LlamaConfig", "Gemma2Config", "MistralConfig"}:
        inputs |= {"use_cache": False, "attention_mask": torch.ones_like(_TOKENS)}
    return _encoder(make, inputs)


def _image(kind: str, config: str) -> Case:
    def make() -> torch.nn.Module:
        chosen = getattr(transformers, config)(**_VISION, attn_implementation="eager")
        made: torch.nn.Module = getattr(transformers, kind)(chosen)
        return made

    return _encoder(make, {"pixel_values": _normal(1, 3, 16, 16)})


def _denoiser(make: Callable[[], torch.nn.Module], **inputs: Any) -> Case:
    """A model of diffusers, once for its own class of results and once for a tuple."""
    return Case(make, ({**inputs}, {**inputs, "return_dict": False}))


def _flux() -> Any:
    return diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
    )  # fmt: skip


class Nested(torch.nn.Module):
    """A text encoder in a module of the user's, as pipelines of research code have them."""

    def __init__(self) -> None:
        super().__init__()
        options: Arguments = {**_T5, "attn_implementation": "eager"}
        config = transformers.T5Config(**options)
        self.text = transformers.T5EncoderModel(config)
        self.head = torch.nn.Linear(32, 5)

    def forward(self, input_ids: torch.Tensor, **asked: bool) -> Any:
        found = self.text(input_ids, **asked)
        return self.head(found.last_hidden_state), found


class Lazy(torch.nn.Module):
    """Makes a weight, a table, a hook and a buffer when it is first called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(8, 8))
        self.tables: dict[int, torch.Tensor] = {}
        self.hooked = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = x.shape[-1]
        if size not in self.tables:
            self.tables[size] = torch.arange(size, dtype=x.dtype, device=x.device).cos()
        if not hasattr(self, "shift"):
            self.register_buffer("shift", torch.full((size,), 0.25, device=x.device))
        out: torch.Tensor = self.layer(x) * self.tables[size] + self.shift
        return out


CASES: dict[str, Case] = {
    "t5": _text("T5EncoderModel", "T5Config", **_T5),
    "umt5": _text("UMT5EncoderModel", "UMT5Config", **_T5),
    "clip": _text("CLIPTextModel", "CLIPTextConfig", **_SHAPE),
    "clip projected": _text("CLIPTextModelWithProjection", "CLIPTextConfig", **_SHAPE),
    "clip vision": _image("CLIPVisionModelWithProjection", "CLIPVisionConfig"),
    "siglip vision": _image("SiglipVisionModel", "SiglipVisionConfig"),
    "qwen3": _text("Qwen3Model", "Qwen3Config", **_GROUPED),
    "qwen3 with a head": _text("Qwen3ForCausalLM", "Qwen3Config", **_GROUPED),
    "llama": _text("LlamaModel", "LlamaConfig", **_GROUPED),
    "llama with a head": _text("LlamaForCausalLM", "LlamaConfig", **_GROUPED),
    "gemma2": _text("Gemma2Model", "Gemma2Config", **_GROUPED),
    "mistral": _text("MistralForCausalLM", "MistralConfig", **_GROUPED),
    "bert": _text("BertModel", "BertConfig", **_SHAPE),
    "bert for tokens": _text("BertForTokenClassification", "BertConfig", **_SHAPE),
    "nested": _encoder(Nested, {"input_ids": _TOKENS}),
    "encoder": Case(lambda: small.kl_vae().encoder, ({"sample": _normal(1, 3, 16, 16)},)),
    "decoder": Case(lambda: small.kl_vae().decoder, ({"sample": _normal(1, 4, 8, 8)},)),
    "unet": _denoiser(
        lambda: small.sdxl().unet,
        sample=_normal(1, 4, 8, 8),
        timestep=torch.tensor(5.0),
        encoder_hidden_states=_normal(1, 7, 64),
        added_cond_kwargs={"text_embeds": _normal(1, 32), "time_ids": _normal(1, 6)},
    ),
    "pixart": _denoiser(
        lambda: small.pixart().transformer,
        hidden_states=_normal(1, 4, 8, 8),
        encoder_hidden_states=_normal(1, 7, 32),
        timestep=torch.tensor([5.0]),
        added_cond_kwargs={"resolution": None, "aspect_ratio": None},
    ),
    "flux": _denoiser(
        _flux,
        hidden_states=_normal(1, 16, 4),
        encoder_hidden_states=_normal(1, 6, 32),
        pooled_projections=_normal(1, 32),
        timestep=torch.tensor([0.5]),
        img_ids=torch.arange(48.0).reshape(16, 3),
        txt_ids=torch.zeros(6, 3),
    ),
    "flux2": _denoiser(
        small.flux2_transformer,
        hidden_states=_normal(1, 16, 16),
        encoder_hidden_states=_normal(1, 6, 3 * small.HIDDEN),
        timestep=torch.tensor([0.5]),
        img_ids=torch.arange(64.0).reshape(1, 16, 4),
        txt_ids=torch.zeros(1, 6, 4),
    ),
    "lazy": Case(Lazy, ({"x": _normal(3, 8)}, {"x": _normal(2, 8)})),
}
