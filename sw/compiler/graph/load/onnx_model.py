"""Load an ONNX file as a `Network` with fixed shapes and folded constants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from amaranth_vta.sw.compiler.graph.integer_operators import DOMAIN as FOREIGN_DOMAIN
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.runtime.array_file import FileLimitError, read_limited, require_within_limit
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session, run_session
from amaranth_vta.sw.runtime.network.tensor_type import TensorType

from .constant_control_flow import inline_constant_control_flow
from .expansion import expand
from .external_data import external_tensors, load_external_data
from .foreign_files import kind_of
from .foreign_types import with_foreign_types
from .input_shapes import fix_shapes, is_sequence
from .opsets import opset_of, with_known_opset
from .pooling_sizes import use_explicit_paddings
from .small_integers import widen_small_integers
from .standard_operators import use_standard_operators
from .tflite import is_tflite, model_of, tflite_source
from .undefined_operators import (
    hide_undefined,
    inferred,
    is_foreign,
    show_undefined,
    with_microsoft_domain,
)

# Folding it would lose the quantization of a constant.
_KEPT = frozenset({"DequantizeLinear"})
# Operators whose results differ from run to run.
RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial"}
)

Source = str | Path | bytes | onnx.ModelProto


def read_model(source: Source) -> onnx.ModelProto:
    """Read a model from a file, bytes or a proto: check it, inline functions, expand sparse
    constants, and convert it if the compiler does not know its opset. Open dimensions stay open.

    Raises `ModelError` if the model cannot be read, is damaged, or has an unsupported opset, and
    `FileLimitError` if it is too large.
    """
    what = str(source) if isinstance(source, str | Path) else "the model"
    try:
        if isinstance(source, onnx.ModelProto):
            model = source
        elif isinstance(source, bytes):
            model = _converted(what, source) or _parsed(what, source)
        else:
            model = _model_in_file(Path(source))
    except FileLimitError as error:
        raise FileLimitError(f"{what}: {error}") from None
    except OSError as error:
        raise ModelError(f"{what} cannot be read: {error.strerror or error}") from None
    except ModelError:
        raise
    except DecodeError:
        raise ModelError(f"{what} is not an ONNX model, or is damaged or cut off") from None
    except (onnx.checker.ValidationError, ValueError) as error:
        raise ModelError(f"{what} is not an ONNX model: {_first_line(error)}") from None
    if _is_converted(model):
        return model
    if apart := external_tensors(model):
        raise ModelError(
            f"{what} keeps tensor {apart[0].name} in another file: give the path of the model"
        )
    if any(isinstance(name, bytes) for name in _names(model.graph)):
        raise ModelError(f"{what} is damaged: a name in it is not text")
    version = opset_of(what, model)
    for item in model.graph.output:
        if not (_is_tensor(item) or is_sequence(item)):
            raise ModelError(f"output {item.name} is neither a tensor nor a sequence of tensors")
    given = with_microsoft_domain(model)
    model, needed = hide_undefined(what, given, version)
    hidden = model is not given
    try:
        model = _with_output_shapes(_with_own_constants(model))
        onnx.checker.check_model(_with_any_output_shapes(model))
    except (
        onnx.checker.ValidationError,
        onnx.shape_inference.InferenceError,
        ValueError,
        RuntimeError,
    ) as error:
        raise ModelError(f"{what} is damaged: {_first_line(error)}") from None
    known = with_known_opset(what, expand(model), version, needed)
    if hidden:
        show_undefined(known)
    return known


def _model_in_file(path: Path) -> onnx.ModelProto:
    """Read a model and the tensors that it keeps in other files."""
    data = read_limited(path)
    if converted := _converted(str(path), data):
        return converted
    model = _parsed(str(path), data)
    load_external_data(model, path)
    return model


def _converted(what: str, data: bytes) -> onnx.ModelProto | None:
    """The model of a TensorFlow Lite file; None for other files."""
    return model_of(data, what) if is_tflite(data) else None


def _parsed(what: str, data: bytes) -> onnx.ModelProto:
    if kind := kind_of(data):
        raise ModelError(f"{what} is not an ONNX model: it is {kind}")
    model = onnx.load_model_from_string(data)
    if not _is_converted(model):
        return model
    # Its operators and variables are not checked, but the file that it was made of is.
    source = tflite_source(model)
    if source is None:
        raise ModelError(f"{what} has operators of the domain {FOREIGN_DOMAIN}, and no source")
    return model_of(source, what)


def _is_converted(model: onnx.ModelProto) -> bool:
    """Whether a model is, or claims to be, one from `model_of`."""
    return FOREIGN_DOMAIN in {item.domain for item in model.opset_import} or any(
        item.key.startswith(f"{FOREIGN_DOMAIN}.") for item in model.metadata_props
    )


def _names(graph: onnx.GraphProto) -> Iterator[str | bytes]:
    """Yield all names in ``graph``; names that are not valid text are bytes."""
    yield graph.name
    for item in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        yield item.name
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        for attribute in node.attribute:
            yield attribute.name
            for inner in (attribute.g, *attribute.graphs):
                yield from _names(inner)


def load_network(model: onnx.ModelProto, batch: int) -> Network:
    """Convert ``model`` to a network of fixed shapes, with ``batch`` for an open first dimension of
    inputs.

    Operators that depend only on constants and shapes are folded, except DequantizeLinear. Raises
    `ModelError` if another dimension is open or if shapes contradict each other.
    """
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    fix_shapes(fixed, batch)
    use_standard_operators(fixed)
    network = Network.from_onnx(_with_shapes(fixed))
    _require_sizes(network)
    while True:
        widen_small_integers(network)
        folded = _fold_constants(network)
        inlined = inline_constant_control_flow(network, _fold_constants, infer)
        network.drop_unused()
        # Folding reveals shapes that depend on constants, which in turn determine results of Shape.
        network = infer(network)
        more = folded and any(_is_known(network, node) for node in network.nodes)
        if not (inlined or more):
            return network


def infer(network: Network) -> Network:
    """Return ``network`` with all types that can be inferred from its inputs and constants.

    Types that ONNX cannot infer are kept as they are: inferring them by ONNX Runtime again would
    take a session.
    """
    foreign = {
        name
        for node in network.nodes
        if node.domain or is_foreign(node.domain, node.operator)
        for name in node.outputs
        if name
    }
    kept = {name: network.types[name] for name in foreign if network.types[name].shape is not None}
    known = {name: replace(network.types[name], shape=None) for name in network.outputs}
    known |= {name: network.types[name] for name in network.inputs} | kept
    model = replace(network, types=known).with_roundings()
    model.graph.value_info.extend(
        network.value_info(name) for name in sorted(kept.keys() - set(network.outputs))
    )
    return Network.from_onnx(_with_shapes(model))


def _with_output_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model``, or a copy with inferred output shapes if some are missing: the checker
    needs them, ONNX Runtime does not."""
    if _have_shapes(model):
        return model
    return with_foreign_types(onnx.shape_inference.infer_shapes(model, data_prop=True))


def _with_any_output_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model``, or for the checker a copy with placeholder output shapes if some are known
    only after constant folding."""
    if _have_shapes(model):
        return model
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    for item in copied.graph.output:
        if _is_tensor(item):
            item.type.tensor_type.shape.SetInParent()
    return copied


def _have_shapes(model: onnx.ModelProto) -> bool:
    """Whether all outputs that are tensors have shapes."""
    return all(
        is_sequence(item) or item.type.tensor_type.HasField("shape") for item in model.graph.output
    )


def _is_tensor(item: onnx.ValueInfoProto) -> bool:
    return item.type.WhichOneof("value") in (None, "tensor_type")


def _with_own_constants(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model``, or a copy of IR version 4 if its IR version requires all constants to be
    inputs and some are not. Quantizers write such files, and ONNX Runtime accepts them."""
    inputs = {item.name for item in model.graph.input}
    if model.ir_version >= 4 or all(item.name in inputs for item in model.graph.initializer):
        return model
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    copied.ir_version = 4
    return copied


def _with_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    use_explicit_paddings(model)
    try:
        known = inferred(model, strict=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        raise ModelError(
            f"the model's shapes contradict each other: {_first_line(error)}"
        ) from None
    return with_foreign_types(known)


def _require_sizes(network: Network) -> None:
    """Raise `FileLimitError` if a tensor is too large: a model of a few bytes can declare one."""
    for name, info in network.types.items():
        if info.shape is not None:
            require_within_limit(f"tensor {name}", prod(info.shape) * info.dtype.itemsize)


def _fold_constants(network: Network) -> bool:
    """Evaluate nodes that do not depend on inputs; returns whether there were any."""
    known_shapes = [node for node in network.nodes if _is_known(network, node)]
    for node in known_shapes:
        shape = np.array(network.types[node.inputs[0]].shape, np.int64)
        end = node.attributes.get("end", len(shape))
        network.constants[node.outputs[0]] = shape[node.attributes.get("start", 0) : end]
        network.nodes.remove(node)
    known = set(network.constants)
    ready: list[Node] = []
    for node in network.nodes:
        if _is_constant(network, node, known):
            known.update(node.outputs)
            ready.append(node)
    if ready:
        wanted = [name for node in ready for name in node.outputs if name]
        session = exact_session(network.part(ready, [], wanted).SerializeToString())
        for name, value in run_session(session, wanted, {}).items():
            network.constants[name] = value
            network.types[name] = TensorType(value.dtype, value.shape)
        for node in ready:
            network.nodes.remove(node)
    return bool(known_shapes or ready)


def _is_known(network: Network, node: Node) -> bool:
    """Whether a node is a Shape whose result is determined by the types."""
    of_shape = node.operator == "Shape" and not node.domain
    return of_shape and network.types[node.inputs[0]].shape is not None


def _is_constant(network: Network, node: Node, known: set[str]) -> bool:
    if any(name and network.types[name].member is not None for name in node.outputs):
        return False  # constants are tensors, not sequences
    return node.operator not in _KEPT | RANDOM and not node.domain and known.issuperset(node.reads)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
