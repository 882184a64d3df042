"""The dashboard and the alert rules of `examples/observability/` ask for metrics that exist."""

import json
import os
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import yaml
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock

from keyrun import Context, Graph, NodeInput, Retry, RunOutcome, metrics, step, workflow
from keyrun.errors import RunFailed
from keyrun.policies import CircuitBreaker
from keyrun.storage import LmdbStore
from keyrun.testing import open_test_runtime

ROOT = Path(__file__).parents[2]
OBSERVABILITY = ROOT / "examples/observability"

OF_PROMETHEUS = {"job", "instance"}
"""Labels that Prometheus adds to all metrics of a target."""

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[a-zA-Z_:][\w:]*|[=!]=|[=!]~|[<>]=?|[\d.]+\w*|\S')


@attrs.frozen
class Asked:
    """What an expression asks for."""

    metrics: dict[str, list[tuple[str, str, str]]]
    """The metrics with the matchers of their labels: name, operator, value."""
    grouped: set[str]
    """The labels in `by (...)`, `on (...)` and their like."""


def asked(expression: str) -> Asked:
    """Return the metrics and the labels of an expression in PromQL."""
    tokens = _TOKEN.findall(expression)
    found, grouped = defaultdict[str, list[tuple[str, str, str]]](list), set[str]()
    for at, token in enumerate(tokens):
        following = tokens[at + 1 : at + 2]
        if token in ("by", "without", "on", "ignoring") and following == ["("]:
            grouped |= set(tokens[at + 2 : tokens.index(")", at)]) - {","}
        elif re.match(r"keyrun_|up$", token):
            found[token] += []
            if following == ["{"]:
                inside = [each for each in tokens[at + 2 : tokens.index("}", at)] if each != ","]
                for label, operator, value in zip(*[iter(inside)] * 3, strict=True):
                    found[token].append((label, operator, value.strip('"')))
    return Asked(dict(found), grouped)


def test_the_metrics_and_labels_of_an_expression_are_found() -> None:
    found = asked(
        'sum by (job, le) (rate(keyrun_a_bucket{x="a, b}", y=~"$y"}[5m])) / on(z) keyrun_b > 0'
    )
    assert found.metrics == {
        "keyrun_a_bucket": [("x", "=", "a, b}"), ("y", "=~", "$y")],
        "keyrun_b": [],
    }
    assert found.grouped == {"job", "le", "z"}


def rules() -> list[dict[str, Any]]:
    parsed = yaml.safe_load((OBSERVABILITY / "alerts.yml").read_text())
    return [rule for group in parsed["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads((OBSERVABILITY / "grafana-dashboard.json").read_text())
    return parsed


def targets() -> Iterator[tuple[str, str, str]]:
    """The title of each panel, with each expression and its legend."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]


EXPRESSIONS = [
    *((rule["alert"], rule["expr"], json.dumps(rule["annotations"])) for rule in rules()),
    *targets(),
]


@step(retry=Retry.none(), max_concurrent=2, max_waiting=2, breaker=CircuitBreaker())
async def work() -> None:
    await trio.sleep(1)


@step(retry=Retry.none())
async def breaks() -> None:
    raise ValueError


@workflow
async def works(ctx: Context) -> None:
    await ctx.step(work)


async def begins(_: NodeInput) -> None: ...


async def takes_long(_: NodeInput) -> None:
    await trio.sleep(1)


narrow = Graph("narrow")
narrow.node("begins", begins)
narrow.node("long", takes_long, max_concurrent=1, max_waiting=1)
narrow.edge("begins", "long")


@workflow
async def fails(ctx: Context) -> None:
    await ctx.step(breaks)


@workflow
async def gone(ctx: Context) -> None:
    await ctx.wait_signal("go", timeout=1e6)


async def exposed(path: Path) -> str:
    """What Prometheus scrapes of a runtime with a dead letter, quarantined runs, a hook, and
    submits and nodes that waited for room."""

    async def deliver(outcome: RunOutcome) -> None: ...

    async with open_test_runtime(LmdbStore(path), workflows=[gone]) as rt:
        await rt.submit(gone, key="gone")
    async with open_test_runtime(
        LmdbStore(path), workflows=[works, fails, narrow], on_terminal=deliver, max_pending=1
    ) as rt:
        with pytest.raises(RunFailed):
            await (await rt.submit(fails, key="f")).result()
        for _ in range(4):
            run = await rt.submit(works, key="w")
        await run.result()
        graphs = [await rt.submit(narrow, key=f"g{number}") for number in range(8)]
        for graph in graphs:
            await graph.result()
        await trio.testing.wait_all_tasks_blocked()
        return metrics.exposition(rt).decode()
    raise AssertionError("the block of the runtime was left")


async def scrape(path: Path) -> dict[str, dict[str, set[str]]]:
    """The names of all samples of this runtime, with their labels and the values of these."""
    found = defaultdict[str, dict[str, set[str]]](lambda: defaultdict(set))
    for family in text_string_to_metric_families(await exposed(path)):
        for sample in family.samples:
            for label, value in sample.labels.items():
                found[sample.name][label].add(value)
    found["up"].update({label: {"keyrun"} for label in OF_PROMETHEUS})
    return found


async def test_every_expression_asks_for_metrics_and_labels_that_a_runtime_has(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    scraped = await scrape(tmp_path / "state")
    faults = []
    for title, expression, text in EXPRESSIONS:
        found = asked(expression)
        assert found.metrics, title
        missing = found.metrics.keys() - scraped.keys()
        faults += [f"{title}: there is no metric {name}" for name in missing]
        if missing:
            continue
        shown = set(re.findall(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}", text))
        for name, matchers in found.metrics.items():
            labels = scraped[name].keys() | OF_PROMETHEUS
            needed = {label for label, *_ in matchers} | shown
            if name == "keyrun_hook_calls_total" and len(found.metrics) > 1:
                needed -= shown  # the other side of `unless`
            faults += [
                f"{title}: {name} has no label {label}"
                for label in (needed | found.grouped) - labels
            ]
            faults += [
                f"{title}: {name} has no {label} {value!r}"
                for label, operator, value in matchers
                if operator == "=" and value not in allowed(scraped, name, label)
            ]
    assert faults == []


def allowed(scraped: dict[str, dict[str, set[str]]], name: str, label: str) -> set[str]:
    """The values that a label may have in an expression."""
    if name == "keyrun_circuit_state":
        return {"open", "half_open", "closed"}
    return scraped[name].get(label, set())


async def test_the_variables_of_the_dashboard_are_labels_that_a_runtime_has(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    scraped = await scrape(tmp_path / "state")
    variables = {each["name"]: each["query"] for each in dashboard()["templating"]["list"]}
    for query in set(variables.values()) - {"prometheus"}:
        metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", query).groups()  # type: ignore[union-attr]
        assert label in scraped[metric], query
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard())))
    assert used - {"__rate_interval", "__range", "__all"} == set(variables)


def test_the_dashboard_has_its_rows_and_no_panels_that_overlap() -> None:
    panels = dashboard()["panels"]
    rows = [each["title"] for each in panels if each["type"] == "row"]
    assert rows == ["Health", "Flow", "Latency", "Store", "Policies"]
    cells = [
        (x, y)
        for place in (each["gridPos"] for each in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({each["id"] for each in panels}) == len(panels)


def test_the_page_on_monitoring_gives_the_reason_and_the_remedy_of_each_alert() -> None:
    page = (ROOT / "docs/monitoring.md").read_text()
    rows = re.findall(r"^\| `(Keyrun\w+)` \| (.+) \| (.+) \|$", page, re.M)
    assert [name for name, *_ in rows] == [rule["alert"] for rule in rules()]


needs_promtool = pytest.mark.skipif(
    # In CI, a missing tool fails the tests.
    shutil.which("promtool") is None and os.environ.get("CI") != "true",
    reason="promtool is not installed, so the syntax of the alert rules and of the dashboard was "
    "not checked; it is in Debian's package prometheus",
)


def promtool(*arguments: str, folder: Path, given: str | None = None) -> None:
    assert shutil.which("promtool"), "install promtool: it is in Debian's package prometheus"
    done = subprocess.run(
        ["promtool", *arguments],
        cwd=folder,
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_accepts_the_rules_and_all_expressions(tmp_path: Path) -> None:
    shutil.copy(OBSERVABILITY / "alerts.yml", tmp_path)
    recorded = [
        {"record": f"panel:{number}", "expr": filled(expression)}
        for number, (_, expression, _) in enumerate(targets())
    ]
    groups = {"groups": [{"name": "dashboard", "rules": recorded}]}
    (tmp_path / "dashboard.yml").write_text(yaml.safe_dump(groups))
    promtool("check", "rules", "alerts.yml", "dashboard.yml", folder=tmp_path)


@needs_promtool
async def test_promtool_accepts_a_scrape(autojump_clock: MockClock, tmp_path: Path) -> None:
    text = await exposed(tmp_path / "state")
    promtool("check", "metrics", folder=tmp_path, given=text)


def filled(expression: str) -> str:
    """An expression of the dashboard with the variables that Grafana replaces."""
    return expression.replace("$__rate_interval", "5m").replace("$__range", "6h")


FIRES: dict[str, dict[str, str]] = {
    "KeyrunDown": {'up{job="keyrun"}': "0x60"},
    "KeyrunNotRecovered": {"keyrun_recovered": "0x60"},
    "KeyrunCommitsFail": {"keyrun_commit_failures_total": "0x55 1 _x4"},
    "KeyrunCommitStalls": {"keyrun_commit_running_seconds": "0x58 12 72"},
    "KeyrunDiskNearlyFull": {"keyrun_store_disk_free_bytes": "1000000000x60"},
    "KeyrunDiskFillsUp": {"keyrun_store_disk_free_bytes": "100000000000-100000000x120"},
    "KeyrunLoopLate": {"keyrun_loop_longest_lag_seconds": "0x55 3x5"},
    "KeyrunQueueFull": {"keyrun_backlog_runs": "100x60", "keyrun_backlog_limit_runs": "100x60"},
    "KeyrunSubmitsRefused": {"keyrun_backpressure_refused_total": "0x58 3x2"},
    "KeyrunOldestPendingRunTooOld": {"keyrun_oldest_pending_run_age_seconds": "0+60x60"},
    "KeyrunQuarantinedKeys": {"keyrun_quarantined_keys": "0x58 1x2"},
    "KeyrunQuarantinedRuns": {'keyrun_runs{state="quarantined"}': "2x60"},
    "KeyrunDeadLetterRate": {
        'keyrun_runs_ended_total{workflow="w",state="failed",kind="timeout"}': "0+1x60",
        'keyrun_runs_ended_total{workflow="w",state="succeeded",kind=""}': "0+10x60",
    },
    "KeyrunHookLate": {
        'keyrun_hook_lag_seconds_bucket{le="60"}': "0+1x60",
        'keyrun_hook_lag_seconds_bucket{le="600"}': "0+2x60",
        'keyrun_hook_lag_seconds_bucket{le="+Inf"}': "0+2x60",
    },
    "KeyrunHookStuck": {
        "keyrun_hook_waiting": "5x60",
        'keyrun_hook_calls_total{outcome="delivered"}': "7x60",
        'keyrun_hook_calls_total{outcome="failed"}': "0+1x60",
    },
    "KeyrunCircuitOpen": {'keyrun_circuit_state{step="s",state="open"}': "1x60"},
    "KeyrunNodeHoldsGraphBack": {
        'keyrun_node_backpressure_seconds_total{workflow="g",step="s"}': "0+40x60"
    },
}
"""Series, with one value per minute, that make each alert fire. The last value is of the hour, or
of the second hour."""

RESTS: dict[str, str] = {
    'up{job="keyrun"}': "1x120",
    "keyrun_recovered": "1x120",
    "keyrun_commit_failures_total": "0x120",
    "keyrun_commit_running_seconds": "0.01x120",
    "keyrun_store_disk_free_bytes": "100000000000x120",
    "keyrun_loop_lag_seconds": "0.01x120",
    "keyrun_loop_longest_lag_seconds": "0.5x120",
    "keyrun_backlog_runs": "99x120",
    "keyrun_backlog_limit_runs": "100x120",
    "keyrun_backpressure_waiting": "0x120",
    "keyrun_backpressure_refused_total": "3x120",
    "keyrun_oldest_pending_run_age_seconds": "500x120",
    "keyrun_quarantined_keys": "0x120",
    'keyrun_runs{state="running"}': "2x120",
    'keyrun_runs_ended_total{workflow="w",state="failed",kind="timeout"}': "0+1x120",
    'keyrun_runs_ended_total{workflow="w",state="succeeded",kind=""}': "0+100x120",
    'keyrun_hook_lag_seconds_bucket{le="1"}': "0+2x120",
    'keyrun_hook_lag_seconds_bucket{le="60"}': "0+2x120",
    'keyrun_hook_lag_seconds_bucket{le="+Inf"}': "0+2x120",
    "keyrun_hook_waiting": "5x120",
    'keyrun_hook_calls_total{outcome="delivered"}': "0+1x120",
    'keyrun_circuit_state{step="s",state="closed"}': "1x120",
    'keyrun_node_backpressure_seconds_total{workflow="g",step="s"}': "0+10x120",
}
"""The series of a runtime that works."""


@needs_promtool
def test_every_alert_fires_for_its_trouble_and_none_without(tmp_path: Path) -> None:
    assert list(FIRES) == [rule["alert"] for rule in rules()]

    def of(series: dict[str, str], at: str, alert: str | None) -> dict[str, Any]:
        which = "" if alert is None else f', alertname="{alert}"'
        query = f'count(ALERTS{{alertstate="firing"{which}}})'
        wanted = [] if alert is None else [{"labels": "{}", "value": 1}]
        return {
            "interval": "1m",
            "input_series": [{"series": name, "values": v} for name, v in series.items()],
            "promql_expr_test": [{"expr": query, "eval_time": at, "exp_samples": wanted}],
        }

    shutil.copy(OBSERVABILITY / "alerts.yml", tmp_path)
    tests = [
        of({'up{job="keyrun"}': "1x120"} | series, "2h" if "120" in str(series) else "1h", alert)
        for alert, series in FIRES.items()
    ]
    tests.append(of(RESTS, "2h", None))
    file = {"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(file))
    promtool("test", "rules", "tests.yml", folder=tmp_path)
