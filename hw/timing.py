"""How much the design has in flight at a time, and how long one event takes to cause another.

Shared with software: the estimate of cycles (`amaranth_vta.sim.estimate`) and the compiler's cost
model count with the same numbers as the hardware. The design itself is built with the constants of
this module, but `Latencies` follow from how its parts are put together:
``benchmarks/estimate_constants.py`` measures them on the RTL and says if one has changed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .config import Config

# The most bursts in flight, for reads and for writes each.
BURSTS_IN_FLIGHT = 8
# No read is started while this many beats of earlier ones are still to come.
BEATS_AHEAD = 128
# The most instructions that a module has issued and not retired.
INSTRUCTIONS_IN_FLIGHT = 16
# Of those, the most that are in the queue before GEMM, and before the ALU.
GEMM_COMMANDS = 2
ALU_COMMANDS = 8
# A burst has at most BURST_BEATS beats and does not cross a multiple of BURST_BYTES; those of fetch
# do not cross a multiple of FETCH_BURST_BYTES, and fetch buffers twice as many bytes.
BURST_BEATS = 256
BURST_BYTES = 4096
FETCH_BURST_BYTES = 256
# The most beats of an element that loads gather before they write them. A lane of 4 beats
# of 64 bits leaves 5 of 261 bits of block RAM unused, one of 2 beats 7 of 135.
MAX_LANE_BEATS = 4
# Cycles from tiles to their dot products, and from operands of the ALU to its result in lanes that
# cannot requantize, both without the registers of small machines; and in lanes that can requantize.
DOT_PRODUCT_LATENCY = 3
ALU_LATENCY = 1
REQUANTIZING_ALU_LATENCY = 6
# Registers of small machines, behind the operands of the ALU and behind its products.
SMALL_ALU_REGISTERS = 2
# Words in which a table of LOOKUP is copied into the lanes, one per cycle.
TABLE_WORDS = 64
# Cycles of GEMM from a micro-op's being taken to its being done, without that register: tiles are
# read before the dot products, and accumulators written after them.
GEMM_LATENCY = DOT_PRODUCT_LATENCY + 2
# Machines of at most this many multiply-accumulates per cycle are for small FPGAs.
SMALL_MACS = 128


def is_small(config: Config) -> bool:
    """Whether the machine is made for a small FPGA. Block RAM is slow there and multipliers are far
    away, so tiles, operands of the ALU and its products have a register, at the cost of one more
    cycle of each. But scratchpads leave some block RAM, which holds the queues of instructions."""
    return config.macs_per_cycle <= SMALL_MACS


def gemm_latency(config: Config) -> int:
    """Cycles of GEMM from a micro-op's being taken to its being done."""
    return GEMM_LATENCY + is_small(config)


def alu_latency(config: Config) -> int:
    """Cycles from operands of the ALU to its result."""
    if config.requantize:
        return REQUANTIZING_ALU_LATENCY
    return ALU_LATENCY + (SMALL_ALU_REGISTERS if is_small(config) else 0)


def has_long_alu(config: Config) -> bool:
    """Whether a micro-op waits in a register before the ALU, since much depends on whether it has
    to: where the pipeline is long, and where parameters, tables or sources are read before."""
    return bool(config.requantize or config.lookup or config.overlap)


def early_end(config: Config) -> int:
    """How many cycles before its last write can be read an instruction of GEMM or the ALU is done:
    with OVERLAP as many as FORWARD, the quickest to read accumulators, takes from there."""
    return 2 if config.overlap else 0


def copied_sources(config: Config) -> int:
    """Accumulators, the last ones, that are in memory twice: the ALU reads one of these as the
    source of a micro-op together with its destination, whatever GEMM reads. With OVERLAP they are a
    quarter, room for the constants of a layer; without it all, since sums and bias share a bank."""
    return max(1, config.acc.depth // 4) if config.overlap else config.acc.depth


@dataclass(frozen=True)
class Latencies:
    """Cycles from one event to the next of a small machine, if nothing else holds it up."""

    # From the launch to the first request of fetch.
    launch_to_fetch: int = 6
    # From an instruction's hand-over by fetch to its being issued.
    hand_over_to_issue: int = 6
    # From the issue of an instruction to that of the next one of its module, already in its queue.
    issue_to_issue: int = 3
    # From a unit's being done with an instruction to its retirement; a cycle later, what waits for
    # its tokens can be issued.
    done_to_retire: int = 0
    # From the issue of a LOAD to its first request, or of a STORE to the announcement of its first
    # burst.
    issue_to_request: int = 2
    # From the choice of a request by the arbiter to its reaching memory.
    grant_to_memory: int = 1
    # From a word on the bus to the hand-over of the instruction that it completes.
    word_to_fetch: int = 2
    # From the last word of a LOAD on the bus to its being done.
    word_to_done: int = 2
    # From the announcement of a burst of a STORE to its first word's being moved.
    announce_to_word: int = 4
    # From the last response of a STORE to its being done.
    response_to_done: int = 1
    # From the issue of a GEMM or ALU instruction to its unit's taking its first micro-op, and from
    # there to that one's entering the pipeline of the ALU, without the register of a long one.
    issue_to_item: int = 3
    item_to_alu: int = 0
    # From the issue of FINISH to the interrupt.
    finish_to_end: int = 3


LATENCIES = Latencies()


def latencies(config: Config) -> Latencies:
    """Those of a machine. In a large one the queues are in LUTs, which give instructions sooner,
    even though they are decoded in a cycle of their own."""
    known = replace(LATENCIES, item_to_alu=int(has_long_alu(config)))
    if is_small(config):
        return known
    return replace(known, hand_over_to_issue=5, issue_to_issue=1)
