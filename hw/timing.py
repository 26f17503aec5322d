"""Depths, limits and latencies of the design.

Shared with software: the estimate of cycles (`amaranth_vta.sim.estimate`) and the compiler's cost
model use the same numbers as the hardware. The design is built with the constants of this module.
`Latencies` follow from the structure of the design: ``benchmarks/estimate_constants.py`` measures
them on the RTL and reports changes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .config import Config
from .microarchitecture import Microarchitecture, Storage

# Maximum bursts in flight, for reads and for writes each.
BURSTS_IN_FLIGHT = 8
# No read burst starts while this many beats are outstanding.
BEATS_AHEAD = 128
# Maximum instructions that a module has issued and not retired.
INSTRUCTIONS_IN_FLIGHT = 16
# Maximum commands in the queue of GEMM, and of the ALU.
GEMM_COMMANDS = 2
ALU_COMMANDS = 8
# A burst has at most BURST_BEATS beats and does not cross a multiple of BURST_BYTES. Fetch bursts
# do not cross a multiple of FETCH_BURST_BYTES; fetch buffers two of them.
BURST_BEATS = 256
BURST_BYTES = 4096
FETCH_BURST_BYTES = 256
# Maximum beats of an element that loads gather before writing. A lane of 4 beats of 64 bits wastes
# 5 of 261 bits of block RAM, one of 2 beats 7 of 135.
MAX_LANE_BEATS = 4
# Latency in cycles of dot products, and of ALU lanes without and with REQUANTIZE, without the
# registers that `Microarchitecture` adds.
DOT_PRODUCT_LATENCY = 3
ALU_LATENCY = 1
REQUANTIZING_ALU_LATENCY = 6
# `Microarchitecture.alu_lane_registers`: after the operands, and after the products.
ALU_LANE_REGISTERS = 2
# Words of a LOOKUP table, which is copied into the lanes at one word per cycle.
TABLE_WORDS = 64
# Cycles from accepting a GEMM micro-op to its completion, without tile registers: tiles are read
# before the dot products, accumulators written after them.
GEMM_LATENCY = DOT_PRODUCT_LATENCY + 2


def gemm_latency(config: Config, choices: Microarchitecture | None = None) -> int:
    """Cycles from accepting a GEMM micro-op to its completion."""
    choices = choices or Microarchitecture.of(config)
    return GEMM_LATENCY + choices.tile_registers


def alu_latency(config: Config, choices: Microarchitecture | None = None) -> int:
    """Cycles from the operands of the ALU to its result, which is complete when each lane has
    computed its last column.
    """
    if config.requantize:
        return REQUANTIZING_ALU_LATENCY + config.lane_columns - 1
    choices = choices or Microarchitecture.of(config)
    return ALU_LATENCY + (ALU_LANE_REGISTERS if choices.alu_lane_registers else 0)


def has_long_alu(config: Config) -> bool:
    """Whether the ALU has a stall register in front of its pipeline, since the stall signal has a
    high fan-out: with long pipelines, and where parameters, tables or sources are read in advance.
    """
    return bool(config.requantize or config.lookup or config.overlap)


def early_end(config: Config) -> int:
    """Number of cycles by which a GEMM or ALU instruction retires before its last write becomes
    visible: with OVERLAP, as many as FORWARD, the earliest reader of accumulators, needs to read.
    """
    return 2 if config.overlap else 0


def copied_sources(config: Config) -> int:
    """Number of accumulators, counted from the last, that have a second copy: from it the ALU reads
    a source together with the destination, regardless of GEMM's reads. With OVERLAP a quarter, for
    the constants of a layer; otherwise all, since sums and bias share a bank.
    """
    return max(1, config.acc.depth // 4) if config.overlap else config.acc.depth


@dataclass(frozen=True)
class Latencies:
    """Cycles between consecutive events, without stalls, of a machine whose instruction queues are
    in block RAM and whose decoders have no register.
    """

    # From launch to the first request of fetch.
    launch_to_fetch: int = 6
    # From dispatch of an instruction by fetch to its issue.
    hand_over_to_issue: int = 6
    # From the issue of an instruction to the issue of its successor in the same queue.
    issue_to_issue: int = 3
    # From completion of an instruction in its unit to its retirement; instructions that wait for
    # its tokens can issue one cycle later.
    done_to_retire: int = 0
    # From the issue of a LOAD to its first request, or of a STORE to the announcement of its first
    # burst.
    issue_to_request: int = 2
    # From the arbiter's grant to the request at memory.
    grant_to_memory: int = 1
    # From a word on the bus to the dispatch of the instruction that it completes.
    word_to_fetch: int = 2
    # From the last word of a LOAD on the bus to the LOAD's completion.
    word_to_done: int = 2
    # From the announcement of a STORE's burst to the transfer of its first word.
    announce_to_word: int = 4
    # From the last response of a STORE to its completion.
    response_to_done: int = 1
    # From the issue of a GEMM or ALU instruction to its first micro-op in the unit, and from there
    # to the entry of the ALU pipeline, without a stall register.
    issue_to_item: int = 3
    item_to_alu: int = 0
    # From the issue of FINISH to the interrupt.
    finish_to_end: int = 3


LATENCIES = Latencies()


def latencies(config: Config, choices: Microarchitecture | None = None) -> Latencies:
    """Latencies of a machine. Queues in LUTs deliver instructions earlier than block RAM, also in
    succession.
    """
    choices = choices or Microarchitecture.of(config)
    known = replace(
        LATENCIES,
        hand_over_to_issue=LATENCIES.hand_over_to_issue + choices.decode_register,
        item_to_alu=int(has_long_alu(config)),
    )
    if choices.instruction_queues is Storage.BLOCK_RAM:
        return known
    return replace(known, hand_over_to_issue=known.hand_over_to_issue - 2, issue_to_issue=1)
