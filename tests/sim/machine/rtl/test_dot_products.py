"""The loops that simulate dot products equal the design's multipliers."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from amaranth.hdl import Cat, Module, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.extras import MissingExtra
from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.datapath.dot_products import (
    DotProducts,
    LoopedDotProducts,
    SingleDotProducts,
)
from amaranth_vta.sim.machine.elaborate import SIMPLIFIED, component_verilog
from tests.support.corners import CORNERS
from tests.support.differences import differences

SMALL = ("tiny", "tiny-extended", "batch2", "int4 4x8")
CYCLES = 20_000
LOOPS = LoopedDotProducts.LOOPS.read_text(encoding="utf-8")
BENCHMARKS = Path(__file__).parents[4] / "benchmarks"


class Pairs(wiring.Component):
    """Dot products of all ``kinds`` for each of ``configs``, with the same operands from the low
    bits of ``inp`` and ``wgt``. Bit n of ``differs`` is set if the sums for configuration n differ.
    """

    def __init__(self, configs: list[Config], kinds: Sequence[type[DotProducts]]) -> None:
        self._configs = configs
        self._kinds = kinds
        super().__init__(
            {
                # All input tiles of a product.
                "inp": In(max(config.taps * config.inp.element_bits for config in configs)),
                "tapped": In(1),
                "wgt": In(max(config.wgt.element_bits for config in configs)),
                "clear": In(1),
                "differs": Out(len(configs)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        for number, config in enumerate(self._configs):
            results = []
            for kind in self._kinds:
                m.submodules[f"{kind.__name__}_{number}"] = dut = kind(config)
                m.d.comb += [
                    Value.cast(dut.inp).eq(self.inp),
                    Value.cast(dut.wgt).eq(self.wgt),
                    dut.clear.eq(self.clear),
                ]
                if config.depthwise:
                    m.d.comb += [
                        Value.cast(dut.further).eq(self.inp[config.inp.element_bits :]),
                        dut.tapped.eq(self.tapped),
                    ]
                places = product(range(config.batch), range(config.block_out))
                results.append(Cat(dut.sums[b][j] + dut.carries[b][j] for b, j in places))
            m.d.comb += self.differs[number].eq(
                Cat(result != results[-1] for result in results[:-1]).any()
            )
        return m


def differing(verilog: str, flags: tuple[str, ...] = ()) -> int:
    """Simulate `Pairs` from ``verilog`` with `LOOPS` added; return ``differs``."""
    harness = Path(__file__).with_name("dot_products.cpp")
    return differences(verilog + LOOPS, harness, CYCLES, flags)


@pytest.mark.parametrize(
    "names", [SMALL, pytest.param(("pynq-extended",), marks=pytest.mark.nightly)]
)
def test_dot_products_in_loops_hold_what_those_of_the_design_hold(names: tuple[str, ...]) -> None:
    kinds = (DotProducts, SingleDotProducts, LoopedDotProducts)
    pairs = Pairs([(PRESETS | CORNERS)[name] for name in names], kinds)
    found = differing(component_verilog(pairs, "vta", SIMPLIFIED))
    assert [name for bit, name in enumerate(names) if found >> bit & 1] == []


@pytest.mark.nightly
def test_chains_of_dsp_slices_hold_what_the_loops_hold(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    netlists = importlib.import_module("netlists")
    # As few products as in a larger machine.
    config = replace(PRESETS["pynq-extended"], log_block_in=3, log_block_out=5, forward=0)
    pairs = Pairs([config], (DotProducts, LoopedDotProducts))
    # Yosys sees only the ports of the loops.
    loops = "(* blackbox *) " + LOOPS[LOOPS.index("module") : LOOPS.index(");")] + "); endmodule\n"
    try:
        cells = netlists.mapped(loops + component_verilog(pairs, "vta"), "xc7", tmp_path)
    except MissingExtra as missing:
        pytest.skip(f"{missing}; `make netlists` has it")
    assert cells.count('.USE_DPORT("TRUE")') == 8 * 16
    assert cells.count(".OPMODE(7'h15)") == 3 * 2 * 16  # adds its neighbour's cascade output
    assert differing(netlists.models("xc7") + cells, netlists.UNOPTIMIZED) == 0
