"""A report of a network's run, to be looked at: `report_files`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from .page import page

if TYPE_CHECKING:
    from amaranth_vta.session import Session

# By it a folder with a report is known.
PAGE = "report.html"
TIMELINE = "timeline.json"
_NUMBERS = "report.json"


def report_files(session: Session, title: str, dram: str, timeline: bool) -> dict[str, bytes]:
    """The files of the report, by name, but for the timeline; ``timeline`` if there is one."""
    links = {_NUMBERS: "all numbers, counters among them, as JSON"}
    if timeline:
        links[TIMELINE] = "every instruction on a timeline: open it in ui.perfetto.dev"
    numbers = json.dumps(session.report(), indent=2, allow_nan=False) + "\n"
    return {PAGE: page(session, title, dram, links).encode(), _NUMBERS: numbers.encode()}
