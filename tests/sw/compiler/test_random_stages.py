"""Random chains of stages, with all kinds of reads and schedules, compute their expressions: after
`infer_bounds`, and with threads and unrolled loops expanded.
"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.lower import lower
from amaranth_vta.sw.compiler.nest.interpret import interpret
from amaranth_vta.sw.compiler.nest.ir import LoweringError
from amaranth_vta.sw.compiler.nest.parse import parse
from amaranth_vta.sw.compiler.te.expr import Expr, IterVar
from amaranth_vta.sw.compiler.te.schedule import Stage
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.te.traverse import accesses

ENV = Environment(PRESETS["tiny"])


def random_stage(pick: random.Random, p: Tensor, name: str) -> Tensor:
    """A stage that reads elements of ``p`` at the same index, in windows, or at other indices."""
    rows, columns = p.shape

    def guarded(i: Expr, j: Expr) -> Expr:
        return te.if_then_else(te.all(i > 0, j < columns - 1), p[i - 1, j + 1], 7)

    match pick.randrange(8):
        case 0:
            return te.compute(p.shape, lambda i, j: p[i, j] * 3 + i, name)
        case 1:
            return te.compute((rows - 1, columns), lambda i, j: p[i + 1, j] - p[i, j], name)
        case 2:
            return te.compute(p.shape, guarded, name)
        case 3:
            return te.compute(((rows + 1) // 2, columns), lambda i, j: p[i * 2, j] + 5, name)
        case 4:
            return te.compute((columns, rows), lambda i, j: p[j, i], name)
        case 5:
            before = [pick.randint(0, 2), pick.randint(0, 2)]
            return te.pad(p, before, [pick.randint(0, 2), 0], name=name)
        case 6:
            return te.compute(p.shape, lambda i, j: p[i, j] - p[0, j], name)
    x = te.reduce_axis((0, pick.randint(1, 2)), "x")
    y = te.reduce_axis((pick.randint(0, 1), 2), "y")
    reduce: Any = pick.choice([te.sum, te.max, te.min])
    return te.compute(
        (rows - 1, columns - 1), lambda i, j: reduce(p[i + x, j + y], axis=[x, y]), name
    )


def schedule_at_random(pick: random.Random, stage: Stage) -> None:
    for _ in range(pick.randint(0, 2)):
        if pick.random() < 0.6:
            size = {pick.choice(["factor", "nparts"]): pick.randint(1, 4)}
            stage.split(pick.choice(stage.leaves), **size)
        elif len(stage.leaves) > 1:
            position = pick.randrange(len(stage.leaves) - 1)
            outer, inner = stage.leaves[position : position + 2]
            if outer.kind == inner.kind:
                stage.fuse(outer, inner)
    if len(stage.leaves) > 1:
        stage.reorder(*pick.sample(stage.leaves, len(stage.leaves)))
    axis: IterVar = pick.choice(stage.leaves)
    if pick.random() < 0.1:
        stage.unroll(axis)
    elif pick.random() < 0.1 and axis.kind == "spatial":
        stage.bind(axis, te.thread_axis("cthread"))


def random_program(seed: int) -> tuple[te.Schedule, list[Tensor]]:
    pick = random.Random(seed)
    a = te.placeholder((pick.randint(5, 6), pick.randint(5, 6)), "a")
    result = a
    for number in range(pick.randint(2, 4)):
        result = random_stage(pick, result, f"t{number}")
    s = te.create_schedule(result.op)
    stages = [stage for stage in s.stages if stage.body is not None]
    for stage in stages:
        schedule_at_random(pick, stage)
    attached = 0
    for stage, reader in pairwise(stages):
        assert reader.body is not None
        assert any(access.source is stage.tensor for access in accesses(reader.body))
        # A stage attached to another one is recomputed in each iteration.
        if attached < 2 and pick.random() < 0.6:
            attached += 1
            stage.compute_at(reader, pick.choice(reader.leaves))
        elif pick.random() < 0.2 and not stage.reduce_axis:
            stage.compute_inline()
    return s, [a, result]


def steps_of(s: te.Schedule, args: list[Tensor]) -> list[tuple[str, str]]:
    """The text after each pass; empty if a step splits a fused axis into partial loops."""
    try:
        return lower(s, args, env=ENV, trace=True).steps
    except LoweringError as error:
        if "is inlined" in str(error) or "is fused from" in str(error):
            return []
        raise


@pytest.mark.parametrize("block", range(4))
def test_random_stages_do_what_they_mean(block: int) -> None:
    done = 0
    for seed in range(40 * block, 40 * block + 40):
        s, args = random_program(seed)
        steps = steps_of(s, args)
        data = np.random.default_rng(seed).integers(-50, 50, args[0].shape).astype(np.int32)
        want = te.evaluate(args[1], {args[0]: data})
        for name, text in steps:
            got = np.zeros_like(want)
            interpret(parse(text), ENV.config, [data, got])
            np.testing.assert_array_equal(got, want, err_msg=f"seed {seed} after {name}")
        done += bool(steps)
    assert done > 25
