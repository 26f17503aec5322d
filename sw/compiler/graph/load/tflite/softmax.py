"""SOFTMAX."""

from __future__ import annotations

from amaranth_vta.sw.compiler.graph.integer_operators import DOMAIN, SOFTMAX
from amaranth_vta.sw.runtime.network.model_error import ModelError

from .conversion import Conversion, require_shape
from .file import TfliteOperator
from .precision import require_bytes

# Fraction bits of scaled differences; factors below 1 stop the process in the kernel.
_FRACTION = 26


def softmax(operator: TfliteOperator, to: Conversion) -> None:
    """SOFTMAX over the last axis; results are multiples of 1/256."""
    number, result = operator.inputs[0], operator.outputs[0]
    x, y = to.tensor(number), to.tensor(result)
    require_bytes(operator, x, y)
    if x.dtype != y.dtype:
        raise ModelError(f"{operator.name} has an input of {x.dtype} and a result of {y.dtype}")
    beta = float(operator.option("beta", 1.0))
    if not 1 < beta * float(x.scale) * (1 << _FRACTION) < float("inf"):
        raise ModelError(f"{operator.name} has a scale or a beta that is too small or not finite")
    require_shape(operator, to, x.shape)
    to.add(
        SOFTMAX,
        (to.name(number),),
        (to.put(result),),
        operator.name,
        DOMAIN,
        scale=float(x.scale),
        beta=beta,
    )
