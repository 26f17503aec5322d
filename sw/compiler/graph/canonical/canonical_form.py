"""The canonical form of a quantized network: integer operators wherever results stay the same.

A QDQ file expresses one integer operator as DequantizeLinear, a float operator and QuantizeLinear.
The rules in this folder rewrite that form and others:

- DequantizeLinear → Conv | Gemm | MatMul → [Relu | Clip] → QuantizeLinear becomes QLinearConv
  (Gemm and some MatMul as a 1×1 convolution, other MatMul as QLinearMatMul), then Clip on integers,
- float16 operators between quantizations, and float16 scales, become float32,
- quantized constants are folded through operators that move elements,
- BatchNormalization and per-channel constants after a Conv are folded into its weights and bias,
- ConvTranspose, and a convolution before DepthToSpace, become one QLinearConv whose channels are
  the phases of the output,
- QLinearConv, QLinearMatMul and QGemm on uint8 get uint8 weights,
- DequantizeLinear → AveragePool | GlobalAveragePool | ReduceMean | ReduceSum → [Relu | Clip] →
  QuantizeLinear becomes QLinearConv with weights of one, then Clip; if border windows count fewer
  pixels, one QLinearConv per pixel count, and Where,
- the maximum over a whole image becomes MaxPool, and MaxPool with large windows becomes two with
  smaller windows,
- QLinearAveragePool becomes DequantizeLinear → AveragePool → QuantizeLinear; Split, and Gather of
  consecutive indices, become Slice,
- QLinearConcat becomes Concat of operands requantized to one scale,
- a pixel that is added to an image or multiplied with it is resized to the image,
- a Clip of integers with one bound gets the other bound,
- empty regions and scales of a Resize are dropped,
- a product or average of int8 that is quantized to uint8 (or vice versa) is first quantized to the
  type of its data, and the second factor of a MatMul to the type of the first,
- products of a matrix and a vector, of stacks of matrices that are broadcast, and by a constant
  first factor, Gemm with ``transA``, ``alpha``, ``beta`` or two computed factors, and Einsum of two
  tensors become products listed above,
- PRelu with per-channel slopes becomes the sum of its positive and its negative side,
- operators with one spatial dimension become operators on one-row images, between two Reshape,
- products with float results become ConvInteger or MatMulInteger, then DequantizeLinear; so do ONNX
  Runtime's fused products, and channels that REQUANTIZE cannot scale,
- QAttention, and Attention of dequantized factors, become a product and MultiHeadAttention,
- products by weights with a scale per block become a stack of integer products, one per block,
- zero points known only at run time are applied after these products,
- operators that only move or choose elements run on integers, after Relu and Clip,
- so do Concat, Pad and clamps whose results are not quantized, and Max and Min whose results are,
- Pad with the zero point before a QLinearConv becomes padding of the QLinearConv,
- Pad of some axes becomes Pad of all axes,
- float variables that are only read quantized hold integers,
- variables to which rows are appended, the caches of decoders, become ring buffers,
- Reshape → Transpose → Reshape becomes a Gather if it shuffles channels, and DepthToSpace or
  SpaceToDepth if it exchanges channels and blocks of pixels,
- SpaceToDepth is folded into the kernel of the QLinearConv that reads it,
- keys with zero points of 0 are transposed to heads, and then as matrices; other successive
  Transpose are merged, reductions are hoisted over a Transpose, averages over the rows
  of matrices become averages over the columns of their transpose, and a Transpose to channels last
  sinks below element-wise operators,
- graphs of integer operators that compute a Softmax, a normalization or a rotary position embedding
  become one operator,
- DequantizeLinear → QuantizeLinear with equal parameters, no-ops, and duplicate QuantizeLinear,
  views and quantizations of blocks are removed.

The reference results are those of this form in ONNX Runtime without optimizations. Operators that
no rule matches are unchanged.
"""

from __future__ import annotations

from dataclasses import replace

from amaranth_vta.sw.compiler.graph.load.onnx_model import infer
from amaranth_vta.sw.compiler.graph.network import Network, Rounding
from amaranth_vta.sw.compiler.graph.nodes import Node

from .broadcasting import repeat_pixel
from .channel_factors import fold_channel_factors
from .constant_folding import move_constant
from .depth_and_space import block_of_reshapes, fold_space_to_depth, hoist_over_slices
from .einsum import matmul_of_einsum
from .float16 import compute_in_float, drop_casts, float_scale
from .integer_averages import fuse_average
from .integer_graphs import recognize_integer_graphs
from .integer_products import fuse_product, match_factors, match_weights, quantize_as_data
from .matrix_forms import (
    constant_first,
    fold_gemm_factors,
    matmul_of_gemm,
    matrix_of_vector,
    same_stacks,
    transpose_first,
)
from .microsoft_operators import float_average, split_concatenation
from .prelu import sides_of_prelu
from .qdq_propagation import (
    fold_padding,
    hoist_clamp,
    hoist_over_concatenation,
    hoist_over_extremes,
    hoist_over_padding,
    hoist_quantize,
    hoist_requantize,
    pad_all_axes,
    sink_dequantize,
    sink_dequantize_of_clamp,
    sink_dequantize_of_padded,
    sink_dequantize_of_parts,
)
from .quantization import BYTE_TYPES, clip_node, integer_limits, is_clamp, parameters_of
from .quantized_states import quantize_states, shorten_states
from .rewriting import Rule, rewrite
from .ring_states import write_states_as_rings
from .sequences_as_images import with_rows
from .simpler_forms import (
    both_bounds,
    drop_identity,
    leave_out_empty,
    merge_reshapes,
    share_quantize,
    share_step,
    share_view,
    slice_of_gather,
    slices_of_split,
    smaller_windows,
    sum_of_two,
    whole_maximum,
)
from .sums.blocked_products import split_blocks
from .sums.dynamic import constant_zero_point, write_zero_points
from .sums.fused_products import split_fused_product
from .sums.projected_attention import split_projection
from .sums.unscaled_channels import split_unscaled_channels
from .sums.whole_sums import sum_of_integers
from .transposed_products import fuse_transposed, phases_of_depth
from .transpositions import (
    gather_of_shuffle,
    merge_transposes,
    reduce_before_transpose,
    reduce_columns,
    sink_transpose,
    split_keys,
)


def canonical(network: Network, allow_rounding: bool = False) -> Network:
    """Return the canonical form of ``network``, which is not modified.

    A product stays in float if rounding its constants can move a result by more than half a step,
    unless ``allow_rounding``. `Network.rounding` has the bounds.
    """
    work = replace(network.copied(), rounding=Rounding(allow_rounding))
    recognize_integer_graphs(work)
    quantize_states(work)
    rewrite(work, _RULES)
    # Fallback for products that no other rule turned into an integer operator.
    rewrite(work, (*_RULES, sum_of_integers, split_unscaled_channels))
    shorten_states(work)
    work = _inferred(work)
    if write_states_as_rings(work):
        work = _inferred(work)
    return work


def _inferred(network: Network) -> Network:
    """``network`` without dead nodes, sorted, and with the types of its tensors."""
    network.drop_unused()
    network.sort()
    return replace(infer(network), rounding=network.rounding, macs=network.macs)


def _cancel_pair(network: Network, node: Node) -> bool:
    """DequantizeLinear → QuantizeLinear with the same parameters is removed."""
    after = parameters_of(network, node, "QuantizeLinear")
    dequantize = network.maker(node.inputs[0]) if after else None
    before = parameters_of(network, dequantize, "DequantizeLinear")
    if after is None or before is None or dequantize is None or not after.same_as(before):
        return False
    result = node.outputs[0]
    # A subgraph in an attribute (of If, Loop, Scan) reads tensors by name.
    if result in network.outputs or any(
        result in reader.captured for reader in network.nodes.readers(result)
    ):
        return False
    network.nodes.remove(node)
    network.rename(result, dequantize.inputs[0])
    return True


def _clamp_integers(network: Network, node: Node) -> bool:
    """DequantizeLinear → Relu | Clip → QuantizeLinear of the same parameters becomes Clip."""
    quantize = network.only_reader(node.outputs[0]) if is_clamp(network, node) else None
    if quantize is None:
        return False
    dequantize = network.maker(node.inputs[0])
    before = parameters_of(network, dequantize, "DequantizeLinear")
    after = parameters_of(network, quantize, "QuantizeLinear")
    if before is None or after is None or dequantize is None or not before.same_as(after):
        return False
    if after.zero.dtype not in BYTE_TYPES:  # ONNX Runtime has no Clip of other types
        return False
    low, high = integer_limits(network, [node], after)
    data, result = dequantize.inputs[0], quantize.outputs[0]
    clip = clip_node(network, node.name, data, result, low, high, after.zero.dtype)
    network.nodes.replace(node, [clip])
    network.nodes.remove(quantize)
    return True


# In order of precedence.
_RULES: tuple[Rule, ...] = (
    drop_identity,
    float_scale,
    compute_in_float,
    drop_casts,
    move_constant,
    leave_out_empty,
    both_bounds,
    sum_of_two,
    slices_of_split,
    slice_of_gather,
    whole_maximum,
    smaller_windows,
    merge_reshapes,
    merge_transposes,
    split_keys,
    gather_of_shuffle,
    block_of_reshapes,
    transpose_first,
    fold_gemm_factors,
    matmul_of_gemm,
    matmul_of_einsum,
    share_quantize,
    share_view,
    share_step,
    reduce_before_transpose,
    reduce_columns,
    sink_transpose,
    pad_all_axes,
    sink_dequantize,
    sink_dequantize_of_parts,
    sink_dequantize_of_padded,
    sink_dequantize_of_clamp,
    hoist_clamp,
    hoist_quantize,
    hoist_requantize,
    hoist_over_concatenation,
    hoist_over_extremes,
    hoist_over_padding,
    hoist_over_slices,
    fold_padding,
    fold_space_to_depth,
    _cancel_pair,
    fold_channel_factors,
    match_factors,
    quantize_as_data,
    fuse_product,
    fuse_transposed,
    phases_of_depth,
    matrix_of_vector,
    same_stacks,
    constant_first,
    split_projection,
    split_blocks,
    split_fused_product,
    write_zero_points,
    match_weights,
    constant_zero_point,
    with_rows,
    split_concatenation,
    float_average,
    repeat_pixel,
    fuse_average,
    sides_of_prelu,
    _clamp_integers,
)
