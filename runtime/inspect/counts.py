"""Counts of unfinished runs, which the store keeps, for any process that reads it."""

from collections.abc import Mapping

import attrs

from keyrun.runtime.records.run_counts import by_code, count, stored_counts
from keyrun.runtime.records.tables import Ledger


@attrs.frozen(kw_only=True)
class UnfinishedCount:
    """Count the unfinished runs of one version of a workflow."""

    workflow: str
    """The name of the workflow."""
    version: int
    """The version of the workflow."""
    runs: int
    """The number of unfinished runs, quarantined runs included."""
    by_fingerprint: Mapping[str | None, int]
    """The same runs by the fingerprint of the code that started them. None stands for runs that
    have not started, or whose code has no source."""


@attrs.frozen(kw_only=True)
class UnpatchedCount:
    """Count the unfinished runs of a workflow that got False from `ctx.patched`."""

    workflow: str
    """The name of the workflow."""
    patch: str
    """The name of the patch."""
    runs: int
    """The number of unfinished runs."""


@attrs.frozen(kw_only=True)
class StoreCounts:
    """Hold the counts of one namespace of a store."""

    unfinished: tuple[UnfinishedCount, ...]
    """Unfinished runs by workflow and version."""
    unpatched: tuple[UnpatchedCount, ...]
    """Unfinished runs that got False from `ctx.patched`, by workflow and patch."""


async def counts_of(ledger: Ledger) -> StoreCounts:
    """Return the counts of the store. If the store has none, because only an older Keyrun has
    opened it, count its runs."""
    kept = await stored_counts(ledger)
    if kept is None:
        counted = await count(ledger)
        runs, unpatched = by_code(counted.runs), counted.unpatched
    else:
        runs, unpatched = kept.by_code, kept.unpatched
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
