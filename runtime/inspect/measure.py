"""Measure: what monitoring reads of a runtime, as families of samples.

Counters come from `keyrun.runtime.metrics`. Gauges come from what memory knows and from the counts
that the store keeps, so no family reads the store, except for the oldest run that has not started:
it reads at most the records of a few thousand numbers that follow each other.
"""

import platform
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Sequence, Sized
from contextlib import suppress
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import attrs
import trio

from keyrun._histogram import Histogram
from keyrun.runtime.metrics import BUCKET, Metrics
from keyrun.runtime.records.damage import DAMAGE
from keyrun.runtime.records.submission import ASIDE, EVICTED, StatusRecord
from keyrun.runtime.values import State
from keyrun.storage import LmdbStore

if TYPE_CHECKING:
    from keyrun.runtime.definitions.workflow import Registry
    from keyrun.runtime.queue.backpressure import Backlog
    from keyrun.runtime.queue.outbox import Outbox
    from keyrun.runtime.run.partition_state import PartitionState
    from keyrun.runtime.runs import RunTable

T = TypeVar("T")

NAMES = ("workflow", "step")
"""Labels whose values are names from code."""
BUCKETS = 4
"""Ranges of numbers that one reading looks through for the oldest run that has not started."""


class MetricKind(StrEnum):
    """How a family behaves over time."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Distribution(NamedTuple):
    """A histogram at one moment."""

    bounds: tuple[float, ...]
    cumulative: list[int]
    """How many values do not exceed each bound, and last the number of all values."""
    sum: float

    @classmethod
    def of(cls, histogram: Histogram) -> "Distribution":
        """Return the present state of a histogram."""
        return cls(histogram.bounds, histogram.cumulative(), histogram.sum)


Value = float | Distribution


class MetricFamily(NamedTuple):
    """All samples with one name."""

    name: str
    kind: MetricKind
    about: str
    """One line of help."""
    labels: tuple[str, ...]
    samples: Sequence[tuple[tuple[str, ...], Value]]
    """The values of the labels, and the value."""


@attrs.frozen(kw_only=True)
class Measured:
    """The parts of a partition that are measured."""

    state: "PartitionState"
    runs: "RunTable"
    backlog: "Backlog"
    outbox: "Outbox"
    quarantined_keys: Sized


def measure(partition: Measured) -> list[MetricFamily]:
    """Return everything that monitoring reads of a partition. Call this in Trio's thread."""
    namespace = partition.state.ledger.namespace
    return [
        each._replace(
            labels=("namespace", *each.labels),
            samples=[((namespace, *labels), value) for labels, value in each.samples],
        )
        for group in (_runs, _steps, _queue, _waits, _store, _process)
        for each in group(partition)
    ]


def _counter(name: str, about: str, value: float) -> MetricFamily:
    return MetricFamily(name, MetricKind.COUNTER, about, (), [((), value)])


def _gauge(name: str, about: str, value: float | None) -> MetricFamily:
    return MetricFamily(name, MetricKind.GAUGE, about, (), [] if value is None else [((), value)])


def _histogram(name: str, about: str, histogram: Histogram) -> MetricFamily:
    return MetricFamily(name, MetricKind.HISTOGRAM, about, (), [((), Distribution.of(histogram))])


def _runs(partition: Measured) -> Iterator[MetricFamily]:
    metrics, runs = partition.state.metrics, runs_by_state(partition)
    yield MetricFamily(
        "keyrun_runs",
        MetricKind.GAUGE,
        "Unfinished runs by state. A pause of a key or of the runtime does not change it.",
        ("workflow", "state"),
        _folded(metrics, ("workflow", "state"), sorted(runs.items())),
    )
    yield MetricFamily(
        "keyrun_dead_letters",
        MetricKind.GAUGE,
        "Dead letters: runs that failed and wait for an operator.",
        ("workflow",),
        _folded(
            metrics,
            ("workflow",),
            (((name,), number) for name, number in partition.state.counts.dead_letters.items()),
        ),
    )
    yield _gauge(
        "keyrun_quarantined_keys",
        "Keys that are quarantined because Keyrun's own code failed.",
        len(partition.quarantined_keys),
    )
    if metrics is None:
        return
    workflows = list(metrics.workflows.items())
    yield MetricFamily(
        "keyrun_runs_submitted",
        MetricKind.COUNTER,
        "Runs that were submitted.",
        ("workflow",),
        [((name,), each.submitted) for name, each in workflows],
    )
    yield MetricFamily(
        "keyrun_runs_ended",
        MetricKind.COUNTER,
        "Runs that have ended, by state and kind of failure.",
        ("workflow", "state", "kind"),
        [
            ((name, state, kind), number)
            for name, each in workflows
            for (state, kind), number in (
                ((State.SUCCEEDED.value, ""), each.succeeded),
                *each.ended.items(),
            )
        ],
    )
    yield MetricFamily(
        "keyrun_run_duration_seconds",
        MetricKind.HISTOGRAM,
        "Time from the start of a run to its end.",
        ("workflow",),
        [((name,), Distribution.of(each.seconds)) for name, each in workflows],
    )
    yield MetricFamily(
        "keyrun_run_start_delay_seconds",
        MetricKind.HISTOGRAM,
        "Time from the submit of a run, or the end of its delay, to its start.",
        ("workflow",),
        [((name,), Distribution.of(each.start_delay)) for name, each in workflows],
    )


def _steps(partition: Measured) -> Iterator[MetricFamily]:
    slots, metrics = partition.state.slots, partition.state.metrics
    yield _gauge("keyrun_slots", "Steps that may run at once.", slots.total)
    yield _gauge("keyrun_slots_used", "Steps that run now.", slots.total - slots.free)
    yield _gauge("keyrun_slots_waiting", "Steps that wait for a slot.", slots.waiting)
    gates = partition.state.host.gates.statuses()
    for name, about, attribute in _GATES:
        samples = [((each.step,), float(getattr(each, attribute))) for each in gates]
        folded = _folded(metrics, ("step",), samples)
        yield MetricFamily(name, MetricKind.GAUGE, about, ("step",), folded)
    labels = ("step", "state")
    yield MetricFamily(
        "keyrun_circuit_state",
        MetricKind.GAUGE,
        "1 for the state of each circuit breaker.",
        labels,
        _folded(
            metrics,
            labels,
            (
                ((each.step, each.state.value), 1.0)
                for each in partition.state.host.gates.circuits()
            ),
        ),
    )
    if metrics is None:
        return
    for name, kind, about, attribute in _HELD:
        yield MetricFamily(
            name,
            kind,
            about,
            ("workflow", "step"),
            [
                ((workflow, node), float(getattr(periods, attribute)))
                for workflow, each in list(metrics.workflows.items())
                for node, periods in list(each.held.items())
            ],
        )
    steps = [
        ((workflow, step), found)
        for workflow, each in list(metrics.workflows.items())
        for step, found in list(each.steps.items())
    ]
    attempts = []
    for of, found in steps:
        others = dict(found.attempts)
        completed = found.seconds.count() - sum(others.values())
        outcomes = {"completed": completed, **others}
        attempts += [((*of, outcome), float(number)) for outcome, number in outcomes.items()]
    yield MetricFamily(
        "keyrun_step_attempts",
        MetricKind.COUNTER,
        "Attempts of steps, by outcome.",
        ("workflow", "step", "outcome"),
        attempts,
    )
    yield MetricFamily(
        "keyrun_step_duration_seconds",
        MetricKind.HISTOGRAM,
        "Time of one attempt of a step.",
        ("workflow", "step"),
        [(of, Distribution.of(found.seconds)) for of, found in steps],
    )
    yield MetricFamily(
        "keyrun_step_slot_wait_seconds",
        MetricKind.HISTOGRAM,
        "Time that an attempt waited for a slot, if none was free.",
        ("workflow", "step"),
        [(of, Distribution.of(found.slot_wait)) for of, found in steps],
    )
    yield _counter(
        "keyrun_step_interruptions",
        "Attempts that the end of the last process cut off.",
        metrics.interruptions,
    )


_GATES = (
    ("keyrun_gate_running", "Calls of a step with policies that run.", "running"),
    ("keyrun_gate_waiting", "Calls of a step that wait for a policy.", "waiting"),
)
_HELD = (
    (
        "keyrun_node_backpressure_waiting",
        MetricKind.GAUGE,
        "Nodes of a graph that wait, because max_waiting of the node after them is reached.",
        "waiting",
    ),
    (
        "keyrun_node_backpressure_periods",
        MetricKind.COUNTER,
        "Times that max_waiting of a node began to hold the nodes before it back.",
        "count",
    ),
    (
        "keyrun_node_backpressure_seconds",
        MetricKind.COUNTER,
        "Seconds in which max_waiting of a node held the nodes before it back.",
        "seconds",
    ),
)


def _queue(partition: Measured) -> Iterator[MetricFamily]:
    backlog, metrics = partition.backlog.statistics(), partition.state.metrics
    yield _gauge(
        "keyrun_backlog_runs", "Runs that wait to start, delayed runs included.", backlog.pending
    )
    yield _gauge("keyrun_backlog_limit_runs", "Runs that may wait to start.", backlog.limit)
    yield _gauge("keyrun_backpressure_waiting", "Submits that wait for room.", backlog.waiting)
    yield _counter(
        "keyrun_backpressure_refused", "Submits that raised Backpressure.", backlog.refused
    )
    yield _counter(
        "keyrun_backpressure_periods", "Times that backpressure began.", backlog.saturations
    )
    yield _counter(
        "keyrun_backpressure_seconds", "Seconds of backpressure.", backlog.seconds_saturated
    )
    if metrics is None:
        return
    yield MetricFamily(
        "keyrun_backpressure_wait_seconds",
        MetricKind.HISTOGRAM,
        "Time that a submit waited for room.",
        ("workflow",),
        [
            ((name,), Distribution.of(each.backpressure))
            for name, each in list(metrics.workflows.items())
            if each.backpressure.count()
        ],
    )
    began = immediate(oldest_pending(partition))
    age = 0.0 if began is None else max(0.0, partition.state.wall() - began)
    yield _gauge(
        "keyrun_oldest_pending_run_age_seconds",
        "Time since the oldest run that has not started could have. 0 if there is none.",
        age,
    )


def _waits(partition: Measured) -> Iterator[MetricFamily]:
    metrics = partition.state.metrics
    yield _gauge(
        "keyrun_hook_waiting",
        "Ends that wait for the terminal hook.",
        partition.outbox.waiting,
    )
    if metrics is None:
        return
    yield _histogram(
        "keyrun_timer_lag_seconds",
        "Time from the end of a timer or a timeout to the moment at which its run resumed.",
        metrics.timer_lag,
    )
    yield MetricFamily(
        "keyrun_hook_calls",
        MetricKind.COUNTER,
        "Calls of the terminal hook, by outcome.",
        ("outcome",),
        [((outcome,), number) for outcome, number in list(metrics.hook_calls.items())],
    )
    yield _histogram(
        "keyrun_hook_lag_seconds",
        "Time from the end of a run to the return of the terminal hook.",
        metrics.hook_lag,
    )


def _store(partition: Measured) -> Iterator[MetricFamily]:
    commits, store = partition.state.commits, partition.state.store
    statistics = commits.statistics()
    yield _histogram("keyrun_commit_duration_seconds", "Time of one commit.", commits.durations)
    yield _histogram("keyrun_commit_records", "Records in one commit.", commits.sizes)
    yield _counter("keyrun_commit_failures", "Commits that failed.", statistics.failures)
    last = statistics.last_at
    yield _gauge(
        "keyrun_last_commit_age_seconds",
        "Time since the last commit.",
        None if last is None else trio.current_time() - last,
    )
    yield _gauge(
        "keyrun_commit_running_seconds",
        "Time that the commit that is under way takes so far. 0 if there is none.",
        commits.committing_for(),
    )
    if isinstance(store, LmdbStore):
        yield _gauge("keyrun_store_size_bytes", "Size of the store.", store.size())
        yield _gauge(
            "keyrun_store_disk_free_bytes",
            "Free space on the disk of the store.",
            store.disk_free(),
        )


def _process(partition: Measured) -> Iterator[MetricFamily]:
    state, loop = partition.state, partition.state.host.loop_statistics()
    yield _gauge("keyrun_loop_lag_seconds", "How late the event loop is.", loop.lag)
    yield _gauge(
        "keyrun_loop_longest_lag_seconds",
        "How late the event loop was at most.",
        loop.longest_lag,
    )
    yield _gauge(
        "keyrun_recovered",
        "1 when the unfinished runs of the store are counted and resume.",
        float(state.recovered),
    )
    yield _gauge("keyrun_draining", "1 while the runtime drains.", float(state.draining))
    yield MetricFamily(
        "keyrun_build_info",
        MetricKind.GAUGE,
        "The versions of Keyrun and Python.",
        ("version", "python", "store"),
        [((_version(), platform.python_version(), type(state.store).__name__), 1.0)],
    )


def _version() -> str:
    try:
        return version("keyrun")
    except PackageNotFoundError:
        return "unknown"


def _folded(
    metrics: Metrics | None,
    labels: tuple[str, ...],
    samples: Iterable[tuple[tuple[str, ...], float]],
) -> list[tuple[tuple[str, ...], Value]]:
    """Return samples with the values of equal labels added. Steps of one name may be several
    functions, and workflows and steps beyond the limit count together."""
    added: dict[tuple[str, ...], Value] = {}
    for values, number in samples:
        if metrics is not None:
            values = tuple(
                metrics.label(label, value) if label in NAMES else value
                for label, value in zip(labels, values, strict=True)
            )
        known = added.get(values, 0.0)
        assert not isinstance(known, Distribution)
        added[values] = known + number
    return list(added.items())


def runs_by_state(partition: Measured) -> dict[tuple[str, str], int]:
    """Return the number of unfinished runs, by workflow and state. The store counts the states of
    its records, and memory knows which runs have changed since."""
    state, registry = partition.state, partition.state.registry
    found: Counter[tuple[str, str]] = Counter()
    for (workflow, number, counted), runs in state.counts.by_state.items():
        found[workflow, _shown(registry, workflow, number, counted)] += runs
    for run in partition.runs:
        now = run.status.visible_state()
        if now is State.PAUSED and run.current:
            now = State.RUNNING  # a step that runs ends before the run is paused
        about = run.submission
        before = _shown(registry, about.workflow, about.version, run.counted[1])
        if now.terminal:
            # Its end is staged and counted, but it has not happened before it is durable.
            found[about.workflow, before] += 1
        elif now.value != before:
            found[about.workflow, before] -= 1
            found[about.workflow, now.value] += 1
    return {of: runs for of, runs in found.items() if runs}


def _shown(registry: "Registry", workflow: str, version: int, counted: str) -> str:
    """Return the state of runs that are counted with a state."""
    if counted == ASIDE:
        return State.QUARANTINED.value
    if counted.endswith(EVICTED) and registry.find(workflow, version) is None:
        # An evicted run whose workflow is not registered: see `Ledger.current_status`.
        return State.QUARANTINED.value
    return counted.removesuffix(EVICTED)


async def oldest_pending(partition: Measured) -> float | None:
    """Return when the oldest run that has not started could have. None if all runs have started.

    `Metrics.pending` may count runs that left without a start, so a range in which no run is left
    is dropped from it. A paused run that has not started keeps its range and is no answer.
    The numbers of runs that were delayed say nothing about the time since which they could start.
    """
    state, metrics = partition.state, partition.state.metrics
    assert metrics is not None
    ledger, store = state.ledger, state.store
    oldest, in_order = inf, False
    for bucket in sorted(metrics.pending)[:BUCKETS]:
        first, stop = bucket << BUCKET, (bucket + 1) << BUCKET
        rows = await store.scan(
            "runs",
            prefix=ledger.prefix,
            start=ledger.number(first),
            stop=ledger.number(stop),
        )
        statuses = await store.get_many("status", [key for key, _ in rows])
        kept = False
        for key, raw in rows:
            number = ledger.split_number(key)[0]
            if partition.runs.delayed(number) is not None:
                continue
            with suppress(*DAMAGE):
                status = _status(partition, number, key, statuses.get(key))
                if status.state is not State.PENDING or status.generation > 1:
                    continue
                kept = True
                if status.visible_state() is State.PENDING:
                    submission = ledger.read_submission(key, raw)
                    oldest = min(oldest, submission.submitted_at + submission.delay)
                    in_order = in_order or not submission.delay
        if in_order:
            break
        if not kept and state.next_number >= stop:
            metrics.pending.pop(bucket, None)
    return None if oldest == inf else oldest


def _status(partition: Measured, number: int, key: bytes, stored: bytes | None) -> StatusRecord:
    run = partition.runs.find(number)
    if run is not None:
        return run.status
    return StatusRecord() if stored is None else partition.state.ledger.read_status(key, stored)


def immediate(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns that reads the store and never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    coroutine.close()
    raise RuntimeError("a read of the store suspended")
