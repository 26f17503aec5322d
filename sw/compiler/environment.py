"""The environment: the names by which schedules refer to a machine."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar, Token
from pathlib import Path
from typing import TYPE_CHECKING

from amaranth_vta.hw.config import DEFAULT, Config, ConfigError

from .te.schedule import TensorIntrinsic

if TYPE_CHECKING:
    from .passes.pipeline import PlacedPass


class Environment:
    """Sizes, dtypes, scopes and instructions of one machine.

    ``config`` is a configuration, the name of a preset (``Environment("pynq")``) or the path of a
    file in the format of vta_config.json; anything else raises `ConfigError`. ``with environment:``
    makes `get_env` return it. ``passes`` are additional passes, in the format of `lower`, for
    everything that is lowered in this environment.
    """

    inp_scope = "inp"
    wgt_scope = "wgt"
    acc_scope = "acc"
    dma_copy = "dma_copy"
    alu = "alu"
    TARGET = "functional"

    def __init__(self, config: Config | str | Path, passes: Sequence[PlacedPass] = ()) -> None:
        if not isinstance(config, Config):
            if not isinstance(config, str | Path):
                raise ConfigError(
                    f"an Environment takes a Config, the name of a preset or a file, not {config!r}"
                )
            config = Config.load(str(config))
        self.config = config
        self.passes = tuple(passes)
        self.BATCH = config.batch
        self.BLOCK_IN = config.block_in
        self.BLOCK_OUT = config.block_out
        self.INP_WIDTH = config.inp_width
        self.WGT_WIDTH = config.wgt_width
        self.ACC_WIDTH = config.acc_width
        self.OUT_WIDTH = config.out_width
        self.inp_dtype = f"int{config.inp_width}"
        self.wgt_dtype = f"int{config.wgt_width}"
        self.acc_dtype = f"int{config.acc_width}"
        self.out_dtype = f"int{config.out_width}"
        self.gemm = TensorIntrinsic("gemm", config.batch, config.block_out, config.block_in)
        self._tokens: list[Token[Environment | None]] = []

    def __enter__(self) -> Environment:
        self._tokens.append(_current.set(self))
        return self

    def __exit__(self, *_: object) -> None:
        _current.reset(self._tokens.pop())

    def __repr__(self) -> str:
        return f"Environment({self.config!r})"


_current: ContextVar[Environment | None] = ContextVar("environment", default=None)
_default = Environment(DEFAULT)


def get_env() -> Environment:
    """The environment of the innermost ``with``, by default that of ``pynq-extended``
    (`amaranth_vta.hw.config.DEFAULT`).

    ``with vta.Environment("pynq"):`` selects the published machine, which has the same sizes but no
    extensions.
    """
    return _current.get() or _default
