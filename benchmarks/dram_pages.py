"""Compare counts of opened DRAM pages with memory controllers on simulated bursts.

    python benchmarks/dram_pages.py [--networks NAME ...] [--config pynq-extended] [--dram ddr]

Prints, as Markdown, per network the least and the most pages that `opened_pages` counts from the
instructions, and how many pages the bursts of a simulated run open, in the order of the bus, in
memories of 1 to 8 banks: page n is in bank n modulo the number of banks, and stays open until its
bank needs another one. `instrumented` has the networks and their inputs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from instrumented import WRITTEN, options, simulated, simulator
from tables import head, row

from amaranth_vta.hw.memory_timing import DRAM_PAGE_BYTES
from amaranth_vta.sim.machine.elaborate import verilog

_BANKS = (1, 2, 4, 8)
_CHANNELS = "".join(
    f"""
    if (m_axi_{channel}valid && m_axi_{channel}ready)
      $fdisplay(bursts_file, "%0d %0d", m_axi_{channel}addr, m_axi_{channel}len);"""
    for channel in ("ar", "aw")
)
# Writes address and beats - 1 of each burst to a file; a part of the module of the machine.
_WRITER = f"""
  integer bursts_file;
  initial bursts_file = $fopen("{WRITTEN}", "w");
  always @(posedge clk) begin{_CHANNELS}
  end
  final $fflush(bursts_file);
endmodule"""


def main() -> None:
    networks, config, dram = options()
    library = simulator(verilog(config).replace("endmodule", _WRITER, 1), config)
    banks = (f"{count} bank{'s' if count > 1 else ''}" for count in _BANKS)
    print(*head("network", "bursts", "least", "most", *banks), sep="\n")
    for name in networks:
        text, program = simulated(name, config, library, dram)
        bursts = [(int(at), int(beats) + 1) for at, beats in re.findall(r"(\d+) (\d+)", text)]
        counts = sum((counts for _, counts in program.layer_events), Counter[str]())
        pages = list(pages_of(bursts, config.bus_bytes))
        found = (
            *(len(bursts), counts["pages_least"], counts["pages_most"]),
            *(opened(pages, number) for number in _BANKS),
        )
        print(row(name, *(f"{number:,}" for number in found)), flush=True)


def pages_of(bursts: Iterable[tuple[int, int]], beat_bytes: int) -> Iterable[int]:
    """The numbers of the pages that bursts, each an address and a number of beats, need, in
    order.
    """
    for address, beats in bursts:
        yield from range(
            address // DRAM_PAGE_BYTES, (address + beats * beat_bytes - 1) // DRAM_PAGE_BYTES + 1
        )


def opened(pages: Iterable[int], banks: int) -> int:
    """Number of pages that a memory with so many ``banks`` opens for accesses to ``pages``."""
    is_open: dict[int, int] = {}
    count = 0
    for page in pages:
        count += is_open.get(page % banks) != page
        is_open[page % banks] = page
    return count


if __name__ == "__main__":
    main()
