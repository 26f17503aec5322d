"""Fuse an addition with the layer that produces one of its operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from amaranth_vta.sw.compiler.graph.layers.support.layer import Layer
from amaranth_vta.sw.compiler.graph.layers.support.layer_functions import (
    MakeFunction,
    where_it_fits,
)
from amaranth_vta.sw.compiler.graph.layers.support.tensors import Tensors
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.operators.building_blocks.fixed_point import FixedPoint
from amaranth_vta.sw.compiler.operators.building_blocks.identity import reads_what_it_stores
from amaranth_vta.sw.compiler.operators.building_blocks.residual import Addition
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
    fused: Any
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
    """Fuse an addition with the layer that produces one of its ``sources``, all of shape ``image``.
    None if there is no such layer, or if two layers take no more cycles.

    ``alone`` is the addition as its own layer; ``limits`` is the range of the results.
    """
    found = list(_candidates(nodes, sources, image, alone, tensors))
    if not found:
        return None
    best = max(found, key=lambda candidate: candidate.saved)
    if best.saved <= 0:
        return None
    anchor, factors = best.anchor, tensors.factors(best.constants)
    given = anchor.constants | tensors.identity_constant() | factors
    layer = tensors.extended(
        anchor,
        nodes,
        nodes[0].operator,
        tensors.function(best.make, best.fused, anchor.nodes[0]),
        limits,
        constants=given,
        sources=[tensors.source(sources[1 - best.number], image)],
    )
    tensors.products[layer.result.tensor] = layer, best.make, best.fused
    return layer


def _candidates(
    nodes: tuple[Node, ...],
    sources: Sequence[str],
    image: Image,
    alone: WeightedSum,
    tensors: Tensors,
) -> list[_Candidate]:
    # A tensor added to itself is read twice, so it has to come from memory.
    roots = [tensors.root(name) for name in sources]
    if not reads_what_it_stores(tensors.env) or roots[0] == roots[1]:
        return []
    found = []
    for number, name in enumerate(roots):
        anchor = tensors.products.get(name)
        if anchor is None or not tensors.is_only_read_by(name, nodes):
            continue
        layer, make, workload = anchor
        # The product is the last operand of the sum.
        constants = alone.constants if number else alone.constants.reversed()
        fused = workload.followed_by(Addition(constants))
        if fused is None or layer.result.image != image:
            continue
        cycles = [choose(item, tensors.config).cycles for item in (workload, alone, fused)]
        saved = cycles[0] + cycles[1] - cycles[2]
        found.append(_Candidate(number, layer, make, fused, constants, saved))
    return found
