"""Timelines for Perfetto (ui.perfetto.dev): runs as JSON in Chrome's trace event format."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import IO, Any

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.sw.disassembly import instruction_text

from .timeline import LANES, Span

# The format's unit is the microsecond; a cycle is shown as a nanosecond.
_CYCLE = 1e-3
_PROCESS = 1
# The lane of the labels, above those of the modules.
_RUNS = 1
_THREADS = {lane: number for number, lane in enumerate(LANES, _RUNS + 1)}


class Timeline:
    """Consecutive runs: one lane per module, one event per instruction or wait for a token.

    Of the runs begun repeatedly under one label, only the first ``repeats`` are kept: they are much
    alike, and a browser cannot show gigabytes.
    """

    def __init__(self, repeats: int = 4) -> None:
        self.repeats = repeats
        self._label = ""
        self._begun: dict[str, int] = {}
        self._events: list[dict[str, Any]] = []
        self._end = 0

    def begin(self, label: str) -> None:
        """Label the next runs; the label is shown above them."""
        self._label = label
        self._begun[label] = self._begun.get(label, 0) + 1

    @property
    def repeated(self) -> int:
        """Number of times the most frequent label was begun; only ``repeats`` of them are kept."""
        return max(self._begun.values(), default=0)

    def add(
        self,
        config: Config,
        words: list[int],
        spans: Iterable[Span],
        cycles: int,
        estimated: bool = False,
    ) -> None:
        """Add a run of the 128-bit ``words`` that took ``cycles``, simulated or estimated."""
        if self._begun.get(self._label, 0) > self.repeats:
            return
        decode = isa.instruction_set(config).decode
        decoded: dict[int, tuple[str, dict[str, Any]]] = {}
        label = self._label or f"{len(words)} instructions"
        about = {"cycles": cycles, **({"estimated": True} if estimated else {})}
        self._events.append(_event(label, _RUNS, self._end, cycles, about))
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

    def write(self, file: IO[bytes], compressed: bool = False) -> None:
        """Write JSON text, or its gzip; a cycle is shown as a nanosecond."""
        if not compressed:
            file.writelines(self._lines())
            return
        with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
            packed.writelines(self._lines())

    def _lines(self) -> Iterator[bytes]:
        names = {_RUNS: "runs", **{number: lane for lane, number in _THREADS.items()}}
        head = [_about("process_name", _RUNS, {"name": "vta"})]
        for thread, name in names.items():
            head.append(_about("thread_name", thread, {"name": name}))
            head.append(_about("thread_sort_index", thread, {"sort_index": thread}))
        # Among events that begin together, the longest comes first, since it encloses the others.
        events = sorted(self._events, key=lambda event: (event["ts"], -event["dur"]))
        before = b'{"displayTimeUnit":"ns","traceEvents":['
        for event in (*head, *events):
            yield before + b"\n" + json.dumps(event, separators=(",", ":")).encode()
            before = b","
        yield b"\n]}\n"


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
