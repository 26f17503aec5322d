#include "board.h"

#include <stddef.h>

#include "addresses.h"
#include "vta.h"

#define WORD(address) (*(volatile uint32_t *)(uintptr_t)(address))
#define BIT(name) (UINT32_C(1) << VTA_##name##_SHIFT)

/* A counter; the read of its low word latches the high one. */
static uint64_t counter(uint32_t address)
{
    const uint32_t low = WORD(address);
    return (uint64_t)WORD(address + 4) << 32 | low;
}

uint64_t cycles(void) { return counter(PERIPHERAL_CYCLES_LOW); }

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

static uint64_t spent;

/* The runtime reads STATUS once after the end of each run. */
static uint32_t read_register(void *context, uint32_t offset)
{
    const uint32_t value = WORD(MACHINE_BASE + offset);
    (void)context;
    if (offset == VTA_REG_STATUS && value & BIT(STATUS_DONE))
        spent += counter(MACHINE_BASE + VTA_REG_CYCLES);
    return value;
}

static void write_register(void *context, uint32_t offset, uint32_t value)
{
    (void)context;
    WORD(MACHINE_BASE + offset) = value;
}

/* The loop runs from the instruction cache: all of the memory is left to the machine. */
static void wait_for_interrupt(void *context)
{
    uint32_t pending;
    (void)context;
    do
        __asm__ volatile("csrr %0, 0xFC0" : "=r"(pending));
    while (!(pending & MACHINE_INTERRUPT));
}

const vta_port *machine_port(void)
{
    static const vta_port port = {
        .read_register = read_register,
        .write_register = write_register,
        .memory = board_memory,
        .address = 0,
        .wait_for_interrupt = wait_for_interrupt,
    };
    WORD(MACHINE_BASE + VTA_REG_CONTROL) = BIT(CONTROL_RESET);
    while (WORD(MACHINE_BASE + VTA_REG_STATUS) & (BIT(STATUS_BUSY) | BIT(STATUS_DRAINING))) {
    }
    WORD(MACHINE_BASE + VTA_REG_CONTROL) = BIT(CONTROL_RESET);
    WORD(BOARD_MEMORY_LIMIT) = BOARD_MEMORY_BYTES;
    __asm__ volatile("csrw 0xBC0, %0" : : "r"(MACHINE_INTERRUPT));
    return &port;
}

uint64_t machine_cycles(void) { return spent; }

extern uint32_t network_start[], network_end[];

/* The remainders of all bytes for CRC-32, as of Ethernet. */
static uint32_t remainders[256];

static void compute_remainders(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t rest = byte;
        for (int bit = 0; bit < 8; bit++)
            rest = rest >> 1 ^ (rest & 1 ? 0xEDB88320 : 0);
        remainders[byte] = rest;
    }
}

int load_data(void)
{
    uint32_t crc = UINT32_MAX;
    if (!HAS_DATA)
        return 1;
    compute_remainders();
    if (FLASH_OFFSET)
        WORD(FLASH) = FLASH_OFFSET;
    for (uint32_t *next = network_start; next < network_end; next++) {
        if (FLASH_OFFSET)
            *next = WORD(FLASH);
        crc ^= *next;
        for (int byte = 0; byte < 4; byte++)
            crc = crc >> 8 ^ remainders[crc & 0xFF];
    }
    return ~crc == DATA_CHECKSUM;
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
