"""The site builds without a warning, its links lead somewhere, and it loads only its own files."""

import fcntl
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parent.parent.parent
COMMAND = ["-m", "mkdocs", "build", "--strict", "--config-file", "website/mkdocs.yml"]

LOADED = {
    ("audio", "src"),
    ("embed", "src"),
    ("iframe", "src"),
    ("img", "src"),
    ("img", "srcset"),
    ("link", "href"),
    ("object", "data"),
    ("script", "src"),
    ("source", "src"),
    ("source", "srcset"),
    ("use", "href"),
    ("video", "src"),
}
"""The attributes with the address of something that the browser loads by itself."""

NOT_LOADED = {"api.github.com", "bit.ly"}
"""Hosts that the scripts of the theme name. They ask the first about the repository that the
configuration names, and it names none. The second is in a message for the console."""


class Document(HTMLParser):
    """The links, the anchors and the loaded resources of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.styles: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self._in_style = False
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.append((tag, given))
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        self.loaded += [given[name] for name in given if (tag, name) in LOADED]
        self.styles.append(given.get("style", ""))
        self._in_style = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self._in_style = False

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.styles.append(data)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, which the first process of the tests builds for all of them."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    into = shared / "site"
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (into / "built").exists():
            command = [sys.executable, *COMMAND, "--site-dir", str(into)]
            environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
            (into / "built").touch()
    return into


@pytest.fixture(scope="module")
def documents(site: Path) -> dict[Path, Document]:
    return {path: Document(path) for path in site.rglob("*.html")}


def outside(address: str) -> bool:
    """Return whether an address is on another host."""
    return bool(urlsplit(address).netloc) or address.startswith(("http:", "https:", "ftp:"))


def addresses(style: str) -> list[str]:
    """Return the addresses that a style sheet loads."""
    found = re.findall(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)", style)
    return [address for pair in found for address in pair if address]


def test_every_link_of_the_site_leads_to_a_page_and_an_anchor(
    documents: dict[Path, Document],
) -> None:
    followed = 0
    for path, document in documents.items():
        for link in document.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            target = path.parent / unquote(parts.path) if parts.path else path
            assert target.resolve().is_file(), f"{path.name} links to {link}"
            if parts.fragment and target.suffix == ".html":
                anchors = documents[target.resolve()].anchors
                assert unquote(parts.fragment) in anchors, f"{path.name} links to {link}"
                followed += 1
    assert followed > 1000


def test_the_site_loads_nothing_from_another_host(
    site: Path, documents: dict[Path, Document]
) -> None:
    for path, document in documents.items():
        styled = [address for style in document.styles for address in addresses(style)]
        assert [each for each in [*document.loaded, *styled] if outside(each)] == [], path.name
    sheets = [*site.rglob("*.css"), *site.rglob("*.svg")]
    assert sheets
    for sheet in sheets:
        assert [each for each in addresses(sheet.read_text()) if outside(each)] == [], sheet.name
    # The scripts in lunr/ are for searches in other languages, and no page loads them. The index of
    # the search has the text of all pages.
    scripts = [
        path
        for path in site.rglob("*.js")
        if "lunr" not in path.parts and path.name != "search_index.js"
    ]
    assert scripts
    for script in scripts:
        code = re.sub(r"/\*.*?\*/", "", script.read_text(), flags=re.DOTALL)
        hosts = set(re.findall(r"https?://([\w.-]+\.[a-z]{2,})", code))
        hosts.discard("www.w3.org")  # the names of XML namespaces
        assert hosts <= NOT_LOADED, f"{script.name} names {hosts}"


@pytest.mark.parametrize(
    "html",
    [
        "<script src='https://cdn.example/x.js'></script>",
        "<link rel=stylesheet href='//cdn.example/x.css'>",
        "<img src='http://cdn.example/x.png'>",
        "<style>@import 'https://cdn.example/x.css';</style>",
        "<p style='background: url(https://cdn.example/x.png)'>x</p>",
    ],
)
def test_a_resource_of_another_host_is_found(html: str, tmp_path: Path) -> None:
    (tmp_path / "x.html").write_text(html)
    document = Document(tmp_path / "x.html")
    styled = [address for style in document.styles for address in addresses(style)]
    assert any(map(outside, [*document.loaded, *styled]))


def test_the_pages_come_in_the_order_of_a_reader(documents: dict[Path, Document]) -> None:
    [home] = [document for path, document in documents.items() if path.name == "index.html"]
    links = [
        attributes["href"]
        for tag, attributes in home.tags
        if tag == "a" and "md-nav__link" in attributes.get("class", "")
    ]
    order = ["quickstart", "workflows", "concepts", "reference", "layers", "architecture"]
    places = [links.index(f"{name}.html") for name in order]
    assert places == sorted(places)


def test_diagrams_are_in_the_page_and_have_its_colours(documents: dict[Path, Document]) -> None:
    drawn = {
        path.name: [tag for tag, given in document.tags if given.get("class") == "diagram"]
        for path, document in documents.items()
    }
    assert drawn["concepts.html"] == ["svg", "svg"]
    assert drawn["ordering.html"] == ["svg"]
    assert not any(
        "mermaid" in given.get("class", "") for d in documents.values() for _, given in d.tags
    )


def test_search_works_in_a_site_that_is_opened_from_its_files(
    site: Path, documents: dict[Path, Document]
) -> None:
    """A browser reads no JSON from files there, and starts no workers."""
    index = (site / "search/search_index.json").read_text()
    assert (site / "search/search_index.js").read_text() == f"var __index = {index}"
    for path, document in documents.items():
        scripts = [address for address in document.loaded if address.endswith("iframe-worker.js")]
        assert len(scripts) == 1, path.name
        if path.name != "404.html":
            assert (path.parent / scripts[0]).is_file()


def test_the_site_has_search_and_a_dark_mode(site: Path, documents: dict[Path, Document]) -> None:
    index = json.loads((site / "search/search_index.json").read_text())
    assert "reference/runtime.html#runtimesubmit" in {each["location"] for each in index["docs"]}
    for document in documents.values():
        schemes = [
            given.get("data-md-color-scheme") for tag, given in document.tags if tag == "input"
        ]
        assert {"default", "slate"} <= set(schemes)


def test_a_list_or_a_table_is_not_a_paragraph(site: Path) -> None:
    """The site wants an empty line before a list, and the repository page does not."""
    for path in site.rglob("*.html"):
        text = re.sub(r"<(pre|svg|script)\b.*?</\1>", "", path.read_text(), flags=re.DOTALL)
        found = re.search(r"^(?:[-*|] |\|[-|]|\d+\. ).*$", text, re.MULTILINE)
        assert found is None, f"{path.name}: {found[0]}"
