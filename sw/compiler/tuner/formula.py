"""Constants of closed-form estimates, for operators whose tiles are not walked."""

from __future__ import annotations

from .cost_model import TOKEN_CYCLES

# Overhead in cycles per row.
ROW_CYCLES = 4
# Overhead in cycles per tile: an instruction waits for another module and that one for it.
TILE_CYCLES = 2 * TOKEN_CYCLES
