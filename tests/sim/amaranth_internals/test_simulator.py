"""The levelized engine: every signal always has the same value as in Amaranth's own engine."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from amaranth.hdl import Cat, ClockDomain, Const, Module, Print, Signal, Value, signed, unsigned
from amaranth.lib import data
from amaranth.lib.enum import Enum
from amaranth.lib.memory import Memory
from amaranth.sim import Simulator

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sim.amaranth_internals.simulator import simulator
from amaranth_vta.sim.machine import pysim
from amaranth_vta.sim.programs.random_programs import random_program

TINY = PRESETS["tiny"]

_Waves = dict[int, dict[str, str]]


def _waves(path: Path) -> tuple[list[str], _Waves]:
    """Variables of a waveform file, and changes at each time, without glitches.

    Parsed by hand: `vcd.reader` rejects ``$signal``, Amaranth's name for unnamed signals.
    """
    header, _, changes = path.read_text().partition("$enddefinitions $end")
    variables = [line for line in header.splitlines() if line.startswith(("$var", "$scope", "$up"))]
    before: dict[str, str] = {}
    waves: _Waves = {}
    for time, *lines in map(str.splitlines, changes.split("\n#")[1:]):
        after = {}
        for line in lines:
            if line.startswith("$"):  # begins or ends the values at the start
                continue
            value, name = line.split() if line[0] in "bs" else (line[0], line[1:])
            after[name] = value
        if real := {name: value for name, value in after.items() if before.get(name) != value}:
            waves[int(time)] = real
        before.update(after)
    return variables, waves


def _same_waves(folder: Path, simulate: Callable[[Any, Path], None]) -> int:
    """Compare the waves of both engines; returns the number of instants with changes."""
    found = []
    for name, make in (("amaranth", Simulator), ("levelized", simulator)):
        simulate(make, folder / f"{name}.vcd")
        found.append(_waves(folder / f"{name}.vcd"))
    assert found[1] == found[0]
    return len(found[0][1])


@pytest.mark.nightly  # daily tests compare smaller designs
def test_the_machine_behaves_as_in_amaranths_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = random_program(TINY, seed=3, length=3)

    def simulate(make: Any, path: Path) -> None:
        monkeypatch.setattr(pysim, "simulator", make)
        device = pysim.PysimDevice(TINY, image.dram.size, "random:1", waves=path)
        device.write(0, image.dram)
        assert device.run(image.insn_addr, image.insn_count).fault is None
        device.close()
        np.testing.assert_array_equal(device.read(0, image.dram.size), image.expected)

    assert _same_waves(tmp_path, simulate) > 300


class _Corners:
    """Features that the machine does not use: two clocks, asynchronous reset, asynchronous memory
    reads, a print.
    """

    def __init__(self) -> None:
        self.module = m = Module()
        m.domains.sync = fast = ClockDomain(async_reset=True)
        m.domains.slow = slow_domain = ClockDomain(clk_edge="neg")
        self.resets = [fast.rst, slow_domain.rst]
        self.random = random.Random(1)
        self.inputs = [Signal(4, name=f"input_{n}") for n in range(4)]
        a, b, c, d = self.inputs
        held, kept, count = Signal(4), Signal(4), Signal(signed(5), init=-3)
        low, high, both = Signal(4), Signal(4), Signal(8)
        m.submodules.memory = memory = Memory(shape=4, depth=12, init=range(12))
        write = memory.write_port()
        now = memory.read_port(domain="comb")
        later = memory.read_port(transparent_for=(write,))
        slow = memory.read_port(domain="slow")
        self.registers = [held, kept, later.data]
        m.d.comb += [
            Cat(write.addr, write.en).eq(Cat(a, b[0])),
            write.data.eq(low),
            now.addr.eq(a),
            later.addr.eq(a),
            later.en.eq(d[0]),
            slow.addr.eq(count[:4]),
            # They depend on slices of each other, not on the whole signals.
            low.eq(c ^ high[2:]),
            high[2:].eq(now.data[:2]),
            Cat(both[:4], both[4:]).eq(low * held),
        ]
        with m.Switch(a):
            with m.Case(1, 2):
                m.d.sync += held.eq(d)
            with m.Case("1--0"):
                m.d.sync += [held.eq(both[4:] + later.data), count.eq(count - 1)]
            with m.Default():
                m.d.comb += high[:2].eq(slow.data)
                with m.If(b[1]):
                    m.d.slow += kept.eq(held)
        sums = Signal(6)
        with m.If(d[3]):
            m.d.slow += sums.eq(sums + count)
        m.submodules.printer = printer = Module()
        with printer.If(d[3]):
            printer.d.slow += Print("carried")

    async def drive(self, context: Any) -> None:
        """Change one signal every other cycle, so that most groups are idle in most cycles."""
        for n in range(2000):
            await context.tick()
            if n % 20 == 19:
                for reset in self.resets:
                    context.set(reset, self.random.getrandbits(1))
            elif n % 2:
                signal = self.random.choice([*self.inputs, *self.registers])
                context.set(signal, self.random.getrandbits(4))


def test_what_the_machine_does_not_have_behaves_so_as_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = []

    def simulate(make: Any, path: Path) -> None:
        corners = _Corners()
        simulation = make(corners.module)
        simulation.add_clock(1e-6)
        simulation.add_clock(2.4e-6, domain="slow")
        simulation.add_testbench(corners.drive)
        simulation.run()
        simulation.reset()
        with simulation.write_vcd(str(path)):
            simulation.run()
        printed.append(capsys.readouterr().out.count("carried"))

    assert _same_waves(tmp_path, simulate) > 2000
    assert printed[0] == printed[1] > 50


class _Kind(Enum, shape=2):
    NONE = 0
    FIRST = 1
    SECOND = 2
    BOTH = 3


_FIELDS = data.StructLayout(
    {"small": 3, "below": signed(4), "kind": _Kind, "number": range(5), "flag": unsigned(1)}
)
_LAYOUT = data.StructLayout({"before": 2, "items": data.ArrayLayout(_FIELDS, 3), "after": 5})


def _set(make: Any, value: Any, *path: str | int) -> int | type[Exception]:
    """The bits of a signal of `_LAYOUT` after its part at ``path`` is set, or the error."""
    signal = Signal(_LAYOUT)
    found: list[int | type[Exception]] = []

    async def testbench(context: Any) -> None:
        context.set(Value.cast(signal), random.Random(1).getrandbits(len(Value.cast(signal))))
        part = reduce(getitem, path, signal)
        try:
            context.set(part, value)
        except (TypeError, ValueError, IndexError) as error:
            found.append(type(error))
        else:
            found.append(context.get(Value.cast(signal)))

    module = Module()
    module.d.comb += Signal().eq(signal.before[0])
    simulation = make(module)
    simulation.add_testbench(testbench)
    simulation.run()
    return found[0]


_ITEM = {"small": 5, "below": -3, "kind": _Kind.SECOND, "number": 4, "flag": True}


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"before": 3, "items": [_ITEM, {}, {"below": 7}], "after": 9}, []),
        ({"items": {1: _ITEM}}, []),
        ({"items": (_ITEM, _ITEM)}, []),
        (_ITEM, ["items", 1]),
        ([_ITEM, {"small": 9, "below": 100, "flag": 2}], ["items"]),
        ({"below": np.int8(-8), "small": np.uint8(255)}, ["items", 2]),
        ({"small": Const(2, 3)}, ["items", 2]),
        (_FIELDS.const({"small": 1}), ["items", 0]),
        (-1, ["items", 1, "below"]),
        (100, ["after"]),
        ({}, []),
        ({"nothing": 1}, []),
        ({"small": 1.5}, ["items", 0]),
        ({"kind": "SECOND"}, ["items", 0]),
        ([{}] * 4, ["items"]),
        ({"items": 7}, []),
        (7, []),
    ],
)
def test_values_of_layouts_are_those_of_amaranth(value: Any, path: list[str | int]) -> None:
    assert _set(simulator, value, *path) == _set(Simulator, value, *path)


def test_samples_are_those_of_amaranth() -> None:
    def sampled(make: Any) -> list[Any]:
        module, signal, count = Module(), Signal(_LAYOUT), Signal(signed(3))
        module.d.sync += count.eq(count - 1)
        module.d.comb += signal.eq(Cat(count, ~count, count))
        samples = count, count[1:], count + 1, signal, signal.items[0], signal.items[0].kind
        found: list[Any] = []

        async def testbench(context: Any) -> None:
            found.append(await context.tick().sample(*samples).until(count == -2))
            for _ in range(9):
                found.append(await context.tick().sample(*samples))
                # Logic has changed too in one engine, when registers change, and not in the other.
                found.append(await context.changed(count).sample(count, count[1:], Const(3)))

        simulation = make(module)
        simulation.add_clock(1e-6)
        simulation.add_testbench(testbench)
        simulation.run()
        return found

    found, expected = sampled(simulator), sampled(Simulator)
    assert found == expected
    assert repr(found) == repr(expected)
