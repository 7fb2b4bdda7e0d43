"""What CUDA's autocast does to which operation.

From ATen/autocast_mode.h and autocast_mode.cpp
(https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/autocast_mode.h); for the recurrent networks, which cuDNN
computes in one operation there, from ATen/cudnn/AutocastRNN.cpp.
"""

from __future__ import annotations

LOWER = frozenset(
    """
    _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d
    convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm
    chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell
    rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention scaled_dot_product_attention
    """.split()
)
"""Cast to float16 or bfloat16."""

RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
"""Cast to float16, whatever type autocast has, but where the input is bfloat16: cuDNN does not compute that."""

FLOAT32 = frozenset(
    """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus
    layer_norm native_layer_norm rms_norm group_norm frobenius_norm nuclear_norm cosine_similarity
    poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss
    smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss
    triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm
    logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d
    _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d
    upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d
    _upsample_bicubic2d_aa linalg_matrix_sqrth
    """.split()
)
"""Cast to float32."""

FLOAT32_RESULT = frozenset(
    """
    prod softmax log_softmax cumprod cumsum linalg_vector_norm linalg_matrix_norm sum
    """.split()
)
"""Given ``dtype=torch.float32`` where the call names none."""

FLOAT32_NORM = frozenset({"norm"})
"""Replaced by the overload that takes a dtype, which is float32."""

WIDEST = frozenset(
    """
    addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add
    """.split()
)
"""Cast to the widest type among the operands."""

BANNED = frozenset({"binary_cross_entropy"})

HOST_LOWER = frozenset(
    """
    conv1d conv2d conv3d bmm mm linalg_vecdot baddbmm addmm _addmm_activation addbmm linear
    _convolution matmul conv_tbc mkldnn_rnn_layer conv_transpose1d conv_transpose2d
    conv_transpose3d prelu scaled_dot_product_attention _native_multi_head_attention
    """.split()
)
"""What the CPU's autocast casts to the lower precision."""

HOST_WIDEST = frozenset({"stack", "cat", "index_copy"})
"""What the CPU's autocast casts to the widest type. Everything else that it knows, it casts to float32."""
