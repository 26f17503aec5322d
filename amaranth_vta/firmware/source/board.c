#include "board.h"

#include <stddef.h>

#include "addresses.h"
#include "vta.h"

#define WORD(address) (*(volatile uint32_t *)(uintptr_t)(address))
#define BIT(name) (UINT32_C(1) << VTA_##name##_SHIFT)

uint64_t cycles(void)
{
    const uint32_t low = WORD(PERIPHERAL_CYCLES_LOW);
    return (uint64_t)WORD(PERIPHERAL_CYCLES_HIGH) << 32 | low;
}

int receive(uint64_t patience)
{
    const uint64_t since = patience == FOREVER ? 0 : cycles();
    for (;;) {
        const uint32_t received = WORD(PERIPHERAL_RECEIVE);
        if (received & RECEIVED)
            return (int)(received & 0xFF);
        if (patience != FOREVER && cycles() - since > patience)
            return -1;
    }
}

void send(uint8_t byte)
{
    while (WORD(PERIPHERAL_SEND)) {
    }
    WORD(PERIPHERAL_SEND) = byte;
}

void send_bytes(const void *bytes, uint32_t count)
{
    const uint8_t *next = bytes;
    while (count--)
        send(*next++);
}

void send_text(const char *text)
{
    while (*text)
        send((uint8_t)*text++);
}

static int running;
static uint64_t spent;

static uint32_t pending_interrupts(void)
{
    uint32_t pending;
    __asm__ volatile("csrr %0, 0xFC0" : "=r"(pending));
    return pending;
}

static uint32_t read_register(void *context, uint32_t offset)
{
    (void)context;
    if (offset == VTA_REG_STATUS && running) {
        /* The loop runs from the instruction cache: all of the memory is left to the machine. */
        while (!(pending_interrupts() & MACHINE_INTERRUPT)) {
        }
        running = 0;
        spent += (uint64_t)WORD(MACHINE_BASE + VTA_REG_CYCLES + 4) << 32 |
                 WORD(MACHINE_BASE + VTA_REG_CYCLES);
    }
    return WORD(MACHINE_BASE + offset);
}

static void write_register(void *context, uint32_t offset, uint32_t value)
{
    (void)context;
    if (offset == VTA_REG_CONTROL && value & BIT(CONTROL_LAUNCH))
        running = 1;
    WORD(MACHINE_BASE + offset) = value;
}

const vta_port *machine_port(void)
{
    static const vta_port port = {
        .read_register = read_register,
        .write_register = write_register,
        .memory = board_memory,
        .address = 0,
    };
    WORD(MACHINE_BASE + VTA_REG_CONTROL) = BIT(CONTROL_RESET);
    while (WORD(MACHINE_BASE + VTA_REG_STATUS) & (BIT(STATUS_BUSY) | BIT(STATUS_DRAINING))) {
    }
    WORD(MACHINE_BASE + VTA_REG_CONTROL) = BIT(CONTROL_RESET);
    WORD(MACHINE_BASE + VTA_REG_INTERRUPT_ENABLE) =
        BIT(INTERRUPT_ENABLE_DONE) | BIT(INTERRUPT_ENABLE_FAULT);
    WORD(BOARD_MEMORY_LIMIT) = BOARD_MEMORY_BYTES;
    __asm__ volatile("csrw 0xBC0, %0" : : "r"(MACHINE_INTERRUPT));
    return &port;
}

uint64_t machine_cycles(void) { return spent; }

const char *result_name(vta_result result)
{
    static const char *const names[] = {"done", "wrong machine", "fault", "timeout"};
    return names[result];
}

static void send_hexadecimal(uint32_t value)
{
    for (int shift = 28; shift >= 0; shift -= 4)
        send((uint8_t)"0123456789abcdef"[value >> shift & 15]);
}

void report_trap(uint32_t cause, uint32_t address);

void report_trap(uint32_t cause, uint32_t address)
{
    send_text("\r\ne-[trap ");
    send_hexadecimal(cause);
    send_text(" at ");
    send_hexadecimal(address);
    send_text("]\r\n");
}
