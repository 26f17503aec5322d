"""Bugs in the hardware, all in one simulator, and which layer of checks catches each.

The layers, in this order: conformance vectors; legal random programs; faulty programs; the safety
tests (resets, watchdog, interrupts, registers, memory errors); cycles and counters, compared with
golden files; all of these but the safety tests on a machine with a wide bus; and finally the tests
of the module in Amaranth's simulator.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from amaranth.hdl import Instance, Mux, Signal, Value, ValueCastable

from .planting import Bug, Kind, Plants, Verdict, install, is_named, sample
from .processes import judge_each
from .software import module_tests

if TYPE_CHECKING:
    from amaranth_vta.hw.config import Config

# Maximum number of bugs per hardware module, in addition to the named ones.
_PER_FILE = 6
_VARIABLE = "VTA_BUG"
_PROGRAMS = 40
# Fault kinds with many variants.
_OFTEN = ("illegal_instruction", "transfer_out_of_range", "bus_error")
# Maximum micro-ops per program, since every program runs for every bug.
_MAX_UOPS = 4000
# A machine is polled every 100,000 cycles and hangs if it is not done after this many polls; no
# program needs half as many.
_MAX_POLLS = 10

NAMED = (
    # Issue goes on after a refused instruction, and after a unit's failure.
    ("issue/in_order.py", "refused.eq(cause != 0)", "refused.eq(0)"),
    ("issue/in_order.py", "refused.eq(1)", "refused.eq(0)"),
    # GEMM enters a bank in which the ALU still writes; forwarding ignores the bank.
    ("compute.py", "alu.busy_banks.bit_select(gemm_bank, 1)", "0"),
    ("compute.py", "gemm.busy_banks.bit_select(alu_bank, 1)", "0"),
    (
        "datapath/accumulators.py",
        "write.index == port.index",
        "write.index[:-2] == port.index[:-2]",
    ),
    ("datapath/gemm.py", "busy_banks(stages[:-2])", "busy_banks(stages[:-3])"),
    (
        "datapath/alu.py",
        "busy_banks([entering, *stages[:-1]])",
        "busy_banks([entering, *stages[:-2]])",
    ),
    # A parameter of REQUANTIZE is read before its write.
    ("datapath/sources.py", "self.asks & ~self.waits", "self.asks"),
    ("datapath/hazards.py", "hits[1:-1]", "0"),
    # Rows longer than a scratchpad are not detected.
    ("dma/extent.py", "(rows_wide > deepest) | (columns_wide > deepest)", "0"),
    # A read error is detected only on the last beat of a burst, or not at all; the same for SLVERR.
    ("dma/loader.py", "beat.payload.error", "(beat.payload.error & beat.payload.last)"),
    ("bus/master.py", "bus.rresp[1]", "(bus.rresp == 3)"),
    ("bus/master.py", "bus.bresp[1]", "(bus.bresp == 3)"),
    # Addresses are truncated.
    *(
        ("dma/transfer.py", "base + (command.dram_base << kind.log_bytes)", text.format(bits))
        for bits in (23, 28, 32, 33)
        for text in ("(base + (command.dram_base << kind.log_bytes))[:{}]",)
    ),
    ("fetch.py", "self.insn_addr >> 4", "(self.insn_addr >> 4)[:28]"),
    # A deadlock is reported too early; a launch together with reset counts.
    ("core.py", "quiet_cycles == self._QUIET_CYCLES", "quiet_cycles == 1"),
    ("top.py", "asked & ~reset", "asked"),
    # A bit of the pending interrupts stays or is lost.
    ("top.py", "pending & ~registers.interrupt_pending_clear[:len(bits)]", "pending"),
    ("top.py", "Cat(ends, failed) | kept", "Cat(ends, failed)"),
    # The high word of a count is of another moment, or of another counter.
    ("bus/csr.py", "read & counts & ~is_high", "0"),
    ("bus/csr.py", "latched_number >> 1 == number >> 1", "1"),
    # Counters are read before they are complete.
    ("bus/csr.py", "self.counters_ready | ~of_counter", "1"),
    # Of two roundings, one is omitted or goes the wrong way, or too many bits decide.
    ("datapath/requantize.py", "Mux(twice, ~negative, n[0])", "Mux(twice, 1, n[0])"),
    ("datapath/requantize.py", "Mux(twice, ~negative, n[0])", "n[0]"),
    ("datapath/requantize.py", "twice & (shift == 0)", "0"),
    ("datapath/requantize.py", "shift >= place", "shift > place"),
    # Hazards are lost at one distance.
    *(
        ("datapath/hazards.py", found, f"({found}) & (write is not writes[{place}])")
        for found in ("write.dst == item.indices.dst", "write.dst == item.indices.src")
        for place in (0, -1)
    ),
    # A beat of several elements is treated as its first element.
    ("compute.py", "load.index + element", "load.index"),
    ("datapath/accumulators.py", "write.index + element", "write.index"),
    # An error in a beat of a gathered element is lost.
    ("dma/loader.py", "beat.payload.error", "(beat.payload.error & ~gathers)"),
    # The count of bursts wraps to 0 at the maximum in flight.
    (
        "counters/events.py",
        "next_count(under_way, begins, ends)",
        "next_count(under_way, begins, ends)[:3]",
    ),
    # Rules of extensions.
    (
        "datapath/alu.py",
        "item.context.immediate[config.acc.index_width:]",
        "item.context.immediate[config.acc.index_width:-1]",
    ),
    ("interfaces.py", "bits & uncovered != 0", "0"),
)
# Modules and packages shared with the model, which would have the same bug.
_SHARED = tuple(
    f"amaranth_vta.hw.{name}."
    for name in (
        "config",
        "index_widths",
        "isa",
        "microarchitecture",
        "registers",
        "tiles",
        "timing",
    )
)


def is_hardware(module: str) -> bool:
    """Whether bugs are planted in ``module``: in hardware, but not in what the model shares."""
    return module.startswith("amaranth_vta.hw.") and not f"{module}.".startswith(_SHARED)


class Design:
    """Machines with bugs, one of which `SELECT` enables: a small machine with all extensions, and
    the same with a wide bus.
    """

    def __init__(self, per_file: int = _PER_FILE) -> None:
        self._select = Signal(16, name="bug")
        self._live: set[int] = set()
        self._chosen: dict[int, int] = {}
        self.plants = Plants(self._apply, NAMED)
        install(is_hardware, self.plants)
        from amaranth_vta.hw.config import PRESETS
        from tests.support.corners import CORNERS

        self.configs = (PRESETS["tiny-extended"], CORNERS["bus256-extended"])
        # The bugs of each machine.
        self.live: list[set[int]] = []
        for config in self.configs:
            self._live = set()
            self._elaborate(config)
            self.live.append(self._live)
        self._chosen = {bug: at for at, bug in enumerate(self._choose(per_file), 1)}
        self.verilog = [self._elaborate(config) for config in self.configs]

    @property
    def bugs(self) -> Iterator[tuple[int, Bug, list[bool]]]:
        """Each bug with its number, and whether each machine has it."""
        for number, at in self._chosen.items():
            yield at, self.plants.bugs[number], [number in live for live in self.live]

    def _apply(self, number: int, original: Any, planted: Callable[[], Any]) -> Any:
        bug = self.plants.bugs[number]
        is_constant = isinstance(original, int) and ".eq(" in bug.planted
        if not is_constant and not isinstance(original, Value | ValueCastable):
            return original
        if bug.kind in (Kind.INDEX, Kind.SIGN) and number not in self._live:
            try:
                Value.cast(planted())
            except (IndexError, KeyError, TypeError):
                return original  # it has no first element, or no lower bits
        self._live.add(number)
        if number not in self._chosen:
            return original
        value = Value.cast(original)
        width, shape = len(value), value.shape()
        chosen = Mux(self._select == self._chosen[number], planted(), value)
        if bug.kind is Kind.STALE:
            return chosen
        result: Any = (chosen if len(chosen) >= width else Value.cast(chosen))[:width]
        if shape.signed:
            result = result.as_signed()
        if isinstance(original, ValueCastable):
            result = original.shape()(result)
        return result

    def _choose(self, per_file: int) -> Iterator[int]:
        """The named bugs, and for each module ``per_file`` others plus some of other kinds; a third
        as many of bugs that only the second machine contains.
        """
        files: dict[tuple[int, str], list[int]] = {}
        for number in sorted(set.union(*self.live)):
            bug = self.plants.bugs[number]
            if is_named(bug, NAMED):
                yield number
            else:
                machine = 0 if number in self.live[0] else 1
                files.setdefault((machine, bug.file), []).append(number)
        for (machine, _), numbers in files.items():
            bugs = ((number, self.plants.bugs[number]) for number in numbers)
            count = -(-per_file // 3) if machine else per_file
            yield from (number for number, _ in sample(bugs, count))

    def _elaborate(self, config: Config) -> str:
        from amaranth_vta.hw.top import Top
        from amaranth_vta.sim.machine.elaborate import component_verilog

        select = self._select

        class Planted(Top):
            def elaborate(self, platform: Any) -> Any:
                m = super().elaborate(platform)
                m.submodules.bug = Instance("chosen_bug", o_number=select)
                return m

        return component_verilog(Planted(config), "vta") + _CHOOSER


_CHOOSER = f"""
module chosen_bug(output [15:0] number);
  reg [15:0] chosen;
  initial chosen = $c("atoi(std::getenv(\\"{_VARIABLE}\\"))");
  assign number = chosen;
endmodule
"""


class Layers:
    """The checks on a simulator of ``config`` from ``verilog``; an environment variable selects its
    bug.
    """

    def __init__(self, config: Config, verilog: str, safety: bool) -> None:
        from amaranth_vta.sim.fuzz.reference import reference_of
        from amaranth_vta.sim.machine.rtl.build import library
        from amaranth_vta.sim.programs.image import ProgramImage
        from tests.support.golden import VECTORS

        self._config, self._library, self._safety = config, library(verilog), safety
        vectors = [
            replace(ProgramImage.load(path), config=self._config)
            for path in sorted(VECTORS.glob("tiny-*.npz"))
        ]
        self._programs: dict[str, list[Any]] = {
            "vectors": [(image, reference_of(image, True), "ideal") for image in vectors],
            "legal programs": [
                (image, reference_of(image, True), dram) for image, dram in self._legal_programs()
            ],
            "faulty programs": [
                (image, reference_of(image), dram) for image, dram in self._faulty_programs()
            ],
        }
        self._timed: list[Any] | None = None
        self._timed = self._time()

    def _legal_programs(self) -> Iterator[tuple[Any, str]]:
        from amaranth_vta.sim.programs.random_programs import legal_program, most_origin

        most = most_origin(self._config, 1 << 24)
        for seed in range(_PROGRAMS):
            origin = (0, most, 1 << 12 + seed)[seed % 3]
            image = legal_program(self._config, seed, 40, origin=min(origin, most))
            if self._uops(image) < _MAX_UOPS:
                yield image, ("ideal", "ddr", f"random:{seed}")[seed // 3 % 3]

    def _faulty_programs(self) -> Iterator[tuple[Any, str]]:
        from amaranth_vta.sim.programs.faults import FAULT_KINDS, faulty_program
        from amaranth_vta.sim.programs.random_programs import most_origin

        chance = random.Random(1)
        most = most_origin(self._config, 1 << 24)
        for kind in FAULT_KINDS:
            for seed in range(_PROGRAMS if kind in _OFTEN else _PROGRAMS // 8):
                kinds = [kind, *chance.sample(FAULT_KINDS, chance.choice((0, 0, 1)))]
                image = faulty_program(self._config, kinds, seed, (0, most)[seed % 2])
                yield image, ("ideal", "ddr", f"random:{seed}")[seed % 3]

    def _uops(self, image: Any) -> int:
        from amaranth_vta.hw import isa

        decode = isa.instruction_set(self._config).decode
        return sum(getattr(decode(bits), "uops", 0) for bits in image.instruction_bits())

    def catches(self) -> tuple[str | None, str]:
        """The first layer that catches the bug, and how; None if no layer does."""
        from amaranth_vta.sim.fuzz.comparison import differences

        for layer, programs in self._programs.items():
            for at, (image, reference, dram) in enumerate(programs):
                try:
                    device = self._device(image, dram)
                    found, _ = differences(device, image, reference, seconds=None)
                except Exception as error:
                    found = [f"{type(error).__name__}: {error}"]
                if found:
                    return layer, f"program {at}: {found[0]}"
        for name, test in self._safety_tests() if self._safety else ():
            try:
                test()
            except BaseException as error:
                return "safety tests", f"{name}: {type(error).__name__}"
        timed = self._time()
        assert self._timed is not None
        for one, other in zip(self._timed, timed, strict=True):
            if one["cycles"] != other["cycles"]:
                return "cycles", f"{other['cycles']}, not {one['cycles']}"
            for name, value in one.items():
                if other[name] != value:
                    return "counters", f"{name} is {other[name]}, not {value}"
        return None, ""

    def _time(self) -> list[dict[str, int]]:
        results = []
        for image, _, _ in self._programs["legal programs"][:8]:
            for dram in ("ideal", "ddr"):
                device = self._device(image, dram)
                device.write(image.origin, image.dram)
                results.append(device.run(image.insn_addr, image.insn_count).counters)
        return results

    def _device(self, image: Any, dram: str) -> Any:
        from amaranth_vta.sim.machine.dram import memory_timing
        from amaranth_vta.sim.machine.host import SimulatedDevice, StuckError
        from amaranth_vta.sim.machine.rtl.engine import CompiledMachine

        class PatientMachine(CompiledMachine):
            polls = 0

            def advance(self, most: int) -> bool:
                self.polls += 1
                if self.polls > _MAX_POLLS:
                    raise StuckError(f"the run does not end within {_MAX_POLLS * most:,} cycles")
                return super().advance(most)

        device = SimulatedDevice(self._config, image.dram.size, origin=image.origin)
        device.attach(
            PatientMachine(self._library, device.memory, memory_timing(dram), origin=image.origin)
        )
        return device

    def _safety_tests(self) -> list[tuple[str, Callable[[], None]]]:
        from tests.sim.machine.rtl import test_safety as safety
        from tests.support import register_bench

        vars(register_bench)["machine_library"] = lambda *_: self._library
        vars(safety)["TINY"] = self._config
        tests: list[tuple[str, Callable[[], None]]] = []
        for name, test in vars(safety).items():
            if not name.startswith("test_") or "software_refuses" in name:
                continue
            marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
            sets = marks[0].args[1] if marks else [()]
            if "reset_in_the_middle" in name:
                sets = ["random:1"]  # only one of several slow cases
            for values in sets:
                given = values if isinstance(values, tuple) else (values,)
                tests.append((name, lambda test=test, given=given: test(*given)))  # type: ignore[misc]
        return tests


def judge(design: Design, jobs: int, wanted: Callable[[Bug], bool]) -> Iterator[Verdict]:
    """The verdicts on the bugs of ``design`` that are ``wanted``."""
    chosen = [(bug, (number, live)) for number, bug, live in design.bugs if wanted(bug)]
    if not chosen:
        return iter(())
    os.environ[_VARIABLE] = "0"
    machines = [
        (config.bus_bytes, Layers(config, verilog, safety=at == 0))
        for at, (config, verilog) in enumerate(zip(design.configs, design.verilog, strict=True))
    ]

    def try_(bug: Bug, number: int, live: Sequence[bool]) -> Verdict:
        os.environ[_VARIABLE] = str(number)
        for (bus_bytes, layers), is_live in zip(machines, live, strict=True):
            layer, what = layers.catches() if is_live else (None, "")
            if layer is not None:
                what = f"{8 * bus_bytes} bits: {what}"
                return Verdict(bug, layer, re.sub(r"\s+", " ", what)[:160])
        return module_tests(bug, NAMED)

    return judge_each(try_, chosen, jobs, "fork")
