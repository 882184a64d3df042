"""The report: a verdict as people read it, in 60 columns where the violations allow."""

from rich.console import Console
from rich.markup import escape

from keyrun.stress.verdict import Verdict

SHOWN = 5
"""Violations of one promise that are listed; the JSON report has all."""


def pronounce(verdict: Verdict, console: Console, runs: str = "runs") -> None:
    """Figures, then each promise and whether it was kept."""
    seconds = max(verdict.seconds, 1e-9)
    for count, words in (
        (verdict.runs, f"{runs}, all ended" if verdict.ok else runs),
        *((count, f"of them {state}") for state, count in sorted(verdict.states.items())),
        (verdict.steps, f"steps finished, {verdict.steps / seconds:,.0f} per second"),
        (verdict.attempts - verdict.steps, f"attempts failed, {verdict.timeouts:,} by timeout"),
        (verdict.commits, f"commits of {verdict.records:,} records"),
        (verdict.kills, f"kills, which cut off {verdict.interrupted:,} attempts"),
    ):
        console.print(f"{count:>9,}  {words}", soft_wrap=True)
    if verdict.late:
        words = "timeouts were not planned: the machine stood still"
        console.print(f"{verdict.late:>9,}  {words}", soft_wrap=True)
    console.print()
    for promise, found in verdict.broken().items():
        style, word = ("red", "NO ") if found else ("green", "yes")
        console.print(f"[{style}]{word}[/]  {promise}", soft_wrap=True)
        for violation in found[:SHOWN]:
            console.print(f"       {escape(str(violation))}", soft_wrap=True)
        if len(found) > SHOWN:
            console.print(f"       and {len(found) - SHOWN:,} more", soft_wrap=True)
    console.print()
