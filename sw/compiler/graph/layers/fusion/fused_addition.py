"""Fuse an addition with the convolution or inverted residual that produces one of its operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from amaranth_vta.sw.compiler.graph.layers.parts.layer import Layer
from amaranth_vta.sw.compiler.graph.layers.parts.layer_functions import MakeFunction, where_it_fits
from amaranth_vta.sw.compiler.graph.layers.parts.tensors import Tensors
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d, conv2d
from amaranth_vta.sw.compiler.operators.inverted_residual import InvertedResidual
from amaranth_vta.sw.compiler.operators.parts.fixed_point import FixedPoint
from amaranth_vta.sw.compiler.operators.parts.identity import reads_what_it_stores
from amaranth_vta.sw.compiler.operators.parts.residual import Addition
from amaranth_vta.sw.compiler.operators.weighted_sum import WeightedSum
from amaranth_vta.sw.compiler.tuner.workload import choose
from amaranth_vta.sw.runtime.network.tile_layout import Image


@dataclass(frozen=True)
class _Candidate:
    """Fusion of an addition with the layer ``anchor``, which produces its operand ``number``.
    ``make`` builds the workload ``fused``, which adds by ``constants`` and is estimated to save
    ``saved`` cycles over two layers."""

    number: int
    anchor: Layer
    make: MakeFunction
    fused: Conv2d | InvertedResidual
    constants: FixedPoint
    saved: float


@where_it_fits
def fused_addition(
    nodes: tuple[Node, ...],
    sources: Sequence[str],
    image: Image,
    alone: WeightedSum,
    limits: tuple[int, int],
    tensors: Tensors,
) -> Layer | None:
    """Fuse an addition with the convolution or inverted residual that produces one of its
    ``sources``, all of shape ``image``. None if there is no such producer, or if two layers take no
    more cycles.

    ``alone`` is the addition as its own layer; ``limits`` is the range of the results.
    """
    found = list(_candidates(nodes[0], sources, image, alone, tensors))
    if not found:
        return None
    best = max(found, key=lambda candidate: candidate.saved)
    if best.saved <= 0:
        return None
    anchor, factors = best.anchor, tensors.factors(best.constants)
    given = anchor.constants | tensors.identity_constant() | factors
    layer = tensors.layer(
        (*anchor.nodes, *nodes),
        [*anchor.sources, tensors.source(sources[1 - best.number], image)],
        image,
        tensors.function(best.make, best.fused, anchor.nodes[0]),
        given,
        limits,
        anchor.macs,
    )
    return replace(layer, operator=f"{anchor.operator}+{nodes[0].operator}")


def _candidates(
    node: Node, sources: Sequence[str], image: Image, alone: WeightedSum, tensors: Tensors
) -> list[_Candidate]:
    # A tensor added to itself is read twice, so it has to come from memory.
    if not reads_what_it_stores(tensors.env) or tensors.root(sources[0]) == tensors.root(
        sources[1]
    ):
        return []
    found = []
    for number, name in enumerate(sources):
        anchor = _anchor(name, tensors)
        if anchor is None or not _is_read_by_one(tensors.network, name, node):
            continue
        layer, make, workload = anchor
        if layer.result.image != image:
            continue
        constants = _other_first(alone.constants, number)
        fused = _followed_by(Addition(constants), workload)
        cycles = [choose(item, tensors.config).cycles for item in (workload, alone, fused)]
        saved = cycles[0] + cycles[1] - cycles[2]
        found.append(_Candidate(number, layer, make, fused, constants, saved))
    return found


def _anchor(
    name: str, tensors: Tensors
) -> tuple[Layer, MakeFunction, Conv2d | InvertedResidual] | None:
    """The layer that produces ``name``, its builder and its workload; None if no addition can be
    fused with it."""
    if name in tensors.convolutions:
        layer, workload = tensors.convolutions[name]
        return layer, conv2d, workload
    if name in tensors.products:
        layer, make, made = tensors.products[name]
        if isinstance(made, InvertedResidual):
            return layer, make, made
    return None


def _followed_by(
    addition: Addition, workload: Conv2d | InvertedResidual
) -> Conv2d | InvertedResidual:
    if isinstance(workload, Conv2d):
        return replace(workload, addition=addition)
    return workload.followed_by(addition)


def _other_first(constants: FixedPoint, number: int) -> FixedPoint:
    """Reorder ``constants`` so that the factor of operand ``number`` comes last."""
    if number:
        return constants
    corrected = 1 - constants.corrected if constants.table else 0
    return replace(constants, factors=constants.factors[::-1], corrected=corrected)


def _is_read_by_one(network: Network, name: str, node: Node) -> bool:
    """Whether ``node`` is the only reader of ``name``, directly or through a DequantizeLinear."""
    reader = network.only_reader(name)
    if reader is not None and reader.operator == "DequantizeLinear":
        reader = network.only_reader(reader.outputs[0])
    return reader is node
