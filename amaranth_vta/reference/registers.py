"""Generates the page on registers: `page`."""

from __future__ import annotations

from amaranth_vta.hw.registers import COUNTERS, REGISTERS, Access

from .markdown import bits, figure, table

_HEAD = """\
# Registers

Generated from `hw/registers.py` by `make docs`; not written by hand.

Byte offsets on the AXI4-Lite port, 32 bits per word; a register of 64 bits is two words, the low
one first. Offsets without a register read as zero and ignore writes. Configuration registers hold
the parameters of the machine, so that software can refuse one that it was not made for.

A launch copies the registers that describe the program, from `INSN_ADDR` to `OUT_LIMIT`: writes
during a run are for the next one. A read of the low word of `CYCLES` or of a counter latches the
high word, which the next read of the high word returns unless `CONTROL` was written in between.
"""
_COUNTERS = """\
## Counters

Of the latest run, 48 bits each, and a few cycles behind while it runs. Those without `clock` in the
last column are the same on every device for a program that ends without a fault; the functional
model has them too. `RunResult.counters` has all by their names in lower case.
"""


def page() -> str:
    """Markdown: all registers with their bit fields, then the counters."""
    others = [item for item in REGISTERS.values() if item.access is not Access.COUNTER]
    lines = [
        *_HEAD.splitlines(),
        "",
        *table(
            ("offset", "register", "bits", "access", "after power-up", "what"),
            (
                (
                    f"`{item.offset:#05x}`",
                    f"`{item.name}`",
                    item.width,
                    item.access.value,
                    f"{item.init:#x}" if item.access is Access.READ_WRITE else "",
                    item.doc,
                )
                for item in others
            ),
        ),
    ]
    for item in others:
        if item.bits:
            lines += ["", f"## `{item.name}`", ""]
            lines += [figure(f"register-{item.name.lower()}", f"Parts of {item.name} by bit"), ""]
            rows = (
                (bits(part.offset, part.width), f"`{part.name}`", part.doc) for part in item.bits
            )
            lines += table(("bits", "part", "what"), rows)
    lines += ["", *_COUNTERS.splitlines(), ""]
    lines += table(
        ("offset", "counter", "what", ""),
        (
            (
                f"`{REGISTERS[item.name.upper()].offset:#05x}`",
                f"`{item.name}`",
                item.doc,
                "clock" if item.time else "",
            )
            for item in COUNTERS
        ),
    )
    return "\n".join(lines) + "\n"
