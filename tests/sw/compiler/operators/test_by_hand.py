"""Schedules by hand are taken, and fit the machines that they are for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.by_hand import Row, knobs_by_hand, rows
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d, Conv2dKnobs, conv2d
from amaranth_vta.sw.compiler.operators.requantize import Requantize, Rescale

CONFIG = PRESETS["pynq-extended"]


@pytest.mark.parametrize("row", rows(CONFIG), ids=lambda row: row.name)
def test_each_row_is_what_its_layer_is_built_by(row: Row) -> None:
    layer = Conv2d(**row.workload, requantize=Rescale())
    env = Environment(CONFIG)
    taken = conv2d(layer, env).lowered
    given = conv2d(layer, env, Conv2dKnobs(**row.knobs)).lowered
    assert str(taken) == str(given)
    # Requantization runs beside GEMM, and nothing is loaded between the two.
    lines = taken.instructions().splitlines()
    compute = [line[17:] for line in lines if line[8:15] == "compute"]
    first = next(at for at, line in enumerate(compute) if not line.startswith("LOAD"))
    assert not [line for line in compute[first:] if line.startswith("LOAD")]
    assert [line for line in compute if "independent" in line]


def test_other_layers_and_machines_have_no_row() -> None:
    layer = Conv2d(**rows(CONFIG)[1].workload, requantize=Rescale())
    assert knobs_by_hand(layer, CONFIG) == rows(CONFIG)[1].knobs
    assert knobs_by_hand(replace(layer, requantize=Requantize(1, 0, 9)), CONFIG) is not None
    assert knobs_by_hand(replace(layer, height=55), CONFIG) is None
    assert knobs_by_hand(layer, PRESETS["pynq"]) is None
    assert rows(PRESETS["tiny"]) == []
