/* Runs compiled networks on an amaranth-vta machine: through its registers, without allocation.
 *
 * Freestanding C99, also valid C++. The same for every machine and network.
 */
#ifndef VTA_RUNTIME_H
#define VTA_RUNTIME_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Aligns data that vta_load copies, so that it copies words. */
#ifdef __GNUC__
#define VTA_ALIGNED __attribute__((aligned(4)))
#else
#define VTA_ALIGNED
#endif

/* Access to the machine and to a network's part of DRAM: `memory` is its address for the processor,
 * `address`, a multiple of 4096, the same for the machine. Functions that are NULL are not called. */
typedef struct {
    void *context; /* handed to the functions */
    uint32_t (*read_register)(void *context, uint32_t offset);
    void (*write_register)(void *context, uint32_t offset, uint32_t value);
    uint8_t *memory;
    uint64_t address;
    void (*flush)(void *context);      /* makes writes to memory visible to the machine */
    void (*invalidate)(void *context); /* drops cached copies of memory */
    uint32_t most_polls;               /* reads of STATUS in a run, after which it is stopped; 0 for
                                        * no limit */
    /* Waits until the machine's interrupt line is high; without it STATUS is polled. It is called
     * with the interrupt enabled in the machine, after which it is disabled again, which lowers the
     * line. It may return early. A handler of the interrupt may write 0 to INTERRUPT_ENABLE. */
    void (*wait_for_interrupt)(void *context);
} vta_port;

typedef enum {
    VTA_DONE = 0,
    VTA_WRONG_MACHINE, /* no machine, or one with other parameters */
    VTA_FAULT,         /* it stopped at a fault: see VTA_REG_FAULT and VTA_REG_FAULT_INSN */
    VTA_TIMEOUT,       /* it was stopped after most_polls */
    VTA_WRONG_INDEX    /* an index in an input lies outside the tensor that it selects from */
} vta_result;

/* A register that has to hold a value, by its name. */
typedef struct {
    const char *name;
    uint32_t offset, value;
} vta_expectation;

/* Bytes of a network's memory; zeros if data is NULL. */
typedef struct {
    uint32_t offset, size;
    const uint8_t *data;
} vta_segment;

/* Instructions in a network's memory. */
typedef struct {
    uint32_t offset, count;
} vta_stream;

/* Elements of each kind in a network's memory: LOADs and STOREs beyond them are faults. */
typedef struct {
    uint32_t uop, inp, wgt, acc, out;
} vta_limits;

/* A tensor (n, c, h, w) of bytes in tiles of batch x block; where the kernel is not 1 x 1, its
 * pixels are packed into channels. `distances` are those of neighbours along n, c, h and w before
 * packing. Padding has the value `pad`, and `flip` is 0x80 for uint8. */
typedef struct {
    uint32_t n, c, h, w, batch, block;
    uint32_t kernel[2], strides[2], dilations[2], pads[4], distances[4];
    int8_t pad;
    uint8_t flip;
} vta_tensor;

/* Second factors of matrix products: 8-bit matrices of inputs x outputs, with `distances` between
 * neighbouring groups, inputs and outputs. From each element the zero point is subtracted. The
 * outputs of each group are padded to `padded`, with zeros. Tiles have batch x block elements.
 * Weights are sums of `terms` of int8; for the bias of an output see vta_pack_factor_bias. */
typedef struct {
    uint32_t groups, inputs, outputs, padded, batch, block, distances[3];
    int16_t zero;
    uint8_t flip;
    uint32_t terms, rows;
    int32_t multiplier, added;
    uint32_t rest_count;
    const int32_t *rest;
} vta_factor;

/* An axis of a tensor: its size, and the distance of neighbours in the source, in elements. */
typedef struct {
    uint32_t count, stride;
} vta_axis;

/* Compares registers with their expected values; `wrong` gets the name of the first that differs. */
vta_result vta_check(const vta_port *port, const vta_expectation *expected, uint32_t count,
                     const char **wrong);
/* Fills `bytes` of memory with zeros, and puts the segments there. */
void vta_load(const vta_port *port, uint32_t bytes, const vta_segment *segments, uint32_t count);
/* Puts the segments into memory. */
void vta_store(const vta_port *port, const vta_segment *segments, uint32_t count);
/* Runs the streams one after the other. */
vta_result vta_run(const vta_port *port, const vta_limits *limits, const vta_stream *streams,
                   uint32_t count);
/* Pack a tensor into tiles, and unpack it; vta_unpack ignores `distances`. */
void vta_pack(const vta_tensor *tensor, const uint8_t *values, uint8_t *tiles);
void vta_unpack(const vta_tensor *tensor, const uint8_t *tiles, uint8_t *values);
/* Pack second factors as weights, and the constants of their outputs in int32: added + multiplier *
 * the sum of an output's elements, then `rest`; the same in each of `rows`. */
void vta_pack_factor(const vta_factor *factor, const uint8_t *values, uint8_t *tiles);
void vta_pack_factor_bias(const vta_factor *factor, const uint8_t *values, uint8_t *tiles);
/* QuantizeLinear and DequantizeLinear of ONNX, to and from int8 (low = -128) or uint8 (low = 0). */
void vta_quantize(const float *values, uint8_t *quantized, uint32_t count, float scale, int zero,
                  int low);
void vta_dequantize(const uint8_t *quantized, float *values, uint32_t count, float scale, int zero,
                    int low);
/* The same with a scale and a zero point for each of `count` channels of `inner` elements. */
void vta_quantize_channels(const float *values, uint8_t *quantized, uint32_t outer, uint32_t count,
                           uint32_t inner, const float *scales, const uint8_t *zeros, int low);
void vta_dequantize_channels(const uint8_t *quantized, float *values, uint32_t outer,
                             uint32_t count, uint32_t inner, const float *scales,
                             const uint8_t *zeros, int low);
/* QUANTIZE of TensorFlow Lite: ties away from zero. */
void vta_quantize_away(const float *values, uint8_t *quantized, uint32_t count, float scale,
                       int zero, int low);
/* Softmax over `count` elements, `inner` apart. */
void vta_softmax(const float *values, float *results, uint32_t outer, uint32_t count,
                 uint32_t inner);
/* LayerNormalization of rows of `count` elements; scale and bias have as many, or are NULL. */
void vta_layer_norm(const float *values, float *results, uint32_t rows, uint32_t count,
                    const float *scale, const float *bias, float epsilon);
/* SOFTMAX of TensorFlow Lite over `count` int8 (low = -128) or uint8 (low = 0); exponentials has
 * exp(-scale * difference) in Q0.31 for the differences 0 to 255 from the greatest element. */
void vta_softmax_8bit(const uint8_t *values, uint8_t *results, uint32_t rows, uint32_t count,
                      const int32_t *exponentials, int low);
/* The index of the first of the greatest of `count` elements, `inner` apart, or of the last. */
void vta_argmax(const float *values, int64_t *indices, uint32_t outer, uint32_t count,
                uint32_t inner, int last);
void vta_argmax_int8(const int8_t *values, int64_t *indices, uint32_t outer, uint32_t count,
                     uint32_t inner, int last);
void vta_argmax_uint8(const uint8_t *values, int64_t *indices, uint32_t outer, uint32_t count,
                      uint32_t inner, int last);
void vta_narrow(const int64_t *values, int32_t *narrowed, uint32_t count);
/* Copies elements of `bytes` bytes in the order of the `rank` axes of the result, at most 8. */
void vta_transpose(const void *values, void *results, uint32_t bytes, const vta_axis *axes,
                   uint32_t rank);
/* Gather: from each of `outer` tables of `count` elements of `bytes` bytes, the elements at the
 * indices, which count from the end if negative. */
vta_result vta_gather(const void *values, const int64_t *indices, void *results, uint32_t outer,
                      uint32_t count, uint32_t bytes, uint32_t indexed);
void vta_copy(const void *values, void *results, uint32_t bytes);

#ifdef __cplusplus
}
#endif

#endif
