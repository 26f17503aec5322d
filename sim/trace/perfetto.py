"""Timelines that Perfetto opens (ui.perfetto.dev): runs as JSON in Chrome's trace event format."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import IO, Any

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.sw.disassembly import instruction_text

from .timeline import LANES, Span

# The unit of the format is a microsecond; a cycle is shown as a nanosecond.
_CYCLE = 1e-3
_PROCESS = 1
# The lane of what the runs are for, above those of the modules.
_RUNS = 1
_THREADS = {lane: number for number, lane in enumerate(LANES, _RUNS + 1)}


class Timeline:
    """Runs one after the other, a lane a module, an event an instruction or a wait for a token.

    ``label`` says what the next run is for, and is shown above it.
    """

    def __init__(self) -> None:
        self.label = ""
        self._events: list[dict[str, Any]] = []
        self._end = 0

    def add(self, config: Config, words: list[int], spans: Iterable[Span], cycles: int) -> None:
        """A run of a stream of 128-bit ``words`` that took ``cycles``."""
        decode = isa.instruction_set(config).decode
        decoded: dict[int, tuple[str, dict[str, Any]]] = {}
        label = self.label or f"{len(words)} instructions"
        self._events.append(_event(label, _RUNS, self._end, cycles, {"cycles": cycles}))
        for span in spans:
            if span.index not in decoded:
                instruction = decode(words[span.index])
                decoded[span.index] = (
                    instruction_text(instruction),
                    {"opcode": instruction.opcode.name, **asdict(instruction)}
                    if not isinstance(instruction, isa.Unknown)
                    else asdict(instruction),
                )
            text, fields = decoded[span.index]
            args: dict[str, Any] = {"instruction": span.index, "cycle": span.begin}
            if span.waits_for is not None:
                name, args = f"waits for {span.waits_for}", args | {"before": text}
            else:
                name, args = text, args | {"issued": span.issued} | fields
            begin, length = self._end + span.begin, span.end - span.begin
            self._events.append(_event(name, _THREADS[span.lane], begin, length, args))
        self._end += cycles

    def write(self, file: IO[bytes]) -> None:
        """Writes `text`."""
        file.write(self.text())

    def text(self) -> bytes:
        """All of it as one JSON text; a cycle is shown as a nanosecond."""
        names = {_RUNS: "runs", **{number: lane for lane, number in _THREADS.items()}}
        head = [_about("process_name", _RUNS, {"name": "vta"})]
        for thread, name in names.items():
            head.append(_about("thread_name", thread, {"name": name}))
            head.append(_about("thread_sort_index", thread, {"sort_index": thread}))
        # Of two that begin together, the longer one first: it holds the other.
        events = sorted(self._events, key=lambda event: (event["ts"], -event["dur"]))
        lines = ",\n".join(json.dumps(event) for event in (*head, *events))
        return f'{{"displayTimeUnit": "ns", "traceEvents": [\n{lines}\n]}}\n'.encode()


def _about(what: str, thread: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": _PROCESS, "tid": thread, "args": args}


def _event(name: str, thread: int, begin: int, length: int, args: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "ph": "X",
        "pid": _PROCESS,
        "tid": thread,
        "ts": round(begin * _CYCLE, 3),
        "dur": round(length * _CYCLE, 3),
        "args": args,
    }
