"""The error of networks that cannot be run."""


class ModelError(ValueError):
    """A model that is damaged or that cannot be run; the message says what is wrong and where."""
