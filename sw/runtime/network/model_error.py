"""The error raised for networks that cannot be run."""


class ModelError(ValueError):
    """A model is damaged or cannot be run; the message states the problem and its location."""
