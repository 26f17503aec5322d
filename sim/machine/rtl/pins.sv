// Registers in front of the machine's inputs. What the harness shows on next_* is there in the next
// cycle, as from the registered outputs of a real memory and a real host. For Verilator this means
// that no logic depends on an input, so that a cycle is evaluated once and not twice.
module pins #(parameter BUS_BITS = 64, parameter ID_BITS = 1, parameter ADDRESS_BITS = 12) (
`ifdef WATCHED
    output [31:0] activity_fetch_index, output activity_fetch_hands_over,
    output [31:0] activity_load_index, output activity_load_unit, output [1:0] activity_load_starts, output [1:0] activity_load_begins,
    output [1:0] activity_load_ends, output activity_load_lacks_prev, output activity_load_lacks_next,
    output [31:0] activity_compute_index, output [1:0] activity_compute_unit, output [3:0] activity_compute_starts, output [3:0] activity_compute_begins,
    output [3:0] activity_compute_ends, output activity_compute_lacks_prev, output activity_compute_lacks_next,
    output [31:0] activity_store_index, output activity_store_unit, output [1:0] activity_store_starts, output [1:0] activity_store_begins,
    output [1:0] activity_store_ends, output activity_store_lacks_prev, output activity_store_lacks_next,
`endif
`ifdef GROUPED
    // The clocks of groups of registers; one that is active has to tick with clk.
    input clock_lanes, output clock_lanes_active,
    input clock_products, output clock_products_active,
    input clock_load_dma, output clock_load_dma_active,
    input clock_compute_dma, output clock_compute_dma_active,
    input clock_store_dma, output clock_store_dma_active,
`endif
`ifdef CHANGE_GROUPED
    input clock_host, output clock_host_active,
    input clock_issue, output clock_issue_active,
`endif
    input clk, input next_rst, output irq,
    output [ID_BITS-1:0] m_axi_awid, output [47:0] m_axi_awaddr, output [7:0] m_axi_awlen, output [2:0] m_axi_awsize,
    output [1:0] m_axi_awburst, output m_axi_awvalid,
    output [BUS_BITS-1:0] m_axi_wdata, output [BUS_BITS/8-1:0] m_axi_wstrb, output m_axi_wlast, output m_axi_wvalid,
    output m_axi_bready,
    output [ID_BITS-1:0] m_axi_arid, output [47:0] m_axi_araddr, output [7:0] m_axi_arlen, output [2:0] m_axi_arsize,
    output [1:0] m_axi_arburst, output m_axi_arvalid, output m_axi_rready,
    output s_axil_awready, output s_axil_wready, output [1:0] s_axil_bresp, output s_axil_bvalid,
    output s_axil_arready, output [31:0] s_axil_rdata, output [1:0] s_axil_rresp, output s_axil_rvalid,
`ifdef MACHINES
    input [ID_BITS-1:0] next_m_axi_bid, next_m_axi_rid,
`endif
    input next_m_axi_awready, input next_m_axi_wready, input [1:0] next_m_axi_bresp, input next_m_axi_bvalid,
    input next_m_axi_arready, input [BUS_BITS-1:0] next_m_axi_rdata, input [1:0] next_m_axi_rresp,
    input next_m_axi_rlast, input next_m_axi_rvalid,
    input [ADDRESS_BITS-1:0] next_s_axil_awaddr, input next_s_axil_awvalid, input [31:0] next_s_axil_wdata, input next_s_axil_wvalid,
    input next_s_axil_bready, input [ADDRESS_BITS-1:0] next_s_axil_araddr, input next_s_axil_arvalid, input next_s_axil_rready);

  reg rst = 1;
  reg m_axi_awready = 0, m_axi_wready = 0, m_axi_bvalid = 0, m_axi_arready = 0, m_axi_rlast = 0, m_axi_rvalid = 0;
  reg [1:0] m_axi_bresp = 0, m_axi_rresp = 0;
  reg [BUS_BITS-1:0] m_axi_rdata = 0;
  reg [ADDRESS_BITS-1:0] s_axil_awaddr = 0, s_axil_araddr = 0;
  reg [31:0] s_axil_wdata = 0;
`ifdef MACHINES
  reg [ID_BITS-1:0] m_axi_bid = 0, m_axi_rid = 0;
  always @(posedge clk) begin
    m_axi_bid <= next_m_axi_bid;
    m_axi_rid <= next_m_axi_rid;
  end
`else
  // A single machine has one ID.
  wire m_axi_bid = 0, m_axi_rid = 0;
`endif
  reg s_axil_awvalid = 0, s_axil_wvalid = 0, s_axil_bready = 0, s_axil_arvalid = 0, s_axil_rready = 0;

  always @(posedge clk) begin
    rst <= next_rst;
    m_axi_awready <= next_m_axi_awready;
    m_axi_wready <= next_m_axi_wready;
    m_axi_bresp <= next_m_axi_bresp;
    m_axi_bvalid <= next_m_axi_bvalid;
    m_axi_arready <= next_m_axi_arready;
    m_axi_rdata <= next_m_axi_rdata;
    m_axi_rresp <= next_m_axi_rresp;
    m_axi_rlast <= next_m_axi_rlast;
    m_axi_rvalid <= next_m_axi_rvalid;
    s_axil_awaddr <= next_s_axil_awaddr;
    s_axil_awvalid <= next_s_axil_awvalid;
    s_axil_wdata <= next_s_axil_wdata;
    s_axil_wvalid <= next_s_axil_wvalid;
    s_axil_bready <= next_s_axil_bready;
    s_axil_araddr <= next_s_axil_araddr;
    s_axil_arvalid <= next_s_axil_arvalid;
    s_axil_rready <= next_s_axil_rready;
  end

  vta vta (
      .clk, .rst, .irq,
`ifdef WATCHED
      .activity_fetch_index, .activity_fetch_hands_over,
      .activity_load_index, .activity_load_unit, .activity_load_starts, .activity_load_begins, .activity_load_ends,
      .activity_load_lacks_prev, .activity_load_lacks_next,
      .activity_compute_index, .activity_compute_unit, .activity_compute_starts, .activity_compute_begins, .activity_compute_ends,
      .activity_compute_lacks_prev, .activity_compute_lacks_next,
      .activity_store_index, .activity_store_unit, .activity_store_starts, .activity_store_begins, .activity_store_ends,
      .activity_store_lacks_prev, .activity_store_lacks_next,
`endif
`ifdef GROUPED
      .clock_lanes, .clock_lanes_active,
      .clock_products, .clock_products_active,
      .clock_load_dma, .clock_load_dma_active,
      .clock_compute_dma, .clock_compute_dma_active,
      .clock_store_dma, .clock_store_dma_active,
`endif
`ifdef CHANGE_GROUPED
      .clock_host, .clock_host_active,
      .clock_issue, .clock_issue_active,
`endif
      .m_axi_awid, .m_axi_awaddr, .m_axi_awlen, .m_axi_awsize, .m_axi_awburst, .m_axi_awvalid, .m_axi_awready,
      .m_axi_wdata, .m_axi_wstrb, .m_axi_wlast, .m_axi_wvalid, .m_axi_wready,
      .m_axi_bid, .m_axi_bresp, .m_axi_bvalid, .m_axi_bready,
      .m_axi_arid, .m_axi_araddr, .m_axi_arlen, .m_axi_arsize, .m_axi_arburst, .m_axi_arvalid, .m_axi_arready,
      .m_axi_rid, .m_axi_rdata, .m_axi_rresp, .m_axi_rlast, .m_axi_rvalid, .m_axi_rready,
      .s_axil_awaddr, .s_axil_awprot(3'b0), .s_axil_awvalid, .s_axil_awready,
      .s_axil_wdata, .s_axil_wstrb(4'hf), .s_axil_wvalid, .s_axil_wready,
      .s_axil_bresp, .s_axil_bvalid, .s_axil_bready,
      .s_axil_araddr, .s_axil_arprot(3'b0), .s_axil_arvalid, .s_axil_arready,
      .s_axil_rdata, .s_axil_rresp, .s_axil_rvalid, .s_axil_rready);
endmodule
