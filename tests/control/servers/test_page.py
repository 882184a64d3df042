"""The web page behind real servers: below a prefix of FastAPI under uvicorn, and at `keyrun serve`.

`conftest.py` says what `served` opens.
"""

import re
from pathlib import Path
from urllib.parse import urlsplit

from keyrun.control.page import TYPES
from tests.control.servers.conftest import READER, TOKEN
from tests.control.world import greet, served

PAGE = Path(__file__).parents[3] / "keyrun/page"
SAME = ("sec-fetch-site", "same-origin")
JSON = ("content-type", "application/json")


async def test_the_page_and_its_session_are_below_the_prefix() -> None:
    async with served(options={"workflows": [greet]}) as client:
        page = await client.call("GET", "/", state={})
        assert page.status == 200
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        for each in re.findall(r'(?:src|href)="(?!#|data:)([^"]+)"', page.body.decode()):
            assert not urlsplit(each).netloc
            assert not each.startswith("/"), "an address in the page must be relative"
        for path in PAGE.iterdir():
            if path.suffix in TYPES and path.name != "index.html":
                found = await client.call("GET", f"/page/{path.name}", state={})
                assert (found.status, found.body) == (200, path.read_bytes())
        await (await client.rt.submit(greet, "bob", key="bob", run_id="r")).result()
        assert (await client.call("GET", "/v1/session", state={})).status == 401
        for token, name, role, cancelled in (
            (TOKEN, "ann", "admin", 200),
            (READER, "eve", "read", 403),
        ):
            headers = [("authorization", f"Bearer {token}")]
            session = await client.good("GET", "/v1/session", headers=headers, state={})
            assert (session["name"], session["role"]) == (name, role)
            assert session["read_only"] is None
            listed = await client.good("GET", "/v1/runs", headers=headers, state={})
            assert listed["runs"][0]["run_id"] == "r"
            answer = await client.call("POST", "/v1/runs/r/cancel", headers=headers, state={})
            assert answer.status == cancelled


async def test_a_page_that_is_logged_in_is_known_by_its_cookie_at_its_prefix() -> None:
    """The server decides how: with a cookie of Keyrun, or with the login of the application."""
    async with served() as client:
        begun = await client.call("POST", "/v1/session", body=b"{}", headers=[SAME, JSON])
        if begun.status == 405:
            return  # the application has a login of its own
        cookie = begun.headers["set-cookie"]
        assert "; Path=/;" in cookie
        headers = [("cookie", cookie.partition(";")[0])]
        assert (await client.good("GET", "/v1/session", state={}, headers=headers))["name"] == "ann"
