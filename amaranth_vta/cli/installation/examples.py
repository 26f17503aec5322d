"""``vta examples``: list and copy examples."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from amaranth_vta.example_files import EXAMPLES, REQUIRED, example_path


@click.command()
@click.argument("name", metavar="[NAME]", type=click.Choice(tuple(EXAMPLES)), required=False)
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
        for key, (_, what, _) in EXAMPLES.items():
            click.echo(f"{key:<17}{what}")
        click.echo("`vta examples NAME` copies one into this folder.")
        return
    _, what, begin = EXAMPLES[name]
    sources = [example_path(example) for example in (name, *REQUIRED.get(name, ()))]
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
