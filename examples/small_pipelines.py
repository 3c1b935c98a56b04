"""Pipelines of diffusers with the classes of published models, tiny and with random weights.

Nothing is downloaded: the tokenizers know single letters. Pictures are noise, which is all that is
needed to compare devices. Each builder returns a pipeline on the CPU in float32, in evaluation
mode; equal seeds give equal weights.
"""

from __future__ import annotations

import string
from typing import Any

import diffusers
import torch
import transformers

HIDDEN = 32
TOKENS = 16
_END = "<|endoftext|>"
_CHAT = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"


def clip_tokenizer() -> Any:
    """CLIP's tokenizer over single letters; texts of at most `TOKENS` tokens."""
    letters = [*string.ascii_lowercase, *string.digits, *string.punctuation]
    words = ["<|startoftext|>", _END, *letters, *(f"{letter}</w>" for letter in letters)]
    vocabulary = {word: number for number, word in enumerate(words)}
    return transformers.CLIPTokenizer(vocab=vocabulary, model_max_length=TOKENS)


def t5_tokenizer() -> Any:
    """T5's tokenizer over single letters."""
    pieces = ["<pad>", "</s>", "<unk>", "\u2581", *string.ascii_lowercase]
    return transformers.T5Tokenizer(
        vocab=[(piece, -float(number)) for number, piece in enumerate(pieces)],
        extra_ids=0,
        model_max_length=TOKENS,
    )


def qwen_tokenizer() -> Any:
    """Qwen's tokenizer over single bytes, with a chat template of one line."""
    letters = [*string.ascii_letters, *string.digits, *string.punctuation, "\u0120"]
    vocabulary = {word: number for number, word in enumerate([_END, *letters])}
    tokenizer = transformers.Qwen2Tokenizer(vocab=vocabulary, model_max_length=TOKENS)
    tokenizer.chat_template = _CHAT
    return tokenizer


def clip_config(tokenizer: Any, projection: int = HIDDEN) -> Any:
    """Configuration of a text encoder of CLIP with two layers."""
    return transformers.CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        projection_dim=projection,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=TOKENS,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def kl_vae(channels: int = 4, widths: tuple[int, ...] = (16, 32), **options: Any) -> Any:
    """The autoencoder of Stable Diffusion, of one layer per block."""
    return diffusers.AutoencoderKL(
        block_out_channels=widths,
        down_block_types=("DownEncoderBlock2D",) * len(widths),
        up_block_types=("UpDecoderBlock2D",) * len(widths),
        layers_per_block=1,
        latent_channels=channels,
        norm_num_groups=8,
        sample_size=32,
        **options,
    )


def sdxl_unet(
    widths: tuple[int, int] = (32, 64), *, embedding: int = 5 * 8 + 8, **options: Any
) -> Any:
    """SDXL's UNet with two levels; `embedding` is the size of what stands for time and sizes."""
    return diffusers.UNet2DConditionModel(
        sample_size=16,
        in_channels=options.pop("in_channels", 4),
        out_channels=4,
        block_out_channels=widths,
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=(1, 2),
        attention_head_dim=(2, 4),
        use_linear_projection=True,
        norm_num_groups=8,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=embedding + HIDDEN,
        cross_attention_dim=options.pop("cross_attention_dim", 2 * HIDDEN),
        **options,
    )


def sdxl(seed: int = 0, widths: tuple[int, int] = (32, 64), **parts: Any) -> Any:
    """Stable Diffusion XL, text to image: 32 x 32 pixels by default, two text encoders."""
    torch.manual_seed(seed)
    tokenizer, tokenizer_2 = clip_tokenizer(), clip_tokenizer()
    components = {
        "vae": kl_vae(),
        "text_encoder": transformers.CLIPTextModel(clip_config(tokenizer)),
        "text_encoder_2": transformers.CLIPTextModelWithProjection(clip_config(tokenizer_2)),
        "unet": sdxl_unet(widths),
    }
    pipe = diffusers.StableDiffusionXLPipeline(
        **{
            **components,
            "tokenizer": tokenizer,
            "tokenizer_2": tokenizer_2,
            "scheduler": diffusers.EulerDiscreteScheduler(
                beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear"
            ),
            **parts,
        },
        add_watermarker=False,
    )
    return quiet(pipe)


def sdxl_refiner(base: Any, seed: int = 1) -> Any:
    """SDXL's refiner, image to image; shares the second text encoder and the VAE of `base`."""
    torch.manual_seed(seed)
    pipe = diffusers.StableDiffusionXLImg2ImgPipeline(
        vae=base.vae,
        text_encoder=None,
        text_encoder_2=base.text_encoder_2,
        tokenizer=None,
        tokenizer_2=base.tokenizer_2,
        unet=sdxl_unet(embedding=5 * 8, cross_attention_dim=HIDDEN),
        scheduler=base.scheduler.__class__.from_config(base.scheduler.config),
        requires_aesthetics_score=True,
        add_watermarker=False,
    )
    return quiet(pipe)


def pixart(seed: int = 0, *, sigma: bool = False) -> Any:
    """PixArt-Alpha, or PixArt-Sigma: a diffusion transformer that reads T5."""
    torch.manual_seed(seed)
    tokenizer = t5_tokenizer()
    encoder = transformers.T5EncoderModel(
        transformers.T5Config(
            vocab_size=len(tokenizer), d_model=HIDDEN, d_kv=8, d_ff=64, num_layers=2, num_heads=4
        )
    )
    transformer = diffusers.PixArtTransformer2DModel(
        sample_size=16,
        num_layers=2,
        patch_size=2,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_channels=HIDDEN,
        cross_attention_dim=32,
        in_channels=4,
        out_channels=8,
        use_additional_conditions=False,
    )
    kind = diffusers.PixArtSigmaPipeline if sigma else diffusers.PixArtAlphaPipeline
    pipe = kind(
        tokenizer=tokenizer,
        text_encoder=encoder,
        transformer=transformer,
        vae=kl_vae(),
        scheduler=diffusers.DPMSolverMultistepScheduler(),
    )
    return quiet(pipe)


def flux2_transformer(layers: int = 1) -> Any:
    """Flux 2's transformer with `layers` blocks of two streams and twice as many of one."""
    return diffusers.Flux2Transformer2DModel(
        in_channels=16,
        num_layers=layers,
        num_single_layers=2 * layers,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=3 * HIDDEN,
        timestep_guidance_channels=32,
        axes_dims_rope=(4, 4, 4, 4),
        guidance_embeds=False,
    )


def flux2_klein(seed: int = 0) -> Any:
    """Flux 2 Klein; its encoder has 3 layers, so pass `text_encoder_out_layers=(1, 2, 3)`."""
    torch.manual_seed(seed)
    tokenizer = qwen_tokenizer()
    encoder = transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=HIDDEN,
            intermediate_size=2 * HIDDEN,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            max_position_embeddings=64,
            pad_token_id=0,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    vae = diffusers.AutoencoderKLFlux2(
        block_out_channels=(16, 32),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=8,
        sample_size=32,
    )
    pipe = diffusers.Flux2KleinPipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=vae,
        text_encoder=encoder,
        tokenizer=tokenizer,
        transformer=flux2_transformer(),
    )
    return quiet(pipe)


def quiet(pipe: Any) -> Any:
    """Put the parts into evaluation mode, and switch the pipeline's own progress bar off."""
    for part in pipe.components.values():
        if isinstance(part, torch.nn.Module):
            part.eval().requires_grad_(requires_grad=False)
    pipe.set_progress_bar_config(disable=True)
    return pipe
