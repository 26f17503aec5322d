"""``vta run``: a network on the machine."""

from __future__ import annotations

import click


@click.command()
@click.argument("model", type=click.Path())
def run(model: str) -> int:
    """Run the network of MODEL.onnx."""
    from amaranth_vta.session import Session

    Session(model)
    return 0
