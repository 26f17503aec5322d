"""``vta examples``: list and copy examples."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

# By name: the file or folder, what it shows, and the command to begin with.
_EXAMPLES = {
    "digits": (
        "digits",
        "a network from its training to the machine, handwritten digits",
        "python digits/demo.py",
    ),
    "own-network": (
        "own_network.py",
        "a float model, from PyTorch if there, to a report of its run",
        "python own_network.py",
    ),
    "exploration": (
        "exploration",
        "a sweep over twelve machines, with a report",
        "vta explore exploration/digits.toml -o out",
    ),
    "own-operator": (
        "own_operator.py",
        "an operator added to the compiler of networks",
        "python own_operator.py",
    ),
    "schedules": (
        "schedules.py",
        "operators as expressions with schedules, as in VTA's tutorials",
        "vta lower schedules.py:vector_add",
    ),
    "own-instruction": (
        "tutorials/6_instruction.ipynb",
        "an instruction: instruction set, model, hardware, compiler, test",
        "jupyter lab 6_instruction.ipynb",
    ),
    "cocotb-bench": (
        "tutorials/7_cocotb_bench.ipynb",
        "a bench of a module, and a mistake that it finds",
        "jupyter lab 7_cocotb_bench.ipynb",
    ),
    "litex-soc": ("litex_soc.py", "the machine in a LiteX SoC", "python litex_soc.py -o soc.v"),
}
# What an example needs besides its own files.
_WITH = {"exploration": ("digits",)}


@click.command()
@click.argument("name", metavar="[NAME]", type=click.Choice(tuple(_EXAMPLES)), required=False)
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False),
    metavar="DIR",
    default=".",
    show_default=True,
    help="The folder to copy it into.",
)
def examples(name: str | None, output: str) -> None:
    """Copy the example NAME, or list all examples."""
    if name is None:
        for key, (_, what, _) in _EXAMPLES.items():
            click.echo(f"{key:<17}{what}")
        click.echo("`vta examples NAME` copies one into this folder.")
        return
    file, what, begin = _EXAMPLES[name]
    sources = [_place(file), *(_place(other) for other in _WITH.get(name, ()))]
    targets = [Path(output) / source.name for source in sources]
    for target in targets:
        if target.exists():
            raise click.ClickException(f"{target} exists already and is not replaced")
    Path(output).mkdir(parents=True, exist_ok=True)
    for source, target in zip(sources, targets, strict=True):
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, target)
    click.echo(f"{targets[0]}: {what}")
    click.echo(f"In {output}: {begin}")


def _place(file: str) -> Path:
    """The path of an example: in the installed package, or in the checkout around it."""
    package = Path(__file__).parents[2]
    installed = package / "examples" / file
    if installed.exists():
        return installed
    folder = "docs" if file.startswith("tutorials/") else "examples"
    return package.parent / folder / file
