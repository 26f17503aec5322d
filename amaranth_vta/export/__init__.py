"""Exports compiled networks as C, for the processor that drives the machine."""
