"""Supported boards, and the top-level design for a board."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from amaranth.build import Attrs, Clock, Pins, Resource, Subsignal
from amaranth.hdl import Module, Signal
from amaranth.lib import io, wiring
from amaranth.lib.wiring import connect
from amaranth.vendor import LatticeECP5Platform

from amaranth_vta.hw.config import Config

from . import protocol
from .clock import drive_sync
from .processor.flash import Ecp5FlashPins
from .processor.parameters import SoftProcessor
from .registers import Surroundings
from .sdram.chip import SdramChip
from .sdram.pins import SdramPins
from .system import BoardSystem

_KIB = 1024
_NEXTPNR = "nextpnr-himbaechel-gowin"
_PLACE_AND_ROUTE = """
{{invoke_tool("nextpnr-himbaechel-gowin")}}
    {{quiet("--quiet")}}
    {{get_override("nextpnr_opts")|options}}
    --log {{name}}.tim
    --device {{platform.part}}
    --vopt family={{platform.family}}
    --vopt cst={{name}}.cst
    --freq {{platform.default_clk_frequency / 1000000}}
    --json {{name}}.syn.json
"""


@dataclass(frozen=True)
class Board:
    """An FPGA board, selected by ``name`` on the command line.

    ``oscillator_hz`` is the frequency of the default clock, ``clock_hz`` that of the machine;
    ``memory_bytes`` is the size of the memory, which is on the FPGA unless ``sdram`` describes a
    chip; ``loader`` is the board's name in openFPGALoader, ``config`` the default preset, and
    ``capacity`` the number of cells by kind. ``firmware_bytes`` is the size of the block RAM for a
    processor's firmware, or 0 if there is no room for a processor; ``flash_offset`` is the address
    of a network's data in the flash memory after the bitstream, or 0 if the processor cannot read
    it. With ``vendor``, only a project for that vendor's tool can be written.
    """

    name: str
    title: str
    chip: str
    platform: Callable[[], Any]
    oscillator_hz: int
    clock_hz: int
    memory_bytes: int
    loader: str
    config: str
    capacity: Mapping[str, int]
    firmware_bytes: int = 0
    flash_offset: int = 0
    vendor: str = ""
    sdram: SdramChip | None = None


class BoardDesign(wiring.Component):
    """The machine of ``config`` on ``board``, with pins, a clock of ``clock_hz``, and memory; with
    ``firmware`` also a processor that runs it.

    Timing: that of `BoardSystem`, which stays in reset until the clock is stable.
    """

    def __init__(
        self, board: Board, config: Config, clock_hz: int, firmware: bytes | None = None
    ) -> None:
        self._board = board
        self._config = config
        self._clock_hz = clock_hz
        self._firmware = firmware
        super().__init__({})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        board = self._board
        clock_port = platform.request(platform.default_clk, dir="-")
        uart = platform.request("uart", 0, dir="-")
        m.submodules.clock_pin = clock_pin = io.Buffer("i", clock_port)
        oscillator = Signal()
        m.d.comb += oscillator.eq(clock_pin.i)
        clocks = board.oscillator_hz, self._clock_hz
        unstable = drive_sync(m, platform, oscillator, *clocks, board.sdram is not None)
        m.submodules.system = system = BoardSystem(
            self._config, surroundings(board, self._clock_hz, self._firmware)
        )
        if board.sdram is not None:
            ports = platform.request("sdram", 0, dir="-")
            m.submodules.sdram = sdram = SdramPins(board.sdram, ports)
            connect(m, system.sdram, sdram.bus)
        if self._firmware is not None and board.flash_offset:
            ports = platform.request("spi_flash", 0, dir="-")
            m.submodules.flash = flash = Ecp5FlashPins(ports)
            connect(m, system.flash, flash.bus)
        m.submodules.rx_pin = rx_pin = io.Buffer("i", uart.rx)
        m.submodules.tx_pin = tx_pin = io.Buffer("o", uart.tx)
        m.d.comb += [system.rst.eq(unstable), system.rx.eq(rx_pin.i), tx_pin.o.eq(system.tx)]
        return m


def surroundings(board: Board, clock_hz: int, firmware: bytes | None = None) -> Surroundings:
    """Surroundings of the machine on ``board``, with a processor if there is ``firmware``."""
    divisor = round(clock_hz / protocol.BAUD)
    processor = None
    if firmware is not None:
        processor = SoftProcessor(board.firmware_bytes, firmware, bool(board.flash_offset))
    return Surroundings(
        board.memory_bytes, clock_hz, divisor, sdram=board.sdram, processor=processor
    )


class ColorlightI5Platform(LatticeECP5Platform):
    """A Colorlight i5 on its extension board, whose debug adapter has the serial line.

    Pins as in https://github.com/wuxx/Colorlight-FPGA-Projects.
    """

    device = "LFE5U-25F"
    package = "BG381"
    speed = "6"
    default_clk = "clk25"
    resources = (
        Resource("clk25", 0, Pins("P3", dir="i"), Clock(25e6), Attrs(IO_TYPE="LVCMOS33")),
        Resource(
            "uart",
            0,
            Subsignal("rx", Pins("H18", dir="i")),
            Subsignal("tx", Pins("J17", dir="o")),
            Attrs(IO_TYPE="LVCMOS33"),
        ),
    )
    connectors = ()


def _ulx3s() -> Any:
    from amaranth_boards.ulx3s import ULX3S_85F_Platform

    return ULX3S_85F_Platform()


def _ecpix5() -> Any:
    from amaranth_boards.ecpix5 import ECPIX585Platform

    return ECPIX585Platform()


def _icebreaker() -> Any:
    from amaranth_boards.icebreaker import ICEBreakerPlatform

    return ICEBreakerPlatform()


def by_himbaechel(platform: type[Any]) -> type[Any]:
    """The ``platform`` of a board with a Gowin chip, adapted to nextpnr-himbaechel.

    Amaranth 0.5 calls nextpnr-gowin, which was removed from nextpnr and had different options. The
    target frequency is the oscillator's. The caller passes ``--write {name}.pnr.json`` to write the
    placed design, which gowin_pack reads.
    """

    class HimbaechelPlatform(platform):
        @property
        def required_tools(self) -> list[str]:
            return ["yosys", _NEXTPNR, "gowin_pack"]

        @property
        def command_templates(self) -> list[str]:
            synthesize, _, pack = self._apicula_command_templates
            return [synthesize, _PLACE_AND_ROUTE, pack]

    return HimbaechelPlatform


def _tang_primer_20k() -> Any:
    from amaranth_boards.tang_primer_20k import TangPrimer20kDockPlatform

    return by_himbaechel(TangPrimer20kDockPlatform)()


def _pynq() -> Any:
    from amaranth_boards.arty_z7 import ArtyZ720Platform

    # Same chip, oscillator and Pmod pins as the PYNQ; a Pmod USBUART plugs into the upper row of
    # Pmod A.
    platform = ArtyZ720Platform()
    platform.add_resources([_PMOD_UART])
    return platform


def _de10_nano() -> Any:
    from amaranth_boards.de10_nano import DE10NanoPlatform

    return DE10NanoPlatform()


_PMOD_UART = Resource(
    "uart",
    0,
    Subsignal("rx", Pins("Y16", dir="i")),
    Subsignal("tx", Pins("Y19", dir="o")),
    Attrs(IOSTANDARD="LVCMOS33"),
)
_UP5K = {"luts": 5_280, "ffs": 5_280, "dsps": 8, "brams": 30}
_ECP5_85F = {"luts": 83_640, "ffs": 83_640, "dsps": 156, "brams": 208}
_ECP5_25F = {"luts": 24_288, "ffs": 24_288, "dsps": 28, "brams": 56}

_GW2A_18 = {"luts": 20_736, "ffs": 15_552, "dsps": 48, "brams": 46}

_PYNQ_Z1 = Board(
    name="pynq-z1",
    title="PYNQ-Z1",
    chip="XC7Z020-1CLG400C",
    platform=_pynq,
    oscillator_hz=125_000_000,
    clock_hz=50_000_000,
    memory_bytes=256 * _KIB,
    loader="",
    config="tiny",
    capacity={},
    vendor="Vivado",
)

# Parameters that fit the 32 and 64 MiB chips of these boards: the longest of each time, and half of
# the columns of the larger chips (data sheets of Alliance AS4C32M16SB-7, ISSI IS42S16160G-7 and
# Winbond W9825G6KH-6).
_ULX3S_SDRAM = SdramChip(
    row_bits=13,
    column_bits=9,
    bank_bits=2,
    cas=2,
    wr=2,
    mrd=2,
    rcd=21,
    ras=42,
    rp=21,
    rfc=70,
    refresh_ms=64,
    power_up_us=200,
)
_ULX3S = Board(
    name="ulx3s",
    title="ULX3S",
    chip="LFE5U-85F-6BG381C",
    platform=_ulx3s,
    oscillator_hz=25_000_000,
    clock_hz=50_000_000,
    memory_bytes=256 * _KIB,
    loader="ulx3s",
    config="tiny",
    capacity=_ECP5_85F,
    firmware_bytes=64 * _KIB,
    # A bitstream of the LFE5U-85F has up to 1.9 MiB, and the smallest flash memory 4 MiB.
    flash_offset=2048 * _KIB,
)

BOARDS: dict[str, Board] = {
    board.name: board
    for board in (
        _ULX3S,
        replace(
            _ULX3S,
            name="ulx3s-sdram",
            title="ULX3S with its SDRAM",
            memory_bytes=_ULX3S_SDRAM.bytes,
            sdram=_ULX3S_SDRAM,
            config="ecp5-25f",
            firmware_bytes=128 * _KIB,
        ),
        Board(
            name="ecpix5",
            title="ECPIX-5",
            chip="LFE5UM5G-85F-8BG554I",
            platform=_ecpix5,
            oscillator_hz=100_000_000,
            clock_hz=40_000_000,
            memory_bytes=256 * _KIB,
            loader="ecpix5",
            config="tiny",
            capacity=_ECP5_85F,
            firmware_bytes=64 * _KIB,
        ),
        Board(
            name="colorlight-i5",
            title="Colorlight i5",
            chip="LFE5U-25F-6BG381C",
            platform=ColorlightI5Platform,
            oscillator_hz=25_000_000,
            clock_hz=25_000_000,
            memory_bytes=48 * _KIB,
            loader="colorlight-i5",
            config="ecp5-25f",
            capacity=_ECP5_25F,
        ),
        Board(
            name="tang-primer-20k",
            title="Tang Primer 20K",
            chip="GW2A-LV18PG256C8/I7",
            platform=_tang_primer_20k,
            oscillator_hz=27_000_000,
            clock_hz=27_000_000,
            memory_bytes=24 * _KIB,
            loader="tangprimer20k",
            config="ecp5-25f",
            capacity=_GW2A_18,
        ),
        Board(
            name="icebreaker",
            title="iCEBreaker",
            chip="iCE40UP5K-SG48",
            platform=_icebreaker,
            oscillator_hz=12_000_000,
            clock_hz=12_000_000,
            memory_bytes=4 * _KIB,
            loader="ice40_generic",
            config="tiny",
            capacity=_UP5K,
        ),
        _PYNQ_Z1,
        replace(_PYNQ_Z1, name="pynq-z2", title="PYNQ-Z2"),
        Board(
            name="de10-nano",
            title="DE10-Nano",
            chip="5CSEBA6U23I7",
            platform=_de10_nano,
            oscillator_hz=50_000_000,
            clock_hz=50_000_000,
            memory_bytes=256 * _KIB,
            loader="",
            config="tiny",
            capacity={},
            vendor="Quartus",
        ),
    )
}
