"""Tensors share memory if and only if they are not live at the same time."""

from __future__ import annotations

import random

from amaranth_vta.sw.compiler.graph.plan.memory_plan import share_buffers
from tests.support.seeds import each_seed


def test_a_chain_needs_two_buffers() -> None:
    lifetimes = {f"t{index}": (index, index + 1, 100 - index) for index in range(10)}
    plan = share_buffers(lifetimes)
    assert plan.sizes == [100, 99]


def test_a_tensor_that_is_read_and_one_that_is_written_do_not_share() -> None:
    plan = share_buffers({"x": (0, 3, 8), "y": (3, 4, 8)})
    assert plan.buffer_of["x"] != plan.buffer_of["y"]


@each_seed(range(20))
def test_no_two_that_are_alive_share(seed: int) -> None:
    pick = random.Random(seed)
    lifetimes = {}
    for index in range(30):
        first = pick.randint(0, 20)
        lifetimes[str(index)] = (first, first + pick.randint(0, 5), pick.randint(1, 1000))
    plan = share_buffers(lifetimes)
    for a, (a_first, a_last, size) in lifetimes.items():
        assert plan.sizes[plan.buffer_of[a]] >= size
        for b, (b_first, b_last, _) in lifetimes.items():
            if a != b and a_first <= b_last and b_first <= a_last:
                assert plan.buffer_of[a] != plan.buffer_of[b]
