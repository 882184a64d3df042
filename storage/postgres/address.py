"""The address of a database: what libpq gets, and what errors and logs may show.

A URL may have a password in it. It is in no text that this module returns, except in `conninfo`.
"""

import os
import socket
from collections.abc import Sequence
from urllib.parse import quote

from psycopg import OperationalError, ProgrammingError, pq
from psycopg.conninfo import make_conninfo
from psycopg.pq.misc import ConninfoOption

from keyrun.storage.errors import StoreError
from keyrun.storage.opening import is_url

_DEFAULTS = {
    "client_encoding": "UTF8",
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "target_session_attrs": "read-write",
    "tcp_user_timeout": "10000",
}
"""Options that notice within seconds that a server is gone. The URL comes before them."""

_APPLICATION_NAME_BYTES = 63


class Address:
    """The database of a URL. `application_name` is shown in `pg_stat_activity`."""

    def __init__(self, url: str, application_name: str) -> None:
        if not is_url(url):
            raise ValueError("url must begin with postgresql:// or postgres://")
        self._options = _parsed(url)
        given = {**_environment(), **self._options}
        self.hosts = [host for host in given.get("host", "").split(",") if host]
        """The hosts. A unix socket is an absolute path."""
        self._user = given.get("user", "")
        self._port = given.get("port", "")
        self._has_addresses = "hostaddr" in given
        self._database = given.get("dbname", "") or self._user
        if any("@" in host for host in self.hosts) or not _are_ports(self._port):
            raise _unreadable()
        name = application_name.encode()[:_APPLICATION_NAME_BYTES].decode(errors="ignore")
        self._options = {"application_name": name, **_DEFAULTS, **self._options}

    def conninfo(self) -> bytes:
        """Return what libpq connects with. This looks up names of hosts, which may take seconds: in
        the loop, call it in a thread if `is_local` is false."""
        return make_conninfo("", **self._options | self._resolved()).encode()

    @property
    def is_local(self) -> bool:
        """Whether PostgreSQL is certainly reached over a unix socket."""
        return "service" not in self._options and all(
            host.startswith(("/", "@")) for host in self.hosts
        )

    def _resolved(self) -> dict[str, str]:
        """Return the addresses of the hosts. libpq would look up names while the loop waits."""
        if self.is_local or self._has_addresses or not self.hosts:
            return {}
        ports = self._port.split(",")
        found: list[tuple[str, str, str]] = []
        for number, host in enumerate(self.hosts):
            port = ports[number] if len(ports) == len(self.hosts) else ports[0]
            if host.startswith(("/", "@")):
                found.append((host, "", port))
                continue
            try:
                each = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            except OSError:
                continue  # another host may be found, and libpq reports this one
            found += [(host, str(address[0]), port) for *_, address in each]
        if not found:
            return {}
        names, addresses, numbers = zip(*found, strict=True)
        resolved = {"host": ",".join(names), "hostaddr": ",".join(addresses)}
        return resolved | ({"port": ",".join(numbers)} if any(numbers) else {})

    def __str__(self) -> str:
        user = quote(self._user, safe="") + "@" if self._user else ""
        port = f":{self._port}" if self._port not in ("", "5432") else ""
        database = quote(self._database, safe="")
        if self.is_local:
            place = f"?host={','.join(self.hosts)}" if self.hosts else ""
            return f"postgresql://{user}{port}/{database}{place}"
        return f"postgresql://{user}{','.join(self.hosts)}{port}/{database}"

    def __repr__(self) -> str:
        return f"<Address {self}>"


def _parsed(url: str) -> dict[str, str]:
    try:
        return _set(pq.Conninfo.parse(url.encode()))
    except (OperationalError, ProgrammingError, ValueError):
        # The text of libpq quotes parts of the URL.
        raise _unreadable() from None


def _environment() -> dict[str, str]:
    """Return the options from the environment and from a service file."""
    try:
        return _set(pq.Conninfo.get_defaults())
    except OperationalError:
        return {name: os.environ[key] for name, key in (("host", "PGHOST"),) if key in os.environ}


def _set(options: Sequence[ConninfoOption]) -> dict[str, str]:
    return {
        option.keyword.decode(): option.val.decode() for option in options if option.val is not None
    }


def _are_ports(text: str) -> bool:
    return all(port.isdecimal() or not port for port in text.split(","))


def _unreadable() -> StoreError:
    return StoreError(
        "the URL of the database cannot be read; it must look like "
        "postgresql://user:password@host:5432/database, with special characters of the user and "
        "the password percent-encoded, such as %40 for @ and %2F for /"
    )
