"""Print the estimated energy of networks for machines with BATCH 1 and 2, as Markdown.

python benchmarks/energy.py [NETWORK ...]
"""

from __future__ import annotations

import sys
from dataclasses import replace

from tables import row

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.networks import generate
from amaranth_vta.session import Session
from amaranth_vta.sim.energy.technologies import TECHNOLOGIES

_NETWORKS = ("resnet18", "mobilenetv2", "bert-tiny")
_PARTS = ("WGT", "ACC", "DRAM")
_ONE = PRESETS["pynq-extended"]
_TWO = replace(
    _ONE,
    log_batch=1,
    log_inp_buff_size=_ONE.log_inp_buff_size + 1,
    log_acc_buff_size=_ONE.log_acc_buff_size + 1,
)


def main() -> None:
    heads = ("network", "BATCH", "technology", "mJ", "band", "pJ per MAC", *_PARTS)
    print(row(*heads), f"|---|--:|---|{'--:|' * (len(heads) - 3)}", sep="\n")
    for name in sys.argv[1:] or _NETWORKS:
        model = generate(name).sized
        for config in (_ONE, _TWO):
            with Session(model, config) as session:
                macs = sum(layer.macs_per_run for layer in session.layers)
                for technology in TECHNOLOGIES:
                    energy = session.energy(technology)
                    total, images = energy.total, energy.images
                    low, typical, high = (
                        pj / images / 1e9 for pj in (total.low, total.typical, total.high)
                    )
                    shares = (energy.parts[part].typical / total.typical for part in _PARTS)
                    cells = (
                        *(name, str(config.batch), technology),
                        *(f"{typical:.2f}", f"{low:.2f} to {high:.2f}"),
                        f"{total.typical / macs:.1f}",
                        *(f"{share:.0%}" for share in shares),
                    )
                    print(row(*cells), flush=True)


if __name__ == "__main__":
    main()
