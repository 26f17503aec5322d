"""Commands for machine programs: run, disassemble and fuzz."""
