"""Runs of the programs of the tutorials, with a timeline."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

from amaranth_vta.sim.devices import open_device
from amaranth_vta.sw.runtime.runtime import Runtime

from .timeline import Recorder, Run

_TUTORIALS = Path(__file__).parents[1] / "tutorials"
_MEMORY_BYTES = 1 << 22


def runs(tutorial: str, names: list[str]) -> list[Run]:
    """Run ``functions[name]`` of a tutorial on the RTL with the memory model ``ideal``."""
    notebook = json.loads((_TUTORIALS / f"{tutorial}.ipynb").read_text(encoding="utf-8"))
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    found: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile("\n".join(code), tutorial, "exec"), found)
    recorder = Recorder()
    for name in names:
        function = found["functions"][name]
        device = open_device("rtl", found["env"].config, _MEMORY_BYTES, timeline=recorder)
        runtime = Runtime(device)
        buffers = [
            runtime.allocate(function.nbytes(number), argument.name)
            for number, argument in enumerate(function.args)
        ]
        for buffer, array in zip(buffers, (found["x"], found["w"]), strict=False):
            buffer.write(array)
        function.run_on(runtime, *buffers)
        runtime.synchronize()
    return recorder.runs
