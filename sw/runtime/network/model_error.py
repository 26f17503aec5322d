"""The error of networks that cannot be run."""


class ModelError(ValueError):
    """A model is damaged or cannot be run; the message says what is wrong and where."""
