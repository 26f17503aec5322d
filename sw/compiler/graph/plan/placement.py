"""Place the operators of a canonical network on machine or host, with reasons for the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.graph.canonical.quantization import (
    BYTE_TYPES,
    parameters_of,
    quantized_after,
)
from amaranth_vta.sw.compiler.graph.canonical.sums.blocked_products import why_no_blocks
from amaranth_vta.sw.compiler.graph.canonical.why_float import why_float, why_in_float
from amaranth_vta.sw.compiler.graph.channel_order.arranged_network import with_arranged_channels
from amaranth_vta.sw.compiler.graph.elementwise import is_elementwise
from amaranth_vta.sw.compiler.graph.integer_operators import (
    DOMAIN,
    LAYER_NORMALIZATION,
    LOOKUP,
    LOOKUP_PAIR,
    QUANTIZE,
    REQUANTIZE,
    RESIZE_BILINEAR,
    RMS_NORMALIZATION,
    ROW_ROTATION,
    ROW_SOFTMAX,
    SOFTMAX,
)
from amaranth_vta.sw.compiler.graph.layers import microsoft_operators as microsoft
from amaranth_vta.sw.compiler.graph.layers.addition import addition, sum_of_several
from amaranth_vta.sw.compiler.graph.layers.convolution import convolution, convolution_sums
from amaranth_vta.sw.compiler.graph.layers.data_movement import (
    choosing,
    concatenating,
    resizing,
    slicing,
    transposing,
)
from amaranth_vta.sw.compiler.graph.layers.gathered_rows import gathered_rows
from amaranth_vta.sw.compiler.graph.layers.integer_operators import lookup_pair
from amaranth_vta.sw.compiler.graph.layers.matrix_product import matrix_product, matrix_sums
from amaranth_vta.sw.compiler.graph.layers.multiplication import multiplication
from amaranth_vta.sw.compiler.graph.layers.pooling import average_in_float, max_pool
from amaranth_vta.sw.compiler.graph.layers.rearrangement import rearrangement
from amaranth_vta.sw.compiler.graph.layers.rescaling import clip, extremum, quantization
from amaranth_vta.sw.compiler.graph.layers.ring_buffers import ring_stores, ring_writes
from amaranth_vta.sw.compiler.graph.layers.rotation import row_rotation
from amaranth_vta.sw.compiler.graph.layers.rows import row_normalization, row_softmax
from amaranth_vta.sw.compiler.graph.layers.support.layer import (
    HostNode,
    Layer,
    Unsupported,
    identifier,
)
from amaranth_vta.sw.compiler.graph.layers.support.layer_functions import LayerFunctions
from amaranth_vta.sw.compiler.graph.layers.support.scales import (
    dequantized,
    quantized,
    require_rounded,
)
from amaranth_vta.sw.compiler.graph.layers.support.tensors import Tensors
from amaranth_vta.sw.compiler.graph.layers.unary_functions import integer_function
from amaranth_vta.sw.compiler.graph.load.constant_control_flow import why_not_constant
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import MICROSOFT, Node
from amaranth_vta.sw.compiler.operators.permute import Permute, permute
from amaranth_vta.sw.compiler.passes.pipeline import PlacedPass
from amaranth_vta.sw.compiler.tuner.workload import NoScheduleFits
from amaranth_vta.sw.runtime.network.tile_layout import Image

# Lowers a node to a layer, or raises `Unsupported` with the reason why it runs on the host.
MakeLayer = Callable[[Node, Tensors], Layer]

# Lowering functions by domain and ONNX operator.
_LAYERS: dict[tuple[str, str], MakeLayer] = {
    ("", "Add"): addition,
    ("", "AveragePool"): average_in_float,
    ("", "Clip"): clip,
    ("", "Concat"): concatenating,
    ("", "ConvInteger"): convolution_sums,
    ("", "DepthToSpace"): rearrangement,
    ("", "Expand"): rearrangement,
    ("", "Gather"): choosing,
    ("", "GlobalAveragePool"): average_in_float,
    ("", "MatMulInteger"): matrix_sums,
    ("", "Max"): extremum,
    ("", "MaxPool"): max_pool,
    ("", "Min"): extremum,
    ("", "Mul"): multiplication,
    ("", "Pad"): rearrangement,
    ("", "QLinearConv"): convolution,
    ("", "QLinearMatMul"): matrix_product,
    ("", "QuantizeLinear"): quantization,
    ("", "ReduceMean"): average_in_float,
    ("", "ReduceSum"): average_in_float,
    ("", "Resize"): resizing,
    ("", "Slice"): slicing,
    ("", "SpaceToDepth"): rearrangement,
    ("", "Sub"): addition,
    ("", "Sum"): sum_of_several,
    ("", "Tile"): rearrangement,
    ("", "Transpose"): transposing,
    (DOMAIN, LOOKUP): integer_function,
    (DOMAIN, LOOKUP_PAIR): lookup_pair,
    (DOMAIN, LAYER_NORMALIZATION): row_normalization,
    (DOMAIN, RMS_NORMALIZATION): row_normalization,
    (DOMAIN, ROW_ROTATION): row_rotation,
    (DOMAIN, ROW_SOFTMAX): row_softmax,
    (MICROSOFT, "QGemm"): microsoft.gemm,
    (MICROSOFT, "QLinearAdd"): microsoft.element_wise,
    (MICROSOFT, "QLinearAveragePool"): microsoft.average_of_integers,
    (
        MICROSOFT,
        "QLinearGlobalAveragePool",
    ): microsoft.global_average_pool,
    (MICROSOFT, "QLinearLeakyRelu"): integer_function,
    (MICROSOFT, "QLinearMul"): microsoft.element_wise,
    (MICROSOFT, "QLinearSigmoid"): integer_function,
}
_BUILT_IN = dict(_LAYERS)
# Operators that always run on the host, with the reason.
_HOST_REASONS = {
    ("", "DequantizeLinear"): "float tensors are the host's",
    (DOMAIN, QUANTIZE): "float tensors are the host's",
    (DOMAIN, REQUANTIZE): "REQUANTIZE has no parameters for its scale",
    (DOMAIN, RESIZE_BILINEAR): "its weights differ from pixel to pixel",
    (DOMAIN, SOFTMAX): "the machine has no division",
}
# Operators that only move or choose elements.
_DATA_MOVEMENT = frozenset(
    ("", name)
    for name in ("Concat", "Gather", "Max", "MaxPool", "Min", "Pad", "Resize", "Slice", "Transpose")
)
_VIEWS = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})


def register_operator(operator: str, domain: str = "") -> Callable[[MakeLayer], MakeLayer]:
    """Decorate a function that lowers an ONNX ``operator`` of ``domain``.

    The function is called with each such `Node` of a network and the network's `Tensors`. It
    returns a `Layer`, or raises `Unsupported` for nodes that are to run on the host. It replaces an
    earlier function for the same operator. ``examples/own_operator.py`` is an example.
    """

    def register(make: MakeLayer) -> MakeLayer:
        _LAYERS[domain, operator] = make
        return make

    return register


def has_own_operators() -> bool:
    """Whether `register_operator` has added or replaced an operator."""
    return _LAYERS != _BUILT_IN


@dataclass
class Placement:
    """Layers and host nodes in the order of ``network``, the network that was placed, with its
    channels arranged for the machine.

    ``views`` maps each tensor that only renames another tensor on the machine to that tensor.
    ``images`` are the shapes (N, C, H, W) in which the machine holds tensors. ``keeping`` are the
    layers that copy new values of variables to where the next run reads them.
    """

    items: list[Layer | HostNode]
    views: dict[str, str]
    images: dict[str, Image]
    keeping: list[Layer]
    network: Network


def place(network: Network, config: Config, passes: Sequence[PlacedPass] = ()) -> Placement:
    """Place each operator on the machine of ``config`` if possible, else on the host.

    ``passes`` are additional passes for the loop nest of each layer.
    """
    network = with_arranged_channels(network, config)
    functions = LayerFunctions(Environment(config, passes))
    placement = _placed(network, functions)
    # Placement is repeated without the functions that could not be built.
    while not functions.build(item for item in placement.items if isinstance(item, Layer)):
        placement = _placed(network, functions)
    return placement


def _placed(network: Network, functions: LayerFunctions) -> Placement:
    tensors = Tensors(network, functions)
    items: dict[str, Layer | HostNode] = {}
    for node in network.nodes:
        if node.name in tensors.absorbed:
            continue
        try:
            _require_elements(node, network)
            if not node.domain and node.operator in _VIEWS:
                _view(node, tensors)
                continue
            if _changes_type(node, tensors):
                continue
            layer = _layer(node, tensors)
            tensors.note(layer)
            # A node may have had its own layer before fusion. A layer that gets a second result
            # keeps its place, since other layers already read its first.
            for part in layer.nodes[layer.second is not None :]:
                items.pop(part.name, None)
            items |= {f"{layer.name} {part.result.tensor}": part for part in layer.first}
            # The layer's name may be that of a node that the host still runs.
            items[layer.nodes[0].name] = layer
        except NoScheduleFits as reason:
            items[node.name] = HostNode(node, str(reason))
        except Unsupported as reason:
            for name in reason.nodes:
                if isinstance(item := items.get(name), HostNode):
                    items[name] = replace(item, reason=str(reason))
            items[node.name] = HostNode(node, str(reason))
            tensors.note_range(node)
    needed = _without_unread(ring_writes(list(items.values()), tensors), tensors)
    needed = gathered_rows(ring_stores(needed, tensors), tensors)
    keeping = [*_keeping(needed, tensors, functions)]
    return Placement(needed, tensors.views, tensors.images, keeping, network)


def _keeping(
    items: list[Layer | HostNode], tensors: Tensors, functions: LayerFunctions
) -> Iterator[Layer]:
    """For each variable whose new value a layer produces, the layer that copies it."""
    results = {
        item.result.tensor: item.result
        for item in items
        if isinstance(item, Layer) and not item.in_windows
    }
    for state in tensors.network.states:
        made = results.get(tensors.root(state.result))
        if made is None or made.layout != tensors.output_layout:
            continue
        whole = Permute((prod(made.layout.shape(made.image)[:4]),), (0,))
        copy = functions.promised(permute, whole, identifier(state.source))
        kept = replace(made, tensor=state.source)
        name = f"{state.source}, next value"
        yield Layer(name, "Identity", (), (made,), kept, copy, {}, 0)


def _require_elements(node: Node, network: Network) -> None:
    for name in (*node.reads, *filter(None, node.outputs)):
        if 0 in (network.types[name].shape or ()):
            raise Unsupported(f"{name} has no elements")


def _layer(node: Node, tensors: Tensors) -> Layer:
    kind, network = (node.domain, node.operator), tensors.network
    if kind in _DATA_MOVEMENT and network.types[node.inputs[0]].dtype.kind == "f":
        _require_quantized(network, node)
    match kind:
        case kind if kind in _LAYERS:
            return _LAYERS[kind](node, tensors)
        case kind if kind in _HOST_REASONS:
            raise Unsupported(_HOST_REASONS[kind])
        case "", "Conv" | "ConvTranspose" | "Gemm" | "MatMul":
            raise Unsupported(why_float(network, node))
        case kind if kind == (MICROSOFT, "MatMulNBits"):
            raise Unsupported(why_no_blocks(network, node))
        case "", "If" | "Loop":
            raise Unsupported(why_not_constant(network, node))
        case "", "BatchNormalization" if node.attributes.get("training_mode"):
            raise Unsupported("it computes the mean and the variance of its input")
        case "", "Einsum":
            for name in node.reads:
                dequantized(network, name)
            raise Unsupported(f"{node.attributes['equation']} is no product of two matrices")
    for name in node.reads:
        require_rounded(network, name)
    if is_elementwise(node) and network.types[node.outputs[0]].dtype.kind == "f":
        raise Unsupported(_why_no_function(tensors, node))
    raise Unsupported(f"the machine has no {node.operator}")


def _require_quantized(network: Network, node: Node) -> None:
    """Raise `Unsupported` unless a float operator that moves elements is between quantizations."""
    operands = node.inputs if node.operator in ("Concat", "Max", "Min") else node.inputs[:1]
    given = [name for name in operands if name not in network.constants]
    for name in given:
        if reason := why_in_float(network, name):
            raise Unsupported(reason)
    if quantized_after(network, node.outputs[0]) is None:
        raise Unsupported("its result is not quantized to 8 bits at one scale")
    if len(given) < len(operands):
        raise Unsupported("one of its operands is a constant")


def _why_no_function(tensors: Tensors, node: Node) -> str:
    """The reason why an element-wise operator is not part of a function of one tensor."""
    network = tensors.network
    given = [name for name in node.reads if name not in network.constants]
    for name in given:
        if reason := why_in_float(network, name):
            return reason
    if len(given) > 1:
        count = {2: "two"}.get(len(given), f"{len(given)}")
        return f"the machine has no {node.operator} of {count} tensors"
    if given and quantized_after(network, node.outputs[0]) is not None:
        source, _ = dequantized(network, given[0])
        tensors.require_made(source)
        return f"the machine has no {node.operator} of this form"
    return "its result is not quantized to 8 bits at one scale"


def _without_unread(items: list[Layer | HostNode], tensors: Tensors) -> list[Layer | HostNode]:
    """Remove ``items`` whose results are read only by absorbed nodes."""
    read = set(map(tensors.root, tensors.network.outputs))
    needed: list[Layer | HostNode] = []
    for item in reversed(items):
        made = item.makes
        if read.isdisjoint(map(tensors.root, made)):
            continue
        read.update(map(tensors.root, item.reads))
        needed.append(item)
    return needed[::-1]


def _same_layout(held: Image, shape: tuple[int, ...]) -> bool:
    """Whether images in the shape ``held`` have the same memory layout as a tensor of ``shape``,
    which may reshape the pixels of a channel, flatten images to features, or reshape rows."""
    features = (held[0], prod(held[1:]))
    if shape in (features, (*features, 1, 1)):
        return True
    if held[2:] == (1, 1) and shape[-1:] == held[1:2] and prod(shape[:-1]) == held[0]:
        return True
    return shape[:2] == held[:2] and prod(shape[2:]) == prod(held[2:])


def _changes_type(node: Node, tensors: Tensors) -> bool:
    """Whether ``node`` requantizes a stored tensor with equal steps, so that the machine's integers
    are unchanged. The result then becomes a view of the input."""
    network = tensors.network
    out = parameters_of(network, node, "QuantizeLinear")
    maker = network.maker(node.inputs[0]) if out else None
    given = parameters_of(network, maker, "DequantizeLinear")
    if out is None or maker is None or given is None or not (out.per_tensor and given.per_tensor):
        return False
    root = tensors.root(maker.inputs[0])
    if not {out.zero.dtype, given.zero.dtype} <= {*BYTE_TYPES} or root not in tensors.results:
        return False
    if quantized(given) != quantized(out):
        return False
    tensors.set_range(node.outputs[0], *tensors.range(maker.inputs[0]))
    tensors.views[node.outputs[0]] = root
    return True


def _view(node: Node, tensors: Tensors) -> None:
    """Make the result of ``node`` a view of its input, if the layout stays the same. Raises
    `Unsupported`."""
    root = tensors.root(node.inputs[0])
    tensors.require_made(node.inputs[0])
    held, shape = tensors.images[root], tensors.network.types[node.outputs[0]].shape
    if shape is None or not _same_layout(held, shape):
        raise Unsupported("it changes the layout")
    tensors.set_range(node.outputs[0], *tensors.range(node.inputs[0]))
    tensors.views[node.outputs[0]] = root
