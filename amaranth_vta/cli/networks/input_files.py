"""Reads the files of ``--inputs`` and ``--labels``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

# Name of the array with labels in an .npz.
LABELS = "labels"


def read_inputs(path: str) -> dict[str, Any]:
    """The arrays of an .npz, by name. Raises `ClickException`."""
    from amaranth_vta.sw.runtime.array_file import (
        ArrayFile,
        DamagedFile,
        FileLimitError,
        is_single_array,
    )

    try:
        with open(path, "rb") as file:
            if is_single_array(file):
                raise click.ClickException(f"--inputs {path} is one array, not an .npz of arrays")
            return ArrayFile(file).read_all()
    except OSError as error:
        reason = error.strerror or str(error)
        raise click.ClickException(f"--inputs {path} cannot be read: {reason}") from None
    except DamagedFile as error:
        raise click.ClickException(
            f"--inputs {path} is damaged, or not an .npz of arrays: {error}"
        ) from None
    except FileLimitError as error:
        raise click.ClickException(f"--inputs {path}: {error}") from None


def read_labels(path: str) -> Any:
    """An array of integers: from an .npy, from an .npz with an array ``labels`` or a single array,
    or from text with an integer per line. Raises `ClickException`.
    """
    import numpy as np

    from amaranth_vta.sw.runtime.array_file import (
        ArrayFile,
        DamagedFile,
        FileLimitError,
        is_single_array,
        read_limited,
        read_single_array,
    )

    try:
        with Path(path).open("rb") as file:
            if is_single_array(file):
                return read_single_array(file)
            if file.read(2) == b"PK":
                arrays = ArrayFile(file)
                name = arrays.names[0] if len(arrays.names) == 1 else LABELS
                if name not in arrays.names:
                    raise click.ClickException(f"--labels {path} has no array {LABELS}")
                return arrays.read(name)
        return np.array([int(line) for line in read_limited(path).decode().split()], np.int64)
    except OSError as error:
        reason = error.strerror or str(error)
        raise click.ClickException(f"--labels {path} cannot be read: {reason}") from None
    except FileLimitError as error:
        raise click.ClickException(f"--labels {path}: {error}") from None
    except DamagedFile as error:
        raise click.ClickException(f"--labels {path} is damaged: {error}") from None
    except (ValueError, OverflowError):
        raise click.ClickException(
            f"--labels {path} is no .npy, no .npz, and no text with an integer per line"
        ) from None
