"""The output file of ``--trace``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .outputs import Outputs

if TYPE_CHECKING:
    from amaranth_vta.sim.trace.perfetto import Timeline

_OPTION = "--trace"


def reserve_trace(outputs: Outputs, path: str | None) -> Timeline | None:
    """The timeline to record for ``--trace``; None if the option was not given."""
    from amaranth_vta.sim.trace.perfetto import Timeline

    outputs.reserve(_OPTION, path)
    return None if path is None else Timeline()


def save_trace(outputs: Outputs, path: str | None, timeline: Timeline | None) -> None:
    """Writes the timeline, and reports any runs that it left out."""
    if path is None or timeline is None:
        return
    outputs.save(_OPTION, lambda file: timeline.write(file, compressed=path.endswith(".gz")))
    if timeline.repeated > timeline.repeats:
        outputs.say(
            f"{path} has the first {timeline.repeats} of {timeline.repeated} runs of the network"
        )
