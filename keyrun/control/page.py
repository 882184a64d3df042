"""The web page: serves the files of `keyrun/page`.

The files are read once into a table. A request finds an entry of the table or nothing, so no part
of a path is ever the name of a file. The files hold nothing secret and are served without a token.
Everything that the page shows comes from the operations, which require one.
"""

from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files
from urllib.parse import quote

import attrs

from keyrun.control.guard import SECURITY_HEADERS, Guard
from keyrun.control.problems import Refused
from keyrun.control.request import Request

FOLDER = b"page"
"""The segment of the path below which all files but the first are."""
TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
OWN = {b"content-security-policy": POLICY, b"cache-control": b"no-cache"}
"""Headers that files of the page have instead of those of all answers."""
HEADERS = [(name, OWN.get(name, value)) for name, value in SECURITY_HEADERS]

Headers = list[tuple[bytes, bytes]]


@attrs.frozen
class PageFile:
    """One file of the page."""

    body: bytes
    etag: bytes
    headers: Headers


@cache
def page_files() -> dict[tuple[bytes, ...], PageFile]:
    """Return the files of the page, by the segments of their paths."""
    found: dict[tuple[bytes, ...], PageFile] = {}
    for each in files("keyrun").joinpath("page").iterdir():
        kind = TYPES.get("." + each.name.rpartition(".")[2])
        if kind is None:
            continue
        body = each.read_bytes()
        etag = b'"' + sha256(body).hexdigest()[:32].encode() + b'"'
        path = (b"",) if each.name == "index.html" else (FOLDER, each.name.encode())
        found[path] = PageFile(body, etag, [(b"content-type", kind), (b"etag", etag), *HEADERS])
    return found


def page_answer(
    request: Request, segments: Sequence[bytes], guard: Guard
) -> tuple[int, Headers, bytes] | None:
    """Return the answer to a request for a file of the page. None if there is no such file."""
    file = page_files().get(tuple(segments))
    if file is None and segments:
        return None
    guard.check_host(request)
    if request.method not in ("GET", "HEAD"):
        allow = (b"allow", b"GET, HEAD")
        raise Refused(405, "MethodNotAllowed", "this path takes GET", headers=[allow])
    if file is None:
        # A mounted application without the slash to which the addresses in the page are relative.
        last = (request.scope.get("root_path") or "").rstrip("/").rpartition("/")[2]
        return 307, [*HEADERS, (b"location", quote(last, safe="").encode() + b"/")], b""
    known = [each.strip() for each in request.headers.get(b"if-none-match", b"").split(b",")]
    return (304 if file.etag in known else 200), file.headers, file.body
