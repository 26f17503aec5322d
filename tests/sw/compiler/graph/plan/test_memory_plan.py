"""Tensors share memory if and only if they are not live at the same time."""

from __future__ import annotations

import random

from amaranth_vta.sw.compiler.graph.plan.memory_plan import share_buffers
from tests.support.seeds import each_seed


def test_a_chain_needs_two_buffers() -> None:
    lives = {f"t{index}": (index, index + 1, 100 - index) for index in range(10)}
    plan = share_buffers(lives)
    assert plan.sizes == [100, 99]


def test_a_tensor_that_is_read_and_one_that_is_written_do_not_share() -> None:
    plan = share_buffers({"x": (0, 3, 8), "y": (3, 4, 8)})
    assert plan.place["x"] != plan.place["y"]


@each_seed(range(20))
def test_no_two_that_are_alive_share(seed: int) -> None:
    pick = random.Random(seed)
    lives = {}
    for index in range(30):
        first = pick.randint(0, 20)
        lives[str(index)] = (first, first + pick.randint(0, 5), pick.randint(1, 1000))
    plan = share_buffers(lives)
    for a, (a_first, a_last, size) in lives.items():
        assert plan.sizes[plan.place[a]] >= size
        for b, (b_first, b_last, _) in lives.items():
            if a != b and a_first <= b_last and b_first <= a_last:
                assert plan.place[a] != plan.place[b]
