"""Functions by tables: every entry, on the model and on the RTL."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.building_blocks.identity import identity_weights
from amaranth_vta.sw.compiler.operators.lookup import PointwiseLookup, lookup
from amaranth_vta.sw.compiler.te.dtypes import ExpressionError
from amaranth_vta.sw.compiler.tuner.output_tile import OutputTile
from amaranth_vta.sw.compiler.tuner.workload import NoScheduleFits

# Tables of 16 and 4 elements, of half an element, and in 16-bit accumulators.
CONFIGS = {
    "tiny-extended": PRESETS["tiny-extended"],
    "pynq-extended": PRESETS["pynq-extended"],
    "batch16x8": replace(PRESETS["batch2"], log_batch=4, log_block_out=3, log_wgt_buff_size=14,
                         log_acc_buff_size=16, log_inp_buff_size=13, lookup=1),
    "acc16": replace(PRESETS["tiny"], log_acc_width=4, lookup=1),
}  # fmt: skip


def bytes_of(env: Environment, vectors: int) -> np.ndarray:
    """Tiles with every byte value, if there are enough of them."""
    shape = (vectors, env.BATCH, env.BLOCK_OUT)
    return np.resize(np.random.default_rng(0).permutation(256), shape).astype(np.int8)


def arguments(
    workload: PointwiseLookup, x: np.ndarray, table: np.ndarray, env: Environment
) -> list[np.ndarray]:
    """The operand ``x``, the identity matrix if GEMM moves it, and the ``table``."""
    identity = [identity_weights(env)] if workload.by_gemm(env) else []
    return [x, *identity, te.table_tiles(table, env.config)]


@pytest.mark.parametrize("device", ["functional", "rtl"])
@pytest.mark.parametrize("config", CONFIGS)
def test_each_byte_becomes_its_entry(config: str, device: str, run: Any) -> None:
    if device == "rtl" and config != "tiny-extended":
        pytest.skip("one simulator is enough")
    env = Environment(CONFIGS[config])
    workload = PointwiseLookup(90, env.config.table_elements)
    table = np.random.default_rng(1).integers(-128, 128, 256)
    x = bytes_of(env, 90)
    got = run(lookup(workload, env), arguments(workload, x, table, env), device=device)
    np.testing.assert_array_equal(got, table[x.astype(int) + 128])
    assert len(np.unique(x)) == 256


@pytest.mark.parametrize("config", ["tiny-extended", "acc16"])
def test_no_pass_changes_what_is_looked_up(config: str, interpreted: Any) -> None:
    env = Environment(CONFIGS[config])
    table = np.random.default_rng(2).permutation(256) - 128
    x = bytes_of(env, 7)
    workload = PointwiseLookup(7, env.config.table_elements)
    schedule = workload.scheduled(env, OutputTile((3,), True))
    want = table[x.astype(int) + 128].astype(np.int8)
    interpreted(schedule, arguments(workload, x, table, env), want, env)


def test_a_value_may_choose_its_table() -> None:
    """An expression selects a separate table for each row."""
    config = CONFIGS["tiny-extended"]
    rng = np.random.default_rng(3)
    tables = rng.integers(-128, 128, (3, 256))
    tiles = np.stack([te.table_tiles(table, config) for table in tables])
    x = te.placeholder((3, 1, 4), "x", "int32")
    given = te.placeholder(tiles.shape, "tables", "int32")
    y = te.compute(
        x.shape,
        lambda v, b, k: te.lookup(x(v, b, k) * 3, *(given(v, n, b, k) for n in range(16))),
        "y",
    )
    values = rng.integers(-1000, 1000, x.shape).astype(np.int32)
    rows = np.arange(3)[:, None, None]
    want = tables[rows, (values * 3 + 128) % 256]
    np.testing.assert_array_equal(te.evaluate(y, {x: values, given: tiles}), want)


def test_what_is_not_a_table_is_refused() -> None:
    env = Environment(PRESETS["tiny-extended"])
    with pytest.raises(
        NoScheduleFits, match="a table of lookup is 16 tiles on this machine, not 4"
    ):
        lookup(PointwiseLookup(3, 4), env)
    with pytest.raises(NoScheduleFits, match="lookup needs a machine with the extension LOOKUP"):
        lookup(PointwiseLookup(3, 16), Environment(PRESETS["tiny"]))
    x = te.placeholder((8, 1, 4), "x", "int32")
    wide = te.placeholder((8, 1, 4), "wide", "int8")
    for table, message in (
        ((), "a table is one tile or more"),
        ((te.const(3, "int32"),), "3 is not in a tile of a tensor"),
        ((wide(0, 0, 0),), r"wide\[0, 0, 0\] is int8, not int32"),
    ):
        with pytest.raises(ExpressionError, match=message):
            te.lookup(x(0, 0, 0), *table)
    with pytest.raises(ValueError, match="a table has 256 results"):
        te.table_tiles(np.zeros(255), env.config)
    with pytest.raises(ValueError, match="all int8 or all uint8"):
        te.table_tiles(np.full(256, 256), env.config)
