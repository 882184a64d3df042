"""Listing: find the runs that match a filter, page by page, from either end of the admission order.

A filtered listing may read every run, so a record is unsealed only if its bytes could match. A page
of `find` reads a bounded number of records: one that found too little says how far it has looked.
Both `find` and `runs` read in slices. A damaged run is listed with what other records say about
it, which means reading whole tables.
"""

import re
from collections.abc import Collection
from contextlib import suppress

import attrs

from keyrun.actors import checks
from keyrun.runtime.inspect.pages import RunPage, read_cursor, write_cursor
from keyrun.runtime.inspect.slices import ENDED_RUN, RUN, PageBudget
from keyrun.runtime.inspect.statuses import SeenKeys, StatusReader
from keyrun.runtime.records.damage import DAMAGE
from keyrun.runtime.records.pages import Rows
from keyrun.runtime.records.submission import OF_GROUP, SUBMITTED_AT, Submission
from keyrun.runtime.records.tables import NUMBER
from keyrun.runtime.texts import check_text
from keyrun.runtime.values import Failure, RunStatus, State
from keyrun.storage import StoreError
from keyrun.storage.record import unseal

PAGE = 200
"""Records in the largest slice."""

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
        group: str | None = None,
    ) -> "ListingFilter":
        """Return a filter for the arguments of `runs`."""
        texts = {"key": key, "workflow": workflow, "tag": tag, "error": error, "step": step}
        for name, text in (*texts.items(), ("origin", origin), ("group", group)):
            if text is not None:
                check_text(text, name)
        if group is not None:
            # A run has one origin, so another one leaves no run.
            origin = OF_GROUP + group if origin in (None, OF_GROUP + group) else ""
        if version is not None:
            checks.count("version", version, 1)
        for name, time in (("since", since), ("until", until)):
            if time is not None:
                checks.number(name, time)
        return cls(
            states=None if state is None else _states(state),
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


def _states(given: State | Collection[State]) -> frozenset[State]:
    if isinstance(given, str):
        given = (State(given),)
    checks.several("state", given)
    return frozenset(map(State, given))


class Listing:
    """Finds the runs that match a filter."""

    def __init__(self, statuses: StatusReader) -> None:
        self._statuses = statuses
        self._ledger = statuses.ledger

    async def find(
        self,
        wanted: ListingFilter,
        *,
        table: str = "runs",
        limit: int = 100,
        cursor: str | None = None,
        newest_first: bool = False,
    ) -> RunPage:
        """Return one page of the runs that match. It reads a bounded number of records. `table` is
        an index by number."""
        checks.count("limit", limit, 1)
        place = read_cursor(table, cursor)
        after = 0 if place is None else _number(place)
        looked = await self._look(wanted, table, limit, after, newest_first)
        return RunPage(
            runs=tuple(looked.found),
            cursor=write_cursor(table, NUMBER.pack(looked.last)) if looked.more else None,
            examined=looked.examined,
            examined_until=await self._submitted_at(looked.last) if looked.examined else None,
        )

    async def runs(
        self,
        wanted: ListingFilter,
        *,
        table: str = "runs",
        limit: int = 100,
        after: int = 0,
        newest_first: bool = False,
    ) -> list[RunStatus]:
        """Return at most `limit` runs that match, from as many pages as this takes. `after` is the
        number of the last run of the call before, or 0."""
        checks.count("limit", limit, 1)
        found: list[RunStatus] = []
        more = True
        while more and len(found) < limit:
            looked = await self._look(wanted, table, limit - len(found), after, newest_first)
            found += looked.found
            after, more = looked.last, looked.more
        return found

    async def _look(
        self, wanted: ListingFilter, table: str, limit: int, after: int, newest_first: bool
    ) -> "_Looked":
        """Look at runs, in slices, until `limit` match or the page has read enough."""
        ledger, seen = self._ledger, SeenKeys()
        slices = PageBudget(first=PAGE, most=PAGE)
        looked = _Looked(last=after, more=wanted.origin != "")
        while looked.more and len(looked.found) < limit and slices.left > 0:
            room = limit - len(looked.found)
            size = min(slices.size, room) if wanted == _ANY else slices.size
            slices.begin()
            with ledger.store.view():
                rows = await ledger.store.scan(
                    table,
                    prefix=ledger.prefix,
                    start=b"" if newest_first else ledger.number(looked.last + 1),
                    stop=ledger.number(looked.last) if newest_first and looked.last else None,
                    limit=size,
                    reverse=newest_first,
                )
                slices.left -= len(rows)
                taken, count = await self._take(rows, table, wanted, seen, room, slices)
            shown, last = await self._shown(taken, wanted, slices)
            if last is not None:
                # The page has read enough, so it ends before the other runs of this slice.
                count = next(
                    at for at, row in enumerate(rows, 1) if ledger.split_number(row[0])[0] == last
                )
            looked.found += shown
            looked.examined += count
            looked.more = count < len(rows) or len(rows) == size
            if count:
                looked.last = ledger.split_number(rows[count - 1][0])[0]
            if looked.more and len(looked.found) < limit:
                await slices.end()
        return looked

    async def _submitted_at(self, number: int) -> float | None:
        """Return when a run was submitted, or None if it is not known."""
        with suppress(*DAMAGE):
            submission = await self._ledger.submission(number)
            return None if submission is None else submission.submitted_at
        return None

    async def _take(
        self,
        rows: Rows,
        table: str,
        wanted: ListingFilter,
        seen: SeenKeys,
        room: int,
        slices: PageBudget,
    ) -> tuple[dict[int, RunStatus | StoreError], int]:
        """Return the first `room` runs that match, or may match, and the number of rows that were
        looked at before the slice was over. Of a run that cannot be read, return the error."""
        fitting = None
        if table != "runs":
            slices.left -= len(rows)
        if wanted.states is not None:
            damaged = State.QUARANTINED in wanted.states
            fitting = await self._in_state(rows, wanted.stored_states(), damaged=damaged)
            slices.left -= len(rows)
        marks = wanted.marks()
        taken: dict[int, RunStatus | StoreError] = {}
        for count, (record, value) in enumerate(rows, 1):
            if fitting is not None and record not in fitting:
                continue
            raw = value if table == "runs" else await self._ledger.store.get("runs", record)
            if raw is not None and all(mark in raw for mark in marks):
                number = self._ledger.split_number(record)[0]
                read = await self._status(record, raw, number, wanted, seen)
                if read is not None:
                    ended = isinstance(read, RunStatus) and read.state.terminal
                    slices.left -= ENDED_RUN if ended else RUN
                    taken[number] = read
            if len(taken) == room or slices.over or slices.left <= 0:
                return taken, count
        return taken, len(rows)

    async def _status(
        self, record: bytes, raw: bytes, number: int, wanted: ListingFilter, seen: SeenKeys
    ) -> RunStatus | StoreError | None:
        """Return the status of a run that may match, or the error that reading the run raises. None
        if it does not match."""
        live = self._statuses.live(number)
        try:
            submission = self._read(record, raw, wanted) if live is None else live.submission
        except DAMAGE as error:
            return error
        if submission is None or not wanted.fits(submission):
            return None
        status = await self._statuses.status_in_view(
            submission, self._statuses.lenient_status, seen
        )
        if not wanted.may_be(status.state):
            return None
        return await self._statuses.with_quarantined(status, number, seen)

    def _read(self, record: bytes, raw: bytes, wanted: ListingFilter) -> Submission | None:
        """Return a submission. None if its time does not match, which is checked before the rest is
        decoded."""
        fields = unseal("runs", record, raw)
        for at in fields[SUBMITTED_AT : SUBMITTED_AT + 1]:
            if isinstance(at, float) and not wanted.in_time(at):
                return None
        return self._ledger.submission_of(record, fields)

    async def _shown(
        self, taken: dict[int, RunStatus | StoreError], wanted: ListingFilter, slices: PageBudget
    ) -> tuple[list[RunStatus], int | None]:
        """Return the statuses of matching runs in the same order, also of those that cannot be
        read. If the page has read enough before the last of them, return the number of the last
        run that was looked at."""
        damaged = await self._statuses.damaged(
            {number: read for number, read in taken.items() if isinstance(read, StoreError)}
        )
        shown: list[RunStatus] = []
        before, least = None, min(slices.left, 0)
        for number, read in taken.items():
            if before is not None and slices.left < least:
                return shown, before
            before = number
            if not isinstance(read, StoreError):
                status = await self._statuses.with_journal(number, read, slices)
                if wanted.fits_status(status):
                    shown.append(status)
                await slices.pause()
                continue
            fits = wanted.fits_damaged(damaged[number])
            if fits:
                shown.append(damaged[number])
            elif fits is None:
                self._statuses.unreadable += 1
        return shown, None

    async def _in_state(
        self, rows: Rows, states: frozenset[State], *, damaged: bool = False
    ) -> frozenset[bytes]:
        """Return the keys of the rows whose run may have one of the states in its status record.
        With `damaged`, also those whose status record is damaged."""
        stored = {}
        if rows:
            first, last = sorted((rows[0][0], rows[-1][0]))
            stored = dict(await self._ledger.store.scan("status", start=first, stop=last + b"\0"))
        fitting = []
        for record, _ in rows:
            raw = stored.get(record)
            if raw is None:
                fits = State.PENDING in states
            else:
                state = _STATE.search(raw[_STATE_AT])
                fits = state is None or state[0].decode() in states
                fits = fits or (damaged and _is_damaged(record, raw))
            if fits:
                fitting.append(record)
        return frozenset(fitting)


@attrs.define
class _Looked:
    """The runs that a page has read so far."""

    last: int
    """The number of the last run that was looked at."""
    found: list[RunStatus] = attrs.Factory(list)
    examined: int = 0
    more: bool = True


def _number(place: bytes) -> int:
    """Return the number of a run in a cursor."""
    if len(place) != NUMBER.size:
        raise ValueError("cursor must be the cursor of a page of this listing")
    number: int = NUMBER.unpack(place)[0]
    return number


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
