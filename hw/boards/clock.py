"""A board's clock: its oscillator, or a PLL driven by it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from amaranth.hdl import ClockDomain, ClockSignal, Const, Instance, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.cdc import FFSynchronizer
from amaranth.lib.wiring import In, Out

from amaranth_vta.errors import VtaError

# Clock domain that lags ``sync`` by a quarter cycle, on boards that need it.
QUARTER = "quarter"
# Limits of the EHXPLLL (Lattice FPGA-DS-02012, "sysCLOCK PLL Timing"), frequencies in MHz.
_ECP5_VCO = (400, 800)
_ECP5_COMPARED = (10, 400)
_ECP5_DIVIDERS = range(1, 129)


class ClockError(VtaError, ValueError):
    """A clock frequency that a board cannot generate."""


@dataclass(frozen=True)
class Dividers:
    """Dividers of a PLL: ``reference`` of its input and ``feedback`` of its output before the phase
    comparison, and ``output`` of its oscillator.
    """

    reference: int
    feedback: int
    output: int


def ecp5_dividers(source_hz: int, target_hz: int) -> Dividers:
    """Dividers that generate exactly ``target_hz``; raises `ClockError` if there are none."""
    possible = dict(_ecp5_clocks(source_hz))
    if target_hz in possible:
        return possible[target_hz]
    lower = [clock for clock in possible if clock < target_hz]
    higher = [clock for clock in possible if clock > target_hz]
    near = [f"{clock / 1e6:g}" for clock in (*sorted(lower)[-1:], *sorted(higher)[:1])]
    raise ClockError(
        f"a clock of {target_hz / 1e6:g} MHz cannot be made from the board's {source_hz / 1e6:g} "
        f"MHz; nearest: {' and '.join(near)} MHz"
    )


def _ecp5_clocks(source_hz: int) -> Iterator[tuple[int, Dividers]]:
    """The clocks in whole Hz that a PLL generates from ``source_hz``, the preferred dividers of
    each last.
    """
    for reference in reversed(_ECP5_DIVIDERS):
        if not _ECP5_COMPARED[0] <= source_hz / reference / 1e6 <= _ECP5_COMPARED[1]:
            continue
        for feedback in _ECP5_DIVIDERS:
            clock, rest = divmod(source_hz * feedback, reference)
            for output in () if rest else reversed(_ECP5_DIVIDERS):
                if _ECP5_VCO[0] <= clock / 1e6 * output <= _ECP5_VCO[1]:
                    yield clock, Dividers(reference, feedback, output)


class Ecp5Pll(wiring.Component):
    """An EHXPLLL; raises `ClockError` as `ecp5_dividers` does.

    Timing: ``clock`` must not be used before ``locked``, which is asynchronous.

    Ports
    -----
    source : the board's oscillator
    clock : the generated clock
    quarter : the same clock delayed by a quarter cycle, if ``with_quarter``
    locked : the clocks are stable
    """

    source: In(1)
    clock: Out(1)
    quarter: Out(1)
    locked: Out(1)

    def __init__(self, source_hz: int, target_hz: int, with_quarter: bool = False) -> None:
        self._dividers = ecp5_dividers(source_hz, target_hz)
        self._with_quarter = with_quarter
        super().__init__()

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        chosen = self._dividers
        # Phase that aligns output edges with input edges.
        aligned = chosen.output - 1
        second: dict[str, Any] = {}
        if self._with_quarter:
            # In cycles, and eighths of a cycle, of the PLL's oscillator.
            phase, eighths = divmod(8 * aligned + 8 * chosen.output // 4, 8)
            second = {
                "p_OUTDIVIDER_MUXB": "DIVB",
                "p_CLKOS_ENABLE": "ENABLED",
                "p_CLKOS_DIV": chosen.output,
                "p_CLKOS_CPHASE": phase,
                "p_CLKOS_FPHASE": eighths,
                "o_CLKOS": self.quarter,
            }
        m.submodules.pll = Instance(
            "EHXPLLL",
            ("a", "ICP_CURRENT", "12"),
            ("a", "LPF_RESISTOR", "8"),
            ("a", "MFG_ENABLE_FILTEROPAMP", "1"),
            ("a", "MFG_GMCREF_SEL", "2"),
            p_PLLRST_ENA="DISABLED",
            p_INTFB_WAKE="DISABLED",
            p_STDBY_ENABLE="DISABLED",
            p_DPHASE_SOURCE="DISABLED",
            p_OUTDIVIDER_MUXA="DIVA",
            p_CLKOP_ENABLE="ENABLED",
            p_CLKOP_DIV=chosen.output,
            p_CLKOP_CPHASE=aligned,
            p_CLKOP_FPHASE=0,
            p_FEEDBK_PATH="CLKOP",
            p_CLKI_DIV=chosen.reference,
            p_CLKFB_DIV=chosen.feedback,
            i_RST=0,
            i_STDBY=0,
            i_CLKI=self.source,
            o_CLKOP=self.clock,
            o_LOCK=self.locked,
            i_CLKFB=self.clock,
            i_PHASESEL0=0,
            i_PHASESEL1=0,
            i_PHASEDIR=1,
            i_PHASESTEP=1,
            i_PHASELOADREG=1,
            i_PLLWAKESYNC=0,
            i_ENCLKOP=0,
            **second,
        )
        return m


class XilinxPll(wiring.Component):
    """A PLLE2_BASE of the 7 series: 8 times ``source_hz``, divided by an integer. Raises
    `ClockError` if no integer divider yields ``target_hz``.

    Timing: ``clock`` must not be used before ``locked``, which is asynchronous.

    Ports
    -----
    source : the board's oscillator, 100 to 200 MHz
    clock : the generated clock
    locked : the clock is stable
    """

    source: In(1)
    clock: Out(1)
    locked: Out(1)

    _MULTIPLIER = 8

    def __init__(self, source_hz: int, target_hz: int) -> None:
        self._source_hz = source_hz
        self._divider, rest = divmod(self._MULTIPLIER * source_hz, target_hz)
        if rest or not 100_000_000 <= source_hz <= 200_000_000:
            raise ClockError(
                f"a clock of {target_hz / 1e6:g} MHz cannot be made from {source_hz / 1e6:g} MHz"
            )
        super().__init__()

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        feedback, made = Signal(), Signal()
        m.submodules.pll = Instance(
            "PLLE2_BASE",
            p_CLKIN1_PERIOD=1e9 / self._source_hz,
            p_CLKFBOUT_MULT=self._MULTIPLIER,
            p_CLKOUT0_DIVIDE=self._divider,
            i_CLKIN1=self.source,
            i_CLKFBIN=feedback,
            i_RST=0,
            i_PWRDWN=0,
            o_CLKFBOUT=feedback,
            o_CLKOUT0=made,
            o_LOCKED=self.locked,
        )
        m.submodules.buffer = Instance("BUFG", i_I=made, o_O=self.clock)
        return m


# By the name of the vendor's platform class in Amaranth.
_PLLS: dict[str, Any] = {"LatticePlatform": Ecp5Pll, "XilinxPlatform": XilinxPll}


def drive_sync(
    m: Module,
    platform: Any,
    pin: Signal,
    source_hz: int,
    target_hz: int,
    with_quarter: bool = False,
) -> Any:
    """Drive the domain ``sync`` of ``m`` with ``target_hz`` from the oscillator at ``pin``; returns
    whether the clock is still unstable. ``with_quarter`` also drives the domain `QUARTER`, which
    requires an ECP5. Raises `ClockError` if the board cannot generate these clocks.
    """
    m.domains.sync = ClockDomain("sync", reset_less=True)
    if target_hz == source_hz and not with_quarter:
        m.d.comb += ClockSignal("sync").eq(pin)
        return Const(0)
    kinds = [_PLLS[kind.__name__] for kind in type(platform).__mro__ if kind.__name__ in _PLLS]
    if not kinds:
        raise ClockError(
            f"the only clock of this board is its oscillator's {source_hz / 1e6:g} MHz"
        )
    if with_quarter:
        pll = Ecp5Pll(source_hz, target_hz, with_quarter=True)
        m.domains += ClockDomain(QUARTER, reset_less=True)
        m.d.comb += ClockSignal(QUARTER).eq(pll.quarter)
    else:
        pll = kinds[0](source_hz, target_hz)
    m.submodules.pll = pll
    m.d.comb += [pll.source.eq(pin), ClockSignal("sync").eq(pll.clock)]
    locked = Signal()
    m.submodules.locked = FFSynchronizer(pll.locked, locked)
    return ~locked
