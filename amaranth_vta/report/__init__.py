"""Reports of network runs as HTML pages: `report_files`."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

from .page import Provenance, page

__all__ = ["PAGE", "Provenance", "report_files"]

if TYPE_CHECKING:
    from amaranth_vta.session import Session
    from amaranth_vta.sim.trace.perfetto import Timeline

# Marks a folder as a report, which may be overwritten by another.
PAGE = "report.html"
_TIMELINE, _NUMBERS = "timeline.json.gz", "report.json"


def report_files(
    session: Session,
    title: str,
    dram: str,
    provenance: Provenance,
    timeline: Timeline | None,
    trace: str | None,
) -> dict[str, bytes]:
    """The files of the report, by name; ``provenance`` has the command and the result of its
    checks.

    ``trace`` is the path of the ``timeline``, relative to the report, if it is written separately;
    if None, the timeline is one of the files.
    """
    links = {_NUMBERS: "all numbers as JSON, counters included"}
    files = {_NUMBERS: (json.dumps(session.report(), indent=2, allow_nan=False) + "\n").encode()}
    if timeline is not None:
        links[trace or _TIMELINE] = "every instruction on a timeline: open it in ui.perfetto.dev"
        if trace is None:
            packed = io.BytesIO()
            timeline.write(packed, compressed=True)
            files[_TIMELINE] = packed.getvalue()
    text = page(session, title, dram, provenance, links).encode(errors="replace")
    return {PAGE: text, **files}
