"""Reports: a table for people, JSON for programs, and what got slower since another run."""

import json
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.figure import Figure

PACKAGES = ("trio", "lmdb", "msgpack", "attrs")


def number(value: float) -> str:
    """`value` with the digits that mean something."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def table(figures: list[Figure]) -> str:
    """The figures as people read them."""
    rows = [("", "median", "unit", "spread", "ratio", "of", "bar", "")]
    for figure in figures:
        verdict = "" if figure.bar is None else "ok" if figure.bar.met(figure) else "MISSED"
        rows.append(
            (
                f"{figure.suite}: {figure.name}",
                number(figure.median),
                figure.unit,
                f"±{figure.spread / 2:.0%}",
                "" if figure.ratio is None else f"{figure.ratio:.2f}",
                figure.limit or "",
                "" if figure.bar is None else str(figure.bar),
                verdict,
            )
        )
    return aligned(rows, right={1, 3, 4})


def aligned(rows: Sequence[tuple[str, ...]], *, right: set[int]) -> str:
    """Rows as lines with columns of one width each."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def write(path: Path, figures: list[Figure]) -> None:
    """Write the figures as JSON."""
    rows = [
        {
            "suite": figure.suite,
            "name": figure.name,
            "unit": figure.unit,
            "better": figure.better,
            "median": figure.median,
            "spread": figure.spread,
            "ratio": figure.ratio,
            "limit": figure.limit,
            "samples": figure.samples,
            "bar": None if figure.bar is None else str(figure.bar),
            "met": None if figure.bar is None else figure.bar.met(figure),
        }
        for figure in figures
    ]
    path.write_text(json.dumps({"machine": machine(), "figures": rows}, indent=1) + "\n")


def compare(figures: list[Figure], baseline: Path) -> tuple[str, bool]:
    """What changed since `baseline`, and whether anything got worse by more than the spread of the
    two runs. Ratios are compared where there are any: they outlive a change of machine."""
    old = {(row["suite"], row["name"]): row for row in json.loads(baseline.read_text())["figures"]}
    rows = [("", "before", "now", "change", "spread", "")]
    worse = False
    for figure in figures:
        row = old.get((figure.suite, figure.name))
        if row is None or not row["median"]:
            continue
        before = row["ratio"] if figure.ratio is not None and row["ratio"] else row["median"]
        now = figure.comparable if row["ratio"] else figure.median
        change = now / before - 1
        doubt = max(row["spread"], figure.spread)
        loss = -change if figure.better == "higher" else change
        verdict = "WORSE" if loss > doubt else "better" if -loss > doubt else ""
        worse = worse or verdict == "WORSE"
        name = f"{figure.suite}: {figure.name}"
        rows.append((name, number(before), number(now), f"{change:+.0%}", f"{doubt:.0%}", verdict))
    return aligned(rows, right={1, 2, 3, 4}), worse
