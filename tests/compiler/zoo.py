"""Thirty architectures from transformers' configurations, tiny and with random weights.

Each entry names the classes and what makes it small; `build` and `inputs` do the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import transformers

BATCH, TOKENS, VOCAB = 2, 16, 128


@dataclass(frozen=True)
class Entry:
    """One architecture.

    Attributes:
        name: transformers' prefix of `<name>Config`.
        model: Class of the model.
        config: What makes it small.
        kind: Which inputs it takes (see `inputs`).
        fullgraph: Whether dynamo captures it as one graph on any backend; else `breaks` says why.
    """

    name: str
    model: str
    config: dict[str, Any] = field(default_factory=dict)
    kind: str = "tokens"
    fullgraph: bool = True
    breaks: str = ""


_DECODER = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MHA = {**_DECODER, "num_key_value_heads": 4}
_MOE = {"num_local_experts": 4, "num_experts_per_tok": 2}
_ENCODER = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
_IMAGE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
    "num_labels": 10,
}
_SEQ2SEQ = {
    "vocab_size": VOCAB,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
_AUDIO = {
    **_ENCODER,
    "conv_dim": (32, 32),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "apply_spec_augment": False,
}

ZOO = (
    # Decoders
    Entry(
        "GPT2",
        "GPT2LMHeadModel",
        {"vocab_size": VOCAB, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64},
    ),
    Entry("Llama", "LlamaForCausalLM", _DECODER),
    Entry("Mistral", "MistralForCausalLM", _DECODER),
    Entry("Qwen2", "Qwen2ForCausalLM", _DECODER),
    Entry("Qwen3", "Qwen3ForCausalLM", _DECODER),
    Entry("Gemma2", "Gemma2ForCausalLM", _DECODER),
    Entry("Phi3", "Phi3ForCausalLM", _DECODER),
    Entry("GPTNeoX", "GPTNeoXForCausalLM", _MHA),
    Entry("OPT", "OPTForCausalLM", {**_MHA, "ffn_dim": 128, "word_embed_proj_dim": 64}),
    Entry(
        "Bloom",
        "BloomForCausalLM",
        {"vocab_size": VOCAB, "hidden_size": 64, "n_layer": 2, "n_head": 4},
    ),
    Entry(
        "Falcon",
        "FalconForCausalLM",
        {"vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    ),
    Entry("StableLm", "StableLmForCausalLM", _DECODER),
    Entry("Olmo2", "Olmo2ForCausalLM", _DECODER),
    # Mixtures of experts
    Entry("Mixtral", "MixtralForCausalLM", {**_DECODER, **_MOE}),
    Entry("GptOss", "GptOssForCausalLM", {**_DECODER, **_MOE, "sliding_window": 8}),
    Entry(
        "Qwen3Moe",
        "Qwen3MoeForCausalLM",
        {**_DECODER, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
    ),
    Entry("Olmoe", "OlmoeForCausalLM", {**_DECODER, "num_experts": 4, "num_experts_per_tok": 2}),
    # State spaces and recurrences
    Entry(
        "Mamba",
        "MambaForCausalLM",
        {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    ),
    Entry(
        "Mamba2",
        "Mamba2ForCausalLM",
        {
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "state_size": 8,
            "num_heads": 8,
            "head_dim": 8,
            "n_groups": 1,
            "chunk_size": 8,
        },
    ),
    Entry(
        "RecurrentGemma",
        "RecurrentGemmaForCausalLM",
        {**_DECODER, "num_hidden_layers": 3, "lru_width": 64, "attention_window_size": 8},
    ),
    # Encoders
    Entry("Bert", "BertModel", _ENCODER, "encoder"),
    Entry("Roberta", "RobertaModel", _ENCODER, "encoder"),
    Entry(
        "DistilBert",
        "DistilBertModel",
        {"vocab_size": VOCAB, "dim": 64, "hidden_dim": 128, "n_layers": 2, "n_heads": 4},
        "encoder",
    ),
    Entry("Albert", "AlbertModel", {**_ENCODER, "embedding_size": 32}, "encoder"),
    Entry("Electra", "ElectraModel", {**_ENCODER, "embedding_size": 32}, "encoder"),
    Entry(
        "DebertaV2",
        "DebertaV2Model",
        {**_ENCODER, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        "encoder",
    ),
    # Encoder-decoders
    Entry(
        "T5",
        "T5ForConditionalGeneration",
        {
            "vocab_size": VOCAB,
            "d_model": 64,
            "d_ff": 128,
            "d_kv": 16,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
        "seq2seq",
    ),
    Entry("Bart", "BartForConditionalGeneration", _SEQ2SEQ, "seq2seq"),
    # Vision
    Entry("ViT", "ViTForImageClassification", _IMAGE, "image"),
    Entry(
        "Swin",
        "SwinForImageClassification",
        {
            "image_size": 32,
            "patch_size": 4,
            "embed_dim": 16,
            "depths": [1, 1],
            "num_heads": [2, 4],
            "window_size": 4,
        },
        "image",
    ),
    Entry(
        "ConvNext",
        "ConvNextForImageClassification",
        {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2},
        "image",
    ),
    Entry(
        "ResNet",
        "ResNetForImageClassification",
        {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"},
        "image",
    ),
    # Audio
    Entry("Wav2Vec2", "Wav2Vec2Model", _AUDIO, "audio"),
    Entry(
        "Whisper",
        "WhisperForConditionalGeneration",
        {**_SEQ2SEQ, "num_mel_bins": 16, "max_source_positions": 16, "max_target_positions": 32},
        "spectrogram",
    ),
)


def build(entry: Entry, **extra: Any) -> torch.nn.Module:
    """The model of an entry on the CPU, in eval mode, with weights from seed 0."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{entry.name}Config")(**{**entry.config, **extra})
    config.use_cache = False
    model: torch.nn.Module = getattr(transformers, entry.model)(config)
    return model.eval()


def inputs(entry: Entry) -> dict[str, torch.Tensor]:
    """Inputs of an entry on the CPU, from seed 1."""
    generator = torch.Generator().manual_seed(1)

    def tokens() -> torch.Tensor:
        return torch.randint(3, VOCAB, (BATCH, TOKENS), generator=generator)

    if entry.kind == "tokens":
        return {
            "input_ids": tokens(),
            "attention_mask": torch.ones(BATCH, TOKENS, dtype=torch.int64),
        }
    if entry.kind == "encoder":
        return {
            "input_ids": tokens(),
            "attention_mask": torch.ones(BATCH, TOKENS, dtype=torch.int64),
        }
    if entry.kind == "seq2seq":
        return {"input_ids": tokens(), "decoder_input_ids": tokens()}
    if entry.kind == "image":
        return {"pixel_values": torch.randn(BATCH, 3, 32, 32, generator=generator)}
    if entry.kind == "audio":
        return {"input_values": torch.randn(BATCH, 400, generator=generator)}
    if entry.kind == "spectrogram":
        return {
            "input_features": torch.randn(BATCH, 16, 32, generator=generator),
            "decoder_input_ids": tokens(),
        }
    raise ValueError(f"no inputs for kind {entry.kind!r}")


def first_output(output: Any) -> torch.Tensor:
    """The main result of any transformers model."""
    result = output[0]
    assert isinstance(result, torch.Tensor)
    return result
