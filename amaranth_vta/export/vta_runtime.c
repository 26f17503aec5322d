#include "vta_runtime.h"

#include "vta.h"

#define STATUS_BIT(name) (UINT32_C(1) << VTA_STATUS_##name##_SHIFT)
#define CONTROL_BIT(name) (UINT32_C(1) << VTA_CONTROL_##name##_SHIFT)

static void write_64(const vta_port *port, uint32_t offset, uint64_t value)
{
    port->write_register(port->context, offset, (uint32_t)value);
    port->write_register(port->context, offset + 4, (uint32_t)(value >> 32));
}

vta_result vta_check(const vta_port *port, const vta_expectation *expected, uint32_t count,
                     const char **wrong)
{
    for (uint32_t i = 0; i < count; i++) {
        if (port->read_register(port->context, expected[i].offset) != expected[i].value) {
            if (wrong)
                *wrong = expected[i].name;
            return VTA_WRONG_MACHINE;
        }
    }
    return VTA_DONE;
}

/* The unit of copies: a word that may be part of any object, where the compiler has such a type. */
#ifdef __GNUC__
typedef uint32_t __attribute__((may_alias)) unit;
#else
typedef uint8_t unit;
#endif

/* The number of bytes up to `bytes` that can be copied in units from an address in `addresses`, the
 * bits of all addresses. */
static uint32_t in_units(uintptr_t addresses, uint32_t bytes)
{
    return addresses % sizeof(unit) ? 0 : bytes - bytes % (uint32_t)sizeof(unit);
}

/* Volatile, or compilers replace the loops by calls of memset and memcpy. */
static void clear(uint8_t *memory, uint32_t bytes)
{
    const uint32_t whole = in_units((uintptr_t)memory, bytes);
    volatile unit *words = (unit *)(void *)memory;
    volatile uint8_t *rest = memory + whole;
    for (uint32_t i = 0; i < whole / sizeof(unit); i++)
        words[i] = 0;
    for (uint32_t i = 0; i < bytes - whole; i++)
        rest[i] = 0;
}

void vta_load(const vta_port *port, uint32_t bytes, const vta_segment *segments, uint32_t count)
{
    clear(port->memory, bytes);
    vta_store(port, segments, count);
}

void vta_store(const vta_port *port, const vta_segment *segments, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *const memory = port->memory + segments[i].offset;
        if (segments[i].data)
            vta_copy(segments[i].data, memory, segments[i].size);
        else
            clear(memory, segments[i].size);
    }
}

static vta_result wait(const vta_port *port)
{
    uint32_t polls = 0, status;
    while (!((status = port->read_register(port->context, VTA_REG_STATUS)) & STATUS_BIT(DONE))) {
        if (port->most_polls && ++polls == port->most_polls) {
            port->write_register(port->context, VTA_REG_CONTROL, CONTROL_BIT(RESET));
            return VTA_TIMEOUT;
        }
        if (port->wait_for_interrupt) {
            /* The line is a level: it is high at once if the run is done by now. */
            port->write_register(port->context, VTA_REG_INTERRUPT_ENABLE,
                                 UINT32_C(1) << VTA_INTERRUPT_ENABLE_DONE_SHIFT);
            port->wait_for_interrupt(port->context);
            port->write_register(port->context, VTA_REG_INTERRUPT_ENABLE, 0);
        }
    }
    return status & (STATUS_BIT(FAULT) | STATUS_BIT(STOPPED)) ? VTA_FAULT : VTA_DONE;
}

vta_result vta_run(const vta_port *port, const vta_limits *limits, const vta_stream *streams,
                   uint32_t count)
{
    static const uint32_t bases[] = {VTA_REG_UOP_BASE, VTA_REG_INP_BASE, VTA_REG_WGT_BASE,
                                     VTA_REG_ACC_BASE, VTA_REG_OUT_BASE};
    vta_result result = VTA_DONE;
    for (unsigned i = 0; i < sizeof bases / sizeof *bases; i++)
        write_64(port, bases[i], port->address);
    port->write_register(port->context, VTA_REG_UOP_LIMIT, limits->uop);
    port->write_register(port->context, VTA_REG_INP_LIMIT, limits->inp);
    port->write_register(port->context, VTA_REG_WGT_LIMIT, limits->wgt);
    port->write_register(port->context, VTA_REG_ACC_LIMIT, limits->acc);
    port->write_register(port->context, VTA_REG_OUT_LIMIT, limits->out);
    if (port->flush)
        port->flush(port->context);
    for (uint32_t i = 0; i < count && result == VTA_DONE; i++) {
        write_64(port, VTA_REG_INSN_ADDR, port->address + streams[i].offset);
        port->write_register(port->context, VTA_REG_INSN_COUNT, streams[i].count);
        port->write_register(port->context, VTA_REG_CONTROL, CONTROL_BIT(LAUNCH));
        result = wait(port);
    }
    if (port->invalidate)
        port->invalidate(port->context);
    return result;
}

/* Four neighbouring elements of a tile, written in units. Blocks are multiples of four. */
typedef union {
    uint8_t bytes[4];
    unit units[4 / sizeof(unit)];
} quad;

/* Positions of a result along height or width: from `begin` on, before `end`. */
typedef struct {
    uint32_t begin, end;
} range;

/* The source of an element of a tile: a tap of the kernel in a channel, if it `exists`. Its place
 * in the source at the first pixel of the result, which wraps around before the image, and the
 * rows and columns of the result at which it is in the image. */
typedef struct {
    int exists;
    uint32_t place;
    range y, x;
} element;

/* The positions, of `count`, at which `first`, increased by `step` at each up to `last`, is less
 * than `size`. */
static range inside(uint32_t first, uint32_t step, uint32_t last, uint32_t count, uint32_t size)
{
    range r = {0, count};
    for (; r.begin < count && first >= size; first += step)
        r.begin++;
    for (; r.end > r.begin && last >= size; last -= step)
        r.end--;
    return r;
}

/* Whether `at` is in the range; `until` is lowered to the next position where that changes. */
static int contains(range r, uint32_t at, uint32_t *until)
{
    const uint32_t next = at < r.begin ? r.begin : r.end;
    if (at < next && next < *until)
        *until = next;
    return r.begin <= at && at < r.end;
}

/* Pixels of the result, and where the four elements of each come from. From one pixel to the next
 * sources advance by `right` bytes and the tiles by `next`; at the end of a row they advance by
 * `down` and `below` in addition. */
typedef struct {
    const uint8_t *from[4];
    int32_t right[4], down[4];
    uint32_t rows, columns, next, below;
} rectangle;

/* Packs the four elements of each pixel of a rectangle. */
static void pack_rectangle(const rectangle *r, const quad *flips, uint8_t *tiles)
{
    const uint8_t *a = r->from[0], *b = r->from[1], *c = r->from[2], *d = r->from[3];
    const int32_t right_a = r->right[0], right_b = r->right[1];
    const int32_t right_c = r->right[2], right_d = r->right[3];
    const uint32_t next = r->next, columns = r->columns;
    const quad flipped = *flips;
    for (uint32_t rows = r->rows; rows--; tiles += r->below) {
        for (uint32_t i = columns; i--; tiles += next) {
            const quad read = {{*a, *b, *c, *d}};
            for (uint32_t j = 0; j < 4 / sizeof(unit); j++)
                ((unit *)(void *)tiles)[j] = read.units[j] ^ flipped.units[j];
            a += right_a;
            b += right_b;
            c += right_c;
            d += right_d;
        }
        a += r->down[0];
        b += r->down[1];
        c += r->down[2];
        d += r->down[3];
    }
}

/* Packs four elements of `height` x `width` pixels, in rectangles of pixels at which each element
 * is either in the image or a constant. Multiplications are per rectangle: small processors are
 * slow at them. */
static void pack_quads(const vta_tensor *t, const uint8_t *values, const element elements[4],
                       uint32_t height, uint32_t width, uint8_t *tiles)
{
    const uint32_t right = t->strides[1] * t->distances[3];
    const uint32_t down = t->strides[0] * t->distances[2], next = t->batch * t->block;
    const uint8_t constants[2] = {0, (uint8_t)((uint8_t)t->pad ^ t->flip)};
    uint32_t y_end, x_end;
    quad flips;
    for (int i = 0; i < 4; i++)
        flips.bytes[i] = elements[i].exists ? t->flip : 0;
    for (uint32_t y = 0; y < height; y = y_end) {
        int in_rows[4];
        y_end = height;
        for (int i = 0; i < 4; i++)
            in_rows[i] = contains(elements[i].y, y, &y_end) && elements[i].exists;
        for (uint32_t x = 0; x < width; x = x_end) {
            rectangle r;
            int in_image[4];
            x_end = width;
            for (int i = 0; i < 4; i++)
                in_image[i] = contains(elements[i].x, x, &x_end) && in_rows[i];
            r.rows = y_end - y;
            r.columns = x_end - x;
            r.next = next;
            r.below = (width - r.columns) * next;
            for (int i = 0; i < 4; i++) {
                const uint32_t place = elements[i].place + y * down + x * right;
                r.from[i] = in_image[i] ? values + place : constants + elements[i].exists;
                r.right[i] = in_image[i] ? (int32_t)right : 0;
                r.down[i] = in_image[i] ? (int32_t)(down - r.columns * right) : 0;
            }
            pack_rectangle(&r, &flips, tiles + (y * width + x) * next);
        }
    }
}

void vta_pack(const vta_tensor *t, const uint8_t *values, uint8_t *tiles)
{
    const uint32_t taps_y = t->kernel[0], taps_x = t->kernel[1], channels = t->c * taps_y * taps_x;
    const uint32_t span_y = taps_y * t->dilations[0], span_x = taps_x * t->dilations[1];
    const uint32_t reach_y = t->h + t->pads[0] + t->pads[2] - (span_y - t->dilations[0]) - 1;
    const uint32_t reach_x = t->w + t->pads[1] + t->pads[3] - (span_x - t->dilations[1]) - 1;
    const uint32_t h = reach_y / t->strides[0] + 1, w = reach_x / t->strides[1] + 1;
    /* From the first pixel of the result to the last one. */
    const uint32_t height = (h - 1) * t->strides[0], width = (w - 1) * t->strides[1];
    /* Distances in the source: from tap to tap along x, from the end of a row of taps to the next
     * row, and from the last tap to the next channel. */
    const uint32_t tap = t->dilations[1] * t->distances[3];
    const uint32_t next_row = t->dilations[0] * t->distances[2] - taps_x * tap;
    const uint32_t next_channel = t->distances[1] - span_y * t->distances[2];
    const uint32_t tile = h * w * t->batch * t->block;
    const uint32_t tiles_c = (channels + t->block - 1) / t->block;
    for (uint32_t image = 0; image < t->n || image % t->batch; image++) {
        uint8_t *to = tiles + image / t->batch * tiles_c * tile + image % t->batch * t->block;
        uint32_t channels_left = image < t->n ? t->c : 0, row = 0 - t->pads[0], tap_y = 0;
        uint32_t column = 0 - t->pads[1], tap_x = 0;
        uint32_t place = image * t->distances[0] + row * t->distances[2] + column * t->distances[3];
        for (uint32_t c = 0; c < channels; c += t->block, to += tile)
            for (uint32_t k = 0; k < t->block; k += 4) {
                element elements[4];
                for (int i = 0; i < 4; i++) {
                    element *const e = elements + i;
                    e->exists = channels_left != 0;
                    e->place = place;
                    e->y = inside(row, t->strides[0], row + height, h, t->h);
                    e->x = inside(column, t->strides[1], column + width, w, t->w);
                    place += tap;
                    column += t->dilations[1];
                    if (++tap_x < taps_x)
                        continue;
                    tap_x = 0;
                    place += next_row;
                    column -= span_x;
                    row += t->dilations[0];
                    if (++tap_y < taps_y)
                        continue;
                    tap_y = 0;
                    place += next_channel;
                    row -= span_y;
                    channels_left -= channels_left != 0;
                }
                pack_quads(t, values, elements, h, w, to + k);
            }
    }
}

/* Reads quads: the machine's memory may be slow to read. */
void vta_unpack(const vta_tensor *t, const uint8_t *tiles, uint8_t *values)
{
    const uint32_t pixels = t->h * t->w, next = t->batch * t->block, tile = pixels * next;
    const uint32_t channels = t->c, block = t->block, tiles_c = (channels + block - 1) / block;
    /* A copy: a write to the values may change `t` as far as the compiler knows. */
    const uint8_t flip = t->flip;
    for (uint32_t n = 0; n < t->n; n++) {
        const uint8_t *of_tile = tiles + n / t->batch * tiles_c * tile + n % t->batch * t->block;
        for (uint32_t c = 0, k = 0; c < channels; c += 4) {
            const uint32_t count = channels - c < 4 ? channels - c : 4;
            const uint8_t *from = of_tile + k;
            for (uint32_t i = 0; i < pixels; i++, from += next) {
                quad q;
                for (uint32_t j = 0; j < 4 / sizeof(unit); j++)
                    q.units[j] = ((const unit *)(const void *)from)[j];
                /* Constant subscripts keep the quad in registers. */
                values[i] = q.bytes[0] ^ flip;
                if (count > 1)
                    values[i + pixels] = q.bytes[1] ^ flip;
                if (count > 2)
                    values[i + 2 * pixels] = q.bytes[2] ^ flip;
                if (count > 3)
                    values[i + 3 * pixels] = q.bytes[3] ^ flip;
            }
            values += count * pixels;
            k += 4;
            if (k == block) {
                k = 0;
                of_tile += tile;
            }
        }
    }
}

/* An element of a factor less the zero point. */
static int centred(const vta_factor *f, uint8_t value)
{
    return (int8_t)(value ^ f->flip) - f->zero;
}

void vta_pack_factor(const vta_factor *f, const uint8_t *values, uint8_t *tiles)
{
    for (uint32_t group = 0; group < f->groups; group++, values += f->distances[0])
        for (uint32_t out = 0; out < f->padded; out += f->batch)
            for (uint32_t in = 0; in < f->inputs; in += f->block)
                for (uint32_t term = 0; term < f->terms; term++)
                    for (uint32_t o = out; o < out + f->batch; o++) {
                        const uint8_t *from = values + in * f->distances[1] + o * f->distances[2];
                        for (uint32_t i = in; i < in + f->block; i++, from += f->distances[1]) {
                            int rest = 0, part = 0;
                            if (o < f->outputs && i < f->inputs)
                                rest = centred(f, *from);
                            for (uint32_t t = 0; t <= term; t++) {
                                part = rest < -128 ? -128 : rest > 127 ? 127 : rest;
                                rest -= part;
                            }
                            *tiles++ = (uint8_t)part;
                        }
                    }
}

/* Little-endian, as the machine reads it. */
static void put_32(uint8_t *bytes, uint32_t value)
{
    for (unsigned i = 0; i < 4; i++)
        bytes[i] = (uint8_t)(value >> 8 * i);
}

void vta_pack_factor_bias(const vta_factor *f, const uint8_t *values, uint8_t *tiles)
{
    const uint32_t count = 1 + f->rest_count, columns = f->groups * f->padded;
    const uint32_t width = (columns + f->block - 1) / f->block;
    const uint32_t height = (f->rows + f->batch - 1) / f->batch * f->batch;
    for (uint32_t column = 0; column < width * f->block; column++) {
        const uint32_t o = column % f->padded, tile = column / f->block;
        const uint8_t *from = values + column / f->padded * f->distances[0] + o * f->distances[2];
        int32_t sum = 0;
        for (uint32_t i = 0; o < f->outputs && column < columns && i < f->inputs; i++)
            sum += centred(f, from[i * f->distances[1]]);
        for (uint32_t row = 0; row < height; row++)
            for (uint32_t i = 0; i < count; i++) {
                const uint32_t of_tiles = (row / f->batch * width + tile) * count + i;
                /* Wraps around like the sums that it is added to. */
                uint32_t value = (uint32_t)f->added + (uint32_t)f->multiplier * (uint32_t)sum;
                if (i)
                    value = (uint32_t)f->rest[i - 1];
                if (row >= f->rows || column >= columns)
                    value = 0;
                put_32(tiles + ((of_tiles * f->batch + row % f->batch) * f->block +
                                column % f->block) * 4, value);
            }
    }
}

/* The nearest integer; of two, the even one or the one further from zero. Saturates beyond +-1024,
 * where any 8-bit result does; NaN is -1024. */
static int nearest(float value, int ties_to_even)
{
    /* From the bits: without a floating-point unit each operation takes some hundred cycles. */
    const union {
        float number;
        uint32_t bits;
    } given = {value};
    const uint32_t exponent = given.bits >> 23 & 0xFF, significand = (given.bits & 0x7FFFFF) | 0x800000;
    const int is_nan = exponent == 0xFF && significand != 0x800000;
    int whole = 1024;
    if (exponent < 126)
        return 0;
    if (exponent < 137) {
        const uint32_t rest = significand << (exponent - 118), half = UINT32_C(1) << 31;
        whole = (int)(significand >> (150 - exponent));
        whole += rest > half || (rest == half && (!ties_to_even || whole % 2));
    }
    return given.bits >> 31 || is_nan ? -whole : whole;
}

static uint8_t saturated(int value, int low)
{
    return (uint8_t)(value < low ? low : value > low + 255 ? low + 255 : value);
}

void vta_quantize(const float *values, uint8_t *quantized, uint32_t count, float scale, int zero,
                  int low)
{
    for (uint32_t i = 0; i < count; i++)
        quantized[i] = saturated(nearest(values[i] / scale, 1) + zero, low);
}

void vta_quantize_away(const float *values, uint8_t *quantized, uint32_t count, float scale,
                       int zero, int low)
{
    for (uint32_t i = 0; i < count; i++)
        quantized[i] = saturated(nearest(values[i] / scale, 0) + zero, low);
}

static int integer(uint8_t value, int low) { return low ? (int8_t)value : value; }

void vta_dequantize(const uint8_t *quantized, float *values, uint32_t count, float scale, int zero,
                    int low)
{
    for (uint32_t i = 0; i < count; i++)
        values[i] = (float)(integer(quantized[i], low) - zero) * scale;
}

void vta_quantize_channels(const float *values, uint8_t *quantized, uint32_t outer, uint32_t count,
                           uint32_t inner, const float *scales, const uint8_t *zeros, int low)
{
    for (uint32_t o = 0; o < outer; o++)
        for (uint32_t c = 0; c < count; c++, values += inner, quantized += inner)
            vta_quantize(values, quantized, inner, scales[c], integer(zeros[c], low), low);
}

void vta_dequantize_channels(const uint8_t *quantized, float *values, uint32_t outer,
                             uint32_t count, uint32_t inner, const float *scales,
                             const uint8_t *zeros, int low)
{
    for (uint32_t o = 0; o < outer; o++)
        for (uint32_t c = 0; c < count; c++, values += inner, quantized += inner)
            vta_dequantize(quantized, values, inner, scales[c], integer(zeros[c], low), low);
}

/* 1 / sqrt(x), or 0 unless x > 0, by Newton-Raphson steps from a line. */
static double reciprocal_root(double x)
{
    double scale = 1, y;
    if (!(x > 0) || x > 1e300)
        return 0;
    for (; x >= 1; x *= 0.25)
        scale *= 0.5;
    for (; x < 0.25; x *= 4)
        scale *= 2;
    y = 2.4 - 1.44 * x;
    for (unsigned i = 0; i < 5; i++)
        y *= 1.5 - 0.5 * x * y * y;
    return y * scale;
}

void vta_layer_norm(const float *values, float *results, uint32_t rows, uint32_t count,
                    const float *scale, const float *bias, float epsilon)
{
    for (uint32_t row = 0; row < rows; row++, values += count, results += count) {
        double sum = 0, squares = 0;
        for (uint32_t i = 0; i < count; i++)
            sum += (double)values[i];
        const double mean = sum / count;
        for (uint32_t i = 0; i < count; i++)
            squares += ((double)values[i] - mean) * ((double)values[i] - mean);
        const double factor = reciprocal_root(squares / count + (double)epsilon);
        for (uint32_t i = 0; i < count; i++) {
            const float y = (float)(((double)values[i] - mean) * factor) * (scale ? scale[i] : 1);
            results[i] = bias ? y + bias[i] : y;
        }
    }
}

/* exp(x) for x <= 0; the relative error is below 2^-21. */
static float exponential(float x)
{
    /* 1 / n! from 7 to 0, and 2^-n for n = 1, 2, 4 to 64. */
    static const float series[] = {1.98412698e-4f, 1.38888889e-3f, 8.33333333e-3f, 4.16666667e-2f,
                                   1.66666667e-1f, 0.5f,           1,              1};
    static const float powers[] = {0.5f,           0.25f,           0.0625f,        3.90625e-3f,
                                   1.52587891e-5f, 2.32830644e-10f, 5.42101086e-20f};
    if (!(x > -87))
        return 0;
    /* exp(x) = 2^-halvings * exp(rest); ln 2 has two parts, of which the first has 9 bits. */
    const int halvings = (int)(0.5f - x * 1.44269504f);
    const float rest = x + (float)halvings * 0.693359375f - (float)halvings * 2.12194440e-4f;
    float result = 0;
    for (unsigned i = 0; i < sizeof series / sizeof *series; i++)
        result = result * rest + series[i];
    for (unsigned i = 0; i < sizeof powers / sizeof *powers; i++)
        if (halvings >> i & 1)
            result *= powers[i];
    return result;
}

void vta_softmax(const float *values, float *results, uint32_t outer, uint32_t count,
                 uint32_t inner)
{
    for (uint32_t o = 0; o < outer; o++)
        for (uint32_t i = 0; i < inner; i++) {
            const float *const x = values + o * count * inner + i;
            float *const y = results + o * count * inner + i;
            float greatest = x[0], sum = 0;
            for (uint32_t c = 1; c < count; c++)
                if (x[c * inner] > greatest)
                    greatest = x[c * inner];
            for (uint32_t c = 0; c < count; c++)
                sum += y[c * inner] = exponential(x[c * inner] - greatest);
            for (uint32_t c = 0; c < count; c++)
                y[c * inner] /= sum;
        }
}

/* The upper half of the doubled product, rounded to nearest. */
static int32_t product(int64_t a, int64_t b)
{
    const int64_t whole = a * b, half = INT64_C(1) << 30;
    return (int32_t)((whole + (whole < 0 ? 1 - half : half)) / (INT64_C(1) << 31));
}

/* The reciprocal of `sum` / 2^31 in Q0.31, of a sum with the highest bit set, by Newton-Raphson steps
 * in Q2.29 from 48/17 - 32/17 * half. */
static int32_t reciprocal(uint32_t sum)
{
    const int64_t half = sum / 2;
    int64_t x = 1515870810 + product(half, -1010580540);
    for (int i = 0; i < 3; i++)
        x += product(x, (INT64_C(1) << 29) - product(half, x)) * INT64_C(4);
    return x * 2 > INT32_MAX ? INT32_MAX : (int32_t)(x * 2);
}

void vta_softmax_8bit(const uint8_t *values, uint8_t *results, uint32_t rows, uint32_t count,
                      const int32_t *exponentials, int low)
{
    for (uint32_t row = 0; row < rows; row++, values += count, results += count) {
        int greatest = integer(values[0], low), bits = 0;
        uint32_t sum = 0; /* in Q12.19 */
        for (uint32_t i = 1; i < count; i++)
            if (integer(values[i], low) > greatest)
                greatest = integer(values[i], low);
        for (uint32_t i = 0; i < count; i++)
            sum += ((uint32_t)exponentials[greatest - integer(values[i], low)] + (1 << 11)) >> 12;
        while (bits < 32 && sum >> bits)
            bits++;
        const int32_t factor = reciprocal(sum << (32 - bits));
        for (uint32_t i = 0; i < count; i++) {
            const int32_t e = exponentials[greatest - integer(values[i], low)];
            const int shift = bits + 3; /* from Q0.31, and the integer bits of the sum, to Q0.8 */
            const int64_t rounded = (product(factor, e) + (INT64_C(1) << shift >> 1)) >> shift;
            results[i] = saturated((int)rounded + low, low);
        }
    }
}

/* Defines a search in elements of a type. */
#define ARGMAX(name, type)                                                                         \
    void name(const type *values, int64_t *indices, uint32_t outer, uint32_t count,                \
              uint32_t inner, int last)                                                            \
    {                                                                                              \
        for (uint32_t o = 0; o < outer; o++)                                                       \
            for (uint32_t i = 0; i < inner; i++) {                                                 \
                const type *const x = values + o * count * inner + i;                              \
                uint32_t best = 0;                                                                 \
                for (uint32_t c = 1; c < count; c++)                                               \
                    if (last ? x[c * inner] >= x[best * inner] : x[c * inner] > x[best * inner])   \
                        best = c;                                                                  \
                *indices++ = best;                                                                 \
            }                                                                                      \
    }
ARGMAX(vta_argmax, float)
ARGMAX(vta_argmax_int8, int8_t)
ARGMAX(vta_argmax_uint8, uint8_t)

void vta_narrow(const int64_t *values, int32_t *narrowed, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        narrowed[i] = (int32_t)values[i];
}

void vta_transpose(const void *values, void *results, uint32_t bytes, const vta_axis *axes,
                   uint32_t rank)
{
    const uint8_t *from = (const uint8_t *)values;
    uint8_t *to = (uint8_t *)results;
    uint32_t at[8] = {0};
    for (;;) {
        uint32_t axis = rank;
        for (uint32_t i = 0; i < bytes; i++)
            *to++ = from[i];
        /* The next element: the last axis changes first. */
        while (axis && ++at[axis - 1] == axes[axis - 1].count) {
            axis--;
            from -= (axes[axis].count - 1) * axes[axis].stride * bytes;
            at[axis] = 0;
        }
        if (!axis)
            return;
        from += axes[axis - 1].stride * bytes;
    }
}

vta_result vta_gather(const void *values, const int64_t *indices, void *results, uint32_t outer,
                      uint32_t count, uint32_t bytes, uint32_t indexed)
{
    const uint8_t *from = (const uint8_t *)values;
    uint8_t *to = (uint8_t *)results;
    for (uint32_t o = 0; o < outer; o++, from += count * bytes)
        for (uint32_t i = 0; i < indexed; i++, to += bytes) {
            const int64_t index = indices[i] < 0 ? indices[i] + count : indices[i];
            if (index < 0 || index >= count)
                return VTA_WRONG_INDEX;
            vta_copy(from + (uint32_t)index * bytes, to, bytes);
        }
    return VTA_DONE;
}

void vta_copy(const void *values, void *results, uint32_t bytes)
{
    const uint32_t whole = in_units((uintptr_t)values | (uintptr_t)results, bytes);
    const unit *words = (const unit *)values;
    volatile unit *copies = (unit *)results;
    const uint8_t *from = (const uint8_t *)values + whole;
    volatile uint8_t *to = (uint8_t *)results + whole;
    for (uint32_t i = 0; i < whole / sizeof(unit); i++)
        copies[i] = words[i];
    for (uint32_t i = 0; i < bytes - whole; i++)
        to[i] = from[i];
}
