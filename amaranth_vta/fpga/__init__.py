"""Bitstreams: the tools that make them from the design of a board, and what is written of it."""
