"""Maps GEMM products to LUTs if a chip has too few multipliers: `in_luts`."""

from __future__ import annotations

from itertools import product

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.datapath.dot_products import product_name

from .area import products_in_luts

# Steps of Yosys' `%ci` from the register of a product back to its multiplication.
_STEPS = 3


def in_luts(config: Config, family: str, most: int) -> list[str]:
    """The Yosys commands that map `products_in_luts` to LUTs, for the machine of ``config`` on a
    chip of ``family`` with ``most`` multipliers.

    They use Booth's algorithm, run before synthesis infers multipliers, and fail unless they find
    every selected product.

    The selected products are spread evenly over the array, so that the remaining multipliers are
    too.
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
