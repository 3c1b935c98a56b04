"""Operators on lists of tensors (`_foreach_*`), optimizer steps, and loss scaling."""

from torch_neuronx.ops.entry import FLOATS, Engine, Row

ROWS: tuple[Row, ...] = (
    Row(
        "foreach", Engine.VECTOR,
        "_foreach_abs _foreach_add _foreach_addcdiv _foreach_addcmul _foreach_ceil "
        "_foreach_clamp_max _foreach_clamp_min _foreach_div _foreach_floor _foreach_frac "
        "_foreach_lerp _foreach_maximum _foreach_minimum _foreach_mul _foreach_neg "
        "_foreach_reciprocal _foreach_round _foreach_sign _foreach_sub _foreach_trunc "
        "_foreach_zero",
        "the pointwise operator on every tensor of the list",
    ),
    Row(
        "foreach", Engine.SCALAR,
        "_foreach_acos _foreach_asin _foreach_atan _foreach_cos _foreach_cosh _foreach_erf "
        "_foreach_erfc _foreach_exp _foreach_expm1 _foreach_lgamma _foreach_log _foreach_log10 "
        "_foreach_log1p _foreach_log2 _foreach_rsqrt _foreach_sigmoid _foreach_sin _foreach_sinh "
        "_foreach_sqrt _foreach_tan _foreach_tanh",
        "the pointwise operator on every tensor of the list",
    ),
    Row(
        "foreach", Engine.VECTOR, "_foreach_max _foreach_norm _foreach_powsum",
        "the reduction on every tensor of the list",
    ),
    Row(
        "foreach", Engine.DMA, "_foreach_clone _foreach_copy", "one transfer for each tensor",
    ),
    Row(
        "optimizer", Engine.VECTOR, "_fused_adam _fused_adamw _fused_sgd _fused_adagrad",
        "one pass of pointwise operators over every parameter", dtypes=FLOATS,
    ),
    Row(
        "optimizer", Engine.VECTOR,
        "_amp_foreach_non_finite_check_and_unscale _amp_update_scale",
        "a multiply, a check for inf and nan, and selects", dtypes=FLOATS,
    ),
)  # fmt: skip
