"""The dot products of the fast simulation, written as loops, equal those of the design."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from amaranth.hdl import Module, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.datapath.dot_products import DotProducts, LoopedDotProducts
from amaranth_vta.sim.machine.elaborate import SIMPLIFIED, component_verilog
from amaranth_vta.sim.machine.rtl.build import Harness, design_library
from tests.support.corners import CORNERS

CONFIGS = {
    **{name: PRESETS[name] for name in ("tiny", "batch2", "pynq-extended")},
    "int4 4x8": CORNERS["int4 4x8"],
}
CYCLES = 20_000


class Pairs(wiring.Component):
    """Both kinds of dot products for each of ``configs``, with the same operands from the low bits
    of ``inp`` and ``wgt``. Bit n of ``differs`` is set if their registers differ for configuration
    n."""

    def __init__(self, configs: list[Config]) -> None:
        self._configs = configs
        super().__init__(
            {
                # All tiles of inputs that a product takes.
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
            for kind in (DotProducts, LoopedDotProducts):
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
                results.append(Value.cast(dut.sums))
            m.d.comb += self.differs[number].eq(results[0] != results[1])
        return m


def test_dot_products_in_loops_hold_what_those_of_the_design_hold() -> None:
    verilog = component_verilog(Pairs(list(CONFIGS.values())), "vta", SIMPLIFIED)
    harness = Harness(Path(__file__).with_name("dot_products.cpp"))
    loops = LoopedDotProducts.LOOPS.read_text(encoding="utf-8")
    library = ctypes.CDLL(str(design_library(verilog + loops, harness)))
    library.differences.argtypes = [ctypes.c_uint64, ctypes.c_uint32]
    library.differences.restype = ctypes.c_uint32
    found = library.differences(1, CYCLES)
    assert [name for bit, name in enumerate(CONFIGS) if found >> bit & 1] == []
