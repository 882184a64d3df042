"""Paste a page into fresh processes, as a reader does, and compare the output with the page.

Nothing is replaced: the processes run in real time, and an exception that a block does not catch
fails the page. The rules for a page:

- A Python block is a complete program. It runs in a fresh process. All blocks of a page share one
  directory.
- A block that begins with the comment `# Continues the program above.` runs in the process of the
  block above it, after that block.
- "Save ... as `name.py`" above a block gives the file its name. With such a sentence above it, a
  block in any other language is a file, too.
- A Python block below a link to a Python file in `examples/` is a part of that file, and does not
  run. The directory gets all Python files of the example, for the blocks that follow.
- A comment beside a `print`, or directly below it, is what the `print` writes. Comments are
  compared in the order of the source. Every `print` has such a comment, unless the next
  block of the page is one of these:
    - A `text` block is the whole output of the Python block above it.
    - A `console` block has the commands that run the saved program, with `$` in front, and their
      output. The output includes stderr, and `Killed` if a signal killed the process. A command
      that ends with a backslash continues on the next line.
- `...` stands for any text.
- Processes that the commands of a page have left in the background are killed after the page.
- A block ends within 10 seconds, and a page within 30 seconds, on an idle machine.
"""

import ast
import io
import os
import re
import signal
import subprocess
import sys
import time
import tokenize
from collections.abc import Iterable
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path

import attrs

from tests.keyrun.pages import ROOT, Block, Page

CONTINUES = "# Continues the program above."
BLOCK_LIMIT = 10.0
PAGE_LIMIT = 30.0

_SAVED_AS = re.compile(r"\b[Ss]ave\b[^`]*?\bas\s+`([\w./-]+)`")
_EXAMPLE = re.compile(r"\]\(\.\./(examples/\w+)/([\w./]+\.py)\)")
_BETWEEN_BLOCKS = "\x1e"
_KILLED = {-9, 137}


@attrs.frozen
class Program:
    """A complete block with the blocks that continue it, and the output of each.

    `in_console` is True if a console block runs the file.
    """

    name: str
    blocks: list[Block]
    expected: list[str]
    in_console: bool = False

    @property
    def source(self) -> str:
        """The file: the blocks with a line between them that marks where the next one begins."""
        mark = f"import time; print({_BETWEEN_BLOCKS!r}, time.monotonic(), flush=True)\n"
        return f"\n\n{mark}".join(block.code for block in self.blocks)


@attrs.frozen
class SavedFile:
    """A block that is no program: a file that programs and commands use."""

    name: str
    content: str


@attrs.frozen
class Excerpt:
    """A block that is a part of a file of an example."""

    block: Block
    example: Path
    file: str


def slowness() -> float:
    """Return how many times longer a process may take, because others share the machine."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def pasted_pages(pages: Iterable[Page]) -> list[Page]:
    """Return the pages that have Python."""
    return [page for page in pages if page.blocks("python")]


def printed_comments(block: Block) -> list[str]:
    """Return what the comments at the `print` calls of a block say, in the order of the source."""
    beside: dict[int, str] = {}
    alone: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(block.code).readline):
        if token.type == tokenize.COMMENT:
            kind = alone if token.line.strip() == token.string else beside
            kind[token.start[0]] = token.string.lstrip("# ")
    said = []
    for line in sorted(_ends_of_prints(block.code)):
        below: list[str] = []
        while line + 1 + len(below) in alone:
            below.append(alone[line + 1 + len(below)])
        comment = beside.get(line) or " ".join(below)
        assert comment, (
            f"{block.page}:{block.line + line - 1}: the page does not say what it prints"
        )
        said.append(comment)
    return said


def _ends_of_prints(code: str) -> list[int]:
    return [
        node.end_lineno or 0
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and getattr(node.value.func, "id", "") == "print"
    ]


def parts_of(page: Page) -> list[Program | SavedFile | Excerpt | Block]:
    """Return the programs, the files and the console blocks of a page in their order."""
    parts: list[Program | SavedFile | Excerpt | Block] = []
    blocks = [
        block
        for block in page.blocks()
        if block.language in ("python", "text", "console") or _SAVED_AS.search(block.above)
    ]
    for block, following in zip_longest(blocks, blocks[1:]):
        named = _SAVED_AS.findall(block.above)
        if block.language == "console":
            parts.append(block)
        elif block.language not in ("python", "text"):
            parts.append(SavedFile(named[-1], block.code))
        if block.language != "python":
            continue
        if excerpt := _EXAMPLE.search(block.above):
            parts.append(Excerpt(block, ROOT / excerpt[1], excerpt[2]))
            continue
        in_console = following is not None and following.language == "console"
        if following is not None and following.language == "text":
            expected = following.code
        else:
            expected = "" if in_console else "\n".join(printed_comments(block))
        last = parts[-1] if parts else None
        if not block.code.startswith(CONTINUES):
            name = named[-1] if named else f"line_{block.line}.py"
            parts.append(Program(name, [block], [expected], in_console))
        else:
            assert isinstance(last, Program), f"{page.name}:{block.line}: continues no program"
            blocks_so_far, output_so_far = [*last.blocks, block], [*last.expected, expected]
            parts[-1] = Program(last.name, blocks_so_far, output_so_far, in_console)
    return parts


def paste(
    page: Page, directory: Path, block_limit: float = BLOCK_LIMIT, page_limit: float = PAGE_LIMIT
) -> None:
    """Run all blocks of `page` in `directory`. Raise AssertionError at the first difference."""
    began = time.monotonic()
    parts = parts_of(page)
    assert parts, f"{page.name} has no program"
    try:
        for part in parts:
            _paste_part(part, directory, block_limit)
    finally:
        _end_background(directory)
    elapsed = time.monotonic() - began
    assert elapsed <= page_limit, f"{page.name} takes {elapsed:.1f} s, limit {page_limit:g} s"


def _paste_part(part: Program | SavedFile | Excerpt | Block, directory: Path, limit: float) -> None:
    if isinstance(part, SavedFile):
        (directory / part.name).write_text(part.content)
    elif isinstance(part, Excerpt):
        _copy_example(part, directory)
    elif isinstance(part, Block):
        _run_commands(part, directory, limit)
    else:
        (directory / part.name).write_text(part.source)
        if not part.in_console:
            _run_program(part, directory, limit)


def _end_background(directory: Path) -> None:
    """Kill the processes that commands have left in the background of the directory."""
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):
            if link.readlink() == directory.resolve():
                os.kill(int(link.parent.name), signal.SIGKILL)


def _copy_example(excerpt: Excerpt, directory: Path) -> None:
    where = f"{excerpt.block.page}:{excerpt.block.line}"
    content = (excerpt.example / excerpt.file).read_text()
    assert f"\n{excerpt.block.code}" in f"\n{content}", f"{where}: is not in {excerpt.file}"
    for path in excerpt.example.glob("**/*.py"):
        copy = directory / path.relative_to(excerpt.example)
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(path.read_text())


def _run_program(program: Program, directory: Path, limit: float) -> None:
    began = time.monotonic()
    first = program.blocks[0]
    command = [sys.executable, program.name]
    code, output, errors = _run(command, directory, limit * len(program.blocks), first)
    assert code == 0, f"{first.page}:{first.line}: exit status {code}\n{output}{errors}"
    parts = re.split(rf"^{_BETWEEN_BLOCKS} (\S+)\n", output, flags=re.MULTILINE)
    ends = [*map(float, parts[1::2]), time.monotonic()]
    for block, expected, said, end in zip(
        program.blocks, program.expected, parts[::2], ends, strict=True
    ):
        _compare(block, expected, said)
        assert end - began <= limit, f"{block.page}:{block.line}: takes {end - began:.1f} s"
        began = end


def _run_commands(console: Block, directory: Path, limit: float) -> None:
    for command, expected in re.findall(
        r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", console.code, re.MULTILINE
    ):
        code, said, _ = _run(["bash", "-c", f"{{ {command}\n}} 2>&1"], directory, limit, console)
        killed = code in _KILLED
        assert code == 0 or killed, f"{console.page}:{console.line}: {command}: {code}\n{said}"
        if killed:
            said = re.sub(r"^bash: line .*\n", "", said, flags=re.MULTILINE) + "Killed\n"
        _compare(console, expected, said)


def _run(command: list[str], directory: Path, limit: float, block: Block) -> tuple[int, str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment = {
        **kept,
        "PATH": path,
        "PYTHONWARNINGS": "error",
        "PYTHONUNBUFFERED": "1",
        # pytest-asyncio warns of its default in every project that does not set it.
        "PYTEST_ADDOPTS": "-o asyncio_default_fixture_loop_scope=function",
    }
    with subprocess.Popen(
        command,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=limit)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            output, errors = process.communicate()
            raise AssertionError(
                f"{block.page}:{block.line}: did not end within {limit:g} s: {output}{errors}"
            ) from None
    return process.returncode, output, errors


def _compare(block: Block, expected: str, said: str) -> None:
    expected, said = _plain(expected), _plain(said)
    pattern = ".*".join(map(re.escape, expected.split("...")))
    matches = re.fullmatch(pattern, said, re.DOTALL)
    where = f"{block.page}:{block.line}"
    assert matches, f"{where}: the page says\n{expected}\nand the output is\n{said}"


def _plain(text: str) -> str:
    """Return `text` with single spaces and without empty lines."""
    return "\n".join(" ".join(line.split()) for line in text.splitlines() if line.strip())
