"""The counts of `make coverage`, from what Verilator writes."""

from __future__ import annotations

import runpy
from collections import Counter
from pathlib import Path

COVERAGE = Path(__file__).parents[2] / "benchmarks" / "coverage.py"

VERILOG = """\
module vta(input a, output reg b);
  always @* begin
    if (\\$auto$verilog_backend.cc:2352:dump_module$1 ) begin end
    b = a;
    if ((a) && (b)) met[0] <= 1; // GEMM forwards x AR
"""


def line(count: int, **fields: str) -> str:
    return "C '" + "".join(f"\1{key}\2{value}" for key, value in fields.items()) + f"' {count}\n"


def test_points_are_counted_per_module_without_those_of_the_writer() -> None:
    names = runpy.run_path(str(COVERAGE))
    text = "# SystemC::Coverage-3\n" + "".join(
        (
            line(3, f="vta.v", l="4", page="v_line/vta", o="block"),
            line(0, f="vta.v", l="3", page="v_branch/vta", o="if"),
            line(0, f="vta.v", l="1", page="v_toggle/vta", o="a:0->1"),
            line(7, f="vta.v", l="1", page="v_toggle/vta_core", o="b:0->1"),
            line(7, f="vta.v", l="1", page="v_toggle/vta_core", o="__0245[0]:0->1"),
            line(2, f="vta.v", l="5", page="v_branch/pairs", o="if"),
            line(9, f="vta.v", l="5", page="v_branch/pairs", o="else"),
            line(7, f="pins.sv", l="1", page="v_toggle/pins", o="c:0->1"),
        )
    )
    points = names["_points"](text, VERILOG)
    assert len(points) == 8
    kept = [point for point in points if point is not None]
    assert kept == [
        ("lines", "vta", "4 block"),
        ("toggles", "vta", "1 a:0->1"),
        ("toggles", "vta_core", "1 b:0->1"),
        ("pairs", "GEMM forwards", "AR"),
    ]
    table = names["summary"](Counter(dict(zip(kept, (3, 0, 7, 2), strict=True))))
    assert table == {
        "vta": {"lines": (1, 1), "toggles": (0, 1)},
        "vta_core": {"lines": (0, 0), "toggles": (1, 1)},
        "all": {"lines": (1, 1), "toggles": (1, 2)},
    }
