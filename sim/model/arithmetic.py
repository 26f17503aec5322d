"""GEMM and ALU on whole arrays of micro-ops, with the same result as executing them one by one.

Accumulators are int32 or int16 arrays; NumPy's arithmetic wraps around like the machine's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.isa import (
    MULTIPLIED_WIDTH,
    REQUANTIZE_PARAMETERS,
    ROUND_TWICE_BIT,
    SCALE_FRACTION,
    SCALE_WIDTH,
    SECOND_SHIFT_BIT,
    SECOND_SHIFT_WIDTH,
    TABLE_BYTES,
    WIDE_BIT,
    AluOp,
)

Indices = npt.NDArray[np.int64]
Tiles = npt.NDArray[Any]


def gemm(acc: Tiles, dst: Indices, inp: Tiles, wgt: Tiles) -> None:
    """acc[dst[j]] += inp[j] · wgt[j]ᵀ for every j, wrapping; dst may repeat.

    ``acc`` is (depth, B, N) int32 or int16, changed in place; ``inp`` (n, B, K) int8, or
    (n, taps, B, K) for the products of DEPTHWISE; ``wgt`` (n, N, K) int8; ``dst`` (n,).
    """
    products = _products(acc, inp, wgt)
    # A sum wraps to the same value in any order, so products of one destination are summed first.
    order = np.argsort(dst, kind="stable")
    targets, starts = np.unique(dst[order], return_index=True)
    acc[targets] += np.add.reduceat(products[order], starts, axis=0, dtype=acc.dtype)


def multiply(acc: Tiles, dst: Indices, inp: Tiles, wgt: Tiles) -> None:
    """acc[dst[j]] = inp[j] · wgt[j]ᵀ for every j in order; shapes as those of `gemm`."""
    acc[dst] = _products(acc, inp, wgt)  # where dst repeats, NumPy keeps the last


def alu(acc: Tiles, operation: AluOp, dst: Indices, src: Indices | None, immediate: int) -> None:
    """acc[dst[j]] = operation(acc[dst[j]], acc[src[j]]) for each j in order, in place.

    ``acc`` is (depth, B, N); ``dst`` and ``src`` are (n,); without ``src`` the second operand is
    ``immediate``.
    """
    if src is None:
        targets, times = np.unique(dst, return_counts=True)
        combined = _combined(operation, immediate, times)
        if combined is not None:
            second = combined[:, np.newaxis, np.newaxis]
            acc[targets] = alu_result(operation, acc[targets], second).astype(acc.dtype)
            return
        for turn in range(times.max()):
            rest = targets[times > turn]
            acc[rest] = alu_result(operation, acc[rest], acc.dtype.type(immediate))
        return
    for part in _independent_parts(dst, src):
        acc[dst[part]] = alu_result(operation, acc[dst[part]], acc[src[part]])


def _combined(operation: AluOp, immediate: int, times: Indices) -> Indices | None:
    """The combined effect, in 64 bits, of applying ``operation`` with ``immediate`` ``times``
    times, each at least 1; None if it must be repeated.
    """
    if operation in (AluOp.MIN, AluOp.MAX):
        return np.full_like(times, immediate)
    if operation in (AluOp.ADD, AluOp.SHR):
        return immediate * times
    if operation is AluOp.MUL:
        return np.power(np.int64(immediate), times)
    return None


def alu_result(operation: AluOp, first: Tiles, second: Tiles) -> Tiles:
    """``operation`` on signed scalars of one width: the result wraps to the dtype of ``first``."""
    match operation:
        case AluOp.MIN:
            return np.minimum(first, second)
        case AluOp.MAX:
            return np.maximum(first, second)
        case AluOp.ADD:
            return first + second
        case AluOp.MUL:
            return first * second
        case AluOp.SHR:
            width = 8 * first.dtype.itemsize
            # In 64 bits a left shift by less than the width cannot overflow, nor -second.
            wide, amount = first.astype(np.int64), np.asarray(second, np.int64)
            right = wide >> _clip(amount, 0, width - 1)
            left = np.where(-amount < width, wide << _clip(-amount, 0, width - 1), 0)
            return np.where(amount >= 0, right, left).astype(first.dtype)
        case AluOp.REQUANTIZE | AluOp.LOOKUP | AluOp.MULTIPLY_ADD:
            raise ValueError(f"{operation.name} has more than two operands")


def multiply_add(acc: Tiles, dst: Indices, src: Indices, factor: int) -> None:
    """acc[dst[j]] = acc[dst[j]] · acc[factor] + acc[src[j]] for each j in order, wrapping.

    ``acc`` is (depth, B, N) int32, changed in place; ``dst`` and ``src`` are (n,).
    """
    for part in _independent_parts(dst, np.stack((src, np.full_like(src, factor)), axis=1)):
        acc[dst[part]] = acc[dst[part]] * acc[factor] + acc[src[part]]


def look_up(acc: Tiles, dst: Indices, src: Indices) -> None:
    """For each j in order, each scalar s of acc[dst[j]] becomes int8 entry s & 255 of the table
    whose `TABLE_BYTES` bytes begin at acc[src[j]], in memory layout.

    ``acc`` is (depth, B, N) int32 or int16, changed in place; ``dst`` and ``src`` are (n,).
    """
    elements = -(-TABLE_BYTES // acc[0].nbytes)
    for part in _independent_parts(dst, src[:, np.newaxis] + np.arange(elements)):
        firsts, which = np.unique(src[part], return_inverse=True)
        tables = np.array(
            [acc[at : at + elements].reshape(-1).view(np.int8)[:TABLE_BYTES] for at in firsts]
        )
        acc[dst[part]] = tables[which[:, np.newaxis, np.newaxis], acc[dst[part]] & 0xFF]


def requantize(acc: Tiles, dst: Indices, src: Indices, *, rounds_twice: bool) -> None:
    """For each j in order, acc[dst[j]] is `requantized` with the parameters at acc[src[j]].

    ``acc`` is (depth, B, N) int32, changed in place; ``dst`` and ``src`` are (n,).
    """
    following = np.arange(REQUANTIZE_PARAMETERS)
    for part in _independent_parts(dst, src[:, np.newaxis] + following):
        parameters = (acc[src[part] + number] for number in following)
        acc[dst[part]] = requantized(acc[dst[part]], *parameters, rounds_twice=rounds_twice)


def requantized(
    acc: Tiles,
    bias: Tiles,
    scale_low: Tiles,
    scale_high: Tiles,
    bounds: Tiles,
    *,
    rounds_twice: bool = False,
) -> Tiles:
    """clip(rint(float32((acc + bias) · scale)) + zero_point, low, high), int32.

    All are int32 arrays that broadcast, with parameters as in `isa.REQUANTIZE_PARAMETERS`. The sum
    wraps; the product is exact; both roundings are half to even. A sum of more than 25 bits
    saturates; with wide parameters it is first divided by 2^7, with a sticky last bit. If the
    machine ``rounds_twice``, parameters with the flag ``round_twice`` round as `scalar.requantize`
    says.

    Checked against the definition, `amaranth_vta.sim.model.scalar.requantize`, and against ONNX
    Runtime (tests/sim/model).
    """
    total = (acc + bias).astype(np.int64)
    rest = 32 - MULTIPLIED_WIDTH
    halved = total >> rest | (total & (1 << rest) - 1 != 0)
    wide = bounds >> WIDE_BIT & 1 != 0
    factor = np.where(wide, halved, total)
    limit = 1 << MULTIPLIED_WIDTH - 1
    outside = (factor < -limit) | (factor >= limit)
    factor = _clip(factor, -limit, limit - 1)
    # The product in units of 2^-28, without its 15 lowest bits but with a sticky bit for them: it
    # rounds like the product, and fits a float64.
    cut = (1 << 15) - 1
    upper = (scale_low >> 15).astype(np.int64) & (1 << 17) - 1
    upper |= (scale_high.astype(np.int64) & (1 << SCALE_WIDTH - 32) - 1) << 17
    lowest = factor * (scale_low & cut)
    product = factor * upper + (lowest >> 15) << 1 | (lowest & cut != 0)
    # Saturate results far out of bounds, which would need more bits.
    product = np.where(outside, np.where(factor < 0, -1 << 40, 1 << 40), product)
    product = _clip(product, -1 << 40, 1 << 40)
    value = product.astype(np.float64) * 2.0 ** (15 - 1 - SCALE_FRACTION)
    whole = np.rint(value.astype(np.float32)).astype(np.int32)
    twice = bounds >> ROUND_TWICE_BIT & 1 != 0
    if rounds_twice and twice.any():
        whole = np.where(twice, _rounded_twice(product, factor < 0, bounds), whole)
    zero_point, low, high = (bounds << 24 - 8 * at >> 24 for at in range(3))
    return _clip(whole + zero_point, low, high)


def _rounded_twice(product: Tiles, negative: Tiles, bounds: Tiles) -> Tiles:
    """⌊product + 1/2 ± 2^-(e + 1)⌋, without the last term if e is 0; ``product`` is in units of
    2^-29, the lowest bit sticky.
    """
    unit = SCALE_FRACTION - 15 + 1
    shift = (bounds >> SECOND_SHIFT_BIT & (1 << SECOND_SHIFT_WIDTH) - 1).astype(np.int64)
    second = np.where(shift > 0, 1 << unit - 1 - shift, 0)
    addend = (1 << unit - 1) + np.where(negative, -second, second)
    return (product + addend >> unit).astype(np.int32)


def _clip(values: Tiles, low: Tiles | int, high: Tiles | int) -> Tiles:
    """min(max(values, low), high): equals np.clip if ``low`` <= ``high``, but is faster on arrays
    of a few tiles.
    """
    return np.minimum(np.maximum(values, low), high)


def _products(acc: Tiles, inp: Tiles, wgt: Tiles) -> Tiles:
    if inp.ndim == 4:
        return _tapped_products(inp, wgt).astype(acc.dtype)
    # Products of int8 summed over at most 32 columns stay below 2^20, so float32 is exact, and
    # NumPy's float32 matrix product is faster than its integer one.
    exact = np.matmul(inp.astype(np.float32), wgt.astype(np.float32).transpose(0, 2, 1))
    return exact.astype(np.int32).astype(acc.dtype)


def _tapped_products(inp: Tiles, wgt: Tiles) -> Tiles:
    """int32 (n, B, N): the products of ``inp`` (n, taps, B, K) with ``wgt`` (n, N, K)."""
    _, taps, _, columns = inp.shape
    output, column = np.indices(wgt.shape[1:])
    is_tap = column < 2 * taps
    element = np.where(is_tap, column // 2, 0)
    lane = np.where(is_tap, (output // 2 * 2 + column % 2) % columns, column)
    operands = inp.transpose(0, 2, 1, 3)[:, :, element, lane].astype(np.int32)
    found: Tiles = (operands * wgt[:, np.newaxis]).sum(axis=-1, dtype=np.int32)
    return found


def _independent_parts(dst: Indices, src: Indices) -> Iterator[Any]:
    """Split micro-ops into consecutive sets, within which they are independent.

    ``src`` is (n,), or (n, m) if a micro-op reads m elements.
    """
    count = dst.size
    order = np.argsort(dst, kind="stable")
    sorted_dst = dst[order]
    first_of_dst = np.searchsorted(sorted_dst, sorted_dst)
    earlier = np.arange(count) - first_of_dst  # number of earlier ones with the same destination
    if not np.isin(src, dst).any():
        # Micro-ops with different destinations are independent: all first ones, all second ones, …
        turns = np.argsort(earlier, kind="stable")
        ends = np.cumsum(np.bincount(earlier))
        start = 0
        for end in ends:
            yield order[turns[start:end]]
            start = end
        return
    # Otherwise keep the order and start a new set before each micro-op that reads a result of the
    # current one.
    writer = np.full(count, -1)  # the last earlier micro-op that writes one of its operands
    repeats = earlier > 0
    writer[order[repeats]] = order[np.flatnonzero(repeats) - 1]
    keys = sorted_dst * count + order
    for source in src.reshape(count, -1).T:
        before = np.searchsorted(keys, source * count + np.arange(count)) - 1
        found = (before >= 0) & (sorted_dst[before] == source)
        writer = np.maximum(writer, np.where(found, order[before], -1))
    start = 0
    while start < count:
        later = np.flatnonzero(writer[start:] >= start)
        end = start + int(later[0]) if later.size else count
        yield slice(start, end)
        start = end
