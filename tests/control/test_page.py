"""The files of the web page: who gets them, and with which headers."""

import re
from pathlib import Path

import pytest

from keyrun.control.guard import TokenGuard
from keyrun.control.page import TYPES, page_files
from keyrun.control.roles import Role
from keyrun.control.tokens import TokenFile
from tests.control.test_guard import LOCAL, SECRETS
from tests.control.world import served
from tests.keyrun.pages import ROOT

FOLDER = ROOT / "keyrun/page"
LIMIT = 100_000


@pytest.fixture
def guard(tmp_path: Path) -> TokenGuard:
    """Return the guard of a server on TCP."""
    path = tmp_path / "tokens"
    path.touch(0o600)
    path.write_text(f"{SECRETS[Role.READ]} read reader")
    return TokenGuard(TokenFile(path))


async def test_every_file_of_the_page_is_served_without_a_token(
    guard: TokenGuard, autojump_clock: object
) -> None:
    async with served(guard=guard) as client:
        for path in FOLDER.iterdir():
            target = "/" if path.name == "index.html" else f"/page/{path.name}"
            answer = await client.call("GET", target, headers=[LOCAL], state={})
            assert answer.status == 200, target
            assert answer.body == path.read_bytes()
            assert answer.headers["content-type"] == TYPES[path.suffix].decode()
            head = await client.call("HEAD", target, headers=[LOCAL], state={})
            assert (head.status, head.body) == (200, b"")
            assert head.headers == answer.headers
            refused = await client.call("POST", target, headers=[LOCAL], state={})
            assert refused.status == 405


async def test_the_page_runs_only_its_own_scripts(
    guard: TokenGuard, autojump_clock: object
) -> None:
    async with served(guard=guard) as client:
        answer = await client.call("GET", "/", headers=[LOCAL], state={})
        policy = dict(
            each.strip().split(" ", 1)
            for each in answer.headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


async def test_a_browser_that_has_a_file_does_not_load_it_again(
    guard: TokenGuard, autojump_clock: object
) -> None:
    async with served(guard=guard) as client:
        first = await client.call("GET", "/", headers=[LOCAL], state={})
        assert first.headers["cache-control"] == "no-cache"
        same = [LOCAL, ("if-none-match", f'"x", {first.headers["etag"]}')]
        again = await client.call("GET", "/", headers=same, state={})
        assert (again.status, again.body) == (304, b"")
        other = await client.call("GET", "/", headers=[LOCAL, ("if-none-match", '"x"')], state={})
        assert other.status == 200


async def test_a_name_that_points_at_this_machine_gets_no_page(
    guard: TokenGuard, autojump_clock: object
) -> None:
    async with served(guard=guard) as client:
        for target in ("/", "/page/page.css"):
            answer = await client.call("GET", target, headers=[("host", "evil.example")], state={})
            assert answer.status == 403
        assert (await client.call("GET", "/")).status == 200, "a peer of the unix socket"


@pytest.mark.parametrize(
    "target",
    ["/page/", "/page", "/page/index.html", "/page/../page.py", "/page/%2e%2e", "/page.css"],
)
async def test_no_path_is_the_name_of_a_file(
    target: str, guard: TokenGuard, autojump_clock: object
) -> None:
    async with served(guard=guard) as client:
        answer = await client.call("GET", target, headers=[LOCAL], state={})
        assert answer.status == 401


async def test_a_mounted_page_is_below_its_path(autojump_clock: object) -> None:
    async with served() as client:
        root = "/a/key run"
        page = await client.call("GET", "/a/key%20run/", root_path=root)
        assert page.body == (FOLDER / "index.html").read_bytes()
        short = await client.call("GET", "/a/key%20run", root_path=root)
        assert (short.status, short.headers["location"]) == (307, "key%20run/")


def test_the_page_is_small_and_loads_nothing_from_other_hosts() -> None:
    assert sum(len(each.body) for each in page_files().values()) < LIMIT
    assert {path.suffix for path in FOLDER.iterdir()} <= TYPES.keys()
    for path in FOLDER.iterdir():
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"(https?:)?//[a-z0-9-]+\.[a-z]", text), path
        assert "innerHTML" not in text, path


def test_the_first_file_names_files_that_exist() -> None:
    text = (FOLDER / "index.html").read_text()
    named = set(re.findall(r'(?:src|href)="(?!#|data:)([^"]+)"', text))
    assert named
    for each in named:
        assert (ROOT / "keyrun" / each).is_file(), each
    for path in FOLDER.glob("*.js"):
        for each in re.findall(r'(?:from|import) ?\(?"\./([^"]+)"', path.read_text()):
            assert (FOLDER / each).is_file(), f"{path.name} imports {each}"
