"""The address of the web page, with a token, for a person to open.

The token is behind `#`, which browsers send to no server. The page exchanges it for a cookie, and
removes it from the address. Print the address only where its reader may have the token: never into
a log.
"""

from collections.abc import Iterable
from urllib.parse import quote, urlsplit

ALL = {"0.0.0.0", "::"}
"""Hosts that stand for all addresses of a machine. Browsers do not open them."""


def page_address(url: str, token: str, allowed_hosts: Iterable[str] = ()) -> str:
    """Return the address of the page of a listener. If the listener is on all addresses of the
    machine, the address has the first of the allowed hosts, or `localhost`."""
    parts = urlsplit(url)
    if parts.hostname in ALL:
        host = next((each for each in allowed_hosts if each != "*"), "localhost")
        bare = host if host.rpartition("]")[2].count(":") == 0 else host.rpartition(":")[0]
        url = f"{parts.scheme}://{bare}:{parts.port}"
    return f"{url}/#token={quote(token, safe='')}"
