"""Fuse an element-wise function of a tensor that has other readers with its producer, which then
stores two results: the tensor and the function of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from amaranth_vta.sw.compiler.graph.layers.support.layer import Layer
from amaranth_vta.sw.compiler.graph.layers.support.layer_functions import where_it_fits
from amaranth_vta.sw.compiler.graph.layers.support.one_tensor import OneTensor
from amaranth_vta.sw.compiler.graph.layers.support.tensors import Range, Tensors
from amaranth_vta.sw.compiler.operators.building_blocks.steps import LookupTable
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.tuner.workload import Workload, is_faster
from amaranth_vta.sw.runtime.network.tiled_tensor import Bytes


@where_it_fits
def second_result(
    function: OneTensor,
    step: LookupTable,
    table: Bytes,
    alone: Workload[Any],
    limits: Range,
    tensors: Tensors,
) -> Layer | None:
    """The convolution that produces the input of ``function``, with the function as its second
    result. None if another layer produces the input, if the convolution has another second result
    that is needed, or if two layers take no more cycles.

    ``alone`` is the function as its own layer, computed by a ``step`` with this ``table``;
    ``limits`` is the range of the results.
    """
    source = tensors.root(function.source)
    anchor = tensors.products.get(source)
    if anchor is None or not isinstance(anchor[2], Conv2d):
        return None
    known = tensors.seconds.get(source)
    if known is not None and not tensors.is_only_read_by(known, function.nodes):
        return None
    layer, make, workload = anchor
    both = workload.with_second(step)
    if both is None or not is_faster(both, (workload, alone), tensors.config):
        return None
    find_function = tensors.function(make, both, layer.nodes[0])
    # A later function may absorb this one. It is then fused with the convolution of one result,
    # which replaces this layer.
    tensors.seconds[source] = function.result
    tensors.set_range(function.result, *limits)
    return replace(
        layer,
        operator=f"{layer.operator}, {function.name.operator}",
        nodes=(*layer.nodes, *function.absorbed),
        second=replace(layer.result, tensor=function.result),
        constants=layer.constants | {"second table": table},
        find_function=find_function,
    )
