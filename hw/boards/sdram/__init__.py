"""Synchronous DRAM on a board, as the memory of the machine and the host."""
