// The lanes of `RequantizingLane` in requantize.py and the copies of the table in table.py, written as
// loops: for simulation, where a compiler makes vector instructions of them. Results are computed
// right behind the registers of the operands, then delayed to the cycle of the lanes. Lanes read the
// bounds of REQUANTIZE until the last stage: if they change before, results here are inverted, so that
// an ALU that reads bounds too early computes wrong results in this form too.
//
// The functions take their arrays by reference and count unsigned, as in dot_products.sv.
module alu_lanes #(
    parameter LANES = 16, LOOKS_UP = 0, ADDS = 0, TWICE = 0
) (
    input clk, input enable, input [2:0] operation, input [3:0] parameters,
    input [LANES*32-1:0] a, input [LANES*32-1:0] b,
    input table_write, input [5:0] table_place, input [31:0] table_word, input table_read,
    output reg [LANES*32-1:0] result
);
  // Operations of `AluOp`.
  localparam [2:0] MIN = 0, MAX = 1, ADD = 2, SHR = 3, MUL = 4, REQUANTIZE = 5, LOOKUP = 6, MULTIPLY_ADD = 7;

  typedef reg signed [31:0] words_t[LANES];
  typedef reg signed [7:0] bytes_t[LANES];

  // Stage 1.
  words_t a_1, b_1;
  reg enable_1;
  reg [2:0] operation_1;
  reg [3:0] parameters_1;
  // Parameters of REQUANTIZE. In `lower` and `upper`, the second operand of other operations.
  words_t bias, lower, upper, bounds;
  // Results, and whether they are indices of the table.
  words_t value_2, value_3, value_4, value_5;
  reg looks_up_2, looks_up_3, looks_up_4, looks_up_5;
  reg bounded_2, bounded_3, bounded_4, bounded_5;
  reg signed [7:0] entries[256];
  bytes_t entry;

  function automatic void copy(ref words_t to, ref words_t from);
    /* verilator no_inline_task */
    int unsigned i;
    /* verilator unroll_disable */
    for (i = 0; i < LANES; i = i + 1) to[i] = from[i];
  endfunction

  function automatic void invert(ref words_t words);
    /* verilator no_inline_task */
    int unsigned i;
    /* verilator unroll_disable */
    for (i = 0; i < LANES; i = i + 1) words[i] = ~words[i];
  endfunction

  function automatic void operate(ref words_t value, ref words_t a, ref words_t b, ref words_t lower,
                                  input [2:0] operation);
    /* verilator no_inline_task */
    int unsigned i;
    case (operation)
      MIN: begin
        /* verilator unroll_disable */
        for (i = 0; i < LANES; i = i + 1) value[i] = a[i] < b[i] ? a[i] : b[i];
      end
      MAX: begin
        /* verilator unroll_disable */
        for (i = 0; i < LANES; i = i + 1) value[i] = a[i] < b[i] ? b[i] : a[i];
      end
      ADD: begin
        /* verilator unroll_disable */
        for (i = 0; i < LANES; i = i + 1) value[i] = a[i] + b[i];
      end
      SHR: begin
        /* verilator unroll_disable */
        for (i = 0; i < LANES; i = i + 1)
          value[i] = b[i] > 0 ? a[i] >>> (b[i] > 31 ? 31 : b[i]) : b[i] < -31 ? 0 : a[i] <<< -b[i];
      end
      MUL: begin
        /* verilator unroll_disable */
        for (i = 0; i < LANES; i = i + 1) value[i] = a[i] * b[i];
      end
      default: begin
        /* verilator unroll_disable */
        for (i = 0; i < LANES; i = i + 1)
          value[i] = ADDS != 0 && operation == MULTIPLY_ADD ? a[i] * lower[i] + b[i] : a[i];
      end
    endcase
  endfunction

  // Both roundings are those of `_is_rounded_up`.
  function automatic void requantize(ref words_t value, ref words_t a, ref words_t bias, ref words_t lower,
                                     ref words_t upper, ref words_t bounds);
    /* verilator no_inline_task */
    reg signed [63:0] factor, product, above;
    reg [63:0] fraction;
    reg signed [31:0] sum, narrow, whole, zero_point, least, most, scaled;
    reg [31:0] places, counts, differs, counted, lowest, shift, rest;
    reg wide, outside, half, negative, twice, is_near, up;
    int unsigned i;
    /* verilator unroll_disable */
    for (i = 0; i < LANES; i = i + 1) begin
      sum = a[i] + bias[i];
      negative = sum < 0;
      wide = bounds[i][24];
      narrow = (sum <<< 7) >>> 7;
      outside = !wide && sum != narrow;
      factor = wide ? (sum >>> 7) | ((sum & 127) != 0 ? 1 : 0) : narrow;
      product = factor * {32'b0, lower[i]};
      above = product >>> 32;
      above = above + factor * {32'b0, upper[i]};
      fraction = {21'b0, above[10:0], product[31:0]};
      above = above >>> 11;
      whole = {{23{above[8]}}, above[8:0]};
      outside = outside || above[31:0] != whole;
      half = fraction[42];
      // A bit for each j: whether |value| >= 2^j.
      places = (whole < 0 ? ~whole : whole) & 255;
      places = places | places >> 1;
      places = places | places >> 2;
      places = places | places >> 4;
      counts = 512 | (~places & 255) << 1 | (places == 0 && half == whole < 0 ? 1 : 0);
      differs = {7'b0, fraction[41:17]};
      differs = half ? differs : differs ^ 'h1ffffff;
      lowest = counts & ~(counts << 1);
      rest = {6'b0, fraction[42:17]};
      is_near = (differs & (counts | 'h1fffc00)) == 0 || (rest == (lowest | 'h2000000) && fraction[16:0] == 0);
      up = is_near ? whole[0] : half;
      if (TWICE != 0) begin
        twice = bounds[i][25];
        shift = {28'b0, bounds[i][29:26]};
        counted = ('h1ffffff << (25 - shift)) & 'h1ffffff;
        is_near = shift != 0 && (differs & counted) == 0;
        up = twice ? (is_near ? !negative : half) : up;
      end
      zero_point = {{24{bounds[i][7]}}, bounds[i][7:0]};
      least = {{24{bounds[i][15]}}, bounds[i][15:8]};
      most = {{24{bounds[i][23]}}, bounds[i][23:16]};
      scaled = whole + zero_point + (up ? 1 : 0);
      scaled = outside ? (negative ? -1024 : 1024) : scaled;
      scaled = scaled < least ? least : scaled;
      value[i] = scaled > most || least > most ? most : scaled;
    end
  endfunction

  // The second operand, as the lanes multiply by it.
  function automatic void keep(ref words_t lower, ref words_t upper, ref words_t b, input [2:0] operation,
                               input keeps_lower, input keeps_upper);
    /* verilator no_inline_task */
    int unsigned i;
    reg [31:0] second;
    reg to_right;
    /* verilator unroll_disable */
    for (i = 0; i < LANES; i = i + 1) begin
      to_right = operation == SHR && b[i] > 0;
      second = to_right ? 1 << (16 | (b[i] > 31 ? 0 : -b[i] & 15)) : b[i] < -31 ? 0 : 1 << (-b[i] & 31);
      second = operation == SHR ? second : b[i];
      lower[i] = keeps_lower ? second : lower[i];
      upper[i] = keeps_upper ? (to_right ? second >> 15 : second) & 'h1ffff : upper[i];
    end
  endfunction

  // From the last stage to the first: each reads what the one before it held.
  always @(posedge clk) begin
    reg [LANES*32-1:0] next;
    reg replaces;
    /* verilator unroll_full */
    for (int i = 0; i < LANES; i = i + 1)
      next[i*32+:32] = looks_up_5 ? {{24{entry[i][7]}}, entry[i]} : value_5[i];
    result <= next;
    if (LOOKS_UP != 0) begin
      /* verilator unroll_full */
      for (int i = 0; i < LANES; i = i + 1) if (table_read) entry[i] = entries[value_4[i][7:0]];
      /* verilator unroll_full */
      for (int i = 0; i < 4; i = i + 1)
        if (table_write) entries[{table_place, 2'b0}+i] = table_word[i*8+:8];
    end
    copy(value_5, value_4);
    copy(value_4, value_3);
    copy(value_3, value_2);
    looks_up_5 = looks_up_4;
    looks_up_4 = looks_up_3;
    looks_up_3 = looks_up_2;
    looks_up_2 = LOOKS_UP != 0 && operation_1 == LOOKUP;
    bounded_5 = bounded_4;
    bounded_4 = bounded_3;
    bounded_3 = bounded_2;
    bounded_2 = enable_1 && operation_1 == REQUANTIZE;
    if (parameters_1[3]) begin
      if (bounded_3) invert(value_3);
      if (bounded_4) invert(value_4);
      if (bounded_5) invert(value_5);
    end

    if (enable_1) begin
      if (operation_1 == REQUANTIZE) requantize(value_2, a_1, bias, lower, upper, bounds);
      else operate(value_2, a_1, b_1, lower, operation_1);
    end
    replaces = enable_1 && operation_1 != REQUANTIZE && !(ADDS != 0 && operation_1 == MULTIPLY_ADD);
    if (parameters_1[0]) copy(bias, b_1);
    if (parameters_1[1] || parameters_1[2] || replaces)
      keep(lower, upper, b_1, operation_1, parameters_1[1] || replaces, parameters_1[2] || replaces);
    if (parameters_1[3]) copy(bounds, b_1);

    /* verilator unroll_full */
    for (int i = 0; i < LANES; i = i + 1) begin
      a_1[i] = a[i*32+:32];
      b_1[i] = b[i*32+:32];
    end
    enable_1 = enable;
    operation_1 = operation;
    parameters_1 = parameters;
  end
endmodule
