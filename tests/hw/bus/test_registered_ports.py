"""No output of the machine depends combinationally on an input, as AXI requires."""

from typing import Any

import pytest
from amaranth.hdl import ClockDomain, Fragment, Module, Signal
from amaranth.hdl._ir import build_netlist
from amaranth.hdl._nir import FlipFlop, SyncReadPort
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.system.parameters import SystemConfig
from amaranth_vta.hw.system.system import System
from amaranth_vta.hw.top import Top
from amaranth_vta.sim.machine.elaborate import pins


def combinational_paths(component: wiring.Component) -> list[str]:
    """Combinational paths from an input to an output: the signals on the path, for each such
    output.
    """
    inputs, outputs = pins(component)
    netlist = build_netlist(
        Fragment.get(component, None),
        {name: (value, None) for name, value in {**inputs, **outputs}.items()},
        missing_domain=lambda domain: ClockDomain(domain, reset_less=True),
    )
    names = {net: signal.name for signal, value in netlist.signals.items() for net in value}
    ports = netlist.top.ports_i.items()
    starts = {bit: name for name, (first, width) in ports for bit in range(first, first + width)}
    found = []
    for output, value in netlist.top.ports_o.items():
        came_from: dict[Any, Any] = dict.fromkeys(net for net in value if not net.is_const)
        waiting = list(came_from)
        while waiting:
            net = waiting.pop()
            if net.cell == 0:
                path = []
                step = came_from[net]
                while step is not None:
                    path.append(names.get(step, ""))
                    step = came_from[step]
                way = dict.fromkeys(filter(None, (starts[net.bit], *path, output)))
                found.append(" > ".join(way))
                break
            cell = netlist.cells[net.cell]
            if isinstance(cell, FlipFlop | SyncReadPort):
                continue
            for source, _ in cell.comb_edges_to(net.bit):
                if not source.is_const and source not in came_from:
                    came_from[source] = net
                    waiting.append(source)
    return found


@pytest.mark.parametrize("config", ["tiny", "tiny-extended"])
def test_no_input_reaches_an_output_without_a_register(config: str) -> None:
    assert combinational_paths(Top(PRESETS[config])) == []


def test_no_input_reaches_an_output_through_the_arbiter_of_several_machines() -> None:
    assert combinational_paths(System(SystemConfig(PRESETS["tiny"], 2))) == []


class Gate(wiring.Component):
    """A ready that depends combinationally on valid."""

    valid: In(1)
    full: In(1)
    ready: Out(1)
    free: Out(1)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        taken = Signal()
        m.d.comb += [taken.eq(self.valid & self.free), self.ready.eq(taken)]
        m.d.sync += self.free.eq(~self.full)
        return m


def test_a_path_is_found_and_named() -> None:
    assert combinational_paths(Gate()) == ["valid > taken > ready"]
