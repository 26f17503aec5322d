"""Commands for programs of instructions: run one, print one, fuzz many."""
