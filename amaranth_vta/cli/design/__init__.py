"""Commands for design space exploration and tuning."""
