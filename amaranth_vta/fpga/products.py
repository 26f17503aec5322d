"""Products of GEMM in LUTs, where a chip has too few multipliers: `in_luts`."""

from __future__ import annotations

from itertools import product

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.datapath.dot_products import product_name

from .area import products_in_luts

# From the register of a product back to its multiplication, through cells and wires.
_STEPS = 3


def in_luts(config: Config, family: str, most: int) -> list[str]:
    """The commands of Yosys that make `products_in_luts` of LUTs, for the machine of ``config`` on
    a chip of ``family`` with ``most`` multipliers.

    They do so by Booth's algorithm, before synthesis looks for multipliers, and fail if there are
    not as many products.

    The products are spread over the array, and so are the multipliers that remain.
    """
    if not (count := products_in_luts(config, family, most)):
        return []
    places = list(product(range(config.batch), range(config.block_out), range(config.block_in)))
    chosen = [places[number * len(places) // count] for number in range(count)]
    registers = " ".join(f"*/w:{product_name(*place)}" for place in chosen)
    return [
        "proc",
        f"select -set registers {registers}",
        f"select -set products @registers %ci{_STEPS} */t:$mul %i",
        f"select -assert-count {count} @products",
        "booth @products",
    ]
