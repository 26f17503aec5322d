"""Memories of LOAD and STORE, their limits in DRAM, and padding values."""

from __future__ import annotations

from enum import IntEnum


class Memory(IntEnum):
    """Memory ids of LOAD and STORE; ACC_8BIT loads accumulators from scalars of OUT's width."""

    UOP = 0
    WGT = 1
    INP = 2
    ACC = 3
    OUT = 4
    ACC_8BIT = 5
    # Extension WGT_4BIT: loads 8-bit weights from scalars of 4 bits. Encoded as `memory_id`, since
    # all values of the field are in use.
    WGT_4BIT = 9


def memory_id(memory: int) -> int:
    """Encoding of ``memory`` in a LOAD: WGT_4BIT has the number of OUT, which cannot be loaded."""
    return Memory.OUT if memory == Memory.WGT_4BIT else memory


# Memories with a base and a limit in DRAM.
LIMITED = (Memory.UOP, Memory.INP, Memory.WGT, Memory.ACC, Memory.OUT)
# Base registers are aligned to this or to the element size, whichever is larger.
BASE_ALIGNMENT = 64


def limited_as(memory: Memory) -> Memory:
    """The memory whose base and limit apply to transfers of ``memory``: OUT for ACC_8BIT, WGT for
    WGT_4BIT.
    """
    match memory:
        case Memory.ACC_8BIT:
            return Memory.OUT
        case Memory.WGT_4BIT:
            return Memory.WGT
    return memory


def per_limited(memory: Memory) -> int:
    """Elements of ``memory`` in DRAM per element of `limited_as`, in which the limit counts."""
    return 2 if memory is Memory.WGT_4BIT else 1


def filled_by(memory: Memory) -> Memory:
    """The memory whose scratchpad LOADs of ``memory`` fill."""
    match memory:
        case Memory.ACC_8BIT:
            return Memory.ACC
        case Memory.WGT_4BIT:
            return Memory.WGT
    return memory


def counted_as(memory: Memory) -> Memory:
    """The memory whose counter counts the elements of ``memory``: WGT for WGT_4BIT."""
    return Memory.WGT if memory is Memory.WGT_4BIT else memory


# Memories filled by the load module; compute fills all others.
LOADED_BY_LOAD = (Memory.INP, Memory.WGT)
_LOADED = (*LOADED_BY_LOAD, Memory.UOP, Memory.ACC, Memory.ACC_8BIT)


def transferred_memories(extensions: frozenset[str]) -> tuple[Memory, ...]:
    """The memories of LOADs and STOREs on a machine with ``extensions``."""
    return tuple(
        memory for memory in Memory if memory is not Memory.WGT_4BIT or "wgt_4bit" in extensions
    )


def loaded_memories(extensions: frozenset[str]) -> tuple[Memory, ...]:
    """The memories of LOADs on a machine with ``extensions``."""
    return (*_LOADED, Memory.WGT_4BIT) if "wgt_4bit" in extensions else _LOADED


class Padding(IntEnum):
    """Extension PAD_VALUE: memory ids with which a LOAD sets the padding value of a module."""

    LOAD = 6
    COMPUTE = 7


def padding_of(memory: Memory) -> Padding | None:
    """The padding value that LOADs of ``memory`` use; None for UOP, which is padded with zeros."""
    match filled_by(memory):
        case Memory.INP | Memory.WGT:
            return Padding.LOAD
        case Memory.ACC:
            return Padding.COMPUTE
    return None
