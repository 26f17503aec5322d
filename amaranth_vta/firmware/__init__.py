"""Firmware for boards with a processor, which runs an exported network without a host."""
