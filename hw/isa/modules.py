"""Modules that execute instructions, the token queues between them, and causes of faults."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import cache


class Module(IntEnum):
    """The modules that execute instructions, and fetch, which dispatches them."""

    LOAD = 0
    COMPUTE = 1
    STORE = 2
    FETCH = 3


# Capacity of each module's instruction queue; instructions count until they retire.
QUEUE_DEPTH = 64

# (giver, taker): the tokens that the giver has pushed and the taker has not popped yet.
TokenQueue = tuple[Module, Module]

TOKEN_QUEUES: tuple[TokenQueue, ...] = (
    (Module.LOAD, Module.COMPUTE),
    (Module.COMPUTE, Module.LOAD),
    (Module.COMPUTE, Module.STORE),
    (Module.STORE, Module.COMPUTE),
)
# Maximum value of a token counter.
TOKEN_LIMIT = 1023


def queue_name(queue: TokenQueue) -> str:
    """A name such as ``load_to_compute``."""
    giver, taker = queue
    return f"{giver.name}_to_{taker.name}".lower()


@cache
def neighbours(module: Module) -> Mapping[str, Module]:
    """The modules with which ``module`` exchanges tokens, keyed by the side in the flag names."""
    takers = [taker for giver, taker in TOKEN_QUEUES if giver is module]
    return {"prev" if taker < module else "next": taker for taker in takers}


class Cause(IntEnum):
    """Why a run failed; the fault register is 0 after a run without a fault."""

    ILLEGAL_INSTRUCTION = 1
    INDEX_OUT_OF_RANGE = 2
    BUS_ERROR = 3
    TOKEN_OVERFLOW = 4
    BAD_STREAM = 5
    DEADLOCK = 6
    TIMEOUT = 7
