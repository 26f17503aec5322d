/* What firmware sees of the board: its serial line, its clock, its memory and its machine. */
#ifndef BOARD_H
#define BOARD_H

#include <stdint.h>

#include "vta_runtime.h"

/* Start of the memory that the processor and the machine share, BOARD_MEMORY_BYTES long. */
extern uint8_t board_memory[];

/* Clock cycles since power-up. */
uint64_t cycles(void);

/* Waits for a byte; returns it, or -1 after `patience` cycles without one. */
int receive(uint64_t patience);
#define FOREVER UINT64_MAX

void send(uint8_t byte);
void send_bytes(const void *bytes, uint32_t count);
void send_text(const char *text);

/* The port of the runtime, with the network's memory at the start of the shared memory. The call
 * resets the machine and unlimits its memory. */
const vta_port *machine_port(void);

/* Loads the network's data from the flash memory, if the firmware's memory does not hold them; without
 * a flash memory, the host has loaded them. Returns whether they have their checksum. */
int load_data(void);

/* Cycles of the machine, summed over its runs since power-up or a restart. */
uint64_t machine_cycles(void);

#endif
