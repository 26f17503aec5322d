"""Sorts nodes topologically, with subgraphs: `sort_nodes`."""

from __future__ import annotations

import onnx

from .unique_names import subgraphs, tensor_names


def sort_nodes(graph: onnx.GraphProto) -> None:
    """Sort nodes so that each tensor is produced before it is read, including reads in subgraphs.

    ONNX Runtime's quantizer sorts nodes, but ignores reads in subgraphs.
    """
    if not any(True for node in graph.node for _ in subgraphs(node)):
        return
    makers = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    reads = []
    for node in graph.node:
        names = {*node.input, *(name for inner in subgraphs(node) for name in tensor_names(inner))}
        reads.append(sorted({makers[name] for name in names if name in makers}))
    order: dict[int, onnx.NodeProto] = {}
    for last in range(len(graph.node)):
        waiting = [last]
        while waiting:
            index = waiting[-1]
            missing = [other for other in reads[index] if other not in order and other != index]
            if missing:
                waiting += missing
                continue
            order.setdefault(index, graph.node[index])
            waiting.pop()
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in order.values()]
    del graph.node[:]
    graph.node.extend(nodes)
