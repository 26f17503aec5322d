"""``vta serve``: serve a machine to other computers, or to the runner of MLPerf Tiny."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path

import click

from amaranth_vta.cli.common.options import ConfigType, DramType
from amaranth_vta.hw.config import DEFAULT, Config
from amaranth_vta.report.text_table import counted
from amaranth_vta.sim.devices import DEVICES

_MEBI = 1 << 20
# Parameters for clients of a device, and for the runner of MLPerf Tiny; --device is for both.
_OF_CLIENTS = ("bind", "folder", "clients", "memory", "run_limit", "idle_limit")
_OF_MLPERF_TINY = ("config", "dram", "clock", "port")


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
@click.option(
    "--mlperf-tiny",
    "model",
    type=click.Path(),
    metavar="MODEL.tflite",
    help="Instead of lending the device, run this network of MLPerf Tiny on it, and answer the "
    "commands of the benchmark's runner. The options below are for this.",
)
@click.option(
    "--config",
    type=ConfigType(),
    default=DEFAULT,
    show_default=True,
    help="The machine: a preset, or a file in the form of vta_config.json.",
)
@click.option(
    "--dram",
    type=DramType(),
    metavar="ideal|ddr|random:SEED",
    default="ddr",
    show_default=True,
    help="The timing of a simulated machine's memory.",
)
@click.option(
    "--clock",
    type=click.FloatRange(min=0, min_open=True),
    metavar="MHZ",
    help="Let the time that the runner reads advance by the machine's cycles at this clock.  "
    "[default: 100; real time with --device board]",
)
@click.option(
    "--port",
    type=click.Path(),
    metavar="PATH",
    help="The serial port to the runner.  [default: a new pseudo-terminal, whose path is printed]",
)
@click.pass_context
def serve(
    context: click.Context,
    device: str,
    bind: str,
    folder: str,
    clients: tuple[str, ...],
    memory: int,
    run_limit: float,
    idle_limit: float,
    model: str | None,
    config: Config,
    dram: str,
    clock: float | None,
    port: str | None,
) -> None:
    """Let other computers run programs on a device of this one.

    Whoever has a file of DIR/clients may use it, by --device remote with VTA_REMOTE=FILE in the
    environment; connections are encrypted, and others are refused. Clients take turns. They send
    memory and programs of the machine, nothing that runs on this computer: the host's part of a
    network runs at the client. Ctrl-C ends it.

    With --mlperf-tiny, it is instead a device under test of MLPerf Tiny; docs/tflite.md says more.
    """
    for name in _OF_CLIENTS if model is not None else _OF_MLPERF_TINY:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            option = next(item.opts[0] for item in context.command.params if item.name == name)
            without = "not for" if model is not None else "only for"
            raise click.UsageError(f"{option} is {without} --mlperf-tiny")
    if model is not None:
        return _serve_mlperf_tiny(model, device, config, dram, clock, port)
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


def _serve_mlperf_tiny(
    model: str, device: str, config: Config, dram: str, mhz: float | None, port: str | None
) -> None:
    from amaranth_vta.extras import explain_missing_extras

    data = Path(model).read_bytes()
    with explain_missing_extras():
        from amaranth_vta.serving.mlperf_tiny.benchmark import Benchmark
        from amaranth_vta.serving.mlperf_tiny.protocol import Responder
        from amaranth_vta.serving.mlperf_tiny.serial_line import SerialLine
        from amaranth_vta.serving.mlperf_tiny.tasks import TinyNetwork
        from amaranth_vta.session import Session

    network = TinyNetwork.of(data, model)
    if mhz is None and device != "board":
        mhz = 100
    with closing(SerialLine(port)) as line, Session(data, config, device, dram) as session:
        click.echo(f"{network.task.name} on {device} at {line.path}")
        if mhz is None:
            click.echo("Time is real.")
        elif device == "functional":
            click.echo("Time stands still: the functional model counts no cycles.")
        else:
            hosts = counted(session.program.host_operator_count, "operator")
            click.echo(f"Time is cycles at {mhz:g} MHz, without that of {hosts} on the host.")
        line.serve(Responder(Benchmark(network, session, mhz)))


def _reachable(address: str) -> str:
    """``address`` with a host name that other computers can reach."""
    return address.replace("//0.0.0.0:", f"//{socket.gethostname()}:")
