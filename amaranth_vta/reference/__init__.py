"""Generates reference pages and a C header from the definitions of registers and instructions."""
