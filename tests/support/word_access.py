"""Accesses of one word, as a board's host and its processor make them."""

from __future__ import annotations

from typing import Any

# Cycles in which an access is answered.
_PATIENCE = 2000


async def access(
    ctx: Any, port: Any, address: int, data: int | None = None, strobe: int = 0b1111
) -> tuple[int, int]:
    """Data and error of one access through ``port``: a write of ``data``, or a read."""
    ctx.set(port.request.payload.address, address)
    ctx.set(port.request.payload.write, data is not None)
    ctx.set(port.request.payload.data, data or 0)
    ctx.set(port.request.payload.strobe, strobe)
    ctx.set(port.request.valid, 1)
    accepted = False
    for _ in range(_PATIENCE):
        *_, ready, done, found, error = await ctx.tick().sample(
            port.request.ready, port.done, port.data, port.error
        )
        if accepted and done:
            return int(found), int(error)
        if ready:
            accepted = True
            ctx.set(port.request.valid, 0)
    raise AssertionError(f"no response to an access in {_PATIENCE} cycles")
