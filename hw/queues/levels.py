"""Up/down counters."""

from amaranth.hdl import Cat, Signal, Value

# Width up to which a counter needs no carry chain: each bit takes one or two LUTs of six inputs.
_FEW = 6


def next_count(count: Signal, up: Value, down: Value) -> Value:
    """``count`` + ``up`` − ``down``, modulo its width, by one adder instead of two."""
    changes, less = up ^ down, down & ~up
    if len(count) <= _FEW:
        flips = (
            changes & (count[:place] ^ less.replicate(place)).all() for place in range(len(count))
        )
        return count ^ Cat(flips)
    return (count + Cat(changes, less.replicate(len(count) - 1)))[: len(count)]


def next_exceeds(least: int, count: Signal, up: Value, down: Value) -> Value:
    """Whether `next_count` exceeds ``least``, without waiting for the adder, since ``up`` and
    ``down`` arrive late in the cycle. The count must not wrap around.
    """
    return (
        (count > least + 1)
        | ((count == least + 1) & (up | ~down))
        | ((count == least) & up & ~down)
    )
