"""Maps the scopes of loop nests to memories of the machine."""

from __future__ import annotations

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.tiles import TileMemory

from .ir import LoweringError, NestBuffer


def scratchpad(config: Config, scope: str) -> TileMemory:
    """The geometry of the scratchpad that ``scope`` (inp, wgt or acc) names."""
    return {"inp": config.inp, "wgt": config.wgt, "acc": config.acc}[scope]


def scope_name(scope: str) -> str:
    """``scope`` as written in schedules: ``inp_scope``, an attribute of the environment; or
    ``dram``.
    """
    return scope if scope == "dram" else f"{scope}_scope"


def tile_scalars(config: Config, scope: str) -> int:
    memory = scratchpad(config, scope)
    return memory.rows * memory.columns


def copy_elements(buffer: NestBuffer, config: Config) -> int:
    """Number of tiles in one copy of ``buffer``."""
    scalars = buffer.scalars // (buffer.shape[0] if buffer.rolling else 1)
    return -(-scalars // tile_scalars(config, buffer.scope))


def scope_dtype(config: Config, scope: str) -> str:
    return f"int{scratchpad(config, scope).scalar_width}"


def require_scope(stage: str, buffer: NestBuffer, config: Config, scope: str, what: str) -> None:
    """Raises `LoweringError` unless ``buffer``, the ``what`` of ``stage``, is in ``scope`` and has
    the dtype of that scratchpad.
    """
    name = scope_name(scope)
    if buffer.scope != scope:
        raise LoweringError(
            f"{stage}: {buffer.name} is in {scope_name(buffer.scope)}; {what} has to be in {name}"
        )
    if buffer.dtype != scope_dtype(config, scope):
        raise LoweringError(
            f"{stage}: {buffer.name} is {buffer.dtype}; {what}, in {name}, has to be "
            f"{scope_dtype(config, scope)}"
        )
