"""Compiled networks as C, for processors beside the machine."""
