"""The Tensor Engine: matrix products, convolution, attention, and recurrent cells.

Products accumulate in float32 whatever the operands are; float32 operands take four passes.
"""

from torch_neuronx.ops import gaps
from torch_neuronx.ops.entry import FLOATS, Basis, Engine, Row, dtype_bits

_M, _C, _A = "matmul", "convolution", "attention"

ROWS: tuple[Row, ...] = (
    Row(
        _M, Engine.TENSOR, "mm bmm dot mv vdot", "XLA Dot and DotGeneral",
        basis=Basis.DOCUMENTED, gaps=gaps.INTEGER_DOT,
    ),
    Row(
        _M, Engine.TENSOR,
        "addmm addmv addbmm baddbmm linear linear_backward matmul_backward _addmm_activation "
        "_trilinear _foreach_mm _compute_linear_combination",
        "DotGeneral with an addition", gaps=gaps.INTEGER_DOT,
    ),
    Row(_M, Engine.VECTOR, "addr", "a product by broadcasting"),
    Row(_M, Engine.TENSOR, "_euclidean_dist", "norms and one product", dtypes=FLOATS),
    Row(
        _M, Engine.TENSOR, "_grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2",
        "named by AWS as supported for mixtures of experts", dtypes=FLOATS,
        basis=Basis.DOCUMENTED,
    ),
    Row(
        _M, Engine.TENSOR, "_scaled_mm _scaled_mm_v2 _scaled_addmm",
        "8-bit float product with scales", dtypes=FLOATS,
    ),
    Row(
        _M, Engine.TENSOR, "_int_mm", "custom call AwsNeuronIntMatmult",
        dtypes=dtype_bits("int8 uint8"), basis=Basis.DOCUMENTED,
    ),
    Row(
        _M, Engine.TENSOR, "_weight_int8pack_mm", "int8 weights cast on load, then a product",
        dtypes=FLOATS,
    ),
    Row(
        _C, Engine.TENSOR,
        "convolution _convolution convolution_backward convolution_overrideable "
        "convolution_backward_overrideable",
        "XLA convolution", basis=Basis.DOCUMENTED,
        gaps=(*gaps.INTEGER_DOT, *gaps.CONVOLUTION),
    ),
    Row(
        _C, Engine.TENSOR,
        "conv_depthwise3d conv_tbc _slow_conv2d_forward _slow_conv2d_backward slow_conv3d_forward "
        "slow_conv_dilated2d slow_conv_dilated3d slow_conv_transpose2d slow_conv_transpose3d",
        "the same convolution under the name of a CPU algorithm",
        gaps=(*gaps.INTEGER_DOT, *gaps.CONVOLUTION),
    ),
    Row(_C, Engine.DMA, "im2col col2im", "gather of patches; its reverse adds", dtypes=FLOATS),
    Row(
        _A, Engine.TENSOR,
        "_scaled_dot_product_fused_attention_overrideable "
        "_scaled_dot_product_fused_attention_overrideable_backward "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward "
        "_scaled_dot_product_flash_attention_for_cpu "
        "_scaled_dot_product_flash_attention_for_cpu_backward "
        "_flash_attention_forward _flash_attention_forward_no_dropout_inplace "
        "_flash_attention_backward "
        "_native_multi_head_attention _transformer_encoder_layer_fwd",
        "two products with a softmax between them", dtypes=FLOATS,
    ),
    Row(_A, Engine.VIEW, "_fused_sdp_choice", "chooses an implementation, reads no element"),
    Row(
        _A, Engine.VECTOR, "_transform_bias_rescale_qkv", "bias, scale and a split", dtypes=FLOATS,
    ),
    Row(
        "recurrent", Engine.SCALAR,
        "_thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell "
        "_thnn_fused_gru_cell_backward",
        "sigmoid, tanh and arithmetic on the gates", dtypes=FLOATS,
    ),
    Row(
        "recurrent", Engine.DMA, "_pack_padded_sequence",
        "copies by lengths that the host knows",
    ),
)  # fmt: skip
