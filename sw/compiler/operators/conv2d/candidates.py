"""The schedules of a convolution that fit a machine, with rough estimates of their cycles."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.tuner.tiles import divisors, even_tiles

from .cost import rough_cycles
from .sizes import Conv2dKnobs, Conv2dSizes


def candidates(c: Conv2dSizes, config: Config) -> Iterator[tuple[float, Conv2dKnobs]]:
    """Knobs whose tiles fit the scratchpads, with a rough estimate of their cycles."""
    for outputs, rows, inputs, kernel, ahead in product(
        even_tiles(c.outputs),
        even_tiles(c.output_height),
        divisors(c.inputs),
        divisors(c.kernel[0]),
        (True, False),
    ):
        whole = inputs == c.inputs and kernel == c.kernel[0]
        if outputs * inputs * kernel * c.kernel[1] > config.wgt.depth:
            continue
        for weights_outside, in_turn in product(
            (True, False) if whole else (True,), (True, False) if config.overlap else (False,)
        ):
            found = set()
            # Narrower tiles load more, but those that leave no rest may take less.
            for widths in (even_tiles(c.output_width), divisors(c.output_width)):
                cut = (
                    Conv2dKnobs(
                        outputs, rows, columns, inputs, kernel, weights_outside, ahead, in_turn
                    )
                    for columns in widths
                )
                widest = next((knobs for knobs in cut if knobs.fits(c, config)), None)
                if widest is not None:
                    found.add(widest)
            for knobs in found:
                yield rough_cycles(c, config, knobs), knobs
