"""Commands on programs of instructions: run one, read one, try many."""
