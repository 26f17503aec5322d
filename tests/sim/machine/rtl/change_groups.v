// A register or memory for each rule of change_groups.py, in the form that Yosys writes.
module vta(clk, rst, en, write, at, x, y, z, u, v, out);
  input clk;
  wire clk;
  input rst;
  wire rst;
  input en;
  wire en;
  input [1:0] write;
  wire [1:0] write;
  input [1:0] at;
  wire [1:0] at;
  input [7:0] x;
  wire [7:0] x;
  input [7:0] y;
  wire [7:0] y;
  input [7:0] z;
  wire [7:0] z;
  input [7:0] u;
  wire [7:0] u;
  input [7:0] v;
  wire [7:0] v;
  output [71:0] out;
  wire [71:0] out;
  wire [7:0] \sum$1 ;
  wire [7:0] \next$2 ;
  wire \a.counts ;
  wire [7:0] \a.both ;
  wire [7:0] \a.word ;
  // Assigned under a condition, which may hold for long, from an input that decides nothing.
  reg [7:0] \a.under_condition  = 8'h00;
  always @(posedge clk)
    if (rst) \a.under_condition  <= 8'h00;
    else if (en) \a.under_condition  <= \sum$1 ;
  assign \sum$1  = x + 8'h03;
  // Assigned in every cycle.
  reg [7:0] \a.always  = 8'h00;
  always @(posedge clk)
    \a.always  <= y;
  // Goes on without any change of an input.
  reg [7:0] \a.counted  = 8'h00;
  always @(posedge clk)
    if (rst) \a.counted  <= 8'h00;
    else if (\a.counts ) \a.counted  <= \next$2 ;
  assign \next$2  = \a.counted  + 8'h01;
  assign \a.counts  = \a.counted  != 8'h09;
  // A bit decides, others are assigned.
  reg [7:0] \a.bits  = 8'h00;
  always @(posedge clk)
    if (z[0]) \a.bits  <= { 1'h0, z[7:1] };
  // A reset under a condition, of some bits.
  reg [7:0] \a.reset  = 8'h00;
  always @(posedge clk)
    if (write[0])
      if (rst) \a.reset [6:0] <= 7'h00;
      else \a.reset [6:0] <= x[6:0];
  always @(posedge clk)
    if (write[1]) \a.reset [7] <= v[0];
  // Logic for two registers.
  reg [7:0] \a.first  = 8'h00;
  always @(posedge clk)
    \a.first  <= \a.both ;
  reg [7:0] \a.second  = 8'h00;
  always @(posedge clk)
    if (!rst) \a.second  <= v;
    else \a.second  <= \a.both ;
  assign \a.both  = u ^ 8'h5a;
  reg [7:0] \a.memory  [3:0];
  always @(posedge clk) begin
    if (write[0])
      \a.memory [at][3:0] <= v[3:0];
    if (write[1])
      \a.memory [at][7:4] <= v[7:4];
  end
  assign \a.word  = \a.memory [at];
  // Outside the group, reads it.
  reg [7:0] outside = 8'h00;
  always @(posedge clk)
    outside <= \a.counted ;
  assign out = { \a.reset , outside, \a.word , \a.second , \a.first , \a.bits , \a.counted , \a.always , \a.under_condition  };
endmodule
