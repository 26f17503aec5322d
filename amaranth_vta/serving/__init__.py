"""Serves machines to other computers and to a benchmark's runner: ``vta serve``."""
