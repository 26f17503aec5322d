// A small device with the machine's pins, to test what is around the machine: it copies words of
// 64 bits in bursts of 8. Registers: 0 control (bit 0 launches, bits 15:8 plant a fault), 4 status
// (bit 0 done, bit 1 a bus error), 8 source, 12 destination, 16 number of bursts.
module vta (
    input clk, input rst, output irq,
    output m_axi_awid, output [47:0] m_axi_awaddr, output [7:0] m_axi_awlen, output [2:0] m_axi_awsize,
    output [1:0] m_axi_awburst, output m_axi_awlock, output [3:0] m_axi_awcache, output [2:0] m_axi_awprot,
    output [3:0] m_axi_awqos, output m_axi_awvalid, input m_axi_awready,
    output [63:0] m_axi_wdata, output [7:0] m_axi_wstrb, output m_axi_wlast, output m_axi_wvalid, input m_axi_wready,
    input m_axi_bid, input [1:0] m_axi_bresp, input m_axi_bvalid, output m_axi_bready,
    output m_axi_arid, output [47:0] m_axi_araddr, output [7:0] m_axi_arlen, output [2:0] m_axi_arsize,
    output [1:0] m_axi_arburst, output m_axi_arlock, output [3:0] m_axi_arcache, output [2:0] m_axi_arprot,
    output [3:0] m_axi_arqos, output m_axi_arvalid, input m_axi_arready,
    input m_axi_rid, input [63:0] m_axi_rdata, input [1:0] m_axi_rresp, input m_axi_rlast, input m_axi_rvalid,
    output m_axi_rready,
    input [11:0] s_axil_awaddr, input [2:0] s_axil_awprot, input s_axil_awvalid, output s_axil_awready,
    input [31:0] s_axil_wdata, input [3:0] s_axil_wstrb, input s_axil_wvalid, output s_axil_wready,
    output [1:0] s_axil_bresp, output reg s_axil_bvalid, input s_axil_bready,
    input [11:0] s_axil_araddr, input [2:0] s_axil_arprot, input s_axil_arvalid, output s_axil_arready,
    output reg [31:0] s_axil_rdata, output [1:0] s_axil_rresp, output reg s_axil_rvalid, input s_axil_rready);

  // Faults that can be planted.
  localparam VALID_FALLS = 1, ADDRESS_CHANGES = 2, CROSSES_PAGE = 3, LAST_EARLY = 4, LAST_NEVER = 5,
             DONE_EARLY = 6, HANGS = 7, NO_REGISTERS = 8, DATA_CHANGES = 9, GOES_ON = 10;

  reg [7:0] fault;
  reg [31:0] source, destination, bursts, reads_asked, reads_done, writes_asked, words_sent, answers;
  reg busy, done, error;
  reg [15:0] age;
  reg [63:0] queue [63:0];
  reg [6:0] put, get;
  wire [6:0] held = put - get;

  // Registers: address and data are taken together.
  wire answering = fault != NO_REGISTERS;
  wire store = s_axil_awvalid && s_axil_wvalid && !s_axil_bvalid && answering;
  assign s_axil_awready = store, s_axil_wready = store, s_axil_bresp = 0, s_axil_rresp = 0;
  assign s_axil_arready = !s_axil_rvalid && answering;
  assign irq = done;

  assign m_axi_awid = 0, m_axi_awlen = 7, m_axi_awsize = 3, m_axi_awburst = 1, m_axi_awlock = 0, m_axi_awcache = 3,
         m_axi_awprot = 0, m_axi_awqos = 0, m_axi_wstrb = 8'hff, m_axi_bready = 1;
  assign m_axi_arid = 0, m_axi_arlen = 7, m_axi_arsize = 3, m_axi_arburst = 1, m_axi_arlock = 0, m_axi_arcache = 3,
         m_axi_arprot = 0, m_axi_arqos = 0;
  // Asks only for what the queue has room for.
  wire room = (reads_asked - reads_done) * 8 + {25'd0, held} <= 56;
  reg asking;
  assign m_axi_arvalid = asking && !(fault == VALID_FALLS && age[0]);
  assign m_axi_araddr = {16'd0, source} + {16'd0, reads_asked} * 64 +
      (fault == ADDRESS_CHANGES && age[0] ? 48'd64 : 0) + (fault == CROSSES_PAGE ? 48'd8 : 0);
  assign m_axi_rready = 1;
  reg announcing;
  assign m_axi_awvalid = announcing;
  assign m_axi_awaddr = {16'd0, destination} + {16'd0, writes_asked} * 64 +
      (fault == GOES_ON && writes_asked == 0 ? 48'd1 << 40 : 0);
  assign m_axi_wvalid = held != 0;
  assign m_axi_wdata = queue[get[5:0]] ^ (fault == DATA_CHANGES ? {63'd0, age[0]} : 64'd0);
  assign m_axi_wlast = (words_sent[2:0] == 7 && fault != LAST_NEVER) || (words_sent[2:0] == 3 && fault == LAST_EARLY);

  always @(posedge clk) begin
    age <= age + 1;
    if (store) begin
      s_axil_bvalid <= 1;
      case (s_axil_awaddr)
        0: begin
          busy <= s_axil_wdata[0]; fault <= s_axil_wdata[15:8]; done <= 0; error <= 0;
          reads_asked <= 0; reads_done <= 0; writes_asked <= 0; words_sent <= 0; answers <= 0;
        end
        8: source <= s_axil_wdata;
        12: destination <= s_axil_wdata;
        16: bursts <= s_axil_wdata;
        default: ;
      endcase
    end else if (s_axil_bready) s_axil_bvalid <= 0;
    if (s_axil_arvalid && s_axil_arready) begin
      s_axil_rvalid <= 1;
      s_axil_rdata <= s_axil_araddr == 4 ? {30'd0, error, done} : source;
    end else if (s_axil_rready) s_axil_rvalid <= 0;

    if (busy && !asking && reads_asked != bursts && room && fault != HANGS) asking <= 1;
    if (m_axi_arvalid && m_axi_arready) begin asking <= 0; reads_asked <= reads_asked + 1; end
    if (m_axi_rvalid) begin
      queue[put[5:0]] <= m_axi_rdata; put <= put + 1;
      if (m_axi_rlast) reads_done <= reads_done + 1;
      if (m_axi_rresp != 0) error <= 1;
    end
    if (busy && !announcing && writes_asked != bursts) announcing <= 1;
    if (m_axi_awvalid && m_axi_awready) begin announcing <= 0; writes_asked <= writes_asked + 1; end
    if (m_axi_wvalid && m_axi_wready) begin get <= get + 1; words_sent <= words_sent + 1; end
    if (m_axi_bvalid) begin
      answers <= answers + 1;
      if (m_axi_bresp != 0) error <= 1;
    end
    if (busy && (fault == DONE_EARLY ? words_sent == bursts * 8 : answers == bursts)) begin busy <= 0; done <= 1; end
    if (rst) begin
      fault <= 0; busy <= 0; done <= 0; error <= 0; asking <= 0; announcing <= 0; put <= 0; get <= 0; age <= 0;
      s_axil_bvalid <= 0; s_axil_rvalid <= 0;
    end
  end
endmodule
