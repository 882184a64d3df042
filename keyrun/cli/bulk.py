"""Bulk commands: change all runs that match a filter, page by page.

1. The preview counts the runs and shows some of them. It changes nothing.
2. Then the person is asked, unless there is `--yes`. No store is open meanwhile.
3. The runs are changed page by page. Ctrl-C ends the command after the page that is under way.

All pages have one operation id, so the command can be repeated with it: no run is changed twice.
"""

import signal
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any
from uuid import uuid4

import attrs
import click
import trio

from keyrun.cli import documents
from keyrun.cli.addresses import StoreAddress
from keyrun.cli.arguments import is_positional, option_of, read_arguments
from keyrun.cli.exit_codes import FAILED, INTERRUPTED, USAGE, CommandError
from keyrun.cli.operating import OperatedStore, opened
from keyrun.cli.run_command import print_command
from keyrun.cli.runs import COLUMNS, row
from keyrun.cli.screen import ProgressLine, note, say, visible
from keyrun.cli.table import print_table
from keyrun.cli.target import find_app
from keyrun.cli.times import utc
from keyrun.control.background import beside
from keyrun.control.bulk import MOST, BulkFailure, BulkResult
from keyrun.control.operation import Operation
from keyrun.control.table import OPERATIONS
from keyrun.runtime.values import RunStatus

EXAMPLES = 5
"""Runs that a preview shows."""
PAGE = 200
"""Runs that one call changes. Ctrl-C waits for the end of a page."""

_NAMES = {"states": "state"}
"""The arguments of the operation, by the names that the options of `keyrun runs` have."""


@attrs.define
class Total:
    """What the pages have found and done so far."""

    examined: int = 0
    matched: int = 0
    changed: int = 0
    failed: int = 0
    failures: list[BulkFailure] = attrs.field(factory=list)
    examples: list[str] = attrs.field(factory=list)
    complete: bool = False
    """Whether no page is left."""

    def add(self, page: BulkResult) -> None:
        """Add a page."""
        self.examined += page.examined
        self.matched += page.matched
        self.changed += page.changed
        self.failed += page.failed
        self.failures += page.failures[: max(0, EXAMPLES - len(self.failures))]
        self.examples += page.examples[: max(0, EXAMPLES - len(self.examples))]
        self.complete = page.cursor is None


@attrs.frozen(kw_only=True)
class BulkCommand:
    """One call of a command on all runs that match."""

    operation: Operation
    store: StoreAddress
    namespace: str
    own: Mapping[str, Any]
    """The arguments of the operation besides the run, as they were given."""
    filters: Mapping[str, Any]
    operation_id: str | None
    as_json: bool
    app: str | None = None
    """The application of the store."""

    @property
    def name(self) -> str:
        """The name of the command."""
        assert self.operation.command is not None
        return self.operation.command.name

    def run(self, *, yes: bool, preview: bool) -> None:
        """Preview, ask, and change the runs. Exit with a code if not all were changed."""
        action = self.name
        if not self.filters:
            target = next(iter(self.operation.parameters)).replace("_", " ")
            raise click.UsageError(
                f"{action} requires a {target}, or a filter such as --workflow or --since"
            )
        if preview or not yes:
            total, examples = trio.run(self._look)
            self._print_preview(total, examples)
            if preview or not total.matched:
                return
            if not sys.stdin.isatty():
                match = "matches" if total.matched == 1 else "match"
                raise CommandError(
                    f"nothing was changed: {_runs(total.matched)} {match}; add --yes to "
                    f"{action} {'it' if total.matched == 1 else 'them'}",
                    USAGE,
                )
            if not click.confirm(f"{action.capitalize()} {_runs(total.matched)}?", err=True):
                raise CommandError("nothing was changed", FAILED)
        operation_id = self.operation_id or uuid4().hex
        total = trio.run(self._change, operation_id)
        self._print_total(total, operation_id)
        if not total.complete:
            raise click.exceptions.Exit(INTERRUPTED)
        if total.failed:
            raise click.exceptions.Exit(FAILED)

    async def _page(
        self, store: OperatedStore, cursor: str | None, operation_id: str | None, **more: Any
    ) -> BulkResult:
        filters = {_NAMES.get(name, name): each for name, each in self.filters.items()}
        if "state" in filters:
            filters["state"] = list(filters["state"])
        own = read_arguments(self.operation, self.own)
        arguments = {"action": self.operation.name, **own, **filters, "cursor": cursor, **more}
        page: BulkResult = await store.perform(OPERATIONS["bulk"], arguments, operation_id)
        return page

    def _opened(self) -> AbstractAsyncContextManager[OperatedStore]:
        return opened(self.store, self.namespace, None if self.app is None else find_app(self.app))

    async def _look(self) -> tuple[Total, list[RunStatus]]:
        """Count the runs, and return the first."""
        total, cursor, progress = Total(), None, ProgressLine()
        async with self._opened() as store:
            while not total.complete:
                page = await self._page(store, cursor, None, preview=True, limit=MOST)
                total.add(page)
                cursor = page.cursor
                progress.show(f"Counting: {total.matched:,} of {total.examined:,} runs match")
            examples = [
                await store.perform(OPERATIONS["status"], {"run_id": run_id})
                for run_id in total.examples
            ]
        progress.clear()
        return total, examples

    async def _change(self, operation_id: str) -> Total:
        """Change the runs, until there are no more or the command is interrupted."""
        total, cursor, progress = Total(), None, ProgressLine()
        stop = trio.Event()
        with trio.open_signal_receiver(signal.SIGINT) as interrupts, trio.CancelScope() as at_once:
            async with (
                self._opened() as store,
                beside(partial(_watch, interrupts, stop, at_once)),
            ):
                while not total.complete and not stop.is_set():
                    page = await self._page(store, cursor, operation_id, preview=False, limit=PAGE)
                    total.add(page)
                    cursor = page.cursor
                    progress.show(self._done(total))
        progress.clear()
        return total

    def _done(self, total: Total) -> str:
        command = self.operation.command
        assert command is not None
        text = f"{_runs(total.changed)} {command.past}"
        return f"{text}, {total.failed:,} failed" if total.failed else text

    def _print_preview(self, total: Total, examples: list[RunStatus]) -> None:
        if self.as_json:
            found = {"preview": True, "matched": total.matched, "examples": total.examples}
            print(documents.line(found))
            return
        if not total.matched:
            note("No runs match.")
            return
        print_table(COLUMNS, map(row, examples))
        more = total.matched - len(examples)
        if more:
            note(f"and {more:,} more")

    def _print_total(self, total: Total, operation_id: str) -> None:
        if self.as_json:
            print(
                documents.line(
                    {
                        "preview": False,
                        "matched": total.matched,
                        "changed": total.changed,
                        "failed": total.failed,
                        "failures": [attrs.asdict(each) for each in total.failures],
                        "complete": total.complete,
                        "operation_id": operation_id,
                    }
                )
            )
        else:
            say(f"{self._done(total)}.")
        for each in total.failures:
            note(f"{each.run_id}: {each.error}: {visible(each.detail)}")
        if not total.complete:
            note("Interrupted. To continue, without changing a run twice:")
            print_command([*self._words(), "--yes", "--operation-id", operation_id])

    def _words(self) -> Iterator[str]:
        """Return the command without its last options."""
        yield from ("keyrun", self.name, str(self.store))
        for parameter in self.operation.parameters.values():
            value = self.own.get(parameter.name)
            if value in (None, False):
                continue
            if not is_positional(parameter):
                yield option_of(parameter)
            if value is not True:
                yield str(value)
        if self.app is not None:
            yield from ("--app", self.app)
        for name, value in self.filters.items():
            for each in value if isinstance(value, tuple) else [value]:
                is_time = name in ("since", "until")
                yield from (
                    f"--{_NAMES.get(name, name)}",
                    (utc(each) or "") if is_time else str(each),
                )
        if self.namespace != "default":
            yield from ("--namespace", self.namespace)


async def _watch(
    interrupts: AsyncIterator[int], stop: trio.Event, at_once: trio.CancelScope
) -> None:
    """Set `stop` at the first interrupt, and cancel at the second."""
    async for _ in interrupts:
        if stop.is_set():
            at_once.cancel()
        stop.set()


def _runs(count: int) -> str:
    return f"{count:,} {'run' if count == 1 else 'runs'}"
