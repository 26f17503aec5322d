"""Constants of the sums of a product."""

from __future__ import annotations

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler.graph.layers.support.layer import Unsupported
from amaranth_vta.sw.compiler.graph.layers.support.sums import RequantizedSums, constants_of


def test_a_scale_without_requantize_parameters_is_refused() -> None:
    sums = RequantizedSums(
        weights=np.ones((1, 9), np.int16),
        bias=np.array([0]),
        least=np.array([-9]),
        most=np.array([9]),
        scale=np.array([80], np.float32),
        zero_point=7,
        low=-100,
        high=90,
    )
    text = "REQUANTIZE by the scale 80 of channel 0 differs from float32 for sums from -9 to 9"
    with pytest.raises(Unsupported, match=text):
        constants_of(sums, PRESETS["tiny-extended"])


@pytest.mark.parametrize(
    ("products", "most", "wraps"), [(9, 900, False), (9, 1 << 30, True), (1 << 14, 900, True)]
)
def test_sums_near_the_width_of_accumulators_may_wrap(
    products: int, most: int, wraps: bool
) -> None:
    sums = RequantizedSums(
        weights=np.ones((1, products), np.int16),
        bias=np.array([0]),
        least=np.array([-9]),
        most=np.array([most]),
        scale=np.array([0.25], np.float32),
        zero_point=0,
        low=-128,
        high=127,
    )
    how, _ = constants_of(sums, PRESETS["tiny-extended"])
    assert how.follows_maxima != wraps
