"""Transforms netlists after synthesis, by family: `refine`."""

from __future__ import annotations

import json
from pathlib import Path

from amaranth_vta.fpga import netlist

from . import carries, cascades, factors
from .carries import fill_carries
from .cascades import join_cascades
from .factors import align_factors


def refine(path: Path, family: str) -> int:
    """Transform the netlist in a JSON file of Yosys, for a ``family`` of `FAMILIES`: an ECP5's by
    `fill_carries` and `align_factors`, a 7-series' by `join_cascades`. Returns the number of
    removed LUTs.
    """
    design = json.loads(path.read_text(encoding="utf-8"))
    lost = 0
    if family == "ecp5":
        align_factors(design)
        lost = fill_carries(design)
    else:
        join_cascades(design)
    path.write_text(json.dumps(design), encoding="utf-8")
    return lost


def refine_sources() -> str:
    """Source text of everything that `refine` depends on, to tell its versions apart."""
    modules = (carries, cascades, factors, netlist)
    return "".join(Path(str(m.__file__)).read_text(encoding="utf-8") for m in modules)
