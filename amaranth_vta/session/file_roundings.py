"""Finds the numbers that a model file rounds where it quantizes tensors: `roundings_of`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from amaranth_vta.sw.compiler.graph.nodes import renamed_node
from amaranth_vta.sw.runtime.network.tile_layout import Array

# Operators that move elements but keep their scale.
MOVES = frozenset({"Flatten", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})


@dataclass(frozen=True)
class FileRounding:
    """The rounding that produces a tensor of the file: of ``source``, in steps of ``scale`` from
    the ``zero`` point.
    """

    source: str
    scale: Array
    zero: Array

    def unrounded(self, found: Mapping[str, Array]) -> Array:
        """The numbers that are rounded, in steps; float64."""
        with np.errstate(over="ignore"):
            return found[self.source].astype(np.float64) / self.scale.item() + int(self.zero.item())


def roundings_of(
    model: onnx.ModelProto, names: Collection[str]
) -> tuple[dict[str, FileRounding], onnx.ModelProto]:
    """Return the rounding that produces each of ``names``, if a QuantizeLinear with a float32
    constant of one element as scale does, and a model that has the rounded numbers.

    A tensor that is dequantized, moved, and quantized with the same parameters was rounded by the
    first quantization. The returned model then has its numbers moved, too.
    """
    file = _File(model)
    found: dict[str, FileRounding] = {}
    moved = onnx.ModelProto()
    moved.CopyFrom(model)
    for node in model.graph.node:
        rounding = file.rounding(node) if node.output and node.output[0] in names else None
        if rounding is None:
            continue
        first, moves = file.first(node, rounding)
        source = first.input[0]
        for move in reversed(moves):
            result = f"{node.output[0]}/unrounded/{move.output[0]}"
            copied = renamed_node(move, {move.input[0]: source, move.output[0]: result})
            copied.name = source = result
            moved.graph.node.append(copied)
        found[node.output[0]] = FileRounding(source, rounding.scale, rounding.zero)
    return found, moved


class _File:
    def __init__(self, model: onnx.ModelProto) -> None:
        self._makers = {name: node for node in model.graph.node for name in node.output}
        self._constants = {item.name: item for item in model.graph.initializer}
        for node in model.graph.node:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
                self._constants[node.output[0]] = node.attribute[0].t

    def rounding(self, node: onnx.NodeProto) -> FileRounding | None:
        """The rounding by ``node``; None if it is none, or its parameters have another form."""
        if node.op_type != "QuantizeLinear" or node.input[0] in self._constants:
            return None
        parameters = self._parameters(node)
        if parameters is None:
            return None
        scale, zero = parameters
        valid = scale.size == 1 and scale.dtype == np.float32 and 0 < scale.item() < np.inf
        return FileRounding(node.input[0], scale, zero) if valid else None

    def first(
        self, node: onnx.NodeProto, rounding: FileRounding
    ) -> tuple[onnx.NodeProto, list[onnx.NodeProto]]:
        """The first QuantizeLinear that rounds the numbers of ``node`` as ``rounding`` does, and
        the operators that move them between the two, the last one first.
        """
        moves: list[onnx.NodeProto] = []
        first, passed, maker = node, 0, self._makers.get(node.input[0])
        while maker is not None:
            if maker.op_type in MOVES and not maker.domain:
                moves.append(maker)
            elif maker.op_type == "DequantizeLinear" and self._is_as(maker, rounding):
                before = self._makers.get(maker.input[0])
                if before is None or before.op_type != "QuantizeLinear":
                    break
                if not self._is_as(before, rounding):
                    break
                first, passed, maker = before, len(moves), before
            else:
                break
            maker = self._makers.get(maker.input[0])
        return first, moves[:passed]

    def _is_as(self, node: onnx.NodeProto, rounding: FileRounding) -> bool:
        parameters = self._parameters(node)
        if parameters is None:
            return False
        wanted = (rounding.scale, rounding.zero)
        return all(
            item.dtype == other.dtype and item.size == 1 and item.item() == other.item()
            for item, other in zip(parameters, wanted, strict=True)
        )

    def _parameters(self, node: onnx.NodeProto) -> tuple[Array, Array] | None:
        """The constant scale and zero point of ``node``; None if one is missing."""
        if len(node.input) < 3 or not {*node.input[1:3]} <= self._constants.keys():
            return None
        scale, zero = (numpy_helper.to_array(self._constants[name]) for name in node.input[1:3])
        return scale, zero
