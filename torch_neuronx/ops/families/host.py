"""Operators that no NeuronCore executes: decompositions, fft, other layouts, other libraries."""

from torch_neuronx.ops import gaps
from torch_neuronx.ops.entry import EVERY, Basis, Engine, Row

_L, _S, _Q, _X = "linalg", "sparse", "quantized", "foreign"

ROWS: tuple[Row, ...] = (
    Row(
        _L, Engine.HOST, "linalg_solve_triangular triangular_solve",
        "a triangular system", basis=Basis.DOCUMENTED, gaps=(gaps.TRIANGULAR_SOLVE,),
    ),
    Row(
        _L, Engine.HOST,
        "_cholesky_solve_helper _linalg_det _linalg_eigh _linalg_eigvals _linalg_slogdet "
        "_linalg_solve_ex _linalg_svd cholesky cholesky_inverse cholesky_solve geqrf "
        "linalg_cholesky_ex linalg_eig linalg_eigvals linalg_householder_product linalg_inv_ex "
        "linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq linalg_lu linalg_lu_factor_ex "
        "linalg_lu_solve linalg_matrix_sqrth linalg_pinv linalg_polar linalg_qr lu_unpack ormqr",
        "a matrix decomposition, or built on one", gaps=(gaps.DECOMPOSITION,),
    ),
    Row(
        _L, Engine.HOST, "linalg_matrix_exp", "the number of squarings depends on the norm",
        gaps=(gaps.DATA_LOOP,),
    ),
    Row(_L, Engine.VECTOR, "linalg_cross", "products of shifted components"),
    Row(_L, Engine.DMA, "_linalg_check_errors", "reads the status of a decomposition"),
    Row(
        "fft", Engine.HOST, "_fft_c2c _fft_c2r _fft_r2c", "a Fourier transform",
        basis=Basis.DOCUMENTED, gaps=(gaps.FFT,),
    ),
    Row(
        "loss", Engine.HOST, "_ctc_loss _ctc_loss_backward",
        "a recursion whose length is read from a tensor", gaps=(gaps.DATA_LOOP,),
    ),
    Row(
        _S, Engine.VIEW,
        "_coalesced _dimI _dimV _indices _nnz _values ccol_indices col_indices crow_indices "
        "dense_dim indices is_coalesced row_indices sparse_dim values",
        "reads or sets a field of a sparse tensor", dtypes=EVERY,
    ),
    Row(
        _S, Engine.HOST,
        "_coalesce _convert_indices_from_coo_to_csr _convert_indices_from_csr_to_coo "
        "_indices_copy _sparse_addmm _sparse_broadcast_to _sparse_broadcast_to_copy "
        "_sparse_compressed_tensor_with_dims _sparse_coo_tensor_with_dims "
        "_sparse_coo_tensor_with_dims_and_tensors _sparse_csr_prod _sparse_csr_sum "
        "_sparse_log_softmax _sparse_log_softmax_backward_data _sparse_mask_projection "
        "_sparse_mm_reduce_impl _sparse_mm_reduce_impl_backward _sparse_softmax "
        "_sparse_softmax_backward_data _sparse_sparse_matmul _sparse_sum _sparse_sum_backward "
        "_spdiags _to_dense _to_sparse _to_sparse_bsc _to_sparse_bsr _to_sparse_csc "
        "_to_sparse_csr _validate_compressed_sparse_indices _values_copy ccol_indices_copy "
        "col_indices_copy copy_sparse_to_sparse crow_indices_copy hspmm indices_copy "
        "resize_as_sparse row_indices_copy sparse_compressed_tensor sparse_coo_tensor sparse_mask "
        "sparse_resize sparse_resize_and_clear sparse_sampled_addmm sspaddmm values_copy",
        "works on a sparse layout", gaps=(gaps.SPARSE_LAYOUT,),
    ),
    Row(
        "nested", Engine.HOST,
        "_nested_compute_contiguous_strides_offsets _nested_from_padded "
        "_nested_from_padded_and_nested_example _nested_get_values_copy _nested_tensor_from_mask "
        "_nested_tensor_from_mask_left_aligned _nested_tensor_from_tensor_list "
        "_nested_tensor_size _nested_tensor_storage_offsets _nested_tensor_strides "
        "_nested_view_from_buffer _nested_view_from_buffer_copy _nested_view_from_jagged_copy "
        "to_padded_tensor",
        "works on a nested layout", gaps=(gaps.NESTED_LAYOUT,),
    ),
    Row(
        _Q, Engine.HOST,
        "_empty_affine_quantized _empty_per_channel_affine_quantized "
        "_make_per_channel_quantized_tensor _make_per_tensor_quantized_tensor dequantize "
        "empty_quantized int_repr q_per_channel_axis q_per_channel_scales "
        "q_per_channel_zero_points q_scale q_zero_point qscheme quantize_per_channel "
        "quantize_per_tensor quantize_per_tensor_dynamic quantized_batch_norm quantized_gru "
        "quantized_lstm quantized_max_pool1d quantized_max_pool2d quantized_max_pool3d",
        "works on a quantized tensor type", gaps=(gaps.QUANTIZED_LAYOUT,),
    ),
    Row(
        _X, Engine.HOST,
        "_convert_weight_to_int4pack_for_cpu _dyn_quant_matmul_4bit _dyn_quant_pack_4bit_weight "
        "_mkldnn_reshape _mkldnn_transpose _nnpack_spatial_convolution "
        "_weight_int4pack_mm_for_cpu mkldnn_adaptive_avg_pool2d "
        "mkldnn_adaptive_avg_pool2d_backward mkldnn_convolution mkldnn_linear "
        "mkldnn_linear_backward mkldnn_linear_backward_input mkldnn_linear_backward_weights "
        "mkldnn_max_pool2d mkldnn_max_pool2d_backward mkldnn_max_pool3d "
        "mkldnn_max_pool3d_backward mkldnn_reorder_conv2d_weight mkldnn_reorder_conv3d_weight "
        "mkldnn_rnn_layer mkldnn_rnn_layer_backward to_mkldnn",
        "a CPU library by name", gaps=(gaps.CPU_LIBRARY,),
    ),
    Row(
        _X, Engine.HOST,
        "_cudnn_ctc_loss _cudnn_init_dropout_state _cudnn_rnn _cudnn_rnn_backward "
        "_cudnn_rnn_flatten_weight _lstm_mps _mps_convolution _mps_convolution_transpose "
        "_triton_multi_head_attention _triton_scaled_dot_attention cudnn_affine_grid_generator "
        "cudnn_affine_grid_generator_backward cudnn_batch_norm_backward "
        "cudnn_convolution_add_relu cudnn_convolution_relu cudnn_convolution_transpose "
        "cudnn_grid_sampler cudnn_grid_sampler_backward lstm_mps_backward miopen_batch_norm "
        "miopen_batch_norm_backward miopen_convolution miopen_convolution_transpose "
        "miopen_ctc_loss miopen_depthwise_convolution miopen_rnn miopen_rnn_backward "
        "mps_convolution_backward mps_convolution_transpose_backward",
        "another vendor's library by name", gaps=(gaps.OTHER_VENDOR,),
    ),
    Row(
        "internal", Engine.HOST,
        "_foobar _test_autograd_multiple_dispatch _test_autograd_multiple_dispatch_view "
        "_test_autograd_multiple_dispatch_view_copy _test_functorch_fallback "
        "_test_optional_filled_intlist _test_optional_floatlist _test_optional_intlist "
        "_test_parallel_materialize _test_warn_in_autograd",
        "an operator of PyTorch's own tests", gaps=(gaps.HOST_SERVICE,),
    ),
)  # fmt: skip
