"""Pages and a C header, generated from the definitions of registers and instructions."""
