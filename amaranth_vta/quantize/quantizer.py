"""Quantizes a float model to a form that the machine can run: `quantize`."""

from __future__ import annotations

import io
import logging
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper
from onnxruntime.quantization import (
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.calibrate import TensorsData, save_tensors_data
from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

from amaranth_vta.sw.compiler.graph.integer_rows import SHARE, SYMMETRIC_SHARE
from amaranth_vta.sw.compiler.graph.load.foreign_types import with_foreign_types
from amaranth_vta.sw.compiler.graph.load.opsets import CONVERTED_FROM, opset_of, with_known_opset
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.tile_layout import Array

from .calibration import calibrate
from .composed_rows import with_row_operators
from .float_parts import PRODUCTS, kept_in_float
from .functions import ComposedFunction, collapsed, composed_functions, expanded
from .integer_rows import INTEGER_OPSET, results_in_float, rows_in_float, with_integer_rows
from .preprocessing import UniqueNames, separate_constants, sort_nodes
from .product_biases import remove_quantization_before_biases
from .recurrent_layers import with_unrolled_layers
from .rotation_forms import with_full_rotations
from .tensor_ranges import Range, tensor_ranges

Sample = Mapping[str, Array]

# Averages and maxima over images and sequences. The machine supports them, but ONNX Runtime's
# quantizer leaves them in float by default.
_OVER_PIXELS = frozenset({"GlobalMaxPool", "ReduceMax", "ReduceMean"})
# The first opset in which DequantizeLinear takes int4.
_INT4_OPSET = 21


@dataclass(frozen=True)
class Options:
    """Options of the quantizer. Weights have scales ``per_channel``, else one per tensor. With
    ``power_of_two``, for machines without REQUANTIZE, scales are powers of two per tensor, without
    zero points. The range of an activation covers ``percentile`` percent of its values, None for
    all. With ``operators`` the format is QOperator, else QDQ. Activations and weights are int8
    unless ``unsigned_activations`` or ``unsigned_weights`` is set; weights have zero points unless
    ``symmetric_weights``, activations unless ``symmetric_activations``. Operators named in
    ``in_float``, by their own name or by a result, are not quantized; with ``only``, neither are
    those of other types. With ``int4_weights`` the weights of matrix products and convolutions are
    int4, without zero points; the result then has opset 21 or later. With ``integer_only``
    functions of rows are graphs of integer operators; the result then has opset 18 or later.
    """

    per_channel: bool = True
    power_of_two: bool = False
    percentile: float | None = None
    operators: bool = False
    unsigned_activations: bool = False
    unsigned_weights: bool = False
    symmetric_weights: bool = True
    symmetric_activations: bool = False
    in_float: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    int4_weights: bool = False
    integer_only: bool = False


@dataclass(frozen=True)
class QuantizedModel:
    """A quantized ``model``, and the ``float_model`` from which it was made: the given model after
    folding and fusion, with `with_unrolled_layers`, and `with_full_rotations` if it applies.

    ``pairs`` maps tensor names of the float model to the corresponding, dequantized tensors of the
    quantized model. ``zero`` lists the quantized tensors that are zero in all samples. ``in_float``
    lists the results of functions of rows that are in float although ``integer_only`` is set.
    """

    model: onnx.ModelProto
    float_model: onnx.ModelProto
    pairs: dict[str, str]
    zero: list[str]
    in_float: list[str]


def quantize(
    model: onnx.ModelProto,
    samples: Sequence[Sample],
    options: Options,
    progress: Callable[[int], None] = lambda _: None,
) -> QuantizedModel:
    """Quantizes ``model`` as set in ``options``, calibrated with ``samples``.

    ``progress`` is called with the number of samples done. Raises `ModelError` if the quantizer
    fails.
    """
    needed = max(
        _INT4_OPSET if options.int4_weights else 0, INTEGER_OPSET if options.integer_only else 0
    )
    if needed:
        version = opset_of("the model", model)
        model = with_known_opset("the model", model, version, max(version, needed))
    prepared = prepare(model)
    if (unrolled := with_unrolled_layers(prepared, options.in_float)) is not prepared:
        prepared = prepare(unrolled)
    if (whole := with_row_operators(prepared, options.in_float)) is not prepared:
        prepared = prepare(whole)
    if options.integer_only:
        prepared = with_full_rotations(prepared)
    names = UniqueNames(prepared)
    unique = names.model
    renamed = [{names.tensor(name): item for name, item in one.items()} for one in samples]
    distributions = calibrate(unique, renamed, progress)
    in_float = {
        *kept_in_float(unique.graph, distributions),
        *_reductions_of_features(unique.graph),
        *_chosen(names, options.in_float),
        *(rows_in_float(unique) if options.integer_only else ()),
    }
    separate_constants(names, in_float)
    ranges = tensor_ranges(unique.graph, distributions, options.percentile)
    overrides = _int4_weights(unique.graph, in_float, options) if options.int4_weights else {}
    if options.integer_only:
        overrides |= _shares(unique.graph, options)
    try:
        result = _quantized(unique, ranges, in_float, options, overrides)
        if options.power_of_two:
            overrides = _powers_of_two(unique, result)
            result = _quantized(unique, ranges, in_float, options, overrides)
    except ModelError:
        raise
    except Exception as error:  # the quantizer's exceptions have no common base class
        reason = names.readable(str(error).splitlines()[0] if str(error) else repr(error))
        raise ModelError(f"the model cannot be quantized: {reason}") from None
    pairs = _pairs(unique, result)
    quantized_names = {name for node in result.graph.node for name in node.output}
    restored = names.restore(result)
    if options.integer_only:
        result = with_integer_rows(result)
        known = {name for node in result.graph.node for name in node.output}
        pairs = {name: other for name, other in pairs.items() if restored[other] in known}
    # The note about a conversion describes the given model, not the result.
    notes = [item for item in result.metadata_props if item.key != CONVERTED_FROM]
    del result.metadata_props[:]
    result.metadata_props.extend(notes)
    return QuantizedModel(
        result,
        prepared,
        {names.original(name): restored[other] for name, other in pairs.items()},
        [
            names.original(name)
            for name in pairs
            if f"{name}_QuantizeLinear_Output" in quantized_names and distributions[name].is_zero
        ],
        list(results_in_float(result)) if options.integer_only else [],
    )


def _int4_weights(
    graph: onnx.GraphProto, in_float: Collection[str], options: Options
) -> dict[str, Any]:
    """Quantization parameters of the constant weights of products: symmetric int4."""
    constants = {item.name: item for item in graph.initializer}
    overrides = {}
    for node in graph.node:
        weight = constants.get(node.input[1]) if node.op_type in PRODUCTS else None
        if weight is None or node.name in in_float:
            continue
        chosen: dict[str, Any] = {"quant_type": QuantType.QInt4, "symmetric": True}
        if options.per_channel:
            chosen["axis"] = _channel_axis(node, len(weight.dims))
        overrides[weight.name] = [chosen]
    return overrides


def _shares(graph: onnx.GraphProto, options: Options) -> dict[str, Any]:
    """Quantization parameters of the results of each Softmax of `with_integer_rows`."""
    dtype = np.uint8 if options.unsigned_activations else np.int8
    symmetric = options.symmetric_activations and dtype == np.int8
    zero = 0 if symmetric else np.iinfo(dtype).min
    chosen = {
        "scale": np.array(SYMMETRIC_SHARE if symmetric else SHARE, np.float32),
        "zero_point": np.array(zero, dtype),
    }
    return {node.output[0]: [dict(chosen)] for node in graph.node if node.op_type == "Softmax"}


def _channel_axis(node: onnx.NodeProto, rank: int) -> int:
    """The axis of output channels of the weights of a product."""
    transposed = any(item.name == "transB" and item.i for item in node.attribute)
    if node.op_type == "Conv" or (node.op_type == "Gemm" and transposed):
        return 0
    return 1 if node.op_type == "ConvTranspose" else rank - 1


def _chosen(names: UniqueNames, chosen: Collection[str]) -> Iterator[str]:
    """The nodes with a name or a result in ``chosen``; raises `ModelError` if ``chosen`` has a name
    that does not exist.
    """
    left = set(chosen)
    for node in names.model.graph.node:
        found = {names.original(name) for name in (node.name, *node.output) if name}
        if found.intersection(chosen):
            left -= found
            yield node.name
    if left:
        raise ModelError(f"there is no operator or tensor {min(left)} to leave in float")


def _pairs(model: onnx.ModelProto, quantized: onnx.ModelProto) -> dict[str, str]:
    """Map results of nodes of ``model``, in order, to the corresponding tensors of ``quantized``,
    without tensors that exist in only one of the two.
    """
    outputs = {item.name for item in model.graph.output}
    known = {name for node in quantized.graph.node for name in node.output}
    pairs = {}
    for name in (name for node in model.graph.node for name in node.output):
        dequantized = f"{name}_DequantizeLinear_Output"
        if dequantized in known:
            pairs[name] = dequantized
        elif name in outputs:
            pairs[name] = name
    return pairs


def prepare(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model`` after ONNX Runtime's constant folding, and fusions that keep to standard ONNX
    operators, such as BatchNormalization into convolutions. Raises `ModelError`.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "prepared.onnx"
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(path)
        options.log_severity_level = 4
        try:
            data = model.SerializeToString()
            # Gemm needs a Reshape to rows, which would separate normalization from QuantizeLinear;
            # `remove_quantization_before_biases` joins products and biases without one.
            onnxruntime.InferenceSession(
                data,
                options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=["MatMulAddFusion"],
            )
        except Exception as error:  # ONNX Runtime's exceptions have no narrower common base
            raise ModelError(f"ONNX Runtime cannot run the model: {error}") from None
        prepared = onnx.load(path)
    for node in prepared.graph.node:
        # The quantizer identifies nodes by name, but not all exporters name them.
        node.name = node.name or f"{node.op_type}_{next(filter(None, node.output), '')}"
    _flatten_biases(prepared.graph)
    # The quantizer leaves tensors without types in float.
    return with_foreign_types(onnx.shape_inference.infer_shapes(prepared))


def _flatten_biases(graph: onnx.GraphProto) -> None:
    """Reshape biases of Gemm with one row, which the fusion of MatMul and Add leaves, to one
    dimension: the quantizer fails on others.
    """
    read_as_bias = {
        name for node in graph.node if node.op_type == "Gemm" for name in node.input[2:]
    }
    read_otherwise = {
        name
        for node in graph.node
        for name in (node.input[:2] if node.op_type == "Gemm" else node.input)
    }
    for item in graph.initializer:
        is_row = len(item.dims) == 2 and item.dims[0] == 1
        if is_row and item.name in read_as_bias - read_otherwise:
            del item.dims[0]


def _quantized(
    model: onnx.ModelProto,
    ranges: Mapping[str, Range],
    in_float: Collection[str],
    options: Options,
    overrides: dict[str, Any],
) -> onnx.ModelProto:
    """Quantize ``model`` with scales for ``ranges``, except the nodes ``in_float``; ``overrides``
    are quantization parameters by tensor.
    """
    extra = {
        "WeightSymmetric": options.symmetric_weights,
        "ActivationSymmetric": options.power_of_two or options.symmetric_activations,
        **({"TensorQuantOverrides": overrides} if overrides else {}),
    }
    types = {True: QuantType.QUInt8, False: QuantType.QInt8}
    with tempfile.TemporaryDirectory() as folder, _quiet():
        source, known, result = (
            Path(folder) / name for name in ("float.onnx", "ranges.json", "int8.onnx")
        )
        save_tensors_data(TensorsData(CalibrationMethod.MinMax, dict(ranges)), known)
        quantized_types = [*(options.only or (*QDQRegistry, *QLinearOpsRegistry, *_OVER_PIXELS))]
        functions: list[ComposedFunction] = []
        if not options.operators:
            functions = list(composed_functions(model.graph, in_float, quantized_types))
        onnx.save(collapsed(model, functions), source)
        quantize_static(
            source,
            result,
            None,
            quant_format=QuantFormat.QOperator if options.operators else QuantFormat.QDQ,
            activation_type=types[options.unsigned_activations],
            weight_type=types[options.unsigned_weights],
            per_channel=options.per_channel and not options.power_of_two,
            op_types_to_quantize=quantized_types,
            nodes_to_exclude=sorted(in_float),
            extra_options=extra,
            calibration_cache_path=known,
        )
        quantized = onnx.load(result)
    expanded(quantized, model, functions)
    remove_quantization_before_biases(quantized, model)
    sort_nodes(quantized.graph)
    return quantized


def _reductions_of_features(graph: onnx.GraphProto) -> list[str]:
    """Names of reductions over axes other than all pixels, such as in a decomposed normalization:
    quantized, they would lose accuracy and still run on the host.
    """
    ranks = {
        item.name: len(item.type.tensor_type.shape.dim)
        for item in (*graph.value_info, *graph.input)
    }
    return [
        node.name
        for node in graph.node
        if node.op_type in _OVER_PIXELS - {"GlobalMaxPool"}
        and not _goes_over_pixels(graph, node, ranks.get(node.input[0], 0))
    ]


def _goes_over_pixels(graph: onnx.GraphProto, node: onnx.NodeProto, rank: int) -> bool:
    axes = [axis for item in node.attribute if item.name == "axes" for axis in item.ints]
    for item in graph.initializer:
        if item.name in node.input[1:]:
            axes = numpy_helper.to_array(item).tolist()
    if rank not in (3, 4) or len(axes) != rank - 2:
        return False
    return rank == 4 or axes[0] % rank != 2 or not _is_centred(graph, node)


def _is_centred(graph: onnx.GraphProto, mean: onnx.NodeProto) -> bool:
    """Whether the mean is subtracted from a tensor, as in a normalization."""
    readers = [node for node in graph.node if mean.output[0] in node.input]
    return any(node.op_type == "Sub" for node in readers)


def _powers_of_two(model: onnx.ModelProto, result: onnx.ModelProto) -> dict[str, list[Any]]:
    """For each tensor that ``result`` quantizes, its scale rounded up to a power of two."""
    values = {item.name: numpy_helper.to_array(item) for item in result.graph.initializer}
    weights = {item.name for item in model.graph.initializer}
    overrides: dict[str, list[Any]] = {}
    for node in result.graph.node:
        if node.op_type == "QuantizeLinear":
            # The quantizer renames a tensor before a graph output.
            name = node.input[0].removesuffix("_QuantizeLinear_Input")
        elif node.op_type == "DequantizeLinear" and node.input[0].endswith("_quantized"):
            name = node.input[0].removesuffix("_quantized")
        else:
            continue
        if node.op_type == "DequantizeLinear" and name not in weights:
            continue
        scale = values[node.input[1]]
        if values[node.input[2]].dtype == np.int8 and scale.size == 1:
            power = np.float32(2.0 ** np.ceil(np.log2(max(float(scale.item()), 2.0**-60))))
            zero = np.array(0, np.int8)
            overrides[name] = [{"scale": np.array(power, np.float32), "zero_point": zero}]
    return overrides


@contextmanager
def _quiet() -> Iterator[None]:
    """A context that suppresses the quantizer's messages, which are not for the user."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
