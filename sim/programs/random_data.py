"""The data that random programs load."""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config

# Unit for the sizes of data and result areas, in elements: larger than a window.
REACH = 64
# Sets of requantization parameters at the beginning of memory.
PARAMETER_SETS = 30


def random_data(config: Config, chance: random.Random) -> npt.NDArray[np.uint8]:
    """Random tiles. A quarter of them hold only the lowest scalar; the last ones are small
    accumulators. With REQUANTIZE the first ones are `PARAMETER_SETS` sets of its parameters.
    """
    memories = (config.inp, config.wgt, config.acc)
    size = max(1 << 16, 2 * REACH * max(memory.element_bytes for memory in memories))
    data = np.frombuffer(chance.randbytes(size), np.uint8).copy()
    # Sums are largest where all factors are the lowest scalar.
    data[size // 4 : size // 2] = 0x80 if config.inp_width == 8 else 0x88
    # Small accumulators serve as shift amounts.
    small = np.array([chance.randint(-40, 40) for _ in range(size // 16)], "<i4")
    data[-4 * small.size :] = small.view(np.uint8)
    if config.requantize:
        lanes = config.acc.rows * config.acc.columns
        sets = [_parameters(chance) for _ in range(PARAMETER_SETS * lanes)]
        table = np.array(sets, "<u4").reshape(PARAMETER_SETS, lanes, -1).transpose(0, 2, 1)
        data[: table.nbytes] = np.ascontiguousarray(table).view(np.uint8).reshape(-1)
    return data


def _parameters(chance: random.Random) -> tuple[int, ...]:
    """Bias, scale in two parts, and bounds of one lane's requantization, as bits."""
    bias = chance.choice((0, chance.randint(-3000, 3000), chance.randrange(1 << 32)))
    # Mostly from 2^-24 to 2^0, so that few results are all zero or out of bounds.
    mantissa = chance.choice((0, 0, 1, (1 << 23) - 1, *[chance.randrange(1 << 23)] * 4))
    mantissa |= 1 << 23
    scale = chance.choice((0, mantissa << 25, *[mantissa << 20 >> chance.randrange(24)] * 8))
    low, high = sorted(chance.choice((-128, 127, chance.randint(-128, 127))) for _ in range(2))
    zero_point = chance.choice((0, -128, 127, chance.randint(-128, 127)))
    # The top byte has the flag of wide sums and ignored bits, all random.
    bounds = sum(byte % 256 << 8 * at for at, byte in enumerate((zero_point, low, high)))
    bounds |= chance.randrange(256) << isa.WIDE_BIT
    upper = scale >> 32 | chance.randrange(1 << 15) << 17
    return bias % (1 << 32), scale % (1 << 32), upper, bounds
