"""Operators that PyTorch takes apart before a device sees them; the parts are what counts.

They are listed so that every name has an answer, and because a device may register some of them
directly (`linear`, `matmul`), where they are counted under their own name.
"""

from torch_neuronx.ops import gaps
from torch_neuronx.ops.entry import ANY, EVERY, FLOATS, INTEGRAL, Basis, Engine, Gap, Row


def _row(family: str, engine: Engine, names: str, note: str, *gap: Gap, dtypes: int = ANY) -> Row:
    return Row(family, engine, names, note, dtypes, Basis.DERIVED, gap, composite=True)


def _documented(
    family: str, engine: Engine, names: str, note: str, *gap: Gap, dtypes: int = ANY
) -> Row:
    return Row(family, engine, names, note, dtypes, Basis.DOCUMENTED, gap, composite=True)


ROWS: tuple[Row, ...] = (
    _row(
        "view", Engine.VIEW,
        "adjoint atleast_1d atleast_2d atleast_3d broadcast_tensors broadcast_to chunk data "
        "dsplit expand_as flatten hsplit imag mH mT matrix_H moveaxis movedim narrow "
        "numpy_T positive ravel real reshape reshape_as _reshape_from_tensor resolve_conj "
        "resolve_neg swapaxes swapdims tensor_split unflatten unsafe_chunk view_as vsplit "
        "meshgrid contiguous to type_as conj",
        "a view, or a copy where a view cannot be had", dtypes=EVERY,
    ),
    _row(
        "view", Engine.VIEW,
        "_backward _debug_has_internal_overlap _has_compatible_shallow_copy_type _is_zerotensor "
        "_nnpack_available _propagate_xla_data _add_batch_dim _remove_batch_dim _shape_as_tensor "
        "_unpack_dual _use_cudnn_rnn_flatten_weight _version _test_ambiguous_defaults "
        "_test_check_tensor _test_serialization_subcmul _test_string_default can_cast "
        "cudnn_is_acceptable dim get_device get_gradients is_complex is_conj is_contiguous "
        "is_distributed is_floating_point is_inference is_leaf is_neg is_signed "
        "is_vulkan_available numel output_nr promote_types requires_grad result_type retain_grad "
        "retains_grad set_data size storage_offset stride sym_is_contiguous sym_numel sym_size "
        "sym_storage_offset sym_stride _cufft_clear_plan_cache _cufft_get_plan_cache_max_size "
        "_cufft_get_plan_cache_size _cufft_set_plan_cache_max_size",
        "asks or sets a property of the tensor or of the library", dtypes=EVERY,
    ),
    _row(
        "copy", Engine.DMA,
        "_cast_Byte _cast_Char _cast_Double _cast_Float _cast_Half _cast_Int _cast_Long "
        "_cast_Short _autocast_to_full_precision _autocast_to_reduced_precision _to_cpu "
        "cartesian_prod column_stack combinations concat concatenate diag diagflat dstack "
        "fill_diagonal fliplr flipud flatten_dense_tensors hstack item is_nonzero one_hot pad "
        "_pad_circular _pad_enum pad_sequence pin_memory row_stack tile "
        "unflatten_dense_tensors vstack fft_fftshift fft_ifftshift take_along_dim "
        "gather_backward index_select_backward masked_select_backward trace_backward "
        "value_selecting_reduction_backward cummaxmin_backward embedding_backward embedding_bag "
        "_dim_arange _pad_packed_sequence _pack_padded_sequence_backward _rowwise_prune",
        "copies, gather or scatter",
    ),
    _row(
        "pointwise", Engine.VECTOR,
        "__and__ __iand__ __or__ __ior__ __xor__ __ixor__",
        "exact integer operations of the Vector and GpSimd Engines", dtypes=INTEGRAL,
    ),
    _row(
        "pointwise", Engine.VECTOR,
        "absolute clip divide fix float_power greater greater_equal isclose isfinite isreal less "
        "less_equal multiply negative not_equal relu6 rrelu prelu square subtract true_divide "
        "sum_to_size special_round _saturate_weight_to_fp16 chalf fake_quantize_per_channel_affine "
        "fake_quantize_per_channel_affine_cachemask_backward fake_quantize_per_tensor_affine "
        "fake_quantize_per_tensor_affine_cachemask_backward fused_moving_avg_obs_fake_quant "
        "cross_entropy_loss hinge_embedding_loss l1_loss margin_ranking_loss "
        "multilabel_margin_loss nll_loss nll_loss2d nll_loss_nd triplet_margin_loss "
        "cosine_embedding_loss dropout feature_dropout alpha_dropout feature_alpha_dropout "
        "cross gradient diff",
        "arithmetic, comparison and selection",
    ),
    _row(
        "pointwise", Engine.SCALAR,
        "arccos arccosh arcsin arcsinh arctan arctan2 arctanh kl_div "
        "infinitely_differentiable_gelu_backward log_sigmoid poisson_nll_loss selu "
        "special_digamma special_erf special_erfc special_erfinv special_exp2 special_expit "
        "special_expm1 special_gammaln special_i0 special_log1p special_logit special_logsumexp "
        "special_multigammaln special_ndtr special_polygamma special_psi special_sinc "
        "special_xlogy special_softmax special_log_softmax",
        "another name for, or built on, a function of the Scalar Engine",
    ),
    _row(
        "pointwise", Engine.HOST, "special_gammainc special_gammaincc", "iterates to convergence",
        gaps.DATA_LOOP,
    ),
    _row(
        "reduction", Engine.VECTOR,
        "cov corrcoef cosine_similarity cumprod_backward cumulative_trapezoid frobenius_norm "
        "linalg_matrix_norm linalg_norm nanmean norm_except_dim pairwise_distance pdist cdist "
        "trapezoid trapz vander linalg_vander linalg_vecdot histogramdd",
        "reductions and scans of pointwise values",
    ),
    _row(
        "normalization", Engine.VECTOR,
        "_batch_norm_impl_index _batch_norm_impl_index_backward batch_norm group_norm "
        "instance_norm layer_norm _weight_norm _weight_norm_differentiable_backward",
        "mean, variance, rsqrt and a multiply-add", dtypes=FLOATS,
    ),
    _documented(
        "normalization", Engine.VECTOR, "rms_norm _fused_rms_norm", "custom call AwsNeuronRmsNorm",
        dtypes=FLOATS,
    ),
    _row(
        "pooling", Engine.VECTOR,
        "adaptive_max_pool1d max_pool1d max_pool1d_with_indices max_pool2d max_pool3d",
        "reduce-window", gaps.POOL_DILATION,
    ),
    _documented(
        "matmul", Engine.TENSOR, "matmul inner linalg_matmul tensordot einsum",
        "XLA DotGeneral", *gaps.INTEGER_DOT,
    ),
    _row(
        "matmul", Engine.TENSOR,
        "chain_matmul linalg_multi_dot linalg_matrix_power matrix_power bilinear",
        "several products", *gaps.INTEGER_DOT,
    ),
    _row("matmul", Engine.VECTOR, "ger outer kron", "products by broadcasting"),
    _row(
        "convolution", Engine.TENSOR,
        "conv1d conv2d conv3d conv_tbc_backward conv_transpose1d conv_transpose2d "
        "conv_transpose3d _convolution_mode _convolution_double_backward slow_conv3d thnn_conv2d",
        "XLA convolution", *gaps.INTEGER_DOT, *gaps.CONVOLUTION,
    ),
    _row(
        "attention", Engine.TENSOR,
        "scaled_dot_product_attention _scaled_dot_product_attention_math",
        "two products with a softmax between them", dtypes=FLOATS,
    ),
    _row(
        "recurrent", Engine.TENSOR,
        "gru gru_cell lstm lstm_cell rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell "
        "_thnn_differentiable_gru_cell_backward _thnn_differentiable_lstm_cell_backward "
        "_thnn_fused_lstm_cell_backward",
        "products and gates, step by step", dtypes=FLOATS,
    ),
    _row(
        "resampling", Engine.DMA, "grid_sampler", "Gather and a weighted sum", dtypes=FLOATS,
    ),
    _row(
        "resampling", Engine.TENSOR, "affine_grid_generator_backward", "one batched product",
        dtypes=FLOATS,
    ),
    _row(
        "sorting", Engine.HOST, "argsort msort quantile nanquantile", "sorted values",
        gaps.SORT_BASED,
    ),
    _row(
        "sorting", Engine.HOST, "argwhere nonzero_numpy", "as many results as the values ask for",
        gaps.DYNAMIC_SHAPE,
    ),
    _row(
        "linalg", Engine.HOST,
        "_lu_with_info det inverse linalg_cholesky linalg_cond linalg_det "
        "linalg_eigh linalg_eigvalsh linalg_inv linalg_ldl_factor linalg_lu_factor "
        "linalg_matrix_rank linalg_slogdet linalg_solve linalg_solve_ex linalg_svd "
        "linalg_svdvals linalg_tensorinv linalg_tensorsolve logdet lu_solve nuclear_norm orgqr "
        "pinverse qr slogdet svd",
        "a matrix decomposition, or built on one", gaps.DECOMPOSITION,
    ),
    _row("linalg", Engine.VIEW, "linalg_diagonal", "a view", dtypes=EVERY),
    _row(
        "linalg", Engine.HOST, "matrix_exp matrix_exp_backward",
        "the number of squarings depends on the norm", gaps.DATA_LOOP,
    ),
    _row(
        "fft", Engine.HOST,
        "fft_fft fft_fft2 fft_fftn fft_hfft fft_hfft2 fft_hfftn fft_ifft fft_ifft2 fft_ifftn "
        "fft_ihfft fft_ihfft2 fft_ihfftn fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 "
        "fft_rfftn stft istft",
        "a Fourier transform", gaps.FFT,
    ),
    _row(
        "loss", Engine.HOST, "ctc_loss", "a recursion whose length is read from a tensor",
        gaps.DATA_LOOP,
    ),
    _row(
        "random", Engine.HOST,
        "_sobol_engine_draw _sobol_engine_ff _sobol_engine_initialize_state "
        "_sobol_engine_scramble",
        "a table of direction numbers, filled on the CPU", gaps.HOST_SERVICE,
    ),
    _row(
        "sparse", Engine.HOST,
        "_embedding_bag_sparse_backward _gather_sparse_backward _sparse_bsc_tensor_unsafe "
        "_sparse_bsr_tensor_unsafe _sparse_compressed_tensor_unsafe _sparse_coo_tensor_unsafe "
        "_sparse_csc_tensor_unsafe _sparse_csr_tensor_unsafe _sparse_mm "
        "_validate_sparse_bsc_tensor_args _validate_sparse_bsr_tensor_args "
        "_validate_sparse_compressed_tensor_args _validate_sparse_coo_tensor_args "
        "_validate_sparse_csc_tensor_args _validate_sparse_csr_tensor_args coalesce "
        "embedding_sparse_backward smm sparse_bsc_tensor sparse_bsr_tensor sparse_csc_tensor "
        "sparse_csr_tensor to_dense to_dense_backward to_sparse to_sparse_bsc to_sparse_bsr "
        "to_sparse_csc to_sparse_csr",
        "works on a sparse layout", gaps.SPARSE_LAYOUT,
    ),
    _row(
        "nested", Engine.HOST,
        "_nested_select_backward _nested_sum_backward _nested_tensor_softmax_with_shape "
        "nested_to_padded_tensor",
        "works on a nested layout", gaps.NESTED_LAYOUT,
    ),
    _row(
        "quantized", Engine.HOST,
        "_choose_qparams_per_tensor choose_qparams_optimized quantized_gru_cell "
        "quantized_lstm_cell quantized_rnn_relu_cell quantized_rnn_tanh_cell",
        "works on a quantized tensor type", gaps.QUANTIZED_LAYOUT,
    ),
    _row(
        "foreign", Engine.HOST,
        "_wrapped_linear_prepack _wrapped_quantized_linear_prepacked fbgemm_linear_fp16_weight "
        "fbgemm_linear_fp16_weight_fp32_activation fbgemm_linear_int8_weight "
        "fbgemm_linear_int8_weight_fp32_activation fbgemm_linear_quantize_weight "
        "fbgemm_pack_gemm_matrix_fp16 fbgemm_pack_quantized_matrix to_mkldnn_backward",
        "a CPU library by name", gaps.CPU_LIBRARY,
    ),
)  # fmt: skip
