"""Hooks of MkDocs: put the repository on the site, with links that also work in the repository.

Pages link to each other, and to files beside docs/, as files of the repository. The hooks add the
pages that are not in docs/, add each other file that a page links to, and change the links.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PAGES = {
    "README.md": "index.md",
    "docs/README.md": "pages.md",
    "examples/README.md": "examples.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages with another address on the site than in docs/."""

ASSETS = {
    "website/site.css": "site.css",
    "website/iframe-worker.js": "iframe-worker.js",
}
"""Files that the pages load."""

CDN = "https://unpkg.com/"

_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")
_DIAGRAM = re.compile(r'<img alt="[^"]*" src="([^"]*diagrams/[^"]+\.svg)" ?/?>')


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and the files that are not in docs/."""
    readme = files.get_file_from_path("README.md")
    if readme is not None:
        files.remove(readme)
    for source, address in {**PAGES, **ASSETS}.items():
        files.append(File.generated(config, address, content=(ROOT / source).read_text()))
    for page in list(files.documentation_pages()):
        source = path_of(page.src_uri)
        for link in links(page.content_string):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
            address = address_of(target)
            if (ROOT / target).is_file() and files.get_file_from_path(address) is None:
                files.append(File.generated(config, address, abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Change the links to files of the repository into links of the site."""
    address = page.file.src_uri
    folder = posixpath.dirname(path_of(address))

    def change(found: re.Match[str]) -> str:
        target = address_of(posixpath.normpath(posixpath.join(folder, found[0])))
        return posixpath.relpath(target, posixpath.dirname(address))

    parts = _FENCE.split(markdown)
    parts[::2] = [_LINK.sub(change, part) for part in parts[::2]]
    return "".join(parts)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Put diagrams into the page, so that they have the colours of the page."""

    def put(found: re.Match[str]) -> str:
        path = posixpath.join(posixpath.dirname(path_of(page.file.src_uri)), found[1])
        return f'<div class="scrolled">{(ROOT / path).read_text()}</div>'

    return _DIAGRAM.sub(put, html)


def on_post_build(config: Any) -> None:
    """Keep the scripts of the theme from loading libraries from another host. They would do so for
    Mermaid, which the site does not use, and for very old browsers."""
    for script in Path(config["site_dir"]).glob("assets/javascripts/*.js"):
        text = script.read_text()
        if CDN in text:
            script.write_text(text.replace(CDN, ""))


def links(markdown: str) -> Iterator[str]:
    """Yield the links to other files in a text, outside of code."""
    for part in _FENCE.split(markdown)[::2]:
        yield from _LINK.findall(part)


def path_of(address: str) -> str:
    """Return the path in the repository of a page of the site."""
    return next((path for path, page in PAGES.items() if page == address), f"docs/{address}")


def address_of(path: str) -> str:
    """Return the address on the site of a file in the repository."""
    return PAGES.get(path) or path.removeprefix("docs/")
