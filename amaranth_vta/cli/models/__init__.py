"""Commands that show or make models, without running them on the machine."""
