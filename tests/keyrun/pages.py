"""The pages of the documentation, taken apart: code, names in code, headings and links."""

import re
from collections.abc import Iterator
from pathlib import Path

import attrs

ROOT = Path(__file__).parent.parent.parent

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_SPAN = re.compile(r"`([^`]+)`")


@attrs.frozen
class Block:
    """A block of code, the line of the page that it begins on, and the text between the block
    before it and this one."""

    page: str
    line: int
    code: str
    language: str = "python"
    above: str = ""


@attrs.frozen
class Page:
    """One file. `name` is its path in the repository."""

    name: str
    text: str

    def blocks(self, language: str | None = None) -> list[Block]:
        """Return the blocks of code in one language, or all blocks."""
        blocks = []
        end = 0
        for found in _FENCE.finditer(self.text):
            line = self.text.count("\n", 0, found.start(2)) + 1
            above = self.text[end : found.start()]
            blocks.append(Block(self.name, line, found[2], found[1], above))
            end = found.end()
        return [block for block in blocks if language in (None, block.language)]

    @property
    def prose(self) -> str:
        """The text without its blocks of code."""
        return _FENCE.sub("", self.text)

    @property
    def code(self) -> str:
        """All that is marked as code: the blocks, and what is between backticks."""
        blocks = (found[2] for found in _FENCE.finditer(self.text))
        return "\n".join([*blocks, *_SPAN.findall(self.prose)])

    def anchors(self) -> set[str]:
        """What can stand behind # in a link to this page, made as GitHub makes it."""
        seen: dict[str, int] = {}
        for heading in _HEADING.findall(self.prose):
            plain = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            seen[plain] = seen.get(plain, -1) + 1
            if seen[plain]:
                seen[f"{plain}-{seen[plain]}"] = 0
        return set(seen)

    def links(self) -> Iterator[str]:
        """Where it links to, outside of code."""
        yield from _LINK.findall(_SPAN.sub("", self.prose))


def read_pages() -> list[Page]:
    """Return the README, the changelog, the page for contributors and all of docs/."""
    top = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")
    paths = [*(ROOT / name for name in top), *sorted((ROOT / "docs").glob("**/*.md"))]
    return [Page(str(path.relative_to(ROOT)), path.read_text()) for path in paths]
