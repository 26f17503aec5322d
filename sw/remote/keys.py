"""CURVE keys for mutual authentication of server and clients.

The server's folder contains its key pair in ``server.json`` and, in ``clients``, one file per
client: the server's address and public key, and the client's key pair. The file grants access to
the server.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from amaranth_vta.errors import VtaError
from amaranth_vta.sw.runtime.array_file import FileLimitError, read_limited

_SERVER, _CLIENTS = "server.json", "clients"


class KeyFileError(VtaError, ValueError):
    """A file is not a key file, or cannot be read; the message names it."""


@dataclass(frozen=True)
class Pair:
    """A public key and its secret key, in Z85 encoding."""

    public: str
    secret: str

    @classmethod
    def new(cls) -> Pair:
        import zmq

        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())


@dataclass(frozen=True)
class Credentials:
    """Credentials of a client for the server at ``address``, such as tcp://desk:7654."""

    address: str
    server: str
    public: str
    secret: str

    @classmethod
    def load(cls, path: str | Path) -> Credentials:
        """Load the credentials from a file of ``clients``; raises `KeyFileError`."""
        return _load(Path(path), cls)


class Keys:
    """The folder ``path`` with a server's keys, created if it does not exist."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        try:
            (self._path / _CLIENTS).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise KeyFileError(f"{path} cannot be used for keys: {error.strerror}") from None
        if not (self._path / _SERVER).exists():
            _save(self._path / _SERVER, asdict(Pair.new()))
        self.server = _load(self._path / _SERVER, Pair)

    def client(self, name: str, address: str) -> Path:
        """The file of the client ``name``, created if it does not exist."""
        path = self._path / _CLIENTS / f"{name}.json"
        if not path.exists():
            pair = Pair.new()
            credentials = Credentials(address, self.server.public, pair.public, pair.secret)
            _save(path, asdict(credentials))
        return path

    def admitted(self) -> set[str]:
        """The public keys of all current clients."""
        files = (self._path / _CLIENTS).glob("*.json")
        return {_load(path, Credentials).public for path in files}


def _load(path: Path, made: Callable[..., Any]) -> Any:
    try:
        loaded = made(**json.loads(read_limited(path)))
    except OSError as error:
        raise KeyFileError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, RecursionError, FileLimitError):
        raise KeyFileError(f"{path} is not a key file written by `vta serve`") from None
    texts = asdict(loaded)
    address = texts.pop("address", "tcp://")
    keys = [key for key in texts.values() if isinstance(key, str) and len(key) == 40]
    if len(keys) < len(texts) or not str(address).startswith(("tcp://", "ipc://")):
        raise KeyFileError(f"{path} is not a key file written by `vta serve`")
    return loaded


def _save(path: Path, values: dict[str, str]) -> None:
    """Write a file that only its owner can read."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(file, "w") as text:
        text.write(json.dumps(values, indent=2) + "\n")
