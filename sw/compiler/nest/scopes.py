"""The memory of the machine behind each scope of a loop nest."""

from __future__ import annotations

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.tiles import TileMemory

from .ir import NestBuffer


def scratchpad(config: Config, scope: str) -> TileMemory:
    """The geometry of the scratchpad that ``scope`` (inp, wgt or acc) names."""
    return {"inp": config.inp, "wgt": config.wgt, "acc": config.acc}[scope]


def tile_scalars(config: Config, scope: str) -> int:
    memory = scratchpad(config, scope)
    return memory.rows * memory.columns


def copy_elements(buffer: NestBuffer, config: Config) -> int:
    """Tiles that one copy of ``buffer`` takes."""
    scalars = buffer.scalars // (buffer.shape[0] if buffer.rolling else 1)
    return -(-scalars // tile_scalars(config, buffer.scope))


def scope_dtype(config: Config, scope: str) -> str:
    return f"int{scratchpad(config, scope).scalar_width}"
