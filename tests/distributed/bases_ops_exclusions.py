"""Operators of PyTorch's table that are not compared on DTensors, and why."""

from typing import Final

_RANDOM = "draws random numbers"
_MEMORY = "gives memory as it is"
_CUDA = "compiles for CUDA only"
_RULE = "PyTorch's rule for it raises for some placement, with gloo on the CPU too"
_RULE_OF_4 = "PyTorch's rule for it raises with 4 ranks, with gloo on the CPU too"
_VALUES = "PyTorch's rule for it gives other values or shapes, with gloo on the CPU too"
_BATCH_NORM = (
    "when not training, its statistics are empty as on the CPU; PyTorch's rule expects a number "
    "for each channel on every other device"
)

_SEGMENTS = (
    "a shard keeps the offsets of the whole, which reach beyond it: the CPU reads what is there, "
    "and the device refuses"
)

#: Operators that also fail with gloo on the CPU (``TEST_BASES_CONTROL=1``), but for the last kind.
EXCLUDED: Final[dict[str, str]] = {
    "__rmatmul__": _RULE,
    "_batch_norm_with_update": _BATCH_NORM,
    "_native_batch_norm_legit": _BATCH_NORM,
    "_segment_reduce_lengths": _RULE,
    "_segment_reduce_offsets": _SEGMENTS,
    "allclose": _RULE,
    "argwhere": _RULE,
    "as_strided": _RULE,
    "as_strided_partial_views": _RULE,
    "cauchy": _RANDOM,
    "combinations": _RULE,
    "corrcoef": _VALUES,
    "empty_like": _MEMORY,
    "exponential": _RANDOM,
    "geometric": _RANDOM,
    "index_fill": _RULE,
    "jiterator_2inputs_2outputs": _CUDA,
    "jiterator_4inputs_with_extra_args": _CUDA,
    "jiterator_binary": _CUDA,
    "jiterator_binary_return_by_ref": _CUDA,
    "jiterator_unary": _CUDA,
    "linalg_lstsq": _RULE,
    "linalg_lstsq_grad_oriented": _RULE,
    "log_normal": _RANDOM,
    "logsumexp": _RULE,
    "masked_logsumexp": _RULE,
    "masked_select": _RULE,
    "matmul": _RULE,
    "nanquantile": _RULE,
    "nn_functional_cosine_embedding_loss": _VALUES,
    "native_batch_norm": _BATCH_NORM,
    "new_empty": _MEMORY,
    "new_empty_strided": _MEMORY,
    "nn_functional_adaptive_avg_pool2d": _VALUES,
    "nn_functional_alpha_dropout": _RANDOM,
    "nn_functional_binary_cross_entropy": _VALUES,
    "nn_functional_conv1d": _VALUES,
    "nn_functional_conv2d": _VALUES,
    "nn_functional_conv3d": _VALUES,
    "nn_functional_conv_transpose1d": _VALUES,
    "nn_functional_conv_transpose2d": _VALUES,
    "nn_functional_conv_transpose3d": _VALUES,
    "nn_functional_ctc_loss": _RULE,
    "nn_functional_dropout": _RANDOM,
    "nn_functional_embedding": _VALUES,
    "nn_functional_group_norm": _RULE,
    "nn_functional_huber_loss": _VALUES,
    "nn_functional_mse_loss": _VALUES,
    "nn_functional_multi_head_attention_forward": _VALUES,
    "nn_functional_rms_norm": _RULE,
    "nn_functional_rrelu": _RANDOM,
    "nn_functional_smooth_l1_loss": _VALUES,
    "nn_functional_soft_margin_loss": _VALUES,
    "nonzero": _RULE,
    "norm_inf": _VALUES,
    "normal_in_place": _RANDOM,
    "quantile": _RULE,
    "rand_like": _RANDOM,
    "randint_like": _RANDOM,
    "randn_like": _RANDOM,
    "scatter": _VALUES,
    "scatter_add": _VALUES,
    "select": _RULE,
    "squeeze_copy": _RULE_OF_4,
    "tensor_split": _RULE,
    "unbind": _RULE,
    "uniform": _RANDOM,
    "unique": _RULE,
    "unique_consecutive": _RULE,
    "unsafe_split": _RULE,
}
#: Those of the excluded that 2 ranks of the CPU pass, or may, by what lies behind their memory.
HERE_ONLY: Final = frozenset(
    name for name, why in EXCLUDED.items() if why in (_BATCH_NORM, _RULE_OF_4, _SEGMENTS)
)
