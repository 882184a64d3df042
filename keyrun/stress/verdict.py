"""The verdict: the violations and the numbers of a campaign, from the evidence and the store."""

from pathlib import Path
from typing import Any

import attrs
import trio

from keyrun.storage import StoreError, verify
from keyrun.stress.accounts import Accounts
from keyrun.stress.campaign import Broken, Campaign
from keyrun.stress.testimony import Testimony
from keyrun.stress.violation import Promise, Violation


@attrs.frozen(kw_only=True)
class Verdict:
    """What was found. `steps` were finished, `attempts` have an outcome, `executions` began;
    `interrupted` ones of those were begun again after a kill."""

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
    commits: int
    records: int
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether every promise was kept."""
        return not self.violations

    def broken(self) -> dict[Promise, list[Violation]]:
        """Every promise, with what speaks against it."""
        found: dict[Promise, list[Violation]] = {promise: [] for promise in Promise}
        for violation in self.violations:
            found[violation.promise].append(violation)
        return found

    def report(self) -> dict[str, Any]:
        """For programs."""
        report = attrs.asdict(self, recurse=False)
        report["ok"] = self.ok
        report["steps_per_second"] = round(self.steps / self.seconds, 1) if self.seconds else 0.0
        report["violations"] = [
            {**attrs.asdict(each), "promise": each.promise.name.lower()} for each in self.violations
        ]
        return report


def judge(campaign: Campaign, broken: Broken | None, folder: Path) -> Verdict:
    """Check everything. A child that broke off left runs that have not ended: the store is then
    asked nothing that only holds at the end."""
    record = campaign.record
    testimony = Testimony(record.planner).hear(record.lines)
    accounts = Accounts(record.planner, testimony, max(0, record.lives - 1))
    violations = list(testimony.violations)
    if broken is not None:
        violations.append(Violation(promise=Promise.ALIVE, text=str(broken)))
    else:
        try:
            found = verify(folder / "store")
            violations += [
                Violation(promise=Promise.STORE, text=damage.problem) for damage in found.damage
            ]
            trio.run(accounts.read, folder / "store")
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
        kills=max(0, record.lives - 1),
        commits=record.commits,
        records=record.records,
        seconds=record.seconds(),
    )
