"""A program that dumps the scratchpads after another program has run on the machine."""

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
    """Store values that depend on every input, weight and accumulator in the windows of
    `ProgramBuilder`.

    ``defined`` says, per element of INP, WGT and ACC, whether all devices must hold the same value;
    the other elements are overwritten by loads first.
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
