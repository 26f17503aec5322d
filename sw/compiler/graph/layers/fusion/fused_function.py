"""Fuse table functions with their producer: a product, a channel selection, or another table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from amaranth_vta.hw.isa import TABLE_BYTES
from amaranth_vta.sw.compiler.graph.layers.parts.layer import Layer
from amaranth_vta.sw.compiler.graph.layers.parts.layer_functions import where_it_fits
from amaranth_vta.sw.compiler.graph.layers.parts.one_tensor import OneTensor
from amaranth_vta.sw.compiler.graph.layers.parts.tensors import Tensors
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.operators.expanded_conv2d import ExpandedConv2d
from amaranth_vta.sw.compiler.operators.grouped_conv2d import GroupedConv2d
from amaranth_vta.sw.compiler.operators.inverted_residual import InvertedResidual
from amaranth_vta.sw.compiler.operators.lookup import PointwiseLookup
from amaranth_vta.sw.compiler.operators.parts.epilogue import PerChannelScale
from amaranth_vta.sw.compiler.operators.select_channels import SelectChannels
from amaranth_vta.sw.compiler.tuner.cost_model import bus_cycles
from amaranth_vta.sw.compiler.tuner.workload import choose
from amaranth_vta.sw.runtime.network.tiled_tensor import Bytes


@where_it_fits
def fused_function(
    function: OneTensor,
    alone: PointwiseLookup,
    table: Bytes,
    limits: tuple[int, int],
    tensors: Tensors,
) -> Layer | None:
    """Fuse a function, computed by a ``table``, with the product, selection or function that
    produces its input. None if there is no such producer, if it has other readers, or if two layers
    take no more cycles.

    ``alone`` is the function as its own layer; ``limits`` is the range of the results.
    """
    anchor = tensors.products.get(function.source)
    if anchor is None or not _is_read_by(tensors.network, function):
        return None
    layer, make, workload = anchor
    fused = _with_table(workload, alone.table_elements)
    if fused is None:
        return None
    first, second, both = (choose(item, tensors.config).cycles for item in (workload, alone, fused))
    # The estimate for the function alone excludes loading its table.
    if first + second + bus_cycles(tensors.config, 1, len(table)) <= both:
        return None
    made = tensors.function(make, fused, layer.nodes[0])
    if "table" in layer.constants:
        table = _composed(layer.constants["table"], table)
    given, image = layer.constants | {"table": table}, layer.result.image
    nodes = (*layer.nodes, *function.absorbed)
    whole = tensors.layer(nodes, layer.sources, image, made, given, limits, layer.macs)
    whole = replace(whole, operator=f"{layer.operator}+{function.name.operator}")
    tensors.products[whole.result.tensor] = whole, make, fused
    if isinstance(fused, Conv2d):
        tensors.convolutions[whole.result.tensor] = whole, fused
    return whole


def _composed(first: Bytes, second: Bytes) -> Bytes:
    """The table of the composition: ``second`` applied to the results of ``first``."""
    entries = np.array(second)
    entries[:TABLE_BYTES] = second[first[:TABLE_BYTES]]
    return entries


def _with_table(workload: Any, elements: int) -> Any:
    """``workload`` with a table of ``elements`` at its end; None if it cannot have one."""
    if isinstance(workload, PointwiseLookup):
        return workload  # its table is replaced by the composition
    if isinstance(workload, SelectChannels):
        return replace(workload, table=elements)
    if isinstance(workload, GroupedConv2d):
        group = _with_table(workload.group, elements)
        return group and replace(workload, group=group)
    if isinstance(workload, ExpandedConv2d):
        depthwise = _with_table(workload.depthwise, elements)
        return depthwise and replace(workload, depthwise=depthwise)
    if isinstance(workload, InvertedResidual):
        projection = _with_table(workload.projection, elements)
        return projection and replace(workload, projection=projection)
    if not isinstance(workload.requantize, PerChannelScale):
        return None
    return replace(workload, requantize=PerChannelScale(elements))


def _is_read_by(network: Network, function: OneTensor) -> bool:
    """Whether only nodes of ``function`` read its source and its intermediate tensors. Constants,
    which quantizers put before a DequantizeLinear, may have other readers."""
    own = {id(node) for node in function.nodes}
    names = {function.source}
    for node in function.nodes[:-1]:
        if names.intersection(node.reads):
            names.update(node.outputs)
    return all(
        name not in network.outputs
        and all(id(reader) in own for reader in network.nodes.readers(name))
        for name in names
    )
