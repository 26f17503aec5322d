"""A program that shows the scratchpads, for a machine that has just run another one."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import Finish, Memory

from .builder import ProgramBuilder
from .image import ProgramImage


def probe(
    config: Config, defined: Mapping[Memory, npt.NDArray[np.bool_]], seed: int, origin: int = 0
) -> ProgramImage:
    """Stores what depends on every input, weight and accumulator of the windows that
    `ProgramBuilder` uses.

    ``defined`` says of INP, WGT and ACC, for each element, whether all devices hold the same there;
    others are loaded first.
    """
    builder = ProgramBuilder(config, random.Random(f"probe:{seed}:{config}"), origin)
    for memory, elements in defined.items():
        for window in builder.windows(config.memory(memory)):
            holes = np.flatnonzero(~elements[window.start : window.stop])
            if holes.size:
                first, last = window.start + int(holes[0]), window.start + int(holes[-1])
                builder.fill(memory, range(first, last + 1))
    builder.show_accumulators()
    builder.show_products()
    builder.emit(Finish(), [])
    return builder.image()
