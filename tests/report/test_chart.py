from __future__ import annotations

from xml.etree import ElementTree

import pytest

from amaranth_vta.report.chart import LEGEND, segments, stacked_bars
from amaranth_vta.session import LayerReport

PEAK = 256
COUNTERS = (
    "gemm_busy",
    "alu_busy",
    "compute_load_busy",
    "compute_waits_for_load",
    "compute_waits_for_store",
)


def layer(name: str, cycles: int, macs: int = 0, runs: int = 1, **counters: int) -> LayerReport:
    counted = {**dict.fromkeys(COUNTERS, 0), "cycles": cycles, **counters}
    return LayerReport(
        name, "Conv", "machine", "", macs // runs, macs, cycles, 0, 0.0, 0, 0, runs, counted
    )


def parts(item: LayerReport) -> dict[str, int]:
    return {
        words: cycles for words, _, cycles in segments(item.counters, item.macs, PEAK) if cycles
    }


def test_parts_add_up_to_all_cycles_and_the_alu_is_what_does_not_overlap() -> None:
    item = layer("conv", 1000, 700 * PEAK, gemm_busy=700, alu_busy=400, compute_waits_for_load=50)
    assert parts(item) == {"GEMM, MACs of the network": 700, "waits for load": 50, "ALU": 250}
    pool = parts(layer("pool", 1000, alu_busy=400))
    assert list(pool.values()) == [400, 600]


def test_a_depthwise_layer_is_not_called_busy_with_the_zeros_in_its_tiles() -> None:
    item = layer("depthwise", 1000, 60 * PEAK, gemm_busy=960)
    assert parts(item) == {
        "GEMM, MACs of the network": 60,
        "GEMM, zeros in tiles and moves": 900,
        "anything else: decoding, first and last latencies": 40,
    }


def test_bars_are_as_long_as_the_cycles_of_a_run() -> None:
    items = [
        layer("a<b", 400, 400 * PEAK, runs=2, gemm_busy=400),
        layer("c", 100, 50 * PEAK, gemm_busy=50),
    ]
    tree = ElementTree.fromstring(stacked_bars(items, PEAK))
    bars = [item for item in tree.iter("div") if item.get("class") == "bar"]
    first, second = (float(bar.attrib["style"][6:-1]) for bar in bars)
    assert first == pytest.approx(2 * second)
    assert [len(bar) for bar in bars] == [1, 2]
    assert [item.text for item in tree.iter("span")] == ["200", "100"]
    assert [item.text for item in tree.iter("div") if item.get("class") == "name"] == ["a<b", "c"]
    for bar in bars:
        widths = [float(part.attrib["style"].partition("%")[0][6:]) for part in bar]
        assert sum(widths) == pytest.approx(100, abs=0.1)


def test_every_part_is_in_the_legend() -> None:
    names = {(words, color) for words, color, _ in segments(layer("x", 10).counters, 0, PEAK)}
    assert names == set(LEGEND)
