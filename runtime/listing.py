"""Listing: which runs fit a filter, found page by page from either end of the admission order.

A filtered listing may look at every run there is, so a record is unsealed only if its bytes could
fit, and no read transaction is longer than a page.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

import attrs

from keyrun.runtime.ledger import Ledger
from keyrun.runtime.records import SUBMITTED_AT, Standing, Submission
from keyrun.runtime.values import RunStatus, State
from keyrun.storage import StoreError
from keyrun.storage.record import unseal

PAGE = 1000

Rows = list[tuple[bytes, bytes]]

_ONGOING = frozenset(state for state in State if not state.terminal)
_STATE = re.compile(b"|".join(state.encode() for state in State))
_STATE_AT = slice(5, 24)
"""Where in a record of `status` its first field is: after the checksum, the version and the
headers of msgpack."""


@attrs.frozen(kw_only=True)
class Wanted:
    """What a run must be like to be listed."""

    states: frozenset[State] | None = None
    key: str | None = None
    workflow: str | None = None
    tag: str | None = None
    since: float | None = None
    until: float | None = None

    @classmethod
    def of(
        cls,
        state: State | Collection[State] | None,
        key: str | None,
        workflow: str | None,
        tag: str | None,
        since: float | None,
        until: float | None,
    ) -> "Wanted":
        """From the arguments of `runs`."""
        states: frozenset[State] | None = None
        if isinstance(state, State):
            states = frozenset([state])
        elif state is not None:
            states = frozenset(map(State, state))
        return cls(states=states, key=key, workflow=workflow, tag=tag, since=since, until=until)

    def marks(self) -> list[bytes]:
        """What the bytes of a submission that fits have in them."""
        return [text.encode() for text in (self.key, self.workflow, self.tag) if text is not None]

    def in_time(self, submitted_at: float) -> bool:
        """Was it submitted at a time that fits?"""
        return (self.since is None or submitted_at >= self.since) and (
            self.until is None or submitted_at < self.until
        )

    def fits(self, submission: Submission) -> bool:
        """Does everything fit that never changes?"""
        return (
            (self.key is None or submission.key == self.key)
            and (self.workflow is None or submission.workflow == self.workflow)
            and (self.tag is None or self.tag in submission.tags)
        )

    def stored_states(self) -> frozenset[State]:
        """What may be stored of a run that is shown in one of the states: a run that is paused or
        being cancelled is stored as what it is besides."""
        states = frozenset(State) if self.states is None else self.states
        return states | _ONGOING if states & _ONGOING else states


class Listing:
    """Finds runs. `show` makes of records what a user sees."""

    def __init__(
        self, ledger: Ledger, show: Callable[[Submission, Standing | None], RunStatus]
    ) -> None:
        self._ledger = ledger
        self._show = show
        self.unreadable = 0
        """Damaged records that were left out: no reason not to show the others."""

    async def page(
        self,
        wanted: Wanted,
        *,
        table: str = "runs",
        limit: int = 100,
        after: int = 0,
        newest_first: bool = False,
    ) -> list[RunStatus]:
        """At most `limit` runs that fit; `after` is the number of the last that is known, 0 for
        none. `table` is an index by number."""
        ledger, found = self._ledger, list[RunStatus]()
        while len(found) < limit:
            size = min(PAGE, limit - len(found)) if wanted == _ANY else PAGE
            with ledger.store.view():
                rows = await ledger.store.scan(
                    table,
                    prefix=ledger.prefix,
                    start=b"" if newest_first else ledger.number(after + 1),
                    stop=ledger.number(after) if newest_first and after else None,
                    limit=size,
                    reverse=newest_first,
                )
                await self._take(rows, table, wanted, found, limit)
            if len(rows) < size:
                break
            after = ledger.split_number(rows[-1][0])[0]
        return found

    async def _take(
        self, rows: Rows, table: str, wanted: Wanted, found: list[RunStatus], limit: int
    ) -> None:
        if wanted.states is not None:
            rows = await self._in_state(rows, wanted.stored_states())
        marks = wanted.marks()
        timed = wanted.since is not None or wanted.until is not None
        for record, value in rows:
            raw = value if table == "runs" else await self._ledger.store.get("runs", record)
            if raw is None or not all(mark in raw for mark in marks):
                continue
            try:
                fields = unseal("runs", record, raw)
                if timed and not wanted.in_time(fields[SUBMITTED_AT]):
                    continue
                status = await self._status(record, fields, wanted)
            except StoreError:
                self.unreadable += 1
                continue
            if status is not None:
                found.append(status)
                if len(found) == limit:
                    return

    async def _status(self, record: bytes, fields: list[Any], wanted: Wanted) -> RunStatus | None:
        number = self._ledger.split_number(record)[0]
        submission = Submission.read(number, fields)
        if not wanted.fits(submission):
            return None
        status = self._show(submission, await self._ledger.standing(number))
        return status if wanted.states is None or status.state in wanted.states else None

    async def _in_state(self, rows: Rows, states: frozenset[State]) -> Rows:
        """The rows whose run may be stored in one of the states."""
        stored = {}
        if rows:
            first, last = sorted((rows[0][0], rows[-1][0]))
            stored = dict(await self._ledger.store.scan("status", start=first, stop=last + b"\0"))
        fitting = []
        for row in rows:
            raw = stored.get(row[0])
            if raw is None:
                fits = State.PENDING in states
            else:
                state = _STATE.search(raw[_STATE_AT])
                fits = state is None or state[0].decode() in states
            if fits:
                fitting.append(row)
        return fitting

    async def unfinished(self) -> dict[tuple[str, int], int]:
        """How many runs, by workflow and version, have not ended and are not quarantined."""
        counts: Counter[tuple[str, int]] = Counter()
        ledger, after = self._ledger, 0
        states = _ONGOING - {State.QUARANTINED}
        while True:
            with ledger.store.view():
                rows = await ledger.store.scan(
                    "runs", prefix=ledger.prefix, start=ledger.number(after + 1), limit=PAGE
                )
                for record, raw in await self._in_state(rows, states):
                    try:
                        number = ledger.split_number(record)[0]
                        submission = Submission.read(number, unseal("runs", record, raw))
                    except StoreError:
                        continue
                    counts[submission.workflow, submission.version] += 1
            if len(rows) < PAGE:
                return dict(counts)
            after = ledger.split_number(rows[-1][0])[0]


_ANY = Wanted()
