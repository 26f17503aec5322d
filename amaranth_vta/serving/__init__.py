"""Machines served to other computers: ``vta serve``."""
