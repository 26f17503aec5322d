"""Random copies to a scratchpad and back, in any schedule: strides, offsets, orders, and padding on
any side by any form of condition.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import prod

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import build
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.lower import lower
from amaranth_vta.sw.compiler.nest.interpret import interpret
from amaranth_vta.sw.compiler.nest.ir import LoopNest
from amaranth_vta.sw.compiler.te.expr import Expr
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.runtime.runtime import Runtime
from amaranth_vta.sw.runtime.scalars import pack

CONFIGS = ["tiny", "batch2", "int4", "pynq", "tiny-extended"]


@dataclass
class Dimension:
    """``data`` elements at distance ``stride``, starting at ``offset``, with ``before`` and
    ``after`` elements of padding.
    """

    data: int
    stride: int
    offset: int
    before: int
    after: int

    @property
    def extent(self) -> int:
        return self.before + self.data + self.after

    def source(self, index: Expr) -> Expr:
        return (index - self.before) * self.stride + self.offset

    def conditions(self, index: Expr, form: int) -> list[Expr]:
        first, end = self.before, self.before + self.data
        low = [index >= first, index > first - 1, first <= index][form] if self.before else None
        high = [index < end, index <= end - 1, end > index][form] if self.after else None
        return [condition for condition in (low, high) if condition is not None]


def random_dimensions(pick: random.Random, room: int) -> list[Dimension]:
    dimensions: list[Dimension] = []
    for _ in range(pick.randint(1, 4)):
        before, after = (pick.choice([0, 0, 1, 2, pick.randint(3, 20)]) for _ in range(2))
        offset, stride = pick.randint(0, 2), pick.choice([1, 1, 2, 3])
        one = Dimension(pick.randint(1, 6), stride, offset, before, after)
        if prod(d.extent for d in [*dimensions, one]) > room:
            one = Dimension(1, 1, 0, 0, 0)
        dimensions.append(one)
    return dimensions


def random_copy(seed: int, env: Environment) -> tuple[te.Schedule, list[Tensor]]:
    pick = random.Random(seed)
    dimensions = random_dimensions(pick, env.config.acc.depth // 2)
    count = len(dimensions)
    order = pick.sample(range(count), count)
    tail = (env.BATCH, env.BLOCK_OUT)
    sizes = [(d.data - 1) * d.stride + d.offset + 1 + pick.randint(0, 2) for d in dimensions]
    x = te.placeholder((*(sizes[axis] for axis in order), *tail), "x", env.acc_dtype)
    form = pick.randrange(3)
    padding = pick.choice([0, 5, -100]) if env.config.pad_value else 0

    def element(*i: Expr) -> Expr:
        places = [d.source(index) for d, index in zip(dimensions, i, strict=False)]
        inner = x(*(places[axis] for axis in order), *i[count:])
        conditions = [
            condition
            for d, index in zip(dimensions, i, strict=False)
            for condition in d.conditions(index, form)
        ]
        return te.if_then_else(te.all(*conditions), inner, padding) if conditions else inner

    buf = te.compute((*(d.extent for d in dimensions), *tail), element, "buf")
    y = te.compute(buf.shape, lambda *i: buf(*i).astype(env.out_dtype), "y")
    s = te.create_schedule(y.op)
    s[buf].set_scope(env.acc_scope)
    axes = list(y.op.axis[:count])
    if pick.random() < 0.6:
        outer, inner = s[y].split(axes.pop(pick.randrange(count)), pick.randint(1, 4))
        s[y].reorder(outer, inner, *pick.sample(axes, len(axes)))
        s[buf].compute_at(s[y], outer)
        if pick.random() < 0.3:
            s[y].bind(outer, te.thread_axis("cthread"))
        s[y].pragma(inner, env.dma_copy)
    else:
        s[y].pragma(axes[0], env.dma_copy)
    s[buf].reorder(*pick.sample(buf.op.axis[:count], count))
    if pick.random() < 0.3:
        s[buf].split(pick.choice(buf.op.axis[:count]), pick.randint(1, 4))
    s[buf].pragma(s[buf].leaves[0], env.dma_copy)
    return s, [x, y]


@pytest.mark.parametrize("block", range(4))
def test_random_copies_stay_within_their_buffers(block: int) -> None:
    """Interpreted: on the machine an overrun would go unnoticed, as there is no other buffer."""
    for seed in range(30 * block, 30 * block + 30):
        _interpret_copy(seed)


def _interpret_copy(seed: int) -> None:
    env = Environment(PRESETS[CONFIGS[seed % len(CONFIGS)]])
    s, args = random_copy(seed, env)
    data = np.random.default_rng(seed).integers(-8, 8, args[0].shape).astype(env.acc_dtype)
    want = te.evaluate(args[1], {args[0]: data})

    def check(nest: LoopNest, _: object) -> LoopNest:
        got = np.zeros(want.shape, np.int8)
        interpret(nest, env.config, [data, got])
        np.testing.assert_array_equal(got, want)
        return nest

    lower(s, args, env=env, passes=[("after copy_by_dma", check)])


@pytest.mark.parametrize("block", range(4))
def test_random_copies_are_exact(block: int) -> None:
    exact = 0
    for seed in range(30 * block, 30 * block + 30):
        env = Environment(PRESETS[CONFIGS[seed % len(CONFIGS)]])
        s, args = random_copy(seed, env)
        problem = lower(s, args, env=env).problem
        if problem is not None:
            # Two threads need twice the space, which does not fit.
            assert "would fit for buf" in str(problem)
            continue
        function = build(s, args, env=env)
        device = FunctionalDevice(env.config, 1 << 22, "reverse", report_races=True)
        runtime = Runtime(device)
        source, target = (runtime.allocate(function.nbytes(index)) for index in (0, 1))
        data = np.random.default_rng(seed).integers(-8, 8, args[0].shape).astype(env.acc_dtype)
        source.write(data)
        function.run_on(runtime, source, target)
        runtime.synchronize()
        want = te.evaluate(args[1], {args[0]: data})
        got = target.read(np.uint8, (function.nbytes(1),))
        np.testing.assert_array_equal(got, pack(want, env.out_dtype))
        assert not device.races, device.races[0]
        exact += 1
    assert exact > 20
