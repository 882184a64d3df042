"""LangGraph with its SQLite checkpointer, told to write each checkpoint before it goes on.

It has no queue, no timer and no recovery of its own: the application calls each run in a thread,
keeps the messages of a key in order by calling one after the other, and calls again after a crash.
"""

import sqlite3
from itertools import count
from pathlib import Path
from threading import Event, Thread
from time import perf_counter
from typing import Any, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph

from benchmarks.peers.programs.evidence import Inbox, Steps, wait_until
from benchmarks.peers.programs.gauge import disk_after_checkpoint
from benchmarks.peers.programs.order import Order
from benchmarks.peers.programs.pace import Pace, in_threads
from benchmarks.peers.programs.stage import Facts, perform, stay, tell

steps = Steps()
inbox = Inbox()


class Memory(TypedDict):
    """What a thread of the graph remembers."""

    key: str
    last: int


def nothing(memory: Memory) -> dict[str, int]:
    """The cheapest step there is."""
    return {}


def first(memory: Memory) -> dict[str, int]:
    """Finished before the kill."""
    steps.mark("first")
    return {}


def second(memory: Memory) -> dict[str, int]:
    """Blocks until the kill, and returns at once after it."""
    steps.mark("second")
    if steps.blocking:
        Event().wait()
    return {}


def third(memory: Memory) -> dict[str, int]:
    """Only after the restart."""
    steps.mark("third")
    return {}


def take(memory: Memory) -> dict[str, int]:
    """Handle a message, and remember that it was the last."""
    inbox.take(memory["key"], memory["last"])
    return {}


def compiled(order: Order, *nodes: Any) -> Any:
    """`nodes` one after the other, checkpointed in the folder."""
    graph = StateGraph(Memory)
    names = [f"{at}-{node.__name__}" for at, node in enumerate(nodes)]
    for name, node in zip(names, nodes, strict=True):
        graph.add_node(name, node)
    for here, there in zip([START, *names], [*names, END], strict=True):
        graph.add_edge(here, there)
    database = Path(order.folder) / "checkpoints.sqlite"
    connection = sqlite3.connect(database, check_same_thread=False)
    saver = SqliteSaver(connection)
    saver.setup()
    return graph.compile(checkpointer=saver)


def invoke(graph: Any, thread: str, memory: Memory | None) -> None:
    """Call the graph, or with no memory go on where it stopped."""
    graph.invoke(memory, {"configurable": {"thread_id": thread}}, durability="sync")


def runs(order: Order) -> Facts:
    """A closed loop of runs of three nodes."""
    graph, numbers = compiled(order, nothing, nothing, nothing), count()
    before, pace = disk_after_checkpoint(order.folder), Pace(order)
    memory = Memory(key="", last=0)
    in_threads(pace, lambda _: invoke(graph, f"run-{next(numbers)}", memory))
    grown = disk_after_checkpoint(order.folder) - before
    return pace.facts() | {"bytes_per_run": grown / pace.total}


def messages(order: Order) -> Facts:
    """Calls of one node, in a thread of the graph per key."""
    graph = compiled(order, take)
    inbox.expect(order.keys, order.messages)

    def sender(start: int) -> None:
        for key in range(start, order.keys, order.at_once):
            for number in range(order.messages):
                invoke(graph, f"key-{key}", Memory(key=f"key-{key}", last=number))

    started = perf_counter()
    _in_threads(order.at_once, sender)
    wait_until(lambda: inbox.complete)
    seconds = perf_counter() - started
    return {"messages_per_second": inbox.expected / seconds, "disordered": inbox.disordered()}


def fill(order: Order) -> Facts:
    """Bring runs into their second node, a thread each, where the process is killed."""
    steps.blocking = True
    graph = compiled(order, first, second, third)
    for number in range(order.runs):
        arguments = (graph, f"run-{number}", Memory(key="", last=0))
        Thread(target=invoke, args=arguments, daemon=True).start()
    wait_until(lambda: steps.count("second") >= order.runs)
    tell(ready=True)
    stay()


def resume(order: Order) -> Facts:
    """Call every run again."""
    graph = compiled(order, first, second, third)

    def client(start: int) -> None:
        for number in range(start, order.runs, order.at_once):
            invoke(graph, f"run-{number}", None)

    _in_threads(order.at_once, client)
    return {"finished": steps.count("third"), "again": steps.count("first")}


def _in_threads(count: int, work: Any) -> None:
    threads = [Thread(target=work, args=(start,), daemon=True) for start in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    perform({"runs": runs, "messages": messages, "fill": fill, "resume": resume})
