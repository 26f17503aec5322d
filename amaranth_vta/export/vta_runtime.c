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

void vta_load(const vta_port *port, uint32_t bytes, const vta_segment *segments, uint32_t count)
{
    for (uint32_t i = 0; i < bytes; i++)
        port->memory[i] = 0;
    for (uint32_t s = 0; s < count; s++)
        for (uint32_t i = 0; i < segments[s].size; i++)
            port->memory[segments[s].offset + i] = segments[s].data[i];
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

static uint32_t tile_index(const vta_tensor *t, uint32_t tiles_c, uint32_t h, uint32_t w, uint32_t n,
                           uint32_t c, uint32_t y, uint32_t x)
{
    const uint32_t tile = ((n / t->batch * tiles_c + c / t->block) * h + y) * w + x;
    return (tile * t->batch + n % t->batch) * t->block + c % t->block;
}

static uint32_t rounded_up(uint32_t value, uint32_t unit) { return (value + unit - 1) / unit; }

void vta_pack(const vta_tensor *t, const uint8_t *values, uint8_t *tiles)
{
    const uint32_t taps = t->kernel[0] * t->kernel[1], channels = t->c * taps;
    const uint32_t reach_y = (t->kernel[0] - 1) * t->dilations[0] + 1;
    const uint32_t reach_x = (t->kernel[1] - 1) * t->dilations[1] + 1;
    const uint32_t h = (t->h + t->pads[0] + t->pads[2] - reach_y) / t->strides[0] + 1;
    const uint32_t w = (t->w + t->pads[1] + t->pads[3] - reach_x) / t->strides[1] + 1;
    const uint32_t tiles_c = rounded_up(channels, t->block), tiles_n = rounded_up(t->n, t->batch);
    for (uint32_t i = 0; i < tiles_n * tiles_c * h * w * t->batch * t->block; i++)
        tiles[i] = 0;
    for (uint32_t n = 0; n < t->n; n++)
        for (uint32_t c = 0; c < channels; c++)
            for (uint32_t y = 0; y < h; y++)
                for (uint32_t x = 0; x < w; x++) {
                    const uint32_t tap = c % taps;
                    /* Below zero these are beyond the image as well. */
                    const uint32_t row = y * t->strides[0] + tap / t->kernel[1] * t->dilations[0] - t->pads[0];
                    const uint32_t column = x * t->strides[1] + tap % t->kernel[1] * t->dilations[1] - t->pads[1];
                    uint8_t value = (uint8_t)t->pad;
                    if (row < t->h && column < t->w)
                        value = values[((n * t->c + c / taps) * t->h + row) * t->w + column] ^ t->flip;
                    tiles[tile_index(t, tiles_c, h, w, n, c, y, x)] = value;
                }
}

void vta_unpack(const vta_tensor *t, const uint8_t *tiles, uint8_t *values)
{
    const uint32_t tiles_c = rounded_up(t->c, t->block);
    for (uint32_t n = 0; n < t->n; n++)
        for (uint32_t c = 0; c < t->c; c++)
            for (uint32_t y = 0; y < t->h; y++)
                for (uint32_t x = 0; x < t->w; x++)
                    *values++ = tiles[tile_index(t, tiles_c, t->h, t->w, n, c, y, x)] ^ t->flip;
}

/* The nearest integer, ties to even; saturates beyond +-1024, far from any 8-bit result. */
static int nearest(float value)
{
    const float near = value > 1024 ? 1024 : value > -1024 ? value : -1024;
    const int whole = (int)near;
    const float rest = near < 0 ? (float)whole - near : near - (float)whole;
    const int away = near < 0 ? whole - 1 : whole + 1;
    return rest > 0.5f || (rest == 0.5f && whole % 2) ? away : whole;
}

void vta_quantize(const float *values, uint8_t *quantized, uint32_t count, float scale, int zero,
                  int low)
{
    for (uint32_t i = 0; i < count; i++) {
        const int value = nearest(values[i] / scale) + zero, high = low + 255;
        quantized[i] = (uint8_t)(value < low ? low : value > high ? high : value);
    }
}

void vta_dequantize(const uint8_t *quantized, float *values, uint32_t count, float scale, int zero,
                    int low)
{
    for (uint32_t i = 0; i < count; i++)
        values[i] = (float)((low ? (int8_t)quantized[i] : quantized[i]) - zero) * scale;
}
