"""A record as a campaign leaves it, with figures that are easy to reckon with."""

from benchmarks.peers.catalogue import PEERS
from benchmarks.peers.record import Record

MACHINE = {
    "cores": 2,
    "system": "Linux 6",
    "python": "3.11.0",
    "packages": {},
    "date": "2026-01-02T03:04:05+00:00",
}


def recorded() -> Record:
    """Keyrun at 100 of everything; Restate at a tenth of the speed with twice the memory; Huey
    lost what was killed; LangGraph failed at one task; Redis was not there."""
    record = Record(machine=MACHINE, isolated=True, seconds=540.0, sync_ms=[0.25, 0.5])
    record.versions = {"keyrun": {"keyrun": "0.1.0"}, "keyrun-actors": {"keyrun": "0.1.0"}}
    record.versions |= {peer.name: {peer.package: "1.0"} for peer in PEERS if peer.package}
    record.versions["asyncio"] = {}
    del record.versions["dramatiq"]
    record.missing["dramatiq"] = "Redis is not installed"
    for task in ("runs-256", "runs-64", "runs-1"):
        for rate in (100.0, 300.0, 90.0):
            record.add(task, "keyrun", _runs(rate))
        for name in ("restate", "dbos", "dbos-postgres", "huey"):
            record.add(task, name, _runs(10.0))
    record.fail("runs-64", "langgraph", "took longer than 90 seconds")
    record.add("runs-256", "langgraph", _runs(5.0))
    record.add("messages", "keyrun", {"messages_per_second": 100.0, "disordered": 0})
    record.add("message-runs", "keyrun", {"messages_per_second": 50.0, "disordered": 0})
    record.add("messages", "restate", {"messages_per_second": 10.0, "disordered": 0})
    record.add("messages", "dbos", {"messages_per_second": 1.0, "disordered": 49})
    record.add("killed", "keyrun", _killed(finished=2000, seconds=1.0))
    record.add("killed", "restate", _killed(finished=2000, seconds=4.0))
    record.add("killed", "huey", _killed(finished=0, seconds=5.0))
    record.add("asleep", "keyrun", {"memory": 30e6, "asleep": 10_000})
    record.add("asleep", "restate", {"memory": 60e6, "asleep": 10_000})
    record.add("asleep", "dbos", {"memory": 70e6, "asleep": 1000})
    record.add("asleep", "huey", {"memory": 10e6, "asleep": 1000})
    record.add("tell", "keyrun-actors", {"messages_per_second": 1000.0})
    record.add("tell", "pykka", {"messages_per_second": 100.0})
    return record


def _runs(rate: float) -> dict[str, float]:
    return {
        "runs_per_second": rate,
        "p50_ms": 100 / rate,
        "p99_ms": 200 / rate,
        "bytes_per_run": 1000.0,
    }


def _killed(finished: int, seconds: float) -> dict[str, float]:
    return {
        "finished": finished,
        "again": 0,
        "lost": 2000 - finished,
        "runs_per_second": finished / seconds,
    }
