"""Commands that look at models, or make them, and run nothing on the machine."""
