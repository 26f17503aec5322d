"""A Vivado project that attaches the machine to the processor of a Zynq: `project_files`."""

from __future__ import annotations

from amaranth_vta.hw.boards.zynq import ZynqBoard
from amaranth_vta.hw.config import Config, ConfigError
from amaranth_vta.hw.registers import ADDRESS_WIDTH
from amaranth_vta.sim.machine.elaborate import verilog

_REGISTER_BYTES = 1 << ADDRESS_WIDTH


def project_files(board: ZynqBoard, config: Config) -> dict[str, str]:
    """The files of the project by name: the machine of ``config``, the block design, a script that
    builds the bitstream, and device tree nodes that expose the machine to Linux.

    Raises `ConfigError` if the processor has no memory port as wide as the machine's bus.
    """
    width = 8 * config.bus_bytes
    if width not in board.processor.widths:
        raise ConfigError(
            f"the bus of LOG_BUS_WIDTH = {config.log_bus_width} has {width} bits, and the memory "
            f"port of {board.title} {' or '.join(map(str, board.processor.widths))}"
        )
    return {
        "vta.v": verilog(config),
        "vta.tcl": block_design(board, width),
        "build_vta.sh": _BUILD,
        "vta.dtsi": _device_tree(board),
    }


def block_design(board: ZynqBoard, width: int) -> str:
    """The Tcl script that builds the bitstream, with a memory port of ``width`` bits."""
    processor = board.processor
    settings = "".join(
        f"    CONFIG.{name} {{{value.format(width=width, mhz=f'{board.clock_hz / 1e6:g}')}}} \\\n"
        for name, value in processor.settings.items()
    )
    port_clocks = " ".join(f"[get_bd_pins ps/{name}]" for name in processor.port_clocks)
    return _DESIGN.format(
        title=board.title,
        part=board.chip,
        board_part=board.board_part,
        ip=processor.ip,
        external=processor.external,
        settings=settings,
        clock=processor.clock,
        reset=processor.reset,
        registers=processor.registers,
        memory=processor.memory,
        port_clocks=port_clocks,
        interrupt=processor.interrupt,
        registers_at=f"{processor.registers_at:#x}",
    )


def _device_tree(board: ZynqBoard) -> str:
    processor = board.processor
    high = "0x0 " * (processor.cells - 1)
    return _NODES.format(
        port=f"mem:{processor.registers_at:#x},{board.memory_at:#x}+{board.memory_bytes:#x}",
        title=board.title,
        cells=processor.cells,
        memory=f"{board.memory_at:x}",
        memory_reg=f"{high}{board.memory_at:#x} {high}{board.memory_bytes:#x}",
        registers=f"{processor.registers_at:x}",
        parent=processor.interrupt_parent,
        number=processor.interrupt_number,
        registers_reg=f"{high}{processor.registers_at:#x} {high}{_REGISTER_BYTES:#x}",
    )


_BUILD = """\
#!/bin/sh
set -e
: ${VIVADO:=vivado}
"$VIVADO" -mode batch -log vta.log -source vta.tcl
"""
_DESIGN = """\
# The machine beside the processor of {title}: vta.bit, and vta.hwh, which pynq reads.
create_project vta vta -part {part} -force
# The newest version of the board that is installed; without it, the chip alone.
set board_part [lindex [lsort [get_board_parts -quiet "{board_part}:*"]] end]
if {{$board_part ne ""}} {{
    set_property board_part $board_part [current_project]
}}
add_files -norecurse vta.v
update_compile_order -fileset sources_1

create_bd_design system
create_bd_cell -type ip -vlnv xilinx.com:ip:{ip}:* ps
apply_bd_automation -rule xilinx.com:bd_rule:{ip} \\
    -config [list {external} apply_board_preset [expr {{$board_part ne ""}}]] [get_bd_cells ps]
set_property -dict [list \\
{settings}] [get_bd_cells ps]
create_bd_cell -type module -reference vta vta
create_bd_cell -type ip -vlnv xilinx.com:ip:proc_sys_reset:* reset
foreach name {{to_registers to_memory}} {{
    create_bd_cell -type ip -vlnv xilinx.com:ip:smartconnect:* $name
    set_property -dict {{CONFIG.NUM_SI 1 CONFIG.NUM_MI 1}} [get_bd_cells $name]
}}

connect_bd_net [get_bd_pins ps/{clock}] {port_clocks} \\
    [get_bd_pins vta/clk] [get_bd_pins reset/slowest_sync_clk] [get_bd_pins to_registers/aclk] \\
    [get_bd_pins to_memory/aclk]
connect_bd_net [get_bd_pins ps/{reset}] [get_bd_pins reset/ext_reset_in]
connect_bd_net [get_bd_pins reset/peripheral_aresetn] [get_bd_pins to_registers/aresetn] \\
    [get_bd_pins to_memory/aresetn]
connect_bd_net [get_bd_pins reset/peripheral_reset] [get_bd_pins vta/rst]
connect_bd_intf_net [get_bd_intf_pins ps/{registers}] [get_bd_intf_pins to_registers/S00_AXI]
connect_bd_intf_net [get_bd_intf_pins to_registers/M00_AXI] [get_bd_intf_pins vta/s_axil]
connect_bd_intf_net [get_bd_intf_pins vta/m_axi] [get_bd_intf_pins to_memory/S00_AXI]
connect_bd_intf_net [get_bd_intf_pins to_memory/M00_AXI] [get_bd_intf_pins ps/{memory}]
connect_bd_net [get_bd_pins vta/irq] [get_bd_pins ps/{interrupt}]
assign_bd_address -offset {registers_at} -range 4K \\
    -target_address_space [get_bd_addr_spaces ps/Data] [get_bd_addr_segs vta/s_axil/reg0]
assign_bd_address
validate_bd_design
save_bd_design

set design [get_files system.bd]
add_files -norecurse [make_wrapper -files $design -top]
set_property top system_wrapper [current_fileset]
launch_runs impl_1 -to_step write_bitstream
wait_on_run impl_1
# A bitstream that misses its clock would fail at random.
if {{[get_property PROGRESS [get_runs impl_1]] ne "100%"}} {{
    error "implementation failed; see vta/vta.runs/impl_1/runme.log"
}}
foreach {{slack what}} {{STATS.WNS setup STATS.WHS hold}} {{
    set worst [get_property $slack [get_runs impl_1]]
    if {{$worst < 0}} {{
        error "the design misses its $what times by [expr {{-$worst}}] ns; vta.bit is not written"
    }}
}}
file copy -force vta/vta.runs/impl_1/system_wrapper.bit vta.bit
foreach folder {{vta.gen vta.srcs}} {{
    foreach found [glob -nocomplain vta/$folder/sources_1/bd/system/hw_handoff/system.hwh] {{
        file copy -force $found vta.hwh
    }}
}}
"""
_NODES = """\
/* For the device tree of {title}.
 *
 * Keeps Linux out of the memory of programs, and hands it out with the machine's registers as a UIO
 * device. The kernel's command line must have uio_pdrv_genirq.of_id=generic-uio; then
 * VTA_PORT=uio:/dev/uio0, or whichever number it has. Without UIO:
 * VTA_PORT={port} */
/ {{
    reserved-memory {{
        #address-cells = <{cells}>;
        #size-cells = <{cells}>;
        ranges;
        vta@{memory} {{
            reg = <{memory_reg}>;
            no-map;
        }};
    }};
    vta@{registers} {{
        compatible = "generic-uio";
        reg = <{registers_reg}>, <{memory_reg}>;
        interrupt-parent = <&{parent}>;
        interrupts = <0 {number} 4>; /* shared peripheral interrupt, high level */
    }};
}};
"""
