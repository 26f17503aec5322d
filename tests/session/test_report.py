"""The report's page states what was run and found, per run, and suits small and dark screens."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import amaranth_vta as vta
from amaranth_vta.session.report import Provenance, page

DIGITS = Path(__file__).parents[2] / "examples/digits"
PROVENANCE = Provenance("vta run 'a b.onnx'", "1.2.3", datetime(2031, 5, 4, 3, 2, tzinfo=UTC))


@pytest.fixture(scope="module")
def session() -> vta.Session:
    """Three runs of two images."""
    with np.load(DIGITS / "images.npz") as file:
        x = file["image"][:6]
    with vta.Session(
        DIGITS / "digits.onnx", "tiny", "estimate", "ddr", images=2, launch="layer"
    ) as opened:
        opened.run({"image": x})
    return opened


def facts(text: str) -> dict[str, str]:
    """The facts at the top of the page, by name."""
    tree = ElementTree.fromstring(text.partition("\n")[2])
    names, values = (["".join(item.itertext()) for item in tree.iter(tag)] for tag in ("dt", "dd"))
    return dict(zip(names, values, strict=True))


def test_the_facts_are_per_run_and_in_time(session: vta.Session) -> None:
    found = facts(page(session, "digits", "ddr", PROVENANCE, {}))
    assert session.cycles is not None
    per_run = session.cycles / 3
    assert found["runs"] == f"3 runs of 2 images, with a launch per layer; {session.cycles:,} " + (
        "cycles in all"
    )
    assert found["cycles"].startswith(f"{per_run:,.0f} per run, estimated: ")
    share = f"{session.report()['bound_cycles'] / session.cycles:.1%} of bound"
    assert share in found["cycles"]
    assert found[
        "time"
    ] == f"{per_run / 1e5:#.3g} ms per run at 100 MHz, {per_run / 2e5:#.3g} ms " + ("per image")


def test_the_facts_name_the_command_the_version_and_the_date(session: vta.Session) -> None:
    found = facts(page(session, "digits", "ddr", PROVENANCE, {}))
    assert found["command"] == "vta run 'a b.onnx'"
    assert found["made"] == "2031-05-04 03:02 UTC by amaranth-vta 1.2.3"
    assert found["result"] == "not compared; --check compares with ONNX Runtime"
    assert found["machine"] == "1×4×4 MACs per cycle, 64-bit bus"
    assert found["device"] == "estimate, memory ddr"


def test_a_wrong_result_is_marked(session: vta.Session) -> None:
    command, version, date = PROVENANCE.command, PROVENANCE.version, PROVENANCE.date
    wrong = Provenance(command, version, date, "3 < 4 elements differ", is_wrong=True)
    text = page(session, "digits", "ddr", wrong, {})
    assert '<span class="wrong">3 &lt; 4 elements differ</span>' in text
    right = Provenance(command, version, date, "0 elements differ")
    assert 'class="wrong"' not in page(session, "digits", "ddr", right, {})


def test_cycles_are_the_first_number_of_the_layers_table(session: vta.Session) -> None:
    """A screen of 400 pixels shows the cycles; operators are below the names of the layers."""
    text = page(session, "digits", "ddr", PROVENANCE, {})
    table = text.partition("<h2>Layers</h2>")[2].partition("</table>")[0]
    heads = re.findall(r"<th[^>]*>([^<]*)</th>", table)
    assert heads == ["layer", "cycles", "of bound", "utilization", "MACs"]
    assert "conv2<br/><small>QLinearConv+MaxPool</small>" in table
    assert "host: " in table


def test_every_color_of_the_page_follows_the_scheme(session: vta.Session) -> None:
    """Colors of text, lines and background are variables with other values in the dark scheme."""
    style = (
        page(session, "digits", "ddr", PROVENANCE, {}).partition("<style>")[2].partition("</style>")
    )
    dark = style[0].partition("prefers-color-scheme: dark")[2].partition("}\n}")[0]
    used = set(re.findall(r"var\((--\w+)\)", style[0]))
    assert {"--back", "--text", "--line"} <= used
    assert used == set(re.findall(r"(--\w+): #", dark))
    rules = "\n".join(line for line in style[0].splitlines() if ":root" not in line)
    assert not re.findall(r"(?:color|background): #", rules)
