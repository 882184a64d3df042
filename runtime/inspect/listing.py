"""Listing: find the runs that match a filter, page by page, from either end of the admission order.

A filtered listing may read every run, so a record is unsealed only if its bytes could match, and no
read transaction is longer than a page. A damaged run is listed with what other records say about
it.
"""

import re
from collections.abc import Collection

import attrs

from keyrun.actors import checks
from keyrun.runtime.inspect.statuses import SeenKeys, StatusReader
from keyrun.runtime.records.damage import DAMAGE
from keyrun.runtime.records.pages import Rows
from keyrun.runtime.records.submission import SUBMITTED_AT, Submission
from keyrun.runtime.texts import check_text
from keyrun.runtime.values import Failure, RunStatus, State
from keyrun.storage import StoreError
from keyrun.storage.record import unseal

PAGE = 1000

_ONGOING = frozenset(state for state in State if not state.terminal)
_STATE = re.compile(b"|".join(state.encode() for state in State))
_STATE_AT = slice(5, 24)
"""Where in a record of `status` its first field is: after the checksum, the version and the
headers of msgpack."""


@attrs.frozen(kw_only=True)
class ListingFilter:
    """The conditions that a listed run matches."""

    states: frozenset[State] | None = None
    key: str | None = None
    workflow: str | None = None
    tag: str | None = None
    since: float | None = None
    until: float | None = None
    origin: str | None = None
    version: int | None = None
    error: str | None = None
    step: str | None = None

    @classmethod
    def of(
        cls,
        state: State | Collection[State] | None,
        key: str | None,
        workflow: str | None,
        tag: str | None,
        since: float | None,
        until: float | None,
        origin: str | None = None,
        version: int | None = None,
        error: str | None = None,
        step: str | None = None,
    ) -> "ListingFilter":
        """Return a filter for the arguments of `runs`."""
        texts = {"key": key, "workflow": workflow, "tag": tag, "error": error, "step": step}
        for name, text in texts.items():
            if text is not None:
                check_text(text, name)
        if version is not None:
            checks.count("version", version, 1)
        states: frozenset[State] | None = None
        if isinstance(state, str):
            states = frozenset([State(state)])
        elif state is not None:
            states = frozenset(map(State, state))
        return cls(
            states=states,
            key=key,
            workflow=workflow,
            tag=tag,
            since=since,
            until=until,
            origin=origin,
            version=version,
            error=error,
            step=step,
        )

    def marks(self) -> list[bytes]:
        """Return byte strings that the record of every matching submission contains."""
        texts = (self.key, self.workflow, self.tag, self.origin)
        return [text.encode() for text in texts if text is not None]

    def in_time(self, submitted_at: float) -> bool:
        """Return whether this time of submission matches."""
        return (self.since is None or submitted_at >= self.since) and (
            self.until is None or submitted_at < self.until
        )

    def fits(self, submission: Submission) -> bool:
        """Return whether a submission matches. The state is not checked."""
        return (
            (self.key is None or submission.key == self.key)
            and (self.workflow is None or submission.workflow == self.workflow)
            and (self.version is None or submission.version == self.version)
            and (self.tag is None or self.tag in submission.tags)
            and self.in_time(submission.submitted_at)
            and (self.origin is None or submission.origin == self.origin)
        )

    def fits_status(self, status: RunStatus) -> bool:
        """Return whether a status has the state, the error and the step."""
        return (
            (self.states is None or status.state in self.states)
            and (self.error is None or _has_error(status.failure, self.error))
            and (self.step is None or _is_at(status, self.step))
        )

    def fits_damaged(self, status: RunStatus) -> bool | None:
        """Return whether a run with a damaged submission matches. None if that is unknown."""
        if self.states is not None and status.state not in self.states:
            return False
        if self.key is not None and status.key not in (self.key, ""):
            return False
        lost = [self.workflow, self.version, self.tag, self.since, self.until, self.origin]
        lost += [self.error, self.step]
        if not status.key:
            lost.append(self.key)
        return None if any(asked is not None for asked in lost) else True

    def may_be(self, state: State) -> bool:
        """Return whether a run may match whose status record has this state. A record with the
        state `waiting` may be out of date."""
        states = self.states
        if states is None or state in states:
            return True
        return state is State.WAITING and State.RUNNING in states

    def stored_states(self) -> frozenset[State]:
        """Return the states that the status record of a matching run may have. The record of a run
        that is paused or being cancelled has another state."""
        states = frozenset(State) if self.states is None else self.states
        return states | _ONGOING if states & _ONGOING else states


class Listing:
    """Finds the runs that match a filter."""

    def __init__(self, statuses: StatusReader) -> None:
        self._statuses = statuses
        self._ledger = statuses.ledger

    async def page(
        self,
        wanted: ListingFilter,
        *,
        table: str = "runs",
        limit: int = 100,
        after: int = 0,
        newest_first: bool = False,
    ) -> list[RunStatus]:
        """Return at most `limit` runs that match. `after` is the number of the last run of the page
        before, or 0. `table` is an index by number."""
        ledger, found = self._ledger, list[RunStatus]()
        seen = SeenKeys()
        more = True
        while more and len(found) < limit:
            room = limit - len(found)
            size = min(PAGE, room) if wanted == _ANY else PAGE
            with ledger.store.view():
                rows = await ledger.store.scan(
                    table,
                    prefix=ledger.prefix,
                    start=b"" if newest_first else ledger.number(after + 1),
                    stop=ledger.number(after) if newest_first and after else None,
                    limit=size,
                    reverse=newest_first,
                )
                taken = await self._take(rows, table, wanted, seen, room)
            if len(taken) == room:
                after = next(reversed(taken))
            else:
                more = len(rows) == size
                if more:
                    after = ledger.split_number(rows[-1][0])[0]
            found += await self._shown(taken, wanted)
        return found

    async def _take(
        self, rows: Rows, table: str, wanted: ListingFilter, seen: SeenKeys, room: int
    ) -> dict[int, RunStatus | StoreError]:
        """Return the first `room` runs that match, or may match. Of a run that cannot be read,
        return the error."""
        if wanted.states is not None:
            damaged = State.QUARANTINED in wanted.states
            rows = await self._in_state(rows, wanted.stored_states(), damaged=damaged)
        marks = wanted.marks()
        taken: dict[int, RunStatus | StoreError] = {}
        for record, value in rows:
            raw = value if table == "runs" else await self._ledger.store.get("runs", record)
            if raw is None or not all(mark in raw for mark in marks):
                continue
            number = self._ledger.split_number(record)[0]
            live = self._statuses.live(number)
            try:
                submission = self._read(record, raw, wanted) if live is None else live.submission
            except DAMAGE as error:
                taken[number] = error
            else:
                if submission is None or not wanted.fits(submission):
                    continue
                status = await self._statuses.status_in_view(
                    submission, self._statuses.lenient_status, seen
                )
                if wanted.may_be(status.state):
                    taken[number] = await self._statuses.with_quarantined(status, number, seen)
            if len(taken) == room:
                break
        return taken

    def _read(self, record: bytes, raw: bytes, wanted: ListingFilter) -> Submission | None:
        """Return a submission. None if its time does not match, which is checked before the rest is
        decoded."""
        fields = unseal("runs", record, raw)
        for at in fields[SUBMITTED_AT : SUBMITTED_AT + 1]:
            if isinstance(at, float) and not wanted.in_time(at):
                return None
        return self._ledger.submission_of(record, fields)

    async def _shown(
        self, taken: dict[int, RunStatus | StoreError], wanted: ListingFilter
    ) -> list[RunStatus]:
        """Return the statuses of matching runs in the same order, also of those that cannot be
        read."""
        damaged = await self._statuses.damaged(
            {number: read for number, read in taken.items() if isinstance(read, StoreError)}
        )
        shown: list[RunStatus] = []
        for number, read in taken.items():
            if not isinstance(read, StoreError):
                status = await self._statuses.with_journal(number, read)
                if wanted.fits_status(status):
                    shown.append(status)
                continue
            fits = wanted.fits_damaged(damaged[number])
            if fits:
                shown.append(damaged[number])
            elif fits is None:
                self._statuses.unreadable += 1
        return shown

    async def _in_state(
        self, rows: Rows, states: frozenset[State], *, damaged: bool = False
    ) -> Rows:
        """Return the rows whose run may have one of the states in its status record. With
        `damaged`, also those whose status record is damaged."""
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
                fits = fits or (damaged and _is_damaged(row[0], raw))
            if fits:
                fitting.append(row)
        return fitting


def _has_error(failure: Failure | None, error: str) -> bool:
    """Return whether a failure, or one that led to it, has an error type of this name, with or
    without its module."""
    while failure is not None:
        known = failure.error_type
        if known is not None and (known == error or known.rpartition(".")[2] == error):
            return True
        failure = failure.cause
    return False


def _is_at(status: RunStatus, step: str) -> bool:
    """Return whether a run is at a step, or failed there. The name may be without its branch and
    its occurrence: `charge` for `g1.0/charge#2`."""
    failed = None if status.failure is None else status.failure.step
    at = {each for each in (status.step, failed) if each is not None}
    names = {each.rpartition("/")[2].partition("#")[0] for each in at}
    return step in at | names


def _is_damaged(record: bytes, raw: bytes) -> bool:
    try:
        unseal("status", record, raw)
    except DAMAGE:
        return True
    return False


_ANY = ListingFilter()
