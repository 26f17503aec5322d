"""The cycles of a launch are divided among its layers."""

from __future__ import annotations

import numpy as np
import pytest

from amaranth_vta.sw.runtime.network.runner import _attributed


def test_a_layer_begins_where_its_predecessor_ends() -> None:
    assert _attributed([100, 150, 400], [90, 40, 200]) == [100, 50, 250]


def test_a_layer_begins_earlier_where_gemm_has_computed_for_it_before() -> None:
    assert _attributed([100, 150, 400], [90, 60, 200]) == [90, 60, 250]
    assert _attributed([100, 150, 200], [30, 60, 80]) == [60, 60, 80]


@pytest.mark.parametrize("seed", range(20))
def test_cycles_add_up_and_hold_the_products_of_each_layer(seed: int) -> None:
    random = np.random.default_rng(seed)
    products = random.integers(0, 50, 6).tolist()
    # GEMM works in order: when a layer ends, the products of all layers up to it are done.
    ends = np.maximum.accumulate(np.cumsum(products) + random.integers(0, 80, 6)).tolist()
    cycles = _attributed(ends, products)
    assert sum(cycles) == ends[-1]
    assert all(count >= needed for count, needed in zip(cycles, products, strict=True))
