"""Fuse element-wise functions of one tensor with their producer, as a step at its end."""

from __future__ import annotations

from typing import Any

import numpy as np

from amaranth_vta.hw.isa import TABLE_BYTES
from amaranth_vta.sw.compiler.graph.layers.support.layer import Layer
from amaranth_vta.sw.compiler.graph.layers.support.layer_functions import where_it_fits
from amaranth_vta.sw.compiler.graph.layers.support.one_tensor import OneTensor
from amaranth_vta.sw.compiler.graph.layers.support.tensors import Range, Tensors
from amaranth_vta.sw.compiler.operators.building_blocks.steps import LookupTable, PerChannelLine
from amaranth_vta.sw.compiler.tuner.cost_model import bus_cycles
from amaranth_vta.sw.compiler.tuner.workload import Workload, choose
from amaranth_vta.sw.runtime.network.tiled_tensor import Bytes


@where_it_fits
def fused_step(
    function: OneTensor,
    step: LookupTable | PerChannelLine,
    constants: Bytes,
    alone: Workload[Any],
    limits: Range,
    tensors: Tensors,
) -> Layer | None:
    """Fuse a function, computed by a ``step`` with these ``constants``, with the layer that
    produces its input. None if the layer cannot end with such a step, if its result has other
    readers, or if two layers take no more cycles.

    ``alone`` is the function as its own layer; ``limits`` is the range of the results.
    """
    source = tensors.root(function.source)
    anchor = tensors.products.get(source)
    if anchor is None or not tensors.is_only_read_by(source, function.nodes):
        return None
    layer, make, workload = anchor
    fused = workload.followed_by(step)
    if fused is None:
        return None
    if isinstance(step, PerChannelLine):
        given = _with_line(
            layer.constants, constants, step.constants * tensors.config.acc.element_bytes
        )
    else:
        given = _with_table(layer.constants, constants, fused == workload)
    if given is None:
        return None
    first, second, both = (choose(item, tensors.config).cycles for item in (workload, alone, fused))
    # The estimate for the function alone excludes loading its constants.
    if first + second + bus_cycles(tensors.config, 1, len(constants)) <= both:
        return None
    made = tensors.function(make, fused, layer.nodes[0])
    operator, nodes = function.name.operator, function.absorbed
    whole = tensors.extended(layer, nodes, operator, made, limits, constants=given)
    tensors.products[whole.result.tensor] = whole, make, fused
    return whole


def _with_line(given: dict[str, Bytes], line: Bytes, size: int) -> dict[str, Bytes] | None:
    """The constants ``given`` to a layer with the parameters of a ``line`` at its end, ``size``
    bytes per tile of channels; None if the layer's own parameters are not per channel.
    """
    own = given.get("requantization")
    channels = len(line) // size
    if own is None or len(own) % channels:
        return None
    # Each tile of channels has its parameters together, in the order of the steps.
    parts = [parameters.reshape(channels, -1) for parameters in (own, line)]
    return given | {"requantization": np.concatenate(parts, axis=1).reshape(-1)}


def _with_table(given: dict[str, Bytes], table: Bytes, is_composed: bool) -> dict[str, Bytes]:
    """The constants ``given`` to a layer with a ``table`` at its end, which may be composed with
    the table that is there.
    """
    if not is_composed:
        number = sum(name.startswith("table") for name in given)
        return given | {f"table{number or ''}": table}
    last = list(given)[-1]
    entries = np.array(table)
    entries[:TABLE_BYTES] = table[given[last][:TABLE_BYTES]]
    return given | {last: entries}
