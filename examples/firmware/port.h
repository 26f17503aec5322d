#ifndef PORT_H
#define PORT_H

#include "vta_runtime.h"

/* The machine of this board, and the memory that it shares with the processor. */
const vta_port *board_port(void);

#endif
