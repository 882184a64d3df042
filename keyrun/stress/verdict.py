"""The verdict: the violations and the numbers of a campaign, from the evidence and the store."""

from pathlib import Path
from typing import Any

import attrs
import trio

from keyrun.storage import StoreError, verify
from keyrun.stress.accounts import Accounts, Progress
from keyrun.stress.campaign import Broken, Campaign
from keyrun.stress.testimony import Testimony
from keyrun.stress.violation import Promise, Violation

LINES = 5000
"""Lines of evidence between two reports of progress."""


@attrs.frozen(kw_only=True)
class Verdict:
    """The result of the check: the violations, and the numbers of finished steps, attempts with an
    outcome, executions that began, and executions that began again after a kill."""

    violations: tuple[Violation, ...]
    runs: int
    states: dict[str, int]
    steps: int
    attempts: int
    executions: int
    interrupted: int
    timeouts: int
    late: int
    kills: int
    stops: int
    commits: int
    records: int
    seconds: float

    @property
    def ok(self) -> bool:
        """Return whether every promise was kept."""
        return not self.violations

    def broken(self) -> dict[Promise, list[Violation]]:
        """Return the violations of every promise."""
        found: dict[Promise, list[Violation]] = {promise: [] for promise in Promise}
        for violation in self.violations:
            found[violation.promise].append(violation)
        return found

    def report(self) -> dict[str, Any]:
        """Return the verdict for programs."""
        report = attrs.asdict(self, recurse=False)
        report["ok"] = self.ok
        report["steps_per_second"] = round(self.steps / self.seconds, 1) if self.seconds else 0.0
        report["violations"] = [
            {**attrs.asdict(each), "promise": each.promise.name.lower()} for each in self.violations
        ]
        return report


def judge(
    campaign: Campaign, broken: Broken | None, folder: Path, progress: Progress = lambda *_: None
) -> Verdict:
    """Check everything. A child that broke off left runs that have not ended. The store is then
    asked nothing that only holds at the end."""
    record = campaign.record
    testimony = Testimony(record.planner)
    for at in range(0, len(record.lines), LINES):
        progress("events of the log", at, len(record.lines))
        testimony.add(record.lines[at : at + LINES])
    progress("events of the log", len(record.lines), len(record.lines))
    accounts = Accounts(record.planner, testimony, record.kills)
    violations = list(testimony.violations)
    if broken is not None:
        violations.append(Violation(promise=Promise.ALIVE, text=str(broken)))
    else:
        try:
            progress("records of the store", 0, None)
            found = verify(folder / "store")
            progress("records of the store", found.records, found.records)
            violations += [
                Violation(promise=Promise.STORE, text=damage.problem) for damage in found.damage
            ]
            trio.run(accounts.read, folder / "store", progress)
        except StoreError as error:
            violations.append(Violation(promise=Promise.STORE, text=str(error)))
        violations += accounts.violations
    return Verdict(
        violations=tuple(violations),
        runs=sum(accounts.states.values()),
        states=accounts.states,
        steps=accounts.steps,
        attempts=accounts.attempts,
        executions=testimony.executions,
        interrupted=testimony.interrupted,
        timeouts=accounts.timeouts,
        late=accounts.late,
        kills=record.kills,
        stops=record.stops,
        commits=record.commits,
        records=record.records,
        seconds=record.seconds(),
    )
