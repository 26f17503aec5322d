"""Commands that look for a machine: ``explore``, ``estimate-area``."""
