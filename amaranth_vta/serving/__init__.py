"""Serves machines to other computers: ``vta serve``."""
