"""Compute the results of operators on two tensors for all pairs of values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.operators.building_blocks.fixed_point import Array
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session, run_session
from amaranth_vta.sw.runtime.network.tensor_type import TensorType
from amaranth_vta.sw.runtime.network.tile_layout import offset


def all_results(
    network: Network, nodes: Sequence[Node], sources: tuple[str, str], result: str
) -> Array:
    """int64 (256, 256): the results of element-wise ``nodes`` in ONNX Runtime, for each value of
    the first of ``sources`` and each of the second, all as held by the machine."""
    shape = (256, 256)
    types = {name: TensorType(network.types[name].dtype, shape) for name in (*sources, result)}
    first, second = (
        (np.arange(-128, 128) + offset(types[name].dtype)).astype(types[name].dtype)
        for name in sources
    )
    given = {
        sources[0]: np.repeat(first, 256).reshape(shape),
        sources[1]: np.tile(second, (256, 1)),
    }
    # Sources that are constants become inputs.
    constants = {name: value for name, value in network.constants.items() if name not in sources}
    alone = replace(network, types=network.types | types, constants=constants)
    model = alone.part(nodes, sources, [result])
    made = run_session(exact_session(model.SerializeToString()), [result], given)[result]
    return made.astype(np.int64) - offset(made.dtype)
