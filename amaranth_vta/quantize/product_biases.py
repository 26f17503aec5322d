"""Adds the bias of a matrix product before its result is quantized."""

from __future__ import annotations

import onnx


def remove_quantization_before_biases(model: onnx.ModelProto, given: onnx.ModelProto) -> None:
    """Remove, in the QDQ ``model`` that the quantizer made of ``given``, QuantizeLinear and
    DequantizeLinear between a MatMul with constant weights and the Add of a constant bias.

    The product and its bias are then one operator that rounds once, as a Gemm or a Conv is. The
    bias has its values of the float model.
    """
    graph = model.graph
    maker = {name: node for node in graph.node for name in node.output}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    outputs = {item.name for item in graph.output}
    values = {item.name: item for item in given.graph.initializer}
    known = {item.name for item in graph.initializer}

    def only_reader(name: str, operator: str) -> onnx.NodeProto | None:
        found = readers.get(name, [])
        alone = len(found) == 1 and name not in outputs and found[0].op_type == operator
        return found[0] if alone else None

    def constant_of(name: str) -> str | None:
        """The initializer of the float model that the tensor ``name`` stands for."""
        if name in values:
            return name
        name = name.removesuffix("_DequantizeLinear_Output")
        return name if name in values else None

    removed = []
    for product in graph.node:
        if product.op_type != "MatMul" or constant_of(product.input[1]) is None:
            continue
        quantize = only_reader(product.output[0], "QuantizeLinear")
        dequantize = quantize and only_reader(quantize.output[0], "DequantizeLinear")
        add = dequantize and only_reader(dequantize.output[0], "Add")
        if quantize is None or dequantize is None or add is None:
            continue
        place = list(add.input).index(dequantize.output[0])
        bias = constant_of(add.input[1 - place])
        if bias is None or len(values[bias].dims) != 1:
            continue
        add.input[place] = product.output[0]
        add.input[1 - place] = bias
        if bias not in known:
            graph.initializer.append(values[bias])
            known.add(bias)
        removed += [quantize, dequantize]
    for node in removed:
        graph.node.remove(node)
    _drop_unread(graph, maker)


def _drop_unread(graph: onnx.GraphProto, maker: dict[str, onnx.NodeProto]) -> None:
    """Remove DequantizeLinear of constants that nothing reads any more, and unread constants."""
    constants = {item.name for item in graph.initializer}
    read = {name for node in graph.node for name in node.input}
    read |= {item.name for item in graph.output}
    for name, node in maker.items():
        of_constant = node.op_type == "DequantizeLinear" and node.input[0] in constants
        if of_constant and name not in read:
            graph.node.remove(node)
    read = {name for node in graph.node for name in node.input}
    read |= {item.name for item in graph.output}
    kept = [item for item in graph.initializer if item.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)
