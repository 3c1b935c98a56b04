"""Sums, extrema, scans, statistics, normalisation, softmax, pooling, and sorting."""

from torch_neuronx.ops import gaps
from torch_neuronx.ops.entry import FLOATS, Basis, Engine, Row

_R, _N, _P, _S = "reduction", "normalization", "pooling", "sorting"

ROWS: tuple[Row, ...] = (
    Row(
        _R, Engine.VECTOR, "sum prod amax amin max min", "XLA Reduce with add, multiply, max, min",
        basis=Basis.DOCUMENTED,
    ),
    Row(
        _R, Engine.VECTOR, "argmax argmin", "custom calls AwsNeuronArgMax and AwsNeuronArgMin",
        basis=Basis.DOCUMENTED,
    ),
    Row(
        _R, Engine.VECTOR,
        "mean nansum all any aminmax _aminmax count_nonzero std std_mean var var_mean norm "
        "native_norm linalg_vector_norm linalg__powsum dist renorm trace equal allclose "
        "_is_all_true _is_any_true _cdist_forward _cdist_backward _pdist_forward _pdist_backward",
        "Reduce over pointwise values",
    ),
    Row(
        _R, Engine.SCALAR, "logsumexp _logcumsumexp logcumsumexp",
        "Reduce or scan of exp, then log",
    ),
    Row(
        _R, Engine.VECTOR,
        "cumsum cumprod cummax cummin _cummax_helper _cummin_helper",
        "a scan with a fixed number of steps",
    ),
    Row(
        _R, Engine.DMA, "segment_reduce _segment_reduce_backward",
        "segment numbers from a scan, then scatter-reduce of floats", dtypes=FLOATS,
    ),
    Row(
        _R, Engine.VECTOR,
        "bucketize searchsorted histc histogram _histogramdd_bin_edges "
        "_histogramdd_from_bin_cts _histogramdd_from_bin_tensors",
        "compare with every boundary and count",
    ),
    Row(_R, Engine.HOST, "hash_tensor", "an XOR reduction", gaps=(gaps.REDUCTION_KIND,)),
    Row(
        _N, Engine.SCALAR, "_softmax _log_softmax _softmax_backward_data",
        "custom calls AwsNeuronSoftmax and SoftmaxBackward", dtypes=FLOATS,
        basis=Basis.DOCUMENTED,
    ),
    Row(
        _N, Engine.SCALAR,
        "_log_softmax_backward_data _safe_softmax _masked_softmax "
        "_masked_softmax_backward",
        "max, exp and sum along one dimension", dtypes=FLOATS,
    ),
    Row(
        _N, Engine.SCALAR, "softmax log_softmax", "the same after a cast, if one is asked for",
    ),
    Row(
        _N, Engine.VECTOR,
        "native_batch_norm native_batch_norm_backward _native_batch_norm_legit "
        "_native_batch_norm_legit_functional _native_batch_norm_legit_no_training "
        "_batch_norm_no_update _batch_norm_with_update _batch_norm_with_update_functional "
        "batch_norm_backward",
        "XLA Batchnorm, Batchnormgrad, Batchnorminference", dtypes=FLOATS,
        basis=Basis.DOCUMENTED,
    ),
    Row(
        _N, Engine.VECTOR,
        "native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward "
        "_fused_rms_norm_backward _weight_norm_interface _weight_norm_interface_backward "
        "batch_norm_stats batch_norm_elemt batch_norm_gather_stats "
        "batch_norm_gather_stats_with_counts batch_norm_backward_reduce batch_norm_backward_elemt "
        "batch_norm_update_stats",
        "mean, variance, rsqrt and a multiply-add", dtypes=FLOATS,
    ),
    Row(
        _P, Engine.VECTOR,
        "max_pool2d_with_indices max_pool3d_with_indices max_pool2d_backward "
        "max_pool2d_with_indices_backward max_pool3d_with_indices_backward",
        "reduce-window; its backward is XLA SelectAndScatter", basis=Basis.DOCUMENTED,
        gaps=(gaps.POOL_DILATION,),
    ),
    Row(
        _P, Engine.VECTOR,
        "avg_pool1d avg_pool2d avg_pool3d avg_pool2d_backward avg_pool3d_backward "
        "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d "
        "_adaptive_avg_pool3d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward "
        "adaptive_avg_pool3d_backward adaptive_max_pool2d adaptive_max_pool3d "
        "adaptive_max_pool2d_backward adaptive_max_pool3d_backward "
        "fractional_max_pool2d fractional_max_pool3d fractional_max_pool2d_backward "
        "fractional_max_pool3d_backward",
        "windows with fixed bounds, reduced",
    ),
    Row(_P, Engine.DMA, "max_unpool2d max_unpool3d", "scatter by stored index"),
    Row(
        _S, Engine.GPSIMD, "topk", "custom call AwsNeuronTopK, native GpSimd TopK",
        basis=Basis.DOCUMENTED, gaps=(gaps.TOPK_INT,),
    ),
    Row(_S, Engine.HOST, "sort", "a full sort", basis=Basis.DOCUMENTED, gaps=(gaps.SORT,)),
    Row(
        _S, Engine.HOST, "kthvalue median nanmedian mode randperm", "sorted values",
        gaps=(gaps.SORT_BASED,),
    ),
    Row(
        _S, Engine.HOST,
        "_unique _unique2 unique_consecutive unique_dim unique_dim_consecutive nonzero "
        "masked_select repeat_interleave bincount",
        "as many results as the values ask for", basis=Basis.DOCUMENTED,
        gaps=(gaps.DYNAMIC_SHAPE,),
    ),
    Row(_S, Engine.DMA, "nonzero_static", "a scan and a scatter with a fixed size"),
)  # fmt: skip
