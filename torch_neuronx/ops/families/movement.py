"""Views and allocation, copies, gather and scatter, resampling, creation, random values."""

from torch_neuronx.ops import gaps
from torch_neuronx.ops.entry import EVERY, FLOATS, Basis, Engine, Row

_V, _D, _G, _C, _R = "view", "copy", "gather-scatter", "creation", "random"

ROWS: tuple[Row, ...] = (
    Row(
        _V, Engine.VIEW,
        "alias as_strided detach diagonal expand permute select slice split split_with_sizes "
        "squeeze t transpose unbind unfold unsqueeze view _unsafe_view unsafe_split "
        "unsafe_split_with_sizes _reshape_alias _conj _neg_view view_as_real view_as_complex lift "
        "lift_fresh _make_dual _fw_primal slice_inverse set is_same_size is_set_to is_pinned "
        "_has_same_storage_numel _lazy_clone record_stream shallow_copy_data",
        "changes sizes, strides or flags only", dtypes=EVERY,
    ),
    Row(
        _V, Engine.VIEW,
        "_assert_scalar _assert_tensor_metadata _functional_assert_scalar sym_constrain_range "
        "sym_constrain_range_for_size _functional_sym_constrain_range "
        "_functional_sym_constrain_range_for_size _make_dep_token _print",
        "checks or prints on the host without reading a tensor", dtypes=EVERY,
    ),
    Row(
        _V, Engine.VIEW,
        "empty empty_like empty_permuted empty_strided new_empty new_empty_strided "
        "_efficientzerotensor _new_zeros_with_same_feature_meta resize resize_as _resize_output",
        "takes or gives back device memory",
    ),
    Row(
        _D, Engine.DMA,
        "copy clone cat _copy_from _copy_from_and_resize _to_copy _local_scalar_dense "
        "flip as_strided_scatter slice_scatter select_scatter",
        "XLA Concatenate, Rev, Slice, ConvertElementType, DynamicUpdateSlice, or a plain transfer",
        basis=Basis.DOCUMENTED,
    ),
    Row(
        _D, Engine.DMA,
        "alias_copy as_strided_copy detach_copy diagonal_copy expand_copy lift_fresh_copy "
        "narrow_copy permute_copy select_copy slice_copy split_copy split_with_sizes_copy "
        "squeeze_copy t_copy transpose_copy unbind_copy unfold_copy unsqueeze_copy view_copy "
        "_reshape_alias_copy _reshape_copy _neg_view_copy _fw_primal_copy _make_dual_copy "
        "view_as_real_copy _conj_copy",
        "the view of the same name, materialised",
    ),
    Row(
        _D, Engine.HOST, "view_as_complex_copy", "builds complex values",
        gaps=(gaps.COMPLEX_RESULT,),
    ),
    Row(
        _D, Engine.DMA,
        "stack _stack _chunk_cat repeat roll rot90 block_diag diag_embed diagonal_scatter "
        "diagonal_backward select_backward slice_backward unfold_backward pixel_shuffle "
        "pixel_unshuffle channel_shuffle native_channel_shuffle _assert_async "
        "_functional_assert_async _pin_memory",
        "slices copied to a fixed place",
    ),
    Row(
        _D, Engine.DMA, "constant_pad_nd", "XLA Pad", basis=Basis.DOCUMENTED,
    ),
    Row(
        _D, Engine.DMA,
        "reflection_pad1d reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward "
        "reflection_pad3d reflection_pad3d_backward replication_pad1d replication_pad1d_backward "
        "replication_pad2d replication_pad2d_backward replication_pad3d "
        "replication_pad3d_backward",
        "slices, some reversed, joined; the backward adds them up",
    ),
    Row(
        _G, Engine.DMA, "gather index_select embedding", "XLA Gather (indirect memory copy)",
        basis=Basis.DOCUMENTED,
    ),
    Row(_G, Engine.DMA, "take", "Gather on the flattened tensor"),
    Row(
        _G, Engine.DMA, "index _unsafe_index _unsafe_masked_index", "Gather",
        gaps=(gaps.BOOLEAN_INDEX,),
    ),
    Row(
        _G, Engine.DMA, "scatter", "XLA Scatter", basis=Basis.DOCUMENTED,
        gaps=(gaps.SCATTER_ARGUMENT_INT,),
    ),
    Row(
        _G, Engine.DMA, "scatter_add index_add", "XLA Scatter with addition in float32",
        basis=Basis.DOCUMENTED, gaps=(gaps.SCATTER_ADD_INT,),
    ),
    Row(
        _G, Engine.DMA, "scatter_reduce index_reduce", "XLA Scatter with a reduction",
        basis=Basis.DOCUMENTED, gaps=(gaps.SCATTER_REDUCE_INT,),
    ),
    Row(
        _G, Engine.DMA, "index_put _index_put_impl _unsafe_index_put put", "Scatter",
        gaps=(gaps.ACCUMULATE_INT, gaps.BOOLEAN_INDEX),
    ),
    Row(
        _G, Engine.DMA, "_unsafe_masked_index_put_accumulate", "Scatter with addition in float32",
        gaps=(gaps.SCATTER_ADD_INT,),
    ),
    Row(
        _G, Engine.DMA, "index_copy index_fill masked_scatter masked_scatter_backward", "Scatter",
    ),
    Row(
        _G, Engine.DMA,
        "embedding_dense_backward embedding_renorm _embedding_bag _embedding_bag_forward_only "
        "_embedding_bag_backward _embedding_bag_dense_backward "
        "_embedding_bag_per_sample_weights_backward _jagged_to_padded_dense_forward "
        "_padded_dense_to_jagged_forward",
        "Gather of rows, or Scatter with addition",
    ),
    Row(
        "resampling", Engine.DMA, "upsample_nearest2d upsample_nearest2d_backward",
        "custom calls ResizeNearest and ResizeNearestGrad", basis=Basis.DOCUMENTED,
    ),
    Row(
        "resampling", Engine.VECTOR, "upsample_bilinear2d", "custom call ResizeBilinear",
        basis=Basis.DOCUMENTED,
    ),
    Row(
        "resampling", Engine.DMA,
        "upsample_nearest1d upsample_nearest1d_backward upsample_nearest3d "
        "upsample_nearest3d_backward _upsample_nearest_exact1d _upsample_nearest_exact1d_backward "
        "_upsample_nearest_exact2d _upsample_nearest_exact2d_backward _upsample_nearest_exact3d "
        "_upsample_nearest_exact3d_backward",
        "Gather with fixed indices; the backward adds",
    ),
    Row(
        "resampling", Engine.TENSOR,
        "upsample_linear1d upsample_linear1d_backward upsample_bilinear2d_backward "
        "upsample_trilinear3d upsample_trilinear3d_backward upsample_bicubic2d "
        "upsample_bicubic2d_backward _upsample_bicubic2d_aa _upsample_bicubic2d_aa_backward "
        "_upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward _upsample_lanczos2d_aa "
        "_upsample_lanczos2d_aa_backward",
        "products with a fixed matrix of weights per dimension",
    ),
    Row(
        "resampling", Engine.DMA,
        "grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward "
        "_grid_sampler_2d_cpu_fallback _grid_sampler_2d_cpu_fallback_backward",
        "Gather of the neighbours and a weighted sum; the backward scatters", dtypes=FLOATS,
    ),
    Row(
        "resampling", Engine.TENSOR, "affine_grid_generator", "one batched product", dtypes=FLOATS,
    ),
    Row(_C, Engine.GPSIMD, "arange", "XLA Iota", basis=Basis.DOCUMENTED),
    Row(
        _C, Engine.VECTOR, "zeros ones full zeros_like ones_like full_like new_zeros new_ones "
        "new_full scalar_tensor", "XLA Constant and Broadcast", basis=Basis.DOCUMENTED,
    ),
    Row(
        _C, Engine.GPSIMD,
        "range linspace logspace eye tril_indices triu_indices fft_fftfreq fft_rfftfreq "
        "bartlett_window blackman_window hamming_window hann_window kaiser_window",
        "Iota with arithmetic on it",
    ),
    Row(_C, Engine.HOST, "from_file", "maps a file", gaps=(gaps.HOST_SERVICE,)),
    Row(
        _R, Engine.VECTOR, "uniform rand rand_like random randint randint_like bernoulli",
        "XLA RngUniform and RngBitGenerator", basis=Basis.DOCUMENTED,
    ),
    Row(
        _R, Engine.VECTOR, "native_dropout _fused_dropout",
        "custom call AwsNeuronDropoutMaskV1", dtypes=FLOATS, basis=Basis.DOCUMENTED,
    ),
    Row(_R, Engine.VECTOR, "native_dropout_backward", "a product with mask and scale"),
    Row(
        _R, Engine.SCALAR,
        "normal normal_functional randn randn_like log_normal exponential cauchy geometric",
        "a function of uniform values",
    ),
    Row(
        _R, Engine.VECTOR, "multinomial", "exponential values and the largest of them",
        dtypes=FLOATS,
    ),
    Row(
        _R, Engine.HOST,
        "_philox_uniform _philox_normal _philox_randint _philox_key_fold_in _philox_key_split",
        "a generator of the caller's choice",
        basis=Basis.DOCUMENTED, gaps=(gaps.EXPLICIT_RNG,),
    ),
    Row(
        _R, Engine.HOST,
        "poisson binomial _standard_gamma _standard_gamma_grad _sample_dirichlet _dirichlet_grad",
        "draws until a sample is accepted", gaps=(gaps.DATA_LOOP,),
    ),
)  # fmt: skip
