"""``vta serve``: serve a machine to other computers."""

from __future__ import annotations

import socket

import click

from amaranth_vta.sim.devices import DEVICES

_MEBI = 1 << 20


@click.command()
@click.option(
    "--device",
    type=click.Choice([name for name in DEVICES if name != "remote"]),
    default="rtl",
    show_default=True,
    help="The device that runs programs here, as for `vta run`.",
)
@click.option(
    "--bind",
    metavar="ADDRESS",
    default="tcp://127.0.0.1:7654",
    show_default=True,
    help="The address to listen on; tcp://0.0.0.0:7654 accepts other computers.",
)
@click.option(
    "--keys",
    "folder",
    type=click.Path(),
    metavar="DIR",
    default="vta-keys",
    show_default=True,
    help="The server's keys, and a file per client in DIR/clients; created if missing.",
)
@click.option(
    "--client",
    "clients",
    metavar="NAME",
    multiple=True,
    default=("client",),
    show_default=True,
    help="Write a credentials file for this client unless it has one; may be repeated.",
)
@click.option(
    "--memory",
    type=click.IntRange(min=1),
    metavar="MIB",
    default=1024,
    show_default=True,
    help="Memory limit of a machine, in MiB.",
)
@click.option(
    "--run-limit",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    default=600.0,
    show_default=True,
    help="A run that takes longer is stopped and reported as a timeout.",
)
@click.option(
    "--idle-limit",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    default=300.0,
    show_default=True,
    help="After this time without a request, a client loses the machine to a waiting client.",
)
def serve(
    device: str,
    bind: str,
    folder: str,
    clients: tuple[str, ...],
    memory: int,
    run_limit: float,
    idle_limit: float,
) -> None:
    """Let other computers run programs on a device of this one.

    Whoever has a file of DIR/clients may use it, by --device remote with VTA_REMOTE=FILE in the
    environment; connections are encrypted, and others are refused. Clients take turns. They send
    memory and programs of the machine, nothing that runs on this computer: the host's part of a
    network runs at the client. Ctrl-C ends it.
    """
    from amaranth_vta.extras import explain_missing_extras

    with explain_missing_extras():
        import zmq  # noqa: F401 - keys and server need it

    from amaranth_vta.serving.machine import ServingLimits
    from amaranth_vta.serving.server import Server
    from amaranth_vta.sw.remote.keys import Keys

    for name in clients:
        if not name.replace("-", "").replace("_", "").isalnum():
            raise click.UsageError(f"--client {name!r} is not a name of letters and digits")
    keys = Keys(folder)
    server = Server(
        keys, bind, device, ServingLimits(memory * _MEBI, run_limit, idle_limit), click.echo
    )
    try:
        click.echo(f"{device} at {server.address}")
        for name in clients:
            path = keys.client(name, _reachable(server.address))
            click.echo(f"VTA_REMOTE={path} vta run MODEL.onnx --device remote")
        server.serve()
    finally:
        server.close()


def _reachable(address: str) -> str:
    """``address`` with a host name that other computers can reach."""
    return address.replace("//0.0.0.0:", f"//{socket.gethostname()}:")
