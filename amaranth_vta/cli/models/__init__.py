"""Commands that show, copy or quantize models, without running them on the machine."""
