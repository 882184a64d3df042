"""The options of a control plane."""

import os
from collections.abc import Iterable
from pathlib import Path

import attrs

from keyrun.actors import checks


def _address(text: str | None) -> tuple[str, int] | None:
    """Return the host and the port of `127.0.0.1:8470`, `[::1]:8470` or `:8470`."""
    if text is None:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"http must be HOST:PORT, such as 127.0.0.1:8470, got {text!r}")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def _path(path: "str | os.PathLike[str] | None") -> Path | None:
    return None if path is None else Path(path)


def _hosts(given: Iterable[str]) -> tuple[str, ...]:
    checks.several("allowed_hosts", given)
    return tuple(given)


@attrs.frozen(kw_only=True)
class Control:
    """Serve the control plane of a runtime: `open_runtime("state", control=Control(...))`.

    `control=True` is the same as `control=Control()`: it serves the socket in the directory of the
    store, which only the same user can use."""

    http: tuple[str, int] | None = attrs.field(default=None, converter=_address)
    """The address to listen on besides the socket, as `HOST:PORT`. Calls over HTTP require a
    token."""
    token_file: Path | None = attrs.field(default=None, converter=_path)
    """The file with the tokens. Default: `tokens` in the directory of the store."""
    listen: tuple[str, int] | None = attrs.field(default=None, converter=_address)
    """For a database that several machines share: the address on which this process listens for the
    other ones, as `HOST:PORT`. Default: the local address of its connection to the database, with
    a free port. If the database is reached over a unix socket, a unix socket."""
    advertise: str | None = attrs.field(default=None)
    """The address at which the other machines reach this process, such as `http://10.0.0.5:8471`,
    if it is not the one on which it listens."""
    allowed_hosts: tuple[str, ...] = attrs.field(default=(), converter=_hosts)
    """The values of the Host header that browsers may use, besides those of this machine,
    `localhost`, `127.0.0.1` and `[::1]`, and the address of `http`."""

    @advertise.validator
    def _check_address(self, attribute: object, value: str | None) -> None:
        if value is not None:
            from keyrun.control.target import Target

            if not value.startswith(("http://", "https://", "unix:")):
                raise ValueError(
                    f"advertise must be an address such as http://host:8471, got {value!r}"
                )
            Target.of(value)

    @allowed_hosts.validator
    def _check_hosts(self, attribute: object, value: Iterable[str]) -> None:
        from keyrun.control.guard import Hosts

        Hosts(value)

    @classmethod
    def of(cls, given: object) -> "Control | None":
        """Return the options that `control=...` names."""
        if given is None or given is False:
            return None
        if given is True:
            return cls()
        if not isinstance(given, cls):
            raise TypeError(f"control must be True, False or Control(...), got {given!r}")
        return given
