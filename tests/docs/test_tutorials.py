"""The tutorials run, and print the outputs that are committed with them.

``make tutorials`` runs them and rewrites outputs and golden instruction streams.
"""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from find_libpython import find_libpython
from nbclient import NotebookClient
from nbformat import NotebookNode

from tests.support.golden import Golden
from tests.support.machines import others_nightly

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
SECONDS_PER_CELL = 300  # the first use of a device builds its simulator
# Runs in a tutorial's kernel after it: lists all instructions and micro-ops of the functions it
# built.
STREAMS = """
from amaranth_vta.sw.compiler.build import Function as _Function

_homes = [dict(globals())] + [_home for _home in globals().values() if isinstance(_home, dict)]
_named = {
    str(_name): _value
    for _home in reversed(_homes)
    for _name, _value in _home.items()
    if isinstance(_value, _Function)
}
for _name in sorted(_named):
    print(f"# {_name}")
    for _line in _named[_name].lowered.instructions().splitlines():
        print(_line.partition("  # ")[0].rstrip())
"""


def executed(path: Path) -> tuple[NotebookNode, str]:
    """The notebook after a run in a fresh kernel, and its instruction streams."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(STREAMS))
    NotebookClient(
        notebook,
        timeout=SECONDS_PER_CELL,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        record_timing=False,
        coalesce_streams=True,
    ).execute()
    notebook.metadata["language_info"] = {"name": "python"}  # without the version of this Python
    return notebook, printed(notebook.cells.pop())


def printed(cell: NotebookNode) -> str:
    """Text of a cell: its output and its value."""
    parts = []
    for output in cell.get("outputs", []):
        text = output.text if output.output_type == "stream" else output.data["text/plain"]
        parts.append(text)
    return "".join(parts)


NAMES = sorted(path.stem for path in TUTORIALS.glob("*.ipynb"))
# The builds take seconds: a machine with another instruction, and a bench as in tests/cocotb.
NIGHTLY = ("6_instruction", "7_cocotb_bench")


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    cells = nbformat.read(TUTORIALS / f"{name}.ipynb", as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    links = re.findall(r"\]\(([^)#:]+)[)#]", text)
    assert [link for link in links if not (TUTORIALS / link).exists()] == []


@pytest.mark.parametrize("name", others_nightly(NAMES, lambda name: name not in NIGHTLY))
def test_a_tutorial_prints_what_it_is_committed_with(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where tutorials write
    if "cocotb" in name and find_libpython() is None:
        pytest.skip("this Python has no shared library (Debian: apt install libpython3.11)")
    path = TUTORIALS / f"{name}.ipynb"
    notebook, streams = executed(path)
    if golden.rewrites:
        nbformat.write(notebook, path)
    committed = nbformat.read(path, as_version=4)
    for number, (now, then) in enumerate(zip(notebook.cells, committed.cells, strict=True), 1):
        assert printed(now) == printed(then), f"cell {number}: {now.source}"
    if streams:
        golden.check_text(f"tutorials/{name}.txt", streams)
