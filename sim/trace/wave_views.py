"""Save files for GTKWave and Surfer: the signals of the machine and of its board by module, in the
order of the pipeline, with the names of enumerated values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from amaranth_vta.hw import isa

from .wave_file import WaveSignal, signals_of

GTKWAVE, SURFER = "gtkwave.gtkw", "surfer.sucl"
# Folder of the names of values for Surfer, which looks for it below the current folder.
_MNEMONICS = Path(".surfer") / "mnemonic"
# Names of values by their file, and the number of bits of all of them.
_NAMES: dict[str, type[IntEnum]] = {
    "opcode": isa.Opcode,
    "cause": isa.Cause,
    "operation": isa.AluOp,
}
VALUE_BITS = 3
# GTKWave's flags of a trace: right-justified, with values in hexadecimal, in binary for a single
# bit, replaced by names from a file; and the begin and the end of a group.
_RIGHT, _HEX, _BINARY, _NAMED = 0x20, 0x2, 0x8, 0x2000
_GROUP_BEGINS, _GROUP_ENDS = 0x800200, 0x1000200


@dataclass(frozen=True)
class _Shown:
    """Signals of a group: those called ``names``, the lowest bits of ``sliced`` as an opcode."""

    group: str
    scopes: tuple[str, ...]
    names: tuple[str, ...]
    sliced: str = ""


_EXECUTED = (
    *("insn__valid", "insn__ready", "activity__index", "activity__unit", "activity__starts"),
    *("activity__busy", "activity__ends", "activity__lacks_prev", "activity__lacks_next"),
    *("status__overflowing", "status__accessing", "fault__valid", "fault__cause"),
)
_CHANNELS = tuple(
    f"m_axi__{name}"
    for name in (
        *("arvalid", "arready", "araddr", "arlen", "rvalid", "rready", "rdata", "rlast"),
        *("awvalid", "awready", "awaddr", "awlen", "wvalid", "wready", "wdata", "bvalid"),
    )
)
# By group: the ends of the paths of its scope, of which the first found counts, and its signals.
_SHOWN = (
    _Shown("serial line", ("vta.system",), ("rx", "tx")),
    _Shown(
        "link",
        ("system.link",),
        (
            *("request__valid", "request__ready", "done", "data", "error"),
            *("i__valid", "i__payload", "o__valid", "o__ready", "o__payload"),
        ),
    ),
    _Shown("run", ("core",), ("launch", "busy", "done", "stopped", "fault__cause")),
    _Shown(
        "fetch",
        ("core.machine.fetch",),
        ("activity__index", "activity__starved", "activity__blocked", "activity__hands_over"),
    ),
    _Shown("load", ("core.machine.load.order",), _EXECUTED, "insn__payload"),
    _Shown("load to compute", ("core.machine.load_to_compute",), ("count",)),
    _Shown("compute to load", ("core.machine.compute_to_load",), ("count",)),
    _Shown("compute", ("core.machine.compute.order",), _EXECUTED, "insn__payload"),
    _Shown("GEMM", ("core.machine.compute.gemm",), ("i__valid", "i__ready", "i__payload")),
    _Shown(
        "ALU", ("core.machine.compute.alu",), ("i__valid", "i__ready", "operation", "i__payload")
    ),
    _Shown("compute to store", ("core.machine.compute_to_store",), ("count",)),
    _Shown("store to compute", ("core.machine.store_to_compute",), ("count",)),
    _Shown("store", ("core.machine.store.order",), _EXECUTED, "insn__payload"),
    _Shown("memory bus", ("system.machine", "pins.vta", "bench.top"), _CHANNELS),
    _Shown(
        "SDRAM",
        ("system.memory.controller",),
        tuple(f"pins__{name}" for name in ("command", "ba", "a", "dqm", "dq_o", "dq_oe", "dq_i")),
    ),
)
# The names of values, by signal.
_VALUES = {"fault__cause": "cause", "operation": "operation"}


@dataclass(frozen=True)
class _Trace:
    """A signal in a view. With ``values``, a name in `_NAMES`, these replace its values; with
    ``is_slice`` it is the lowest bits of the signal.
    """

    signal: WaveSignal
    values: str = ""
    is_slice: bool = False


def write_views(waves: Path, folder: Path) -> None:
    """Write the save files for the wave file ``waves`` into ``folder``, which is created:
    `GTKWAVE`, `SURFER`, and the names of values. Signals that the file lacks are left out. Raises
    `WaveError` for a file that is incomplete.
    """
    groups = list(_groups(signals_of(waves)))
    folder = folder.resolve()
    (folder / _MNEMONICS).mkdir(parents=True, exist_ok=True)
    for name, values in _NAMES.items():
        lines = "".join(f"{value:x} {value.name}\n" for value in values)
        (folder / f"{name}.txt").write_text(lines, encoding="utf-8")
        head = f"Name: {name}\nBits: {VALUE_BITS}\n"
        (folder / _MNEMONICS / f"{name}.txt").write_text(head + lines, encoding="utf-8")
    (folder / GTKWAVE).write_text(_gtkwave(groups, waves.resolve(), folder), encoding="utf-8")
    (folder / SURFER).write_text(_surfer(groups), encoding="utf-8")


def _groups(signals: Sequence[WaveSignal]) -> Iterator[tuple[str, list[_Trace]]]:
    scopes: dict[str, dict[str, WaveSignal]] = {}
    for signal in signals:
        scopes.setdefault(signal.scope, {})[signal.name] = signal
    for shown in _SHOWN:
        found = next(
            (
                scopes[path]
                for end in shown.scopes
                for path in sorted(scopes, key=len)
                if f".{path}".endswith(f".{end}")
            ),
            {},
        )
        traces = [
            _Trace(found[name], _VALUES.get(name, "")) for name in shown.names if name in found
        ]
        if shown.sliced in found:
            traces.insert(0, _Trace(found[shown.sliced], "opcode", is_slice=True))
        if traces:
            yield shown.group, traces


def _gtkwave(groups: Sequence[tuple[str, list[_Trace]]], waves: Path, folder: Path) -> str:
    lines = [f'[dumpfile] "{waves}"']
    for group, traces in groups:
        lines += [f"@{_GROUP_BEGINS:x}", f"-{group}"]
        for trace in traces:
            signal, named = trace.signal, bool(trace.values) and not trace.signal.is_text
            form = _BINARY if signal.bits == 1 else _HEX
            lines.append(f"@{_RIGHT | form | (_NAMED if named else 0):x}")
            if named:
                lines.append(f"^1 {folder / f'{trace.values}.txt'}")
            lines.append(_traced(trace))
        lines += [f"@{_GROUP_ENDS:x}", f"-{group}"]
    return "\n".join(lines) + "\n"


def _traced(trace: _Trace) -> str:
    """The signal in GTKWave's notation; bits are counted from the left."""
    signal = trace.signal
    path = signal.path if signal.bits == 1 else f"{signal.path}[{signal.bits - 1}:0]"
    if not trace.is_slice:
        return path
    bits = " ".join(f"({at}){path}" for at in range(signal.bits - VALUE_BITS, signal.bits))
    return f"#{{{signal.scope}.{trace.values}[{VALUE_BITS - 1}:0]}} {bits}"


def _surfer(groups: Sequence[tuple[str, list[_Trace]]]) -> str:
    """Commands that add dividers and signals, and then select the names of values: an item is
    addressed by its number, in hexadecimal with the letters a to p.
    """
    lines: list[str] = []
    formats: dict[int, str] = {}
    for group, traces in groups:
        lines.append(f"divider_add {group}")
        for trace in traces:
            if trace.values and not trace.is_slice and not trace.signal.is_text:
                formats[len(lines)] = trace.values
            lines.append(f"variable_add {trace.signal.path}")
    digits = len(f"{len(lines):x}")
    for item, values in formats.items():
        label = "".join(chr(ord("a") + int(digit, 16)) for digit in f"{item:0{digits}x}")
        lines += [f"item_focus {label}", f"item_set_format {values}"]
    return "\n".join([*lines, "item_unfocus", "zoom_fit"]) + "\n"
