// The sums of `DotProducts` in dot_products.py, written as loops: for simulation, where a compiler makes
// vector instructions of them. They are the same in each cycle; before them, products are added in
// twos, in words of 32 bits.
//
// The functions take their arrays by reference and count unsigned: only then does Verilator leave
// them loops whose iterations a compiler can count.
module dot_products #(
    parameter BATCH = 1, BLOCK_IN = 2, BLOCK_OUT = 2, INP_WIDTH = 8, WGT_WIDTH = 8, SUM_WIDTH = 16,
    parameter TAPS = 1
) (
    input clk, input clear, input tapped,
    input [TAPS*BATCH*BLOCK_IN*INP_WIDTH-1:0] inp,
    input [BLOCK_OUT*BLOCK_IN*WGT_WIDTH-1:0] wgt,
    output reg [BATCH*BLOCK_OUT*SUM_WIDTH-1:0] sums
);
  localparam HALF = INP_WIDTH + WGT_WIDTH;
  localparam PAIRS = BLOCK_OUT / 2, TERMS = BLOCK_IN / 2;
  localparam [HALF-1:0] OFFSET = (1 << HALF - 1) - 1;

  typedef reg signed [WGT_WIDTH-1:0] weights_t[PAIRS*BLOCK_IN];
  typedef reg signed [INP_WIDTH-1:0] inputs_t[BATCH*PAIRS*BLOCK_IN];
  typedef reg signed [2*HALF-1:0] products_t[BATCH*PAIRS*BLOCK_IN];
  typedef reg [2*HALF-1:0] terms_t[BATCH*PAIRS*TERMS];
  typedef reg [31:0] sums_t[BATCH*BLOCK_OUT];

  // The operands as they are: a weight of each output of a pair, and the input of both.
  weights_t lower, upper;
  inputs_t inputs;
  // The registers.
  products_t product;
  terms_t both;
  // What comes into sums.
  sums_t sum;

  function automatic void multiply(ref products_t product, ref weights_t lower, ref weights_t upper,
                                   ref inputs_t inputs);
    /* verilator no_inline_task */
    reg signed [2*HALF-1:0] weights;
    int unsigned b, i;
    for (b = 0; b < BATCH; b = b + 1) begin
      /* verilator unroll_disable */
      for (i = 0; i < PAIRS * BLOCK_IN; i = i + 1) begin
        weights = (upper[i] <<< HALF) + lower[i];
        product[b*PAIRS*BLOCK_IN+i] = weights * inputs[b*PAIRS*BLOCK_IN+i];
      end
    end
  endfunction

  function automatic void add(ref sums_t sum, ref terms_t both, ref products_t product);
    /* verilator no_inline_task */
    reg [31:0] low, high;
    int unsigned i, k;
    /* verilator unroll_disable */
    for (i = 0; i < BATCH * PAIRS; i = i + 1) begin
      low = -TERMS * OFFSET;
      high = low;
      /* verilator unroll_disable */
      for (k = 0; k < TERMS; k = k + 1) begin
        low = low + {{32-HALF{1'b0}}, both[i*TERMS+k][HALF-1:0]};
        high = high + {{32-HALF{1'b0}}, both[i*TERMS+k][2*HALF-1:HALF]};
      end
      sum[2*i] = low;
      sum[2*i+1] = high;
    end
    /* verilator unroll_disable */
    for (i = 0; i < BATCH * PAIRS * TERMS; i = i + 1)
      both[i] = {OFFSET, OFFSET} + product[2*i] + product[2*i+1];
  endfunction

  // From the last stage to the first: each reads what the one before it held.
  always @(posedge clk) begin
    reg [BATCH*BLOCK_OUT*SUM_WIDTH-1:0] next;
    add(sum, both, product);
    /* verilator unroll_full */
    for (int i = 0; i < BATCH * BLOCK_OUT; i = i + 1)
      next[i*SUM_WIDTH+:SUM_WIDTH] = clear ? 0 : sum[i][SUM_WIDTH-1:0];
    sums <= next;
    /* verilator unroll_full */
    for (int i = 0; i < PAIRS * BLOCK_IN; i = i + 1) begin
      lower[i] = wgt[(i/BLOCK_IN*2*BLOCK_IN+i%BLOCK_IN)*WGT_WIDTH+:WGT_WIDTH];
      upper[i] = wgt[((i/BLOCK_IN*2+1)*BLOCK_IN+i%BLOCK_IN)*WGT_WIDTH+:WGT_WIDTH];
    end
    /* verilator unroll_full */
    for (int i = 0; i < BATCH * PAIRS * BLOCK_IN; i = i + 1)
      inputs[i] = inp[(i/(PAIRS*BLOCK_IN)*BLOCK_IN+i%BLOCK_IN)*INP_WIDTH+:INP_WIDTH];
    // Two channels of each tile for each pair of outputs.
    if (TAPS > 1 && tapped) begin
      /* verilator unroll_full */
      for (int i = 0; i < BATCH * PAIRS * BLOCK_IN; i = i + 1)
        if (i % BLOCK_IN < 2 * TAPS)
          inputs[i] = inp[((i%BLOCK_IN/2*BATCH+i/(PAIRS*BLOCK_IN))*BLOCK_IN
                           +(i/BLOCK_IN%PAIRS*2+i%2)%BLOCK_IN)*INP_WIDTH+:INP_WIDTH];
    end
    multiply(product, lower, upper, inputs);
  end
endmodule
