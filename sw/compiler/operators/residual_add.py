"""Residual add: two int8 tensors of different scales, added and requantized."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.tensor import Tensor

from .parts.fixed_point import Array, FixedPoint, NotExact, Quantized, fixed_point
from .parts.identity import reads_what_it_stores
from .parts.pointwise import PointwiseKnobs, pointwise

BYTE = np.arange(-128, 128)


@dataclass(frozen=True)
class ResidualAdd:
    """Of ``vectors`` tiles of BATCH rows and BLOCK_OUT channels, with constants of two factors."""

    vectors: int
    constants: FixedPoint

    @property
    def parameter_count(self) -> int:
        return self.constants.parameter_count

    def operations(self, config: Config) -> int:
        return self.constants.operations

    def buffers(self, config: Config) -> int:
        return 2 + (self.constants.to_even > 0)

    def operand_dtypes(self, env: Environment) -> Sequence[str]:
        return (env.out_dtype, env.out_dtype)

    def by_gemm(self, env: Environment) -> bool:
        return reads_what_it_stores(env)

    def stages(
        self, operands: Sequence[Tensor], parameters: Tensor, env: Environment
    ) -> list[Tensor]:
        return self.constants.stages(operands, lambda n, v, b, k: parameters(n, b, k), env)


def residual_add(
    workload: ResidualAdd,
    env: Environment,
    knobs: PointwiseKnobs | None = None,
    name: str = "residual_add",
) -> Function:
    """A function of two operands, `identity_weights` where tiles of inputs are those of outputs,
    parameters if the constants have any, and output, as `pointwise` has them.

    The parameters are those of the workload's constants, `FixedPoint.parameters`.
    """
    return pointwise(workload, env, knobs, name)


def added(a: Quantized, b: Quantized, y: Quantized, low: int = -128, high: int = 127) -> Array:
    """int64 (256, 256): what ONNX Runtime makes of each value of a and, beside it, of b.

    clip(rint((f32((a - z_a) · s_a) + f32((b - z_b) · s_b)) / s_y) + z_y, low, high), in float32.
    """
    first, second = ((BYTE - x.zero_point).astype(np.float32) * np.float32(x.scale) for x in (a, b))
    with np.errstate(over="ignore"):  # to infinity, which is clipped
        whole = np.rint((first[:, None] + second) / np.float32(y.scale)).astype(np.float64)
    return np.clip(whole + y.zero_point, low, high).astype(np.int64)


def addition_constants(
    a: Quantized,
    b: Quantized,
    y: Quantized,
    config: Config,
    wanted: Array,
) -> FixedPoint:
    """Constants that give ``wanted``, `added` or much the same, for all 65,536 pairs.

    Raises `NotExact` if none do; the addition is then for the host.
    """
    if config.out_width != 8:
        raise NotExact(f"the machine stores {config.out_width} bits, not 8")
    ratios = [float(np.float32(x.scale)) / float(np.float32(y.scale)) for x in (a, b)]
    moved = sum(r * x.zero_point for r, x in zip(ratios, (a, b), strict=True))
    try:
        return fixed_point(
            [np.repeat(BYTE, 256), np.tile(BYTE, 256)],
            ratios,
            y.zero_point - moved,
            wanted.reshape(-1),
            (y.zero_point, int(wanted.min()), int(wanted.max())),
            config,
        )
    except NotExact as problem:
        raise NotExact(
            f"an addition with {a.scale:.6g} and {b.scale:.6g} of the steps of {y.scale:.6g}: "
            f"{problem}"
        ) from None
