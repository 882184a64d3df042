"""Admission: how a run gets in, once, whoever submits it how often.

A run's identity is its id, key, workflow and the hash of its input. The same again is the same
run; a different one under the id is refused. Submits share commits, and a duplicate of one that is
still being committed waits for the same commit.
"""

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import attrs

from keyrun.runtime.errors import InputMismatch, InvalidKey, InvalidRunId, ReservedHeader
from keyrun.runtime.ledger import MAX_KEY, Submission, sealed
from keyrun.runtime.limits import Limits, ResolvedLimits
from keyrun.runtime.values import UNSET, Priority
from keyrun.runtime.workflow import Workflow

if TYPE_CHECKING:
    from keyrun.runtime.engine import Engine
    from keyrun.storage.group import Group

_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


def check_key(key: object) -> str:
    """`key` if it can be an ordering key."""
    if not isinstance(key, str):
        raise InvalidKey(f"key must be a string, got {key!r}")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise InvalidKey(f"key must be valid Unicode, got {key!r}") from None
    if not 0 < size <= MAX_KEY:
        raise InvalidKey(f"key must have 1 to {MAX_KEY} bytes as UTF-8, got {size}", key=key)
    return key


def check_run_id(run_id: object) -> str:
    """`run_id` if it can be one."""
    if not isinstance(run_id, str) or not _RUN_ID.fullmatch(run_id):
        raise InvalidRunId(f"run_id must be 1 to 128 of A-Z, a-z, 0-9, '_' and '-', got {run_id!r}")
    return run_id


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """A copy of `headers` if they may be carried along."""
    taken: dict[str, str] = {}
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers must map strings to strings, got {headers!r}")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"headers must map strings to strings, got {name!r}: {value!r}")
        if name.startswith("keyrun."):
            raise ReservedHeader(f"header names starting with 'keyrun.' are reserved: {name!r}")
        taken[name] = value
    return taken


def check_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """`tags` as a tuple of strings."""
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise TypeError(f"tags must be several strings, such as a tuple of them, got {tags!r}")
    taken = tuple(tags)
    for tag in taken:
        if not isinstance(tag, str) or not tag:
            raise TypeError(f"tags must be non-empty strings, got {tag!r}")
    return taken


class RunIds:
    """Makes run ids that sort by the time they were made, thousands per millisecond in order."""

    def __init__(self) -> None:
        self._last = 0
        self._maker = token_hex(4)

    def make(self, wall: float) -> str:
        """The next id."""
        self._last = max(self._last + 1, int(wall * 1e6))
        return f"{self._last:014x}{self._maker}"


@attrs.frozen
class Admitted:
    """What came of a submit: the run, whether it is new, and the group that makes it durable."""

    submission: Submission
    new: bool
    group: "Group | None"


class Admission:
    """Takes runs in."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._ids = RunIds()
        self._resolved: dict[Workflow[Any, Any], ResolvedLimits] = {}
        self._committing: dict[str, tuple[Submission, Group]] = {}

    def describe(
        self,
        workflow: Workflow[Any, Any],
        input_: Any,
        *,
        key: str,
        run_id: str | None,
        headers: Mapping[str, str] | None,
        tags: Iterable[str],
        priority: Priority,
        limits: Limits | None,
        delay: float,
        origin: str,
    ) -> Submission:
        """What is to be submitted, checked; the number is given at admission."""
        engine = self._engine
        latest = engine.registry.latest(workflow)
        check_key(key)
        if run_id is not None:
            check_run_id(run_id)
        if isinstance(delay, bool) or not isinstance(delay, int | float) or not 0 <= delay < 1e10:
            raise ValueError(f"delay must be 0 to 1e10 seconds, got {delay!r}")
        if not isinstance(priority, Priority):
            raise TypeError(f"priority must be a Priority, got {priority!r}")
        if limits is not None and not isinstance(limits, Limits):
            raise TypeError(f"limits must be Limits, got {limits!r}")
        payload = engine.codec.encode(input_, latest.input_type)
        now = engine.wall()
        return Submission(
            run_id=run_id or self._ids.make(now),
            key=key,
            workflow=latest.name,
            version=latest.version,
            input=payload,
            digest=sha256(engine.codec.canonical(input_, latest.input_type)).digest(),
            headers={} if headers is None else check_headers(headers),
            tags=() if tags == () else check_tags(tags),
            priority=priority,
            limits=self._limits(latest, limits),
            submitted_at=now,
            delay=delay,
            origin=origin,
        )

    def _limits(self, workflow: Workflow[Any, Any], limits: Limits | None) -> ResolvedLimits:
        if limits is not None:
            return ResolvedLimits.of(limits, _own_limits(workflow), self._engine.limits)
        known = self._resolved.get(workflow)
        if known is None:
            known = ResolvedLimits.of(_own_limits(workflow), self._engine.limits)
            self._resolved[workflow] = known
        return known

    async def known(self, submission: Submission) -> Admitted | None:
        """The run that has this id already, if it is the same one."""
        run_id = submission.run_id
        committing = self._committing.get(run_id)
        if committing is not None:
            _same(submission, committing[0])
            return Admitted(committing[0], False, committing[1])
        number = await self._engine.ledger.find(run_id)
        if number is None:
            return None
        stored = await self._engine.ledger.submission(number)
        if stored is None:
            return None
        _same(submission, stored)
        return Admitted(stored, False, None)

    def admit(self, described: Submission) -> Admitted:
        """Stage a run with its place at the end of its key's line."""
        engine, ledger = self._engine, self._engine.ledger
        engine.check_open()
        number = engine.take_number()
        submission = described
        submission.number = number
        run_id = submission.run_id
        group = engine.store.open_group()
        record, name = ledger.number(number), ledger.run_id(run_id)
        group.put("runs", record, sealed("runs", record, *submission.fields()))
        group.put("ids", name, sealed("ids", name, number))
        line = engine.line(submission.key)
        engine.backlog.enter(line)
        self._committing[run_id] = (submission, group)
        if submission.delay:
            engine.delays.stage(group, submission)
            group.when_durable(lambda: self._delayed(submission))
        else:
            place = ledger.place(submission.key, number)
            group.put("queue", place, sealed("queue", place, number))
            group.when_durable(lambda: self._admitted(submission))
        return Admitted(submission, True, group)

    def _admitted(self, submission: Submission) -> None:
        del self._committing[submission.run_id]
        self._engine.line(submission.key).admit(submission.number, submission)

    def _delayed(self, submission: Submission) -> None:
        del self._committing[submission.run_id]
        self._engine.delays.admit(submission)


def _own_limits(workflow: Workflow[Any, Any]) -> Limits:
    """The limits of a workflow; its retry policy says something about attempts, too."""
    if workflow.retry is None or workflow.limits.max_attempts is not UNSET:
        return workflow.limits
    return attrs.evolve(workflow.limits, max_attempts=workflow.retry.max_attempts)


def _same(asked: Submission, known: Submission) -> None:
    for what in ("key", "workflow", "digest"):
        if getattr(asked, what) != getattr(known, what):
            name = "input" if what == "digest" else what
            raise InputMismatch(
                f"the run {known.run_id!r} was submitted with another {name}; use another run_id, "
                "or repeat exactly what was submitted",
                run_id=known.run_id,
                key=known.key,
            )
