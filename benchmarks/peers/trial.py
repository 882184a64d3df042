"""A trial: one task done once by one peer, in a folder that is gone afterwards."""

from dataclasses import replace
from time import perf_counter

from benchmarks.folders import folder
from benchmarks.peers.child import Child
from benchmarks.peers.environment import Environment
from benchmarks.peers.peer import Peer
from benchmarks.peers.programs.order import Order
from benchmarks.peers.work import Task

WARM_UP = 1.0

Facts = dict[str, float]


def perform(peer: Peer, environment: Environment, task: Task) -> Facts:
    """Do `task` in the size that is the peer's. Raises `Failed`."""
    sized = peer.task(task)
    with folder() as path:
        order = Order(
            act=sized.act,
            folder=str(path),
            at_once=sized.at_once,
            warm_up=min(WARM_UP, sized.seconds),
            seconds=sized.seconds,
            runs=sized.runs,
            keys=sized.keys,
            messages=sized.messages,
            server=environment.server,
        )
        if sized.kill:
            return _killed(peer, environment, sized, order)
        with Child(environment.python, peer.module, order, timeout=sized.timeout) as child:
            return child.answer()


def _killed(peer: Peer, environment: Environment, task: Task, order: Order) -> Facts:
    """Fill, kill everything, start it again. The time is from the start of the process until all
    have ended, as a user waits for it."""
    with Child(environment.python, peer.module, order, timeout=task.timeout) as child:
        child.answer()
    again = replace(order, act="resume")
    started = perf_counter()
    with Child(environment.python, peer.module, again, timeout=task.timeout) as child:
        facts = child.answer()
        seconds = perf_counter() - started
    finished = facts["finished"]
    return facts | {
        "runs": order.runs,
        "lost": order.runs - finished,
        "seconds": seconds,
        "runs_per_second": finished / seconds,
    }
