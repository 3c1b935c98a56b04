"""Element by element: arithmetic, comparison, activation, and their backwards.

The Vector Engine does arithmetic, comparison and selection; the Scalar Engine evaluates functions
from its tables. Both compute in float32 inside and cast on the way in and out for free.
"""

from torch_neuronx.ops import gaps
from torch_neuronx.ops.entry import FLOATS, INTEGRAL, Basis, Engine, Row

_F = "pointwise"

ROWS: tuple[Row, ...] = (
    Row(
        _F, Engine.VECTOR,
        "abs add sub mul div neg sign ceil floor clamp clamp_max clamp_min maximum minimum "
        "eq ne lt le gt ge logical_and logical_not where",
        "XLA operator of the same meaning", basis=Basis.DOCUMENTED,
    ),
    Row(
        _F, Engine.VECTOR, "pow", "XLA Pow, integer and float exponents",
        basis=Basis.DOCUMENTED, gaps=(gaps.POW_INT64,),
    ),
    Row(
        _F, Engine.VECTOR, "_foreach_pow", "XLA Pow, integer and float exponents",
        gaps=(gaps.POW_INT64,),
    ),
    Row(
        _F, Engine.SCALAR, "exp log sqrt rsqrt sin cos tanh atan2 erf",
        "XLA operator, or the AwsNeuronErf custom call", basis=Basis.DOCUMENTED,
    ),
    Row(
        _F, Engine.SCALAR, "gelu gelu_backward silu silu_backward",
        "custom calls AwsNeuronGelu, GeluBackward, Silu, SiluBackward",
        dtypes=FLOATS, basis=Basis.DOCUMENTED,
    ),
    Row(
        _F, Engine.SCALAR,
        "acos acosh asin asinh atan atanh cosh sinh tan exp2 expm1 log10 log1p log2 sigmoid sinc "
        "logit xlogy special_xlog1py special_entr logaddexp logaddexp2 erfc erfinv lgamma digamma "
        "mvlgamma polygamma i0 special_i0e special_i1 special_i1e special_ndtri special_log_ndtr "
        "special_erfcx special_zeta",
        "XLA expands it into exp, log, atan2, polynomials and selects",
    ),
    Row(
        _F, Engine.SCALAR,
        "celu elu mish softplus log_sigmoid_forward glu _prelu_kernel "
        "elu_backward mish_backward softplus_backward log_sigmoid_backward "
        "glu_backward glu_jvp glu_backward_jvp logit_backward sigmoid_backward tanh_backward "
        "_prelu_kernel_backward",
        "exp, log and tanh with selects", dtypes=FLOATS,
    ),
    Row(
        _F, Engine.VECTOR,
        "relu leaky_relu hardshrink hardsigmoid hardswish hardtanh softshrink threshold "
        "rrelu_with_noise rrelu_with_noise_functional leaky_relu_backward hardshrink_backward "
        "hardsigmoid_backward hardswish_backward hardtanh_backward softshrink_backward "
        "threshold_backward rrelu_with_noise_backward",
        "compare, clamp and select",
    ),
    Row(
        _F, Engine.VECTOR,
        "rsub reciprocal floor_divide fmod remainder fmax fmin frac round trunc sgn signbit "
        "copysign heaviside hypot deg2rad rad2deg lerp addcdiv addcmul ldexp frexp nextafter "
        "nan_to_num isnan isinf isneginf isposinf logical_or logical_xor isin _add_relu "
        "_conj_physical conj_physical angle _masked_scale",
        "arithmetic, comparison, selection and bit casts",
    ),
    Row(
        _F, Engine.VECTOR,
        "bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift __lshift__ __ilshift__",
        "exact integer operations of the Vector and GpSimd Engines", dtypes=INTEGRAL,
    ),
    Row(
        _F, Engine.VECTOR, "bitwise_right_shift __rshift__ __irshift__",
        "XLA shift-right on 32-bit values", dtypes=INTEGRAL, basis=Basis.DOCUMENTED,
        gaps=(gaps.SHIFT,),
    ),
    Row(
        _F, Engine.VECTOR,
        "masked_fill tril triu fill zero fake_quantize_per_tensor_affine_cachemask "
        "fake_quantize_per_channel_affine_cachemask "
        "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams "
        "_fake_quantize_learnable_per_tensor_affine "
        "_fake_quantize_learnable_per_tensor_affine_backward "
        "_fake_quantize_learnable_per_channel_affine "
        "_fake_quantize_learnable_per_channel_affine_backward "
        "_fused_moving_avg_obs_fq_helper _fused_moving_avg_obs_fq_helper_functional",
        "iota, compare, select, round and clamp",
    ),
    Row(
        _F, Engine.VECTOR,
        "mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss "
        "huber_loss_backward multi_margin_loss multi_margin_loss_backward "
        "multilabel_margin_loss_forward multilabel_margin_loss_backward nll_loss_forward "
        "nll_loss_backward nll_loss2d_forward nll_loss2d_backward",
        "arithmetic, a gather by label where there is one, and a sum", dtypes=FLOATS,
    ),
    Row(
        _F, Engine.SCALAR,
        "binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits "
        "soft_margin_loss soft_margin_loss_backward",
        "exp and log, and a sum", dtypes=FLOATS,
    ),
    Row(
        _F, Engine.HOST,
        "igamma igammac gcd lcm", "iterates to convergence", gaps=(gaps.DATA_LOOP,),
    ),
    Row(
        _F, Engine.HOST,
        "special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 "
        "special_chebyshev_polynomial_t special_chebyshev_polynomial_u "
        "special_chebyshev_polynomial_v special_chebyshev_polynomial_w "
        "special_hermite_polynomial_h special_hermite_polynomial_he special_laguerre_polynomial_l "
        "special_legendre_polynomial_p special_modified_bessel_i0 special_modified_bessel_i1 "
        "special_modified_bessel_k0 special_modified_bessel_k1 "
        "special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 "
        "special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u "
        "special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w "
        "special_spherical_bessel_j0",
        "a special function", gaps=(gaps.SPECIAL_FUNCTION,),
    ),
    Row(
        _F, Engine.HOST, "complex polar", "builds complex values",
        gaps=(gaps.COMPLEX_RESULT,),
    ),
)  # fmt: skip
