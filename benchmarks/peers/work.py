"""The work: what every peer is asked to do, and which figures are taken from it."""

from typing import Literal

import attrs

Better = Literal["higher", "lower"]

STEPS = 3


@attrs.frozen(kw_only=True)
class Task:
    """What a program is ordered to do once. `kill` has it killed in the middle and started again:
    `act` is then only the first half."""

    name: str
    act: str
    at_once: int = 256
    runs: int = 0
    keys: int = 0
    messages: int = 0
    seconds: float = 0.0
    kill: bool = False
    timeout: float = 90.0


@attrs.frozen(kw_only=True)
class Line:
    """A line of the table: one figure of what a task found."""

    name: str
    work: str
    task: str
    fact: str
    scale: float = 1.0
    unit: str
    better: Better = "higher"
    title: str
    beside: str = ""
    """The task whose figures of the peers it is compared with, where that is another one."""


TASKS = (
    Task(name="runs-256", act="runs", at_once=256, seconds=5),
    Task(name="runs-64", act="runs", at_once=64, seconds=5),
    Task(name="runs-1", act="runs", at_once=1, seconds=5),
    Task(name="messages", act="messages", keys=1000, messages=10),
    Task(name="message-runs", act="message_runs", keys=1000, messages=10),
    Task(name="killed", act="fill", runs=2000, kill=True),
    Task(name="asleep", act="sleep", runs=10_000, seconds=5),
    Task(name="tell", act="tell", keys=1000, messages=100),
    Task(name="ask", act="ask", keys=1000, at_once=1, seconds=1),
)

LINES = (
    Line(
        name="W1-256",
        work="W1",
        task="runs-256",
        fact="runs_per_second",
        scale=STEPS,
        unit="steps/s",
        title="durable steps, 256 runs at a time",
    ),
    Line(
        name="W1-64",
        work="W1",
        task="runs-64",
        fact="runs_per_second",
        scale=STEPS,
        unit="steps/s",
        title="durable steps, 64 runs at a time",
    ),
    Line(
        name="W1-1",
        work="W1",
        task="runs-1",
        fact="runs_per_second",
        scale=STEPS,
        unit="steps/s",
        title="durable steps, one run at a time",
    ),
    Line(
        name="W2",
        work="W2",
        task="runs-1",
        fact="p50_ms",
        unit="ms",
        better="lower",
        title="one run of three steps, p50",
    ),
    Line(
        name="W2-p99",
        work="W2",
        task="runs-1",
        fact="p99_ms",
        unit="ms",
        better="lower",
        title="one run of three steps, p99",
    ),
    Line(
        name="W3",
        work="W3",
        task="messages",
        fact="messages_per_second",
        unit="msg/s",
        title="messages to 1,000 keys, in order per key",
    ),
    Line(
        name="W3-runs",
        work="W3",
        task="message-runs",
        fact="messages_per_second",
        unit="msg/s",
        title="the same, with a run of Keyrun for each message",
        beside="messages",
    ),
    Line(
        name="W4",
        work="W4",
        task="killed",
        fact="runs_per_second",
        unit="runs/s",
        title="runs finished after kill -9, start included",
    ),
    Line(
        name="W4-again",
        work="W4",
        task="killed",
        fact="again",
        unit="steps",
        better="lower",
        title="finished steps that ran again after it",
    ),
    Line(
        name="W5",
        work="W5",
        task="asleep",
        fact="memory",
        scale=1e-6,
        unit="MB",
        better="lower",
        title="memory with sleeping runs",
    ),
    Line(
        name="W5-disk",
        work="W5",
        task="runs-64",
        fact="bytes_per_run",
        unit="bytes",
        better="lower",
        title="on disk per finished run of three steps",
    ),
    Line(
        name="A1",
        work="A",
        task="tell",
        fact="messages_per_second",
        unit="msg/s",
        title="messages to 1,000 actors, in memory",
    ),
    Line(
        name="A2",
        work="A",
        task="ask",
        fact="p50_ms",
        scale=1000,
        unit="us",
        better="lower",
        title="ask and answer, in memory, p50",
    ),
)

WORKS = {
    "W1": "runs of three steps that do nothing, 256, 64 and 1 at a time",
    "W2": "how long one such run takes",
    "W3": "messages to 1,000 keys, in order per key",
    "W4": "runs killed with SIGKILL in their second step, and started again",
    "W5": "memory of sleeping runs, and bytes on disk of finished ones",
    "A": "messages to actors in memory, where nothing is durable",
}


def lines_of(works: frozenset[str]) -> tuple[Line, ...]:
    """The lines of some works, all of them if none is named."""
    return tuple(line for line in LINES if not works or line.work in works)


def tasks_of(works: frozenset[str]) -> tuple[Task, ...]:
    """What has to be done for those lines, each task once."""
    wanted = {line.task for line in lines_of(works)}
    return tuple(task for task in TASKS if task.name in wanted)


def quick(task: Task) -> Task:
    """The same in a few seconds, to see whether it works."""
    return attrs.evolve(
        task,
        runs=task.runs and max(20, task.runs // 50),
        keys=task.keys and max(10, task.keys // 50),
        seconds=min(task.seconds, 1.0),
        timeout=60.0,
    )
