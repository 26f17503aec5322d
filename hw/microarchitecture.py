"""Choices between implementations of the same machine: `Microarchitecture`.

A `Config` defines what programs and software see; these choices affect only area, clock frequency
and cycles. They are derived from the configuration, and can be overridden to explore others::

    choices = replace(Microarchitecture.of(config), instruction_queues=Storage.LUTS)
    Top(config, choices=choices)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .config import Config

# Machines with at most this many multiply-accumulates per cycle target small FPGAs, where LUTs are
# few, block RAM is slow and partly unused, and multipliers are far from most logic.
SMALL_MACS = 128
# Factor width of an ECP5 multiplier.
SMALL_FACTOR_WIDTH = 18


class Storage(StrEnum):
    """Implementation of a small memory."""

    LUTS = "LUTs"
    BLOCK_RAM = "block RAM"


@dataclass(frozen=True)
class Microarchitecture:
    """One field per choice. Raises `ValueError` if ``products_per_multiplier`` is not 1 or 2."""

    # Instruction queues of load, compute and store: a LUT RAM per module, or one block RAM for all,
    # from which an instruction issues two cycles later.
    instruction_queues: Storage
    # Buffer of prefetched instructions.
    fetch_buffer: Storage
    # Copy of the writable registers that a read returns.
    register_readback: Storage
    # Register between decoding and issue, which takes a cycle.
    decode_register: bool
    # Output register of the queues of instructions in flight, and of unanswered STORE bursts.
    in_flight_register: bool
    # The end of a row of a transfer is computed one cycle ahead: more flip-flops and comparators,
    # but shorter paths, which limit only large machines.
    row_end_lookahead: bool
    # Register between the block RAM of tiles and the multipliers of GEMM, which takes a cycle.
    tile_registers: bool
    # Registers after the operands and the products of an ALU lane, which take a cycle each. Lanes
    # with REQUANTIZE always have registers there.
    alu_lane_registers: bool
    # GEMM products in one multiplication: two that share an input, or one for narrow multipliers.
    products_per_multiplier: int

    def __post_init__(self) -> None:
        if self.products_per_multiplier not in (1, 2):
            raise ValueError(
                f"products_per_multiplier = {self.products_per_multiplier} is neither 1 nor 2"
            )

    @classmethod
    def of(cls, config: Config) -> Microarchitecture:
        """The choices for a machine of ``config``."""
        small = config.macs_per_cycle <= SMALL_MACS
        storage = Storage.BLOCK_RAM if small else Storage.LUTS
        narrow = small and paired_weights_width(config) > SMALL_FACTOR_WIDTH
        return cls(
            instruction_queues=storage,
            fetch_buffer=storage,
            register_readback=storage,
            decode_register=not small,
            in_flight_register=not small,
            row_end_lookahead=not small,
            tile_registers=small,
            alu_lane_registers=small and not config.requantize,
            products_per_multiplier=1 if narrow else 2,
        )


def paired_weights_width(config: Config) -> int:
    """Bits of the factor that holds the weights of two outputs."""
    return config.inp_width + 2 * config.wgt_width + 1
