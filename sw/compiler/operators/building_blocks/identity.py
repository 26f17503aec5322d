"""Moves activations to accumulators through GEMM, by a product with the identity matrix.

Loads of accumulators stall compute, while loads of inputs are prefetched. Where input tiles and
output tiles have the same layout, activations can be loaded either way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Expr, IterVar
from amaranth_vta.sw.compiler.te.tensor import Tensor

Array = npt.NDArray[Any]


def reads_what_it_stores(env: Environment) -> bool:
    """Whether input tiles and output tiles have the same size and dtype."""
    return (env.BLOCK_IN, env.inp_dtype) == (env.BLOCK_OUT, env.out_dtype)


def identity_weights(env: Environment) -> Array:
    """int8 (1, BLOCK_OUT, BLOCK_IN): the identity matrix, passed as an argument to operators."""
    return np.eye(env.BLOCK_OUT, env.BLOCK_IN, dtype=np.int8)[None]


def identity_operand(env: Environment) -> tuple[Tensor, Tensor]:
    """The argument that holds `identity_weights`, and its buffer."""
    w = te.placeholder((1, env.BLOCK_OUT, env.BLOCK_IN), "identity", env.wgt_dtype)
    return w, te.compute(w.shape, lambda *i: w(*i), "identity_buf")


def multiplied(
    shape: Sequence[int],
    source: Callable[..., Expr],
    w_buf: Tensor,
    name: str,
    env: Environment,
    axes: Sequence[IterVar] = (),
) -> Tensor:
    """Accumulators of ``shape`` whose element at each index is the input at ``source`` of that
    index, summed over ``axes``.
    """
    k = te.reduce_axis((0, env.BLOCK_IN), "k")
    return te.compute(
        shape,
        lambda *i: te.sum(
            source(*i[:-1], k).astype(env.acc_dtype) * w_buf[0, i[-1], k].astype(env.acc_dtype),
            axis=[*axes, k],
        ),
        name,
    )
