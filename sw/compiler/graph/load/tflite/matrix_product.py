"""BATCH_MATMUL of two computed factors, or of a computed and a constant one."""

from __future__ import annotations

import numpy as np

from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.graph.integer_operators import TWICE
from amaranth_vta.sw.runtime.network.model_error import ModelError

from .conversion import Conversion
from .file import TfliteOperator
from .precision import require_bytes
from .products import MOST_FACTOR


def batch_matmul(operator: TfliteOperator, to: Conversion) -> None:
    """BATCH_MATMUL, with either factor transposed before the product."""
    first, second = (to.tensor(number) for number in operator.inputs[:2])
    y, name = to.tensor(operator.outputs[0]), operator.name
    require_bytes(operator, first, second, y)
    inputs = []
    for tensor, number, turn in zip(
        (first, second),
        operator.inputs,
        (operator.option("adjX", False), operator.option("adjY", False)),
        strict=True,
    ):
        factor = to.name(number)
        if turn:
            shape = (*tensor.shape[:-2], tensor.shape[-1], tensor.shape[-2])
            turned = to.inner(f"{factor}_transposed", tensor.dtype, shape)
            rank = len(shape)
            order = [*range(rank - 2), rank - 1, rank - 2]
            to.add("Transpose", (factor,), (turned,), f"{name}/{turned}", perm=order)
            factor = turned
        inputs += [
            factor,
            to.value(f"{factor}_scale", tensor.scale),
            to.value(f"{factor}_zero_point", tensor.zero_point, tensor.dtype),
        ]
    inputs += [
        to.value(f"{name}_scale", y.scale),
        to.value(f"{name}_zero_point", y.zero_point, y.dtype),
    ]
    product = np.float64(first.scale) * np.float64(second.scale) / np.float64(y.scale)
    if product >= MOST_FACTOR:
        raise ModelError(f"{name}: one of its sums is more than 2^30 steps of the result")
    multiplier, shift = te.quantized_multiplier(product)
    to.add(
        "QLinearMatMul",
        inputs,
        (to.put(operator.outputs[0]),),
        name,
        rounding=TWICE,
        multipliers=[int(multiplier)],
        shifts=[int(shift)],
    )
