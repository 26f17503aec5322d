"""Inverted residuals that carry the rows which successive tiles share."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.lower import lower
from amaranth_vta.sw.compiler.nest.interpret import interpret
from amaranth_vta.sw.compiler.nest.ir import LoopNest, LoweringError
from amaranth_vta.sw.compiler.nest.parse import parse
from amaranth_vta.sw.compiler.nest.printer import to_text
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.operators.depthwise_chain import DepthwiseChain, depthwise_chain
from amaranth_vta.sw.compiler.operators.depthwise_chain.cost import candidates, estimated
from amaranth_vta.sw.compiler.operators.depthwise_chain.sizes import (
    DepthwiseChainKnobs,
    can_carry,
    fits,
)
from amaranth_vta.sw.compiler.passes.pipeline import PASSES
from tests.support.machines import others_nightly
from tests.support.runtimes import estimated_cycles
from tests.support.seeds import each_seed
from tests.sw.compiler.operators.test_depthwise_chain import operands, random_chain, wanted

TINY = PRESETS["tiny-extended"]
# Larger scratchpads than `tiny-extended`, on which few tiles fit.
ROOMY = replace(
    TINY,
    log_inp_buff_size=TINY.log_inp_buff_size + 2,
    log_wgt_buff_size=TINY.log_wgt_buff_size + 1,
    log_acc_buff_size=TINY.log_acc_buff_size + 2,
)
CONFIGS = {"roomy": ROOMY, "pynq-extended": PRESETS["pynq-extended"]}
# A tile of two rows of three, in two columns of tiles.
KNOBS = DepthwiseChainKnobs(2, 3, 2, carries=True)


def carrying_case(
    seed: int, config: str, small: bool = False
) -> tuple[DepthwiseChain, Environment, DepthwiseChainKnobs]:
    """A random case and knobs with which its tiles carry rows."""
    pick, env = random.Random(seed), Environment(CONFIGS[config])
    while True:
        workload = random_chain(random.Random(pick.randrange(1 << 30)), env)
        fitting = [knobs for _, knobs in candidates(workload, env.config) if knobs.carries]
        b = workload.depthwise.group
        if fitting and not (small and b.output_height * b.output_width > 16):
            return workload, env, pick.choice(fitting)


@pytest.mark.parametrize("config", CONFIGS)
@each_seed(range(24), daily=3)
def test_results_are_those_of_the_expression(seed: int, config: str, run: Any) -> None:
    workload, env, knobs = carrying_case(seed, config)
    function = depthwise_chain(workload, env, knobs)
    inputs = operands(workload, function.args, env, seed)
    want = wanted(function.args, inputs)
    for order in ("reverse", f"random:{seed}"):
        np.testing.assert_array_equal(run(function, inputs, order=order), want)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("config", others_nightly(CONFIGS))
def test_the_rtl_computes_the_same(config: str, first: bool, run: Any) -> None:
    workload, env, knobs = carrying_case(2, config, small=True)
    knobs = replace(knobs, expands_first=first)
    function = depthwise_chain(workload, env, knobs)
    inputs = operands(workload, function.args, env, 2)
    want = wanted(function.args, inputs)
    np.testing.assert_array_equal(run(function, inputs, device="rtl"), want)


def test_no_pass_changes_what_is_computed() -> None:
    workload, env, knobs = carrying_case(2, "roomy", small=True)
    schedule, args = workload.scheduled(env, knobs)
    inputs = operands(workload, args, env, 2)
    want, seen = wanted(args, inputs), list[str]()

    def check(nest: LoopNest, _: Any) -> LoopNest:
        text = to_text(nest)
        if not seen or text != seen[-1]:
            got = np.zeros(want.shape, np.int8)
            interpret(parse(text), env.config, [*inputs, got])
            np.testing.assert_array_equal(got, want)
        seen.append(text)
        return nest

    names = ["infer_bounds", *(step.__name__ for step in PASSES)]
    passes = [(f"after {name}", check) for name in names]
    assert lower(schedule, args, env=env, passes=passes).problem is None
    assert len(seen) == len(names)
    # After allocation too, several places for carried rows rotate.
    assert "slots=" in seen[-1]


def expansion_of(workload: DepthwiseChain) -> Conv2d:
    assert workload.expansion is not None
    return workload.expansion


def plain(height: int, kernel: int, stride: int, env: Environment) -> DepthwiseChain:
    """One channel tile in, two expanded, one out, without padding."""
    workload = random_chain(random.Random(1), env)
    a = replace(expansion_of(workload), batch=1, inputs=1, outputs=2, terms=1)
    a = replace(a, height=height, width=8)
    b = workload.depthwise
    group = replace(b.group, batch=1, height=height, width=8, terms=1, dilations=(1, 1))
    group = replace(group, kernel=(kernel, kernel), strides=(stride, stride), pads=(0, 0, 0, 0))
    depthwise = replace(b, groups=2, group=group, taps=1, alike=False)
    c = replace(a, inputs=2, outputs=1, height=group.output_height, width=group.output_width)
    return DepthwiseChain(a, depthwise, c)


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 1), (5, 2)])
def test_each_row_is_expanded_once(kernel: int, stride: int, run: Any) -> None:
    env = Environment(ROOMY)
    workload = plain(13, kernel, stride, env)
    knobs = DepthwiseChainKnobs(4 // stride, 8, 1, carries=True)
    assert can_carry(workload, knobs)
    function = depthwise_chain(workload, env, knobs)
    inputs = operands(workload, function.args, env, 0)
    run(function, inputs)
    b = workload.depthwise.group
    # The image is loaded as it is expanded: every row and every column that is read, once.
    read = b.input_rows(b.output_height) * b.input_columns(b.output_width)
    assert run.counters["inp_elements"] == read


def test_tiles_of_fewer_rows_than_are_shared_cannot_carry() -> None:
    env = Environment(ROOMY)
    workload = plain(13, 5, 1, env)
    few, enough = (DepthwiseChainKnobs(rows, 2, 1, carries=True) for rows in (3, 4))
    assert can_carry(workload, enough)
    assert not can_carry(workload, few)
    with pytest.raises(LoweringError, match="an iteration writes only 3 elements"):
        depthwise_chain(workload, env, few)


def test_one_tile_per_column_carries_nothing() -> None:
    workload = plain(9, 3, 1, Environment(ROOMY))
    assert not can_carry(workload, DepthwiseChainKnobs(7, 2, 1, carries=True))


@each_seed(range(12), daily=4)
def test_what_fits_can_be_built(seed: int) -> None:
    pick, env = random.Random(seed), Environment(ROOMY)
    workload = random_chain(random.Random(seed), env)
    b = workload.depthwise.group
    for _ in range(4):
        rows, columns = pick.randint(1, b.output_height), pick.randint(1, b.output_width)
        flags = pick.random() < 0.5, pick.random() < 0.5
        knobs = DepthwiseChainKnobs(rows, columns, pick.randint(1, 2), *flags)
        if fits(workload, env.config, knobs):
            depthwise_chain(workload, env, knobs)


@pytest.mark.parametrize(("first", "most"), [(False, 0.97), (True, 0.92)])
def test_carrying_rows_saves_cycles_as_estimated(first: bool, most: float) -> None:
    """56×56 pixels with stride 2 from 96 to 24 channels, without the load of the weights."""
    env = Environment(CONFIGS["pynq-extended"])
    workload = plain(57, 3, 2, env)
    a, b = expansion_of(workload), workload.depthwise
    a = replace(a, outputs=6, width=57, is_first=True)
    b = replace(b, groups=6, taps=3, group=replace(b.group, width=57))
    c = replace(workload.last, inputs=6, outputs=2, width=b.group.output_width)
    workload = DepthwiseChain(a, b, c)
    found = []
    for knobs in (
        DepthwiseChainKnobs(4, 14),
        DepthwiseChainKnobs(4, 14, carries=True, expands_first=first),
    ):
        assert fits(workload, env.config, knobs)
        estimate = estimated(workload, env.config, knobs).cycles
        found.append(estimated_cycles(depthwise_chain(workload, env, knobs)))
        assert estimate == pytest.approx(found[-1], rel=0.06)
    assert found[1] < most * found[0]


def test_weights_of_the_first_layer_are_not_prefetched() -> None:
    env = Environment(ROOMY)
    workload = plain(57, 3, 1, env)
    expansion = replace(expansion_of(workload), is_first=True)
    first = replace(workload, expansion=expansion)
    for chain, hidden in ((workload, True), (first, False)):
        for projection in (workload.projection, None):
            some = replace(chain, projection=projection)
            assert (some.hidden_bytes(env.config) > 0) == hidden
