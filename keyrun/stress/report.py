"""The report: print a verdict in 60 columns, unless a violation is longer."""

from rich.console import Console
from rich.markup import escape

from keyrun.stress.verdict import Verdict

SHOWN = 5
"""Violations of one guarantee that are printed. The JSON report has all of them."""


def pronounce(verdict: Verdict, console: Console, runs: str = "runs") -> None:
    """Print the numbers, then each guarantee and whether it holds."""
    seconds = max(verdict.seconds, 1e-9)
    for count, words in (
        (verdict.runs, f"{runs}, all ended" if verdict.ok else runs),
        *((count, f"of them {state}") for state, count in sorted(verdict.states.items())),
        (verdict.steps, f"steps completed, {verdict.steps / seconds:,.0f} per second"),
        (verdict.attempts - verdict.steps, f"attempts failed, {verdict.timeouts:,} by timeout"),
        (verdict.commits, f"commits of {verdict.records:,} records"),
        (verdict.kills, f"kills, {verdict.interrupted:,} attempts interrupted"),
        *([(verdict.stops, "stops without a kill")] if verdict.stops else []),
    ):
        console.print(f"{count:>9,}  {words}", soft_wrap=True)
    if verdict.late:
        words = "timeouts because the machine was too slow"
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
