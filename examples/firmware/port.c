/* Access to a machine on a processor's bus, in memory that both see without caches or, with a
 * coherent port, with them. Give the addresses of your system:
 *
 *     -DVTA_REGISTERS=0x80000000 -DVTA_MEMORY=0x40000000
 *
 * If the machine sees its memory at another address, also -DVTA_MEMORY_OF_MACHINE=...; with
 * -DVTA_INTERRUPT a RISC-V processor sleeps while the machine runs.
 */
#include "port.h"

#ifndef VTA_REGISTERS
#define VTA_REGISTERS 0x80000000
#endif
#ifndef VTA_MEMORY
#define VTA_MEMORY 0x40000000
#endif
#ifndef VTA_MEMORY_OF_MACHINE
#define VTA_MEMORY_OF_MACHINE VTA_MEMORY
#endif

static volatile uint32_t *register_at(void *context, uint32_t offset)
{
    return (volatile uint32_t *)((uintptr_t)context + offset);
}

static uint32_t read_register(void *context, uint32_t offset)
{
    return *register_at(context, offset);
}

static void write_register(void *context, uint32_t offset, uint32_t value)
{
    *register_at(context, offset) = value;
}

/* Orders accesses to memory against accesses to registers. With caches that the machine does not
 * see, write them back here, and invalidate them after a run. */
static void order(void *context)
{
    (void)context;
#if defined(__riscv)
    __asm__ volatile("fence iorw, iorw" ::: "memory");
#elif defined(__GNUC__)
    __sync_synchronize();
#endif
}

#ifdef VTA_INTERRUPT
/* Stops the processor until an interrupt is pending. The interrupt has to be enabled in mie and at
 * the interrupt controller, and disabled in mstatus, so that no handler is called. */
static void wait_for_interrupt(void *context)
{
    (void)context;
    __asm__ volatile("wfi" ::: "memory");
}
#endif

const vta_port *board_port(void)
{
    static vta_port port;
    port.context = (void *)(uintptr_t)VTA_REGISTERS;
    port.read_register = read_register;
    port.write_register = write_register;
    port.memory = (uint8_t *)(uintptr_t)VTA_MEMORY;
    port.address = VTA_MEMORY_OF_MACHINE;
    port.flush = order;
    port.invalidate = order;
#ifdef VTA_INTERRUPT
    port.wait_for_interrupt = wait_for_interrupt;
#endif
    return &port;
}
