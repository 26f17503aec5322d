"""Replaces functions of rows between quantizations by integer graphs: `with_integer_rows`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx

from amaranth_vta.hw.isa import SCALE_FRACTION
from amaranth_vta.sw.compiler.graph.canonical.quantization import (
    BYTE_TYPES,
    QuantizationParameters,
    parameters_of,
)
from amaranth_vta.sw.compiler.graph.integer_operators import (
    DOMAIN,
    LAYER_NORMALIZATION,
    NORMALIZATION_OPERANDS,
    RMS_NORMALIZATION,
    ROW_ROTATION,
    ROW_SOFTMAX,
    SYMMETRIC,
)
from amaranth_vta.sw.compiler.graph.integer_rows import (
    ROTATION_OPERANDS,
    SHARE,
    SYMMETRIC_SHARE,
    exponentials,
    line_constants,
)
from amaranth_vta.sw.compiler.graph.network import Array, Network
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.operators.normalization import (
    GREATEST_BIAS,
    GREATEST_EPSILON,
    Arithmetic,
    RowLine,
)
from amaranth_vta.sw.compiler.operators.softmax import MOST_ELEMENTS
from amaranth_vta.sw.runtime.network.tensor_type import TensorType
from amaranth_vta.sw.runtime.network.tile_layout import offset

from .integer_waves import MOVERS, IntegerWaves, movers_of
from .open_models import closed, reopened
from .rotation_patterns import RowRotation, rotations
from .row_patterns import Floats, RowNormalization, Scores, normalizations, scores_of

# The first opset in which ReduceMax takes its axes as an input.
INTEGER_OPSET = 18
# Bits of the greatest factor of the last step.
_FACTOR_BITS = 26


def rows_in_float(model: onnx.ModelProto) -> Iterator[str]:
    """Yield the names of the nodes that the quantizer leaves to `with_integer_rows`."""
    network = closed(model)
    for normalization in normalizations(network):
        for node in normalization.nodes:
            yield node.name
    for rotation in rotations(network):
        waves = (rotation.cosines, rotation.sines)
        for node in (
            *rotation.nodes,
            *(item for wave in waves for item in movers_of(network, wave)),
        ):
            yield node.name


def with_integer_rows(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a QDQ ``model`` in which functions of rows with quantized inputs and results are
    graphs of integer operators: Softmax with a result of scale `SHARE` or `SYMMETRIC_SHARE`, and
    normalizations and rotary position embeddings.
    """
    network = closed(model)
    for node in list(network.nodes):
        if not node.domain and node.operator == "Softmax":
            _replace_softmax(network, node)
    for found in list(normalizations(network)):
        _replace_normalization(network, found)
    waves = IntegerWaves(network)
    for rotation in list(rotations(network)):
        _replace_rotation(network, rotation, waves)
    waves.finish()
    return reopened(network, model)


def results_in_float(model: onnx.ModelProto) -> Iterator[str]:
    """Yield the results of functions of rows in float in a ``model`` of `with_integer_rows`."""
    network = closed(model)
    ends = [node for node in network.nodes if not node.domain and node.operator == "Softmax"]
    ends += [found.nodes[-1] for found in normalizations(network)]
    ends += [found.nodes[-1] for found in rotations(network)]
    for node in ends:
        yield node.outputs[0]


@dataclass(frozen=True)
class _Ends:
    """Where a function of rows begins and ends: the integers ``x`` with the parameters ``given``,
    and the node ``quantize`` with the parameters ``made``, after ``movers`` of the result.
    """

    x: str
    given: QuantizationParameters
    movers: tuple[Node, ...]
    quantize: Node
    made: QuantizationParameters


def _ends(network: Network, x: str, result: str) -> _Ends | None:
    """The ends of a function of ``x`` with ``result``; None unless the integers at both have 8 bits
    and one scale, and rows that the operators support.
    """
    movers = []
    dequantize, quantize = network.maker(x), network.only_reader(result)
    while quantize is not None and quantize.operator in MOVERS and quantize.inputs[0] == result:
        movers.append(quantize)
        result = quantize.outputs[0]
        quantize = network.only_reader(result)
    given = parameters_of(network, dequantize, "DequantizeLinear")
    made = parameters_of(network, quantize, "QuantizeLinear")
    if dequantize is None or quantize is None or given is None or made is None:
        return None
    kinds = {given.zero.dtype, made.zero.dtype}
    shape = network.types[x].shape
    if not (given.per_tensor and made.per_tensor and kinds <= {*BYTE_TYPES}):
        return None
    if not shape or not 2 <= shape[-1] <= MOST_ELEMENTS:
        return None
    return _Ends(dequantize.inputs[0], given, tuple(movers), quantize, made)


def _replace(
    network: Network,
    end: Node,
    ends: _Ends,
    operator: str,
    operands: dict[str, Array],
    attributes: dict[str, int],
    computed: tuple[str, ...] = (),
) -> None:
    """Replace the function of rows whose last node is ``end``, and the quantization of its result,
    by an ``operator`` of the integers, the constant ``operands``, and ``computed`` ones.
    """
    names = [
        network.add_constant(f"{end.name}/{name}", np.asarray(value))
        for name, value in operands.items()
    ]
    (result,) = ends.quantize.outputs
    dtype, x = network.types[result].dtype, ends.x
    network.nodes.remove(ends.quantize)
    # Operators between the function and the quantization move integers.
    chain = (end, *ends.movers)
    for number, node in enumerate(chain):
        moved = result
        if node is not chain[-1]:
            moved = network.unused_name(f"{end.outputs[0]}/integers{number}")
        network.types[moved] = TensorType(dtype, network.types[node.outputs[0]].shape)
        made = replace(node, outputs=(moved,), inputs=(x, *node.inputs[1:]))
        if node is end:
            made = Node(operator, end.name, (x, *names, *computed), (moved,), attributes, DOMAIN)
        network.nodes.replace(node, [made])
        x = moved


def _as_bytes(network: Network, scores: Scores) -> str:
    """The mask of ``scores`` as int8, 0 where elements are excluded."""
    mask = scores.mask
    if scores.hides:
        if network.types[mask].dtype != np.bool_:
            mask = _shared(network, "Cast", mask, np.bool_, {"to": onnx.TensorProto.BOOL})
        mask = _shared(network, "Not", mask, np.bool_, {})
    return _shared(network, "Cast", mask, np.int8, {"to": onnx.TensorProto.INT8})


def _shared(
    network: Network, operator: str, x: str, dtype: type[np.generic], attributes: dict[str, int]
) -> str:
    """The result of an ``operator`` of ``x``, which all readers share."""
    for reader in network.nodes.readers(x):
        if reader.operator == operator and reader.attributes == attributes:
            return reader.outputs[0]
    name = network.unused_name(f"{x}/{operator.lower()}")
    network.types[name] = TensorType(np.dtype(dtype), network.types[x].shape)
    made, maker = Node(operator, name, (x,), (name,), attributes), network.maker(x)
    if maker is not None:
        network.nodes.replace(maker, [maker, made])
    else:
        first = network.nodes.readers(x)[0]
        network.nodes.replace(first, [made, first])
    return name


def _replace_softmax(network: Network, node: Node) -> None:
    scores = scores_of(network, node)
    ends = _ends(network, scores.x, node.outputs[0])
    if ends is None:
        scores = Scores(node.inputs[0])
        ends = _ends(network, scores.x, node.outputs[0])
    if ends is None:
        return
    given, made = ends.given, ends.made
    rank = len(network.types[ends.x].shape or ())
    is_last = node.attributes.get("axis", -1) % rank == rank - 1
    share, zero = float(made.scale.item()), int(made.zero.item())
    symmetric = (share, zero) == (SYMMETRIC_SHARE, 0) and made.zero.dtype == np.int8
    if is_last and (symmetric or (share, zero) == (SHARE, np.iinfo(made.zero.dtype).min)):
        table = {"table": exponentials(float(given.scale.item()) * scores.factor)}
        attributes = {SYMMETRIC: int(symmetric)}
        mask = (_as_bytes(network, scores),) if scores.mask else ()
        _replace(network, node, ends, ROW_SOFTMAX, table, attributes, mask)


def _replace_normalization(network: Network, found: RowNormalization) -> None:
    ends = _ends(network, found.x, found.nodes[-1].outputs[0])
    if ends is None:
        return
    given, made = ends.given, ends.made
    elements = len(found.scale)
    zero = int(given.zero.item()) - int(np.iinfo(given.zero.dtype).min)
    arithmetic = (
        Arithmetic.of_mean(elements) if found.centred else Arithmetic.of_zero_point(elements, zero)
    )
    steps = found.epsilon / float(given.scale.item()) ** 2
    epsilon = round(steps * elements * arithmetic.lift)
    line = _biased_line(found, arithmetic, made)
    if line is None or epsilon > GREATEST_EPSILON:
        return
    operands: dict[str, Array] = {
        "epsilon": np.array(epsilon, np.int32),
        **line_constants(line, made.zero.dtype),
    }
    operator = LAYER_NORMALIZATION if found.centred else RMS_NORMALIZATION
    if not found.centred:
        operands["lift"] = np.array(arithmetic.lift, np.int32)
        operands["zero"] = np.array(zero, np.int32)
    ordered = {name: operands[name] for name in NORMALIZATION_OPERANDS[operator]}
    _replace(network, found.nodes[-1], ends, operator, ordered, {})


def _replace_rotation(network: Network, found: RowRotation, waves: IntegerWaves) -> None:
    ends = _ends(network, found.x, found.nodes[-1].outputs[0])
    factors = [waves.greatest(name) for name in (found.cosines, found.sines)]
    known = [factor for factor in factors if factor is not None]
    if ends is None or len(known) < len(factors):
        return
    given, made = ends.given, ends.made
    if given.zero.dtype != np.int8 or given.zero.item():
        return
    unit = waves.unit(max(known))
    scale = float(given.scale.item()) / (float(made.scale.item()) * unit)
    line = _line(np.array([scale]), made)
    if line is None:
        return
    operands: dict[str, Array] = {
        **line_constants(line, made.zero.dtype),
        "places": found.places,
        "signs": found.signs.astype(np.int32),
    }
    ordered = {name: operands[name] for name in ROTATION_OPERANDS if name in operands}
    computed = tuple(waves.integers(name, unit) for name in (found.cosines, found.sines))
    _replace(network, found.nodes[-1], ends, ROW_ROTATION, ordered, {}, computed)


def _biased_line(
    found: RowNormalization, arithmetic: Arithmetic, made: QuantizationParameters
) -> RowLine | None:
    """The last step of a normalization; None if a scale is too small for its bias."""
    line = _line(found.scale / (float(made.scale.item()) * arithmetic.unit), made)
    if line is None:
        return None
    bias = np.rint(found.bias * arithmetic.unit / found.scale)
    if np.abs(bias).max() > GREATEST_BIAS:
        return None
    return replace(line, bias=bias.astype(np.int64))


def _line(scale: Floats, made: QuantizationParameters) -> RowLine | None:
    """The last step that multiplies by ``scale``, without bias; None if a scale has no factor."""
    if not np.isfinite(scale).all() or not (scale != 0).all():
        return None
    shift = _FACTOR_BITS - int(np.floor(np.log2(np.abs(scale).max()))) - 1
    if not _FACTOR_BITS <= shift <= SCALE_FRACTION:
        return None
    # Odd factors: no result is a half, which operators could round differently.
    factor = np.rint(np.ldexp(scale, shift)).astype(np.int64) | 1
    zero = int(made.zero.item()) - offset(made.zero.dtype)
    return RowLine(np.zeros_like(factor), factor, shift, zero)
