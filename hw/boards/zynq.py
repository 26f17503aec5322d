"""Boards whose chip includes a processor, with their parameters for Vivado."""

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Processor:
    """The processor of a chip family: the IP ``ip`` in Vivado's block designs.

    Attributes
    ----------
    settings : of the IP: one port each for registers and memory, an interrupt, a clock.
        ``width`` and ``mhz`` stand for the memory port's width in bits and the clock in MHz
    widths : legal widths of the memory port
    external : arguments of the IP's automation for the processor's pins
    clock, reset : pins of the logic's clock and its active-low reset
    registers, memory : the two ports
    port_clocks : their clock inputs
    interrupt : interrupt input; ``interrupt_number`` is its number among the shared peripheral
        interrupts of the controller ``interrupt_parent``, as in the device tree
    registers_at : physical address of the machine's registers
    cells : 32-bit words per address in the device tree
    """

    ip: str
    settings: Mapping[str, str]
    widths: tuple[int, ...]
    external: str
    clock: str
    reset: str
    registers: str
    memory: str
    port_clocks: tuple[str, ...]
    interrupt: str
    interrupt_number: int
    interrupt_parent: str
    registers_at: int
    cells: int


# Zynq-7000 (UG585, PG082): the registers in the range of M_AXI_GP0, memory behind S_AXI_HP0.
ZYNQ_7000 = Processor(
    ip="processing_system7",
    settings={
        "PCW_USE_M_AXI_GP0": "1",
        "PCW_USE_S_AXI_HP0": "1",
        "PCW_S_AXI_HP0_DATA_WIDTH": "{width}",
        "PCW_USE_FABRIC_INTERRUPT": "1",
        "PCW_IRQ_F2P_INTR": "1",
        "PCW_FPGA0_PERIPHERAL_FREQMHZ": "{mhz}",
    },
    widths=(32, 64),
    external='make_external "FIXED_IO, DDR"',
    clock="FCLK_CLK0",
    reset="FCLK_RESET0_N",
    registers="M_AXI_GP0",
    memory="S_AXI_HP0",
    port_clocks=("M_AXI_GP0_ACLK", "S_AXI_HP0_ACLK"),
    interrupt="IRQ_F2P",
    interrupt_number=29,
    interrupt_parent="intc",
    registers_at=0x43C0_0000,
    cells=1,
)
# Zynq UltraScale+ (UG1085, PG201): Vivado names M_AXI_HPM0_FPD and S_AXI_HP0_FPD M_AXI_GP0 and
# S_AXI_GP2.
ZYNQ_ULTRASCALE = Processor(
    ip="zynq_ultra_ps_e",
    settings={
        "PSU__USE__M_AXI_GP0": "1",
        "PSU__USE__M_AXI_GP1": "0",
        "PSU__USE__M_AXI_GP2": "0",
        "PSU__USE__S_AXI_GP2": "1",
        "PSU__SAXIGP2__DATA_WIDTH": "{width}",
        "PSU__USE__IRQ0": "1",
        "PSU__FPGA_PL0_ENABLE": "1",
        "PSU__CRL_APB__PL0_REF_CTRL__FREQMHZ": "{mhz}",
    },
    widths=(32, 64, 128),
    external="",
    clock="pl_clk0",
    reset="pl_resetn0",
    registers="M_AXI_HPM0_FPD",
    memory="S_AXI_HP0_FPD",
    port_clocks=("maxihpm0_fpd_aclk", "saxihp0_fpd_aclk"),
    interrupt="pl_ps_irq0",
    interrupt_number=89,
    interrupt_parent="gic",
    registers_at=0xA000_0000,
    cells=2,
)


@dataclass(frozen=True)
class ZynqBoard:
    """A board with a ``processor`` in its chip, ``chip``; ``name`` selects it on the command line.

    ``board_part`` is the board's name in Vivado, if it has one; ``clock_hz`` is that of the
    machine, ``config`` the default preset. Programs use ``memory_bytes`` of DRAM from ``memory_at``
    on, which must be reserved from the kernel.
    """

    name: str
    title: str
    chip: str
    board_part: str
    processor: Processor
    clock_hz: int
    config: str
    memory_at: int
    memory_bytes: int

    vendor = "Vivado"
    loader = ""


_MIB = 1 << 20
# 512 MiB of DRAM, the last 64 for programs.
_PYNQ_Z1 = ZynqBoard(
    name="pynq-z1-ps",
    title="PYNQ-Z1 with its processor",
    chip="xc7z020clg400-1",
    board_part="www.digilentinc.com:pynq-z1:part0",
    processor=ZYNQ_7000,
    clock_hz=100_000_000,
    config="pynq-extended",
    memory_at=448 * _MIB,
    memory_bytes=64 * _MIB,
)

ZYNQ_BOARDS: dict[str, ZynqBoard] = {
    board.name: board
    for board in (
        _PYNQ_Z1,
        replace(
            _PYNQ_Z1,
            name="pynq-z2-ps",
            title="PYNQ-Z2 with its processor",
            board_part="tul.com.tw:pynq-z2:part0",
        ),
        # Both have 2 GiB of DRAM below 4 GiB; firmware uses the end of it.
        ZynqBoard(
            name="ultra96",
            title="Ultra96-V2",
            chip="xczu3eg-sbva484-1-i",
            board_part="avnet.com:ultra96v2:part0",
            processor=ZYNQ_ULTRASCALE,
            clock_hz=100_000_000,
            config="pynq-extended",
            memory_at=1536 * _MIB,
            memory_bytes=256 * _MIB,
        ),
        ZynqBoard(
            name="zcu104",
            title="ZCU104",
            chip="xczu7ev-ffvc1156-2-e",
            board_part="xilinx.com:zcu104:part0",
            processor=ZYNQ_ULTRASCALE,
            clock_hz=100_000_000,
            config="pynq-extended",
            memory_at=1536 * _MIB,
            memory_bytes=256 * _MIB,
        ),
    )
}
