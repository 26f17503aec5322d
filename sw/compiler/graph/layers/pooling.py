"""Lower poolings: MaxPool, and QLinearConv that computes an average."""

from __future__ import annotations

from dataclasses import replace

from amaranth_vta.sw.compiler.graph.canonical.quantization import quantized_after
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.operators.average_pool2d import AveragePool2d, average_pool2d
from amaranth_vta.sw.compiler.operators.building_blocks.exact_constants import sum_constants
from amaranth_vta.sw.compiler.operators.building_blocks.fixed_point import FixedPoint, NotExact
from amaranth_vta.sw.compiler.operators.building_blocks.identity import reads_what_it_stores
from amaranth_vta.sw.compiler.operators.building_blocks.integer_rounding import IntegerRounding
from amaranth_vta.sw.compiler.operators.building_blocks.pooling import Pooling
from amaranth_vta.sw.compiler.operators.conv2d import conv2d
from amaranth_vta.sw.compiler.operators.max_pool2d import MaxPool2d, max_pool2d
from amaranth_vta.sw.compiler.tuner.workload import is_faster
from amaranth_vta.sw.runtime.network.packing import Window
from amaranth_vta.sw.runtime.network.tile_layout import Image, tiles

from .fusion.fused_expansion import fused_average
from .support.layer import Layer, Unsupported
from .support.layer_functions import where_it_fits
from .support.products import QuantizedProduct
from .support.scales import dequantized
from .support.sums import RequantizedSums
from .support.tensors import Tensors
from .support.windows import fitting_window

# Largest number of pixels per window: each is a separate operation in the loop nest.
_LARGEST = 256


def max_pool(node: Node, tensors: Tensors) -> Layer:
    """Lower a MaxPool of 8-bit integers. Raises `Unsupported`."""
    source, result = node.inputs[0], node.outputs[0]
    tensors.require_bytes(source, result)
    image, out = tensors.image(source), tensors.image(result)
    if len([name for name in node.outputs if name]) != 1:
        raise Unsupported("it also returns the indices of the maxima")
    moved = fitting_window(node, image, out, ())
    if moved.kernel[0] * moved.kernel[1] > _LARGEST:
        raise Unsupported(f"its windows have more than {_LARGEST} pixels")
    low, high = tensors.range(source)
    config = tensors.config
    # Padding must not exceed any pixel.
    pad_value = -128 if any(moved.pads) and low < 0 else 0
    tensors.require_padding(pad_value, "the least integer")
    tensors.require_held(source, image)
    workload = MaxPool2d(
        batch=tiles(image[0], config.batch),
        channels=tiles(image[1], config.block_out),
        height=image[2],
        width=image[3],
        kernel=moved.kernel,
        strides=moved.strides,
        pads=moved.pads,
        pad_value=pad_value,
        dilations=moved.dilations,
    )
    fused = _behind_convolution(node, workload, out, tensors)
    if fused is not None:
        return fused
    return tensors.layer(
        (node,),
        [tensors.source(source, image)],
        out,
        tensors.function(max_pool2d, workload, node),
        tensors.identity_constant() if reads_what_it_stores(tensors.env) else {},
        (low, high),
    )


@where_it_fits
def _behind_convolution(node: Node, alone: MaxPool2d, out: Image, tensors: Tensors) -> Layer | None:
    """Fuse a pooling with the convolution that produces its input. None if there is no such
    convolution, if windows are dilated or overlap too much, or if two layers take fewer cycles.
    ``alone`` is the pooling as its own layer."""
    name = node.inputs[0]
    known = tensors.convolution(name)
    if known is None or alone.dilations != (1, 1) or tensors.network.only_reader(name) is not node:
        return None
    output = (alone.output_height, alone.output_width)
    pooling = Pooling(output, alone.kernel, alone.strides, alone.pads[:2])
    if not pooling.is_possible((alone.height, alone.width)):
        return None
    anchor, workload = known
    if (workload.output_height, workload.output_width) != (alone.height, alone.width):
        return None  # the convolution runs on a reshaped sequence
    fused = replace(workload, pooling=pooling)
    if not is_faster(fused, (workload, alone), tensors.config):
        return None
    function = tensors.function(conv2d, fused, anchor.nodes[0])
    limits = tensors.range(name)
    return tensors.extended(anchor, (node,), node.operator, function, limits, out)


def average_in_float(node: Node, tensors: Tensors) -> Layer:
    """Raise `Unsupported` with the reason why the canonical form left an average in float."""
    network, source = tensors.network, node.inputs[0]
    dequantized(network, source)
    if quantized_after(network, node.outputs[0]) is None:
        raise Unsupported("its result is not quantized to 8 bits at one scale")
    shape = network.types[source].shape
    if shape is None:
        raise Unsupported(f"the shape of {source} is known only at run time")
    if len(shape) not in (3, 4):
        raise Unsupported(f"{source} has the shape {shape}, not that of images or sequences")
    if node.operator.startswith("Reduce"):
        raise Unsupported("it goes over other axes than rows and columns")
    if any(step != 1 for step in node.attributes.get("dilations", ())):
        raise Unsupported("its window is dilated")
    raise Unsupported("its last windows reach beyond the padding")


def is_average(product: QuantizedProduct, window: Window) -> bool:
    """Whether a convolution sums the pixels of each channel, with weights of one."""
    weights = product.sums.weights
    return (
        product.nodes[0].attributes.get("group", 1) == len(weights)
        and weights.shape[1] == 1
        and window.dilations == (1, 1)
        and bool((weights == 1).all())
        and bool((product.sums.scale == product.sums.scale[:1]).all())
        and len(set(product.sums.roundings)) < 2
        and not product.nodes[0].input(8)
    )


def rounding_of_all(sums: RequantizedSums) -> IntegerRounding | None:
    """The integer rounding of all channels; None for float32 arithmetic."""
    return sums.roundings[0] if sums.roundings else None


def average_pool(
    product: QuantizedProduct, tensors: Tensors, moved: Window, image: Image, out: Image
) -> Layer:
    """Lower a QLinearConv that `is_average`. Raises `Unsupported`."""
    node, config, total = product.nodes[0], tensors.config, product.sums
    tensors.require_held(node.inputs[0], image)
    try:
        constants = sum_constants(
            total.scale[0],
            product.zero_point,
            total.zero_point,
            moved.taps,
            config,
            total.low,
            total.high,
            rounding_of_all(total),
        )
    except NotExact as problem:
        raise Unsupported(str(problem)) from None
    workload = average_workload(product, tensors, moved, image, constants)
    fused = fused_average(product, workload, out, tensors)
    if fused is not None:
        return fused
    identity = tensors.identity_constant() if workload.by_gemm(tensors.env) else {}
    return tensors.layer(
        product.nodes,
        [tensors.source(node.inputs[0], image)],
        out,
        tensors.function(average_pool2d, workload, node),
        identity | tensors.factors(constants),
        (total.low, total.high),
    )


def average_workload(
    product: QuantizedProduct,
    tensors: Tensors,
    moved: Window,
    image: Image,
    constants: FixedPoint,
) -> AveragePool2d:
    """The workload of averages over windows ``moved`` of an ``image``, all with the same
    constants."""
    return AveragePool2d(
        batch=tiles(image[0], tensors.config.batch),
        channels=tiles(image[1], tensors.config.block_out),
        height=image[2],
        width=image[3],
        kernel=moved.kernel,
        constants=constants,
        strides=moved.strides,
        pads=moved.pads,
        pad_value=product.pad_value(moved, tensors),
    )
