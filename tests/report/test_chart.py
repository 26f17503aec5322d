from __future__ import annotations

from xml.etree import ElementTree

import pytest

from amaranth_vta.report.chart import PARTS, segments, stacked_bars
from amaranth_vta.sw.runtime.counters import Spent


def spent(name: str, cycles: int, runs: int = 1, **counters: int) -> Spent:
    return Spent(name, {**{part[0]: 0 for part in PARTS}, "cycles": cycles, **counters}, runs)


def test_parts_add_up_to_all_cycles_and_the_alu_is_what_is_not_beside_gemm() -> None:
    item = spent("conv", 1000, gemm_busy=700, alu_busy=400, compute_waits_for_load=50)
    found = {words: cycles for words, _, cycles in segments(item)}
    assert sum(found.values()) == 1000
    assert (found["GEMM"], found["ALU"], found["waits for load"]) == (700, 250, 50)
    alone = spent("pool", 1000, alu_busy=400)
    assert [cycles for _, _, cycles in segments(alone) if cycles] == [400, 600]


def test_bars_are_as_long_as_the_cycles_of_a_run() -> None:
    svg = stacked_bars([spent("a<b", 400, 2, gemm_busy=400), spent("c", 100, gemm_busy=50)])
    tree = ElementTree.fromstring(svg)
    widths = [float(r.attrib["width"]) for r in tree.iter("{http://www.w3.org/2000/svg}rect")]
    assert len(widths) == 3
    assert widths[0] == pytest.approx(2 * (widths[1] + widths[2]), rel=0.01)
    texts = [item.text for item in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["a<b", "200", "c", "100"]
