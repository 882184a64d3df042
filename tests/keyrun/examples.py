"""Runs the code of a page: its blocks one after the other, in one namespace, on virtual time.

Functions called test_... are run as pytest-trio would, with None for what they ask for.
`await` may stand at the top, as at the prompt of `python -m trio`. What a comment says is checked:

    print(await run.result())  # what is printed
    await rt.submit(job, key="")  # raises InvalidKey: how the message begins
    print(await rt.keys())
    # prints what does not fit beside it, on one
    # or more lines; "raises" may stand there, too
"""

import ast
import inspect
import io
import re
import tokenize
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any, cast
from unittest.mock import patch

import trio
from trio.testing import MockClock

from keyrun import open_runtime
from keyrun.testing import virtual_wall
from tests.keyrun.pages import Block

_RAISES = re.compile(r"raises (\w+): (.*)")
_BELOW = re.compile(r"raises \w+: |prints ")


class Checks:
    """What the comments of one page promise, and which of them came to be."""

    def __init__(self) -> None:
        self.promised: set[tuple[int, str]] = set()
        self.kept: set[tuple[int, str]] = set()

    def printed(self, line: int, expected: str, *values: object) -> None:
        """Stands in for a print with a comment."""
        said = " ".join(map(str, values))
        assert said == expected, f"line {line}: prints {said!r}, and the page says {expected!r}"
        self.kept.add((line, expected))

    @contextmanager
    def raises(self, line: int, expected: str) -> Iterator[None]:
        """Stands around a statement that raises."""
        found = _RAISES.fullmatch(expected)
        assert found
        name, message = found.groups()
        try:
            yield
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            assert said.startswith(f"{name}: {message}"), f"line {line}: raises {said}"
            self.kept.add((line, expected))
        else:
            raise AssertionError(f"line {line}: raises nothing, and the page says {expected!r}")

    def missed(self) -> set[tuple[int, str]]:
        """Promises that the code never came to."""
        return self.promised - self.kept


class _Instrumented(ast.NodeTransformer):
    def __init__(self, comments: dict[int, str], checks: Checks) -> None:
        self._comments = comments
        self._checks = checks

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        return self._statement(node)

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        return self._statement(node)

    def _statement(self, node: ast.Expr | ast.Assign) -> ast.stmt:
        line = node.end_lineno or 0
        comment = self._comments.get(line, "")
        call = node.value
        if comment.startswith("raises "):
            self._checks.promised.add((line, comment))
            guard = ast.parse(f"with _checks.raises({line}, {comment!r}): pass").body[0]
            assert isinstance(guard, ast.With)
            guard.body = [node]
            return guard
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "print" and comment:
            self._checks.promised.add((line, comment))
            call.func = ast.parse("_checks.printed", mode="eval").body
            call.args[:0] = [ast.Constant(line), ast.Constant(comment)]
        return node


def _comments(code: str) -> dict[int, str]:
    """What is said about the statement that ends on a line, beside it or below."""
    said: dict[int, str] = {}
    above = last = 0
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, text = token.start[0], token.string.lstrip("# ")
        if token.line.strip() != token.string:
            said[line] = text
        elif _BELOW.match(text):
            above, last = line - 1, line
            said[above] = text.removeprefix("prints ")
        elif line == last + 1:
            last = line
            said[above] += f" {text}"
    return said


def _compiled(block: Block, checks: Checks) -> CodeType:
    # Blank lines in front, so that lines are those of the page.
    code = "\n" * (block.line - 1) + block.code
    tree = _Instrumented(_comments(code), checks).visit(ast.parse(code, block.page))
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    return cast(CodeType, compile(ast.fix_missing_locations(tree), block.page, "exec", flags))


def run_page(blocks: list[Block]) -> None:
    """Run all of `blocks`, and see that everything happened that their comments promise."""
    checks = Checks()
    namespace: dict[str, Any] = {"__name__": "page", "_checks": checks}

    async def main() -> None:
        for block in blocks:
            known = set(namespace)
            code = _compiled(block, checks)
            ran = eval(code, namespace)  # the pages are ours
            if code.co_flags & inspect.CO_COROUTINE:
                await ran
            for name in sorted(set(namespace) - known):
                if name.startswith("test_"):
                    test = namespace[name]
                    await test(*[None for _ in inspect.signature(test).parameters])

    opened = inspect.unwrap(open_runtime)
    with patch.dict(opened.__kwdefaults__ or {}, wall=virtual_wall):
        trio.run(main, clock=MockClock(autojump_threshold=0))
    assert not checks.missed(), f"never happened: {sorted(checks.missed())}"
