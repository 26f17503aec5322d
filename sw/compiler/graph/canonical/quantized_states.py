"""Variables that hold floats, but are only read quantized, hold integers instead."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node, Nodes
from amaranth_vta.sw.runtime.network.network_program import State

from .qdq_propagation import CHOICES, is_move
from .quantization import BYTE_TYPES, QuantizationParameters, parameters_of


def quantize_states(network: Network) -> None:
    """Replace each float variable whose elements all reach QuantizeLinear with the same parameters,
    perhaps after operators that move them, by a variable of integers.

    QuantizeLinear is hoisted over these operators to their other operands, which changes no result.
    """
    for state in network.states:
        region = _Region(network, state)
        if region.is_only_quantized():
            region.quantize()


def shorten_states(network: Network) -> None:
    """Drop DequantizeLinear → QuantizeLinear with the same parameters before the next value of a
    variable, which other rules keep, as it is an output."""
    states = []
    for state in network.states:
        quantize = network.maker(state.result)
        after = parameters_of(network, quantize, "QuantizeLinear")
        dequantize = network.maker(quantize.inputs[0]) if quantize and after else None
        before = parameters_of(network, dequantize, "DequantizeLinear")
        if before is not None and dequantize is not None and after and before.same_as(after):
            result = dequantize.inputs[0]
            if result not in (*network.outputs, *network.inputs):
                network.outputs[network.outputs.index(state.result)] = result
                state = replace(state, result=result)
        states.append(state)
    network.states = tuple(states)


@dataclass
class _Region:
    """The ``tensors`` whose elements may be those of the variable ``state``, the ``movers`` between
    them, and the ``quantizers`` that read them."""

    network: Network
    state: State
    tensors: list[str] = field(default_factory=list)
    movers: list[Node] = field(default_factory=list)
    quantizers: list[Node] = field(default_factory=list)
    parameters: QuantizationParameters | None = None

    def is_only_quantized(self) -> bool:
        """Collect the region; returns whether only QuantizeLinear, always with the same parameters,
        reads it."""
        network, state = self.network, self.state
        if network.types[state.source].dtype != np.float32:
            return False
        self.tensors.append(state.source)
        for name in self.tensors:
            if name in network.outputs and name != state.result:
                return False
            for reader in network.nodes.readers(name):
                if _moves(reader, name):
                    if reader not in self.movers:
                        self.movers.append(reader)
                        self.tensors += reader.outputs
                elif not self._takes(reader, name):
                    return False
        return bool(self.quantizers)

    def _takes(self, reader: Node, name: str) -> bool:
        """Add ``reader`` to the quantizers; returns False if it is none, or has other
        parameters."""
        found = parameters_of(self.network, reader, "QuantizeLinear")
        if found is None or not found.per_tensor or found.zero.dtype not in BYTE_TYPES:
            return False
        if reader.inputs[0] != name or reader.outputs[0] in self.network.outputs:
            return False
        if self.parameters is not None and not self.parameters.same_as(found):
            return False
        self.parameters = found
        self.quantizers.append(reader)
        return True

    def quantize(self) -> None:
        network, state, parameters = self.network, self.state, self.parameters
        assert parameters is not None
        integers = {name: self._integer(name) for name in self.tensors}
        renamed = {node.outputs[0]: integers[node.inputs[0]] for node in self.quantizers}
        nodes: list[Node] = []

        def quantized(name: str) -> str:
            """The integers of a tensor outside of the region."""
            if name not in integers:
                integers[name] = self._integer(name)
                inputs = (name, *self.quantizers[0].inputs[1:])
                nodes.append(Node("QuantizeLinear", integers[name], inputs, (integers[name],)))
            return integers[name]

        for node in network.nodes:
            if node in self.movers:
                data = len(node.inputs) if node.operator == "Concat" else 1
                inputs = (*map(quantized, node.inputs[:data]), *node.inputs[data:])
                outputs = tuple(integers[name] for name in node.outputs)
                nodes.append(replace(node, inputs=inputs, outputs=outputs))
            elif node not in self.quantizers:
                inputs = tuple(renamed.get(name, name) for name in node.inputs)
                nodes.append(replace(node, inputs=inputs) if inputs != node.inputs else node)
        result = quantized(state.result)
        network.nodes = Nodes(nodes)
        for names, old in ((network.inputs, state.source), (network.outputs, state.result)):
            names[names.index(old)] = integers[old]
        kept = State(integers[state.source], result, parameters.quantize_all(state.initial))
        network.states = tuple(kept if item is state else item for item in network.states)

    def _integer(self, name: str) -> str:
        assert self.parameters is not None
        found = self.network.unused_name(f"{name}_integer")
        dtype = self.parameters.zero.dtype
        self.network.types[found] = replace(self.network.types[name], dtype=dtype)
        return found


def _moves(node: Node, name: str) -> bool:
    """Whether ``node`` only moves or chooses elements of the tensor ``name``."""
    if node.domain or len(node.outputs) != 1:
        return False
    first = node.inputs[0] == name and (is_move(node) or node.operator in CHOICES)
    return first or node.operator == "Concat"
