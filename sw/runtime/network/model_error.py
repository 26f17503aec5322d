"""The error raised for networks that cannot be run."""

from amaranth_vta.errors import VtaError


class ModelError(VtaError, ValueError):
    """A model is damaged or cannot be run; the message states the problem and its location."""
