"""`ExportError`."""

from amaranth_vta.errors import VtaError


class ExportError(VtaError, ValueError):
    """A network cannot be exported; the message says which part of it and why."""
