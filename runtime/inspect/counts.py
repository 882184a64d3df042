"""Counts: statistics of a store that are kept in it, for any process that reads it."""

from collections.abc import Mapping

import attrs

from keyrun.runtime.records.tables import Ledger
from keyrun.runtime.records.unfinished import count, stored_counts


@attrs.frozen(kw_only=True)
class UnfinishedCount:
    """How many unfinished runs a workflow version has. `by_fingerprint` divides them by the code
    that started them; None is for runs that have not started, or whose code has no source."""

    workflow: str
    version: int
    runs: int
    by_fingerprint: Mapping[str | None, int]


@attrs.frozen(kw_only=True)
class UnpatchedCount:
    """How many unfinished runs of a workflow got False from `ctx.patched(patch)`."""

    workflow: str
    patch: str
    runs: int


@attrs.frozen(kw_only=True)
class StoreCounts:
    """The statistics of a store, or of one namespace of it."""

    unfinished: tuple[UnfinishedCount, ...]
    unpatched: tuple[UnpatchedCount, ...]


async def counts_of(ledger: Ledger) -> StoreCounts:
    """Return what the store has counted. A store that no runtime has opened since it counts is
    counted here."""
    kept = await stored_counts(ledger)
    runs, unpatched = await count(ledger) if kept is None else (kept.by_code, kept.unpatched)
    versions: dict[tuple[str, int], dict[str | None, int]] = {}
    for (workflow, version, fingerprint), number in runs.items():
        code = None if fingerprint is None else fingerprint.hex()
        versions.setdefault((workflow, version), {})[code] = number
    return StoreCounts(
        unfinished=tuple(
            UnfinishedCount(
                workflow=workflow,
                version=version,
                runs=sum(by_fingerprint.values()),
                by_fingerprint=by_fingerprint,
            )
            for (workflow, version), by_fingerprint in sorted(versions.items())
        ),
        unpatched=tuple(
            UnpatchedCount(workflow=workflow, patch=patch, runs=number)
            for (workflow, patch), number in sorted(unpatched.items())
        ),
    )
