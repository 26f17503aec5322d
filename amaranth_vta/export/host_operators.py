"""The host's operators, read from a step's ONNX model: `host_operators`.

The compiler writes TensorFlow Lite's integer operators as primitive operators of ONNX, so that ONNX
Runtime can run them. This module recognizes each expansion and turns it back into one operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.sw.compiler.graph.integer_operators import (
    DOMAIN,
    QUANTIZE,
    REPLACED,
    SOFTMAX,
    expanded,
)
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.runtime.network.network_program import OnHost, RunHost
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session, run_session
from amaranth_vta.sw.runtime.network.tensor_type import TensorType

from .export_error import ExportError

if TYPE_CHECKING:
    import onnx

Array = npt.NDArray[Any]
# Differences of 8-bit integers: the size of the tables of an integer Softmax.
_DIFFERENCES = 256


@dataclass(frozen=True)
class HostOperator:
    """An operator with its ``constants`` by name, and the ``types`` of all its tensors. ``domain``
    is "" for ONNX, else `DOMAIN`; ``table`` are the exponentials of an integer Softmax.
    """

    node: Node
    on_host: OnHost
    constants: Mapping[str, Array]
    types: Mapping[str, TensorType]
    opset: int
    table: Array | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The operands that are computed."""
        return tuple(name for name in self.node.inputs if name and name not in self.constants)

    def constant(self, place: int) -> Array | None:
        """The operand at ``place`` if it is a constant."""
        return self.constants.get(self.node.input(place))


def host_operators(
    steps: Sequence[RunHost],
) -> tuple[list[list[HostOperator]], dict[str, Array]]:
    """The operators of each step in order, without operators of constants alone; and the results
    of the latter by name. Raises `ExportError` if a step's model is damaged.
    """
    computed: dict[str, Array] = {}
    return [_operators(step, computed) for step in steps], computed


def _operators(step: RunHost, computed: dict[str, Array]) -> list[HostOperator]:
    """The operators of ``step``; adds results that are constant to ``computed``."""
    import onnx
    from google.protobuf.message import DecodeError
    from onnx import numpy_helper, shape_inference

    try:
        model = shape_inference.infer_shapes(onnx.load_model_from_string(step.model))
    except (DecodeError, shape_inference.InferenceError) as error:
        raise ExportError(f"the host's part of the network is not an ONNX model: {error}") from None
    graph = model.graph
    stored = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    computed |= _results(model, stored | computed)
    constants = stored | computed
    types = {
        item.name: _type_of(item.type) for item in (*graph.input, *graph.value_info, *graph.output)
    }
    opsets = {item.domain: item.version for item in model.opset_import}
    listed = {item.name: item for item in step.operators}
    found = []
    nodes = [
        Node.from_onnx(node, node.name)
        for node in graph.node
        if not computed.keys() >= set(node.output)
    ]
    for name, group in groupby(nodes, lambda node: node.name.split(REPLACED)[0]):
        first, *others = group
        on_host = listed.get(name, OnHost(name, first.operator, "", 0))
        given = HostOperator(first, on_host, constants, types, opsets.get("", 1))
        if REPLACED in first.name:
            found.append(_recognized([first, *others], given))
        else:
            found += [replace(given, node=node) for node in (first, *others)]
    return found


def _results(model: onnx.ModelProto, constants: Mapping[str, Array]) -> dict[str, Array]:
    """The results of operators that read only ``constants``, as ONNX Runtime computes them."""
    from onnx import helper, numpy_helper

    known = set(constants)
    ready = []
    for node in model.graph.node:
        if known.issuperset(filter(None, node.input)) and REPLACED not in node.name:
            known.update(node.output)
            ready.append(node)
    if not ready:
        return {}
    read = {name for node in ready for name in node.input}
    wanted = [name for node in ready for name in node.output if name]
    graph = helper.make_graph(
        ready,
        "constants",
        [],
        [helper.make_empty_tensor_value_info(name) for name in wanted],
        [numpy_helper.from_array(constants[name], name) for name in read & constants.keys()],
    )
    part = helper.make_model(graph, opset_imports=model.opset_import)
    part.ir_version = model.ir_version
    return run_session(exact_session(part.SerializeToString()), wanted, {})


def _type_of(info: Any) -> TensorType:
    from onnx import helper

    tensor = info.tensor_type
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    sizes = [item.dim_value for item in tensor.shape.dim if item.HasField("dim_value")]
    known = tensor.HasField("shape") and len(sizes) == len(tensor.shape.dim)
    return TensorType(np.dtype(dtype), tuple(sizes) if known else None)


def _recognized(nodes: Sequence[Node], given: HostOperator) -> HostOperator:
    """The operator that ``nodes`` replace; its ``node`` has the operator's own name and domain."""
    on_host = given.on_host
    inputs, result = _outside(nodes, given.constants), nodes[-1].outputs[0]
    node = Node(on_host.operator, on_host.name, inputs, (result,), {}, DOMAIN)
    made = replace(given, node=node)
    if on_host.operator not in (SOFTMAX, QUANTIZE):
        return made
    attributes = {"scale": 1.0, "beta": 1.0} if on_host.operator == SOFTMAX else {}
    info = {name: given.types.get(name) or _of(given.constants[name]) for name in (*inputs, result)}
    wanted = expanded([replace(node, attributes=attributes)], info)
    if _signature(nodes, given.constants) != _signature(*wanted):
        raise ExportError(
            f"{on_host.operator} {on_host.name} was compiled by another version: compile the "
            f"network again"
        )
    if on_host.operator == QUANTIZE:
        return made
    return replace(made, table=next(_tables(nodes, given.constants)))


def _of(constant: Array) -> TensorType:
    return TensorType(constant.dtype, constant.shape)


def _outside(nodes: Sequence[Node], constants: Mapping[str, Array]) -> tuple[str, ...]:
    """The tensors that ``nodes`` read and neither compute nor contain as constants, in order."""
    made = {name for node in nodes for name in node.outputs}
    read = dict.fromkeys(name for node in nodes for name in node.inputs)
    return tuple(
        name for name in read if name not in made and not (name in constants and REPLACED in name)
    )


def _tables(nodes: Sequence[Node], constants: Mapping[str, Array]) -> Iterator[Array]:
    for node in nodes:
        for name in node.inputs:
            if REPLACED in name and name in constants and constants[name].size == _DIFFERENCES:
                yield constants[name]


def _signature(nodes: Sequence[Node], constants: Mapping[str, Array]) -> list[object]:
    """``nodes`` without names of tensors, and without the contents of an integer Softmax's tables;
    equal for equal computations."""
    numbers: dict[str, int] = {}
    found: list[object] = []
    for node in nodes:
        for name in (*node.inputs, *node.outputs):
            if name in numbers:
                continue
            numbers[name] = len(numbers)
            if name in constants and REPLACED in name:
                value = constants[name]
                held = b"" if value.size == _DIFFERENCES else value.tobytes()
                found.append((str(value.dtype), value.shape, held))
        tensors = [numbers[name] for name in (*node.inputs, *node.outputs)]
        attributes = sorted((key, str(value)) for key, value in node.attributes.items())
        found.append((node.operator, tensors, attributes))
    return found
