"""Operators that tests/device/test_device_type.py does not compare, each with its reason."""

from typing import Final

from torch_neuronx import _C

_RANDOM = "random: the device draws from its own generator (tests/device/test_rng.py)"
_BASIS = "the factors are unique only up to sign or basis (values: linalg.svdvals, linalg.eigvalsh)"
_UNINITIALISED = "returns memory that nothing has written"

#: OpInfo name -> why its values can't be compared with the CPU's.
EXCLUDED: Final[dict[str, str]] = {
    "bernoulli": _RANDOM,
    "cauchy": _RANDOM,
    "exponential": _RANDOM,
    "geometric": _RANDOM,
    "log_normal": _RANDOM,
    "multinomial": _RANDOM,
    "normal": _RANDOM,
    "pca_lowrank": _RANDOM,
    "rand_like": _RANDOM,
    "randint": _RANDOM,
    "randint_like": _RANDOM,
    "randn": _RANDOM,
    "randn_like": _RANDOM,
    "svd_lowrank": _RANDOM,
    "uniform": _RANDOM,
    "nn.functional.alpha_dropout": _RANDOM,
    "nn.functional.dropout": _RANDOM,
    "nn.functional.dropout2d": _RANDOM,
    "nn.functional.dropout3d": _RANDOM,
    "nn.functional.feature_alpha_dropout": _RANDOM,
    "nn.functional.fractional_max_pool2d": _RANDOM,
    "nn.functional.fractional_max_pool3d": _RANDOM,
    "nn.functional.multi_head_attention_forward": _RANDOM,
    "nn.functional.rrelu": _RANDOM,
    "nn.functional.scaled_dot_product_attention": (
        _RANDOM + "; without dropout it is tests/device/test_attention.py"
    ),
    "geqrf": _BASIS,
    "linalg.eig": _BASIS,
    "linalg.eigh": _BASIS,
    "linalg.svd": _BASIS,
    "svd": _BASIS,
    "empty": _UNINITIALISED,
    "empty_like": _UNINITIALISED,
    "empty_permuted": _UNINITIALISED,
    "empty_strided": _UNINITIALISED,
    "new_empty": _UNINITIALISED,
    "new_empty_strided": _UNINITIALISED,
    "resize_": _UNINITIALISED,
    "resize_as_": _UNINITIALISED,
    "as_strided_partial_views": (
        "its samples are views of larger memory, of which a copy to the device takes only the view"
    ),
    "jiterator_unary": "compiles CUDA source; CUDA and ROCm only",
    "jiterator_binary": "compiles CUDA source; CUDA and ROCm only",
    "jiterator_binary_return_by_ref": "compiles CUDA source; CUDA and ROCm only",
    "jiterator_2inputs_2outputs": "compiles CUDA source; CUDA and ROCm only",
    "jiterator_4inputs_with_extra_args": "compiles CUDA source; CUDA and ROCm only",
}

# Their results behind the first are statistics, which are float32 for 16-bit inputs.
STATISTICS = frozenset({"native_layer_norm"})

#: Operators whose bfloat16 results the CPU rounds more than once while ours are rounded once:
#: compared with the result in float64 instead. Of log_softmax the CPU rounds an intermediate result
#: of order one (spacing 2^-7); of transposed convolutions it does, or not, by the kernel that the
#: processor has, and where those kernels are not used (`by_aten.h`) ours round once.
ROUNDED_ONCE: Final = frozenset({"log_softmax", "masked.log_softmax"}) | (
    {f"nn.functional.conv_transpose{n}d" for n in (1, 2, 3)}
    if _C.conv_widened()["BFloat16"]
    else set()
)

#: OpInfo name -> why its bfloat16 values can't be compared with the CPU's; float32 is compared.
EXCLUDED_BFLOAT16: Final[dict[str, str]] = {
    "nn.functional.linear_cross_entropy": (
        "PyTorch keeps the logits in float32 on the CPU and in bfloat16 on every other device"
    ),
}

#: OpInfo name -> why a strided operand may change its result or is refused.
EXCLUDED_STRIDED: Final[dict[str, str]] = {
    "as_strided": "addresses memory by strides, so a strided input means other elements",
    "as_strided_copy": "addresses memory by strides, so a strided input means other elements",
    "as_strided_scatter": "addresses memory by strides, so a strided input means other elements",
    "native_group_norm": "asks for contiguous memory, on the CPU too",
    "view_as_complex": "asks for a last dimension of stride 1, on the CPU too",
    "view": "defined for contiguous memory only",
    "view_copy": "defined for contiguous memory only",
}
