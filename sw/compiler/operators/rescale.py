"""Requantization by itself: int8 to another scale and zero point, or int32 to int8."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.tensor import Tensor

from .parts.fixed_point import Array, FixedPoint, NotExact, Quantized, fixed_point
from .parts.pointwise import PointwiseKnobs, pointwise
from .residual_add import BYTE


@dataclass(frozen=True)
class RescaleTensor:
    """Of ``vectors`` tiles of BATCH rows and BLOCK_OUT channels, which are acc_dtype if ``wide``,
    else out_dtype, with constants of one factor."""

    vectors: int
    constants: FixedPoint
    wide: bool = False

    @property
    def parameter_count(self) -> int:
        return self.constants.parameter_count

    def operations(self, config: Config) -> int:
        return self.constants.operations

    def buffers(self, config: Config) -> int:
        return 1 + (self.constants.to_even > 0)

    def operand_dtypes(self, env: Environment) -> Sequence[str]:
        return (env.acc_dtype if self.wide else env.out_dtype,)

    def by_gemm(self, env: Environment) -> bool:
        return False

    def stages(
        self, operands: Sequence[Tensor], parameters: Tensor, env: Environment
    ) -> list[Tensor]:
        return self.constants.stages(operands, lambda n, v, b, k: parameters(n, b, k), env)


def rescale(
    workload: RescaleTensor,
    env: Environment,
    knobs: PointwiseKnobs | None = None,
    name: str = "rescale",
) -> Function:
    """A function of operand, parameters if the constants have any, and output, as `pointwise` has
    them. The parameters are `FixedPoint.parameters`."""
    return pointwise(workload, env, knobs, name)


def rescaled_bytes(x: Quantized, y: Quantized, low: int = -128, high: int = 127) -> Array:
    """int64 (256,): what ONNX Runtime makes of each int8 by DequantizeLinear and QuantizeLinear,
    clip(rint(f32((x - z_x) · s_x) / s_y) + z_y, low, high), in float32."""
    value = (BYTE - x.zero_point).astype(np.float32) * np.float32(x.scale)
    with np.errstate(over="ignore"):  # to infinity, which is clipped
        whole = np.rint(value / np.float32(y.scale)).astype(np.float64)
    return np.clip(whole + y.zero_point, low, high).astype(np.int64)


def byte_constants(
    x: Quantized, y: Quantized, config: Config, low: int = -128, high: int = 127
) -> FixedPoint:
    """Constants that give `rescaled_bytes` for every int8.

    Raises `NotExact` if none do.
    """
    if config.out_width != 8:
        raise NotExact(f"the machine stores {config.out_width} bits, not 8")
    ratio = float(np.float32(x.scale)) / float(np.float32(y.scale))
    offset, bounds = y.zero_point - ratio * x.zero_point, (y.zero_point, low, high)
    wanted = rescaled_bytes(x, y, low, high)
    try:
        return fixed_point([BYTE], [ratio], offset, wanted, bounds, config)
    except NotExact as problem:
        raise NotExact(f"steps of {x.scale:.6g} in steps of {y.scale:.6g}: {problem}") from None


def wide_constants(
    scale: float, zero_point: int, config: Config, low: int = -128, high: int = 127
) -> FixedPoint:
    """Constants of a requantization of int32, clip(rint(f32(f32(x) · scale)) + z, low, high).

    Raises `NotExact` if the machine has no REQUANTIZE and ``scale`` is not 2^-n with n from 0 to
    16, when no rounding to float32 is left to be seen; or if REQUANTIZE gives something else.
    """
    if config.requantize:
        least, most = -1 << 31, (1 << 31) - 1
        if not te.requantizes_as_float32(scale, zero_point, low, high, least, most).all():
            raise NotExact(f"REQUANTIZE by {scale:.6g} differs from float32 for some of all int32")
        return FixedPoint((1,), 0, 0, zero_point, low, high, scale=float(np.float32(scale)))
    shift = round(-float(np.log2(scale)))
    if scale != 2.0**-shift or not 0 <= shift <= 16:
        raise NotExact(f"a machine without REQUANTIZE scales by 2^-n, n from 0 to 16, not {scale}")
    half = 1 << shift >> 1
    return FixedPoint((1,), half, shift, zero_point, low, high, to_even=int(shift > 0))
