"""Counts that go up and down by one."""

from amaranth.hdl import Cat, Signal, Value

# Bits of a count without a carry chain, in which each bit takes a LUT of six inputs or two.
_FEW = 6


def counted(count: Signal, up: Value, down: Value) -> Value:
    """``count`` with one more if ``up``, and one less if ``down``, modulo its width: by one adder,
    where a sum of three terms takes two."""
    changes, less = up ^ down, down & ~up
    if len(count) <= _FEW:
        flips = (
            changes & (count[:place] ^ less.replicate(place)).all() for place in range(len(count))
        )
        return count ^ Cat(flips)
    return (count + Cat(changes, less.replicate(len(count) - 1)))[: len(count)]


def stays_above(least: int, count: Signal, up: Value, down: Value) -> Value:
    """Whether ``count`` is more than ``least`` once it is `counted`; without the adder, since
    ``up`` and ``down`` are known late in a cycle. It never goes below 0, nor above its width."""
    return (
        (count > least + 1)
        | ((count == least + 1) & (up | ~down))
        | ((count == least) & up & ~down)
    )
