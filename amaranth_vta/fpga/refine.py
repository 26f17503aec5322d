"""What is changed in the netlist of an ECP5 between synthesis and placement: `refine`."""

from __future__ import annotations

import json
from pathlib import Path

from . import carries, factors, netlist
from .carries import fill_carries
from .factors import align_factors


def refine(path: Path) -> int:
    """Changes the netlist in a file of Yosys by `fill_carries` and `align_factors`; gives how many
    LUTs it has lost."""
    design = json.loads(path.read_text(encoding="utf-8"))
    align_factors(design)
    lost = fill_carries(design)
    path.write_text(json.dumps(design), encoding="utf-8")
    return lost


def refine_sources() -> str:
    """The text of all that `refine` depends on, to tell one version of it from another."""
    modules = (carries, factors, netlist)
    return "".join(Path(str(m.__file__)).read_text(encoding="utf-8") for m in modules)
