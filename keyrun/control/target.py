"""Where a client connects to: the socket of a store, a unix socket, or an HTTP address."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import attrs

SOCKET = "control.sock"
"""The name of the socket in the directory of a store."""
LONGEST = 100
"""The longest path, in bytes, that fits a socket address on every system."""


@attrs.frozen(kw_only=True)
class Target:
    """An address, and the path of the API below it."""

    socket: Path | None = None
    """The unix socket. None for TCP."""
    host: str = "localhost"
    port: int = 80
    tls: bool = False
    prefix: str = ""
    """The path below which the API is mounted."""

    @classmethod
    def of(cls, address: "str | os.PathLike[str]") -> "Target":
        """Return the target of `state`, `unix:/run/keyrun.sock` or `http://host:port/prefix`."""
        text = os.fspath(address)
        if not isinstance(text, str) or not text:
            raise ValueError(f"connect requires a path or an address, got {address!r}")
        if text.startswith("unix:"):
            return cls(socket=Path(text.removeprefix("unix:").removeprefix("//")))
        if text.startswith(("http://", "https://")):
            parts = urlsplit(text)
            if not parts.hostname or parts.query or parts.fragment or parts.username:
                raise ValueError(
                    f"connect requires an address such as http://host:8470, got {text!r}"
                )
            tls = parts.scheme == "https"
            return cls(
                host=parts.hostname,
                port=parts.port or (443 if tls else 80),
                tls=tls,
                prefix=parts.path.rstrip("/"),
            )
        if "://" in text:
            raise ValueError(
                "connect requires a path, unix:PATH, or an http address, got "
                f"{text.partition('://')[0]}://..."
            )
        return cls(socket=Path(text) / SOCKET)

    @property
    def authority(self) -> str:
        """Return the value of the Host header."""
        if self.socket is not None:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    def __str__(self) -> str:
        if self.socket is not None:
            return str(self.socket)
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.prefix}"


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Yield a path of at most `LONGEST` bytes for a socket at `path`, which may be longer."""
    if len(os.fsencode(path)) <= LONGEST:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
