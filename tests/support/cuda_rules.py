"""What is particular to CUDA among torch's operators: mixing devices, waiting for the GPU, and autocast.

Names are those of operators without namespace, overload and the underscore of in-place variants. Each list is held to a
real GPU, or to torch's own headers, by tests/support/test_pretend_gpu.py.
"""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Pointwise operators that read a 0-dim CPU tensor as if it were a number. Every other operator refuses it.
CPU_SCALARS = words(
    "add sub rsub mul div true_divide floor_divide remainder fmod pow maximum minimum fmax fmin eq ne lt le gt ge "
    "logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor atan2 hypot copysign xlogy logaddexp "
    "nextafter where"
)
# Operators whose argument of this name may be a 0-dim CPU tensor, and no other
SCALAR_ARGUMENTS = {
    "masked_fill": "value", "fill": "value", "index_fill": "value", "index_put": "values", "_index_put_impl": "values",
    "_foreach_mul": "other", "_foreach_add": "other", "_foreach_div": "other",
    "_fused_adamw": "lr", "_fused_adam": "lr",
}  # fmt: skip
INDEXING = frozenset(["index", "index_put", "_index_put_impl", "_unsafe_index", "_unsafe_index_put"])
# Operators whose result is a number, or as long as the data say: the CPU waits for the GPU once at least
WAITING = words(
    "_local_scalar_dense nonzero masked_select _unique2 unique_dim unique_consecutive unique_dim_consecutive bincount "
    "equal allclose repeat_interleave"
)

# torch.autocast on CUDA: what runs in the lower precision, ...
LOWER = words(
    "_convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution prelu "
    "addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot "
    "_thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell "
    "_scaled_dot_product_flash_attention scaled_dot_product_attention"
)
# ... what is computed in float32, whatever comes in (on the CPU most of these stay in the lower precision), ...
FLOAT32 = words(
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus layer_norm "
    "native_layer_norm rms_norm group_norm frobenius_norm nuclear_norm cosine_similarity poisson_nll_loss "
    "cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss "
    "margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss "
    "binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d "
    "upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d "
    "upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa"
)
# ... the same unless the call names a dtype, ...
FLOAT32_UNLESS_TOLD = words("prod softmax log_softmax cumprod cumsum linalg_vector_norm linalg_matrix_norm sum norm")
# ... and what takes the widest of what comes in
WIDEST = words("addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add")
# What Python calls is not always what torch intercepts: these run operators of FLOAT32 inside
FLOAT32_INSIDE = words(
    "square rdiv rtruediv rpow normalize cross_entropy interpolate pairwise_distance"
)  # fmt: skip
# ... and these run products of LOWER alone
LOWER_INSIDE = words("multi_head_attention_forward")
PYTHON_NAMES = {"rmatmul": "matmul"}


def operator_name(name: str) -> str:
    """An operator without the underscore of its in-place variant."""
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def autocast_rule(name: str) -> str | None:
    """What CUDA's autocast does with a function of torch's Python interface: lower, float32, told, widest or None."""
    if name.startswith("__") and name.endswith("__"):
        name = name[2:-2]
    elif name.endswith("_"):
        return None  # what works in place keeps its dtype
    name = PYTHON_NAMES.get(name, name)
    if name in LOWER or name in LOWER_INSIDE:
        return "lower"
    if name in FLOAT32 or name in FLOAT32_INSIDE:
        return "float32"
    if name in FLOAT32_UNLESS_TOLD:
        return "told"
    return "widest" if name in WIDEST else None
