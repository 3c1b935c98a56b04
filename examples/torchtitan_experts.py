"""torchtitan's debug models with experts, as examples/torchtitan_llama3.py has Llama 3.

Its `--module` is examples.torchtitan_experts, its `--config` deepseek_v3 or qwen3_moe.
"""

from torchtitan.models import deepseek_v3 as deepseek
from torchtitan.models import qwen3
from torchtitan.models.deepseek_v3.config_registry import deepseek_v3_debugmodel
from torchtitan.models.qwen3.config_registry import qwen3_moe_debug

from examples.torchtitan_llama3 import Trainer, for_neuron


def qwen3_moe() -> Trainer.Config:
    """Return the Qwen 3 debug model with 64 experts, with packed sequences."""
    config = qwen3_moe_debug()
    config.model_spec = qwen3.model_registry("debugmodel_moe", attn_backend="varlen")
    return for_neuron(config)


def deepseek_v3() -> Trainer.Config:
    """Return the DeepSeek V3 debug model, with packed sequences."""
    config = deepseek_v3_debugmodel()
    config.model_spec = deepseek.model_registry("debugmodel", attn_backend="varlen")
    return for_neuron(config)
