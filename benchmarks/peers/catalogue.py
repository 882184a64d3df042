"""The catalogue: Keyrun and its peers, durable ones and actors, in the order of the table."""

from benchmarks.peers.peer import Peer

DURABLE = ("runs-256", "runs-64", "runs-1", "messages", "message-runs", "killed", "asleep")
IN_MEMORY = ("tell", "ask")
NO_ACTORS = dict.fromkeys(IN_MEMORY, "no actors in memory")
DURABLE_PEER = NO_ACTORS | {"message-runs": "it handles messages in one way"}
NOT_DURABLE = dict.fromkeys(DURABLE, "nothing is durable")
NO_SLEEP = "it can delay the start of a task, but a task that has begun cannot sleep"

KEYRUN = Peer(
    name="keyrun",
    title="Keyrun",
    program="keyrun_runs",
    package="keyrun",
    durability="LMDB, fsync at every commit; runs that are ready at the same time share a commit",
    lacks=NO_ACTORS,
    remarks=(
        "In W3 a message is a call of an entity, without a request id, that sets the state of its "
        "key. In W3-runs it is a run of one step that does the same.",
        "In W4 there is a slot for every run, so that all can be in their second step. "
        "Everything else has its defaults.",
    ),
)

KEYRUN_ACTORS = Peer(
    name="keyrun-actors",
    title="Keyrun actors",
    program="keyrun_actors",
    package="keyrun",
    durability="none: in memory",
    lacks=NOT_DURABLE,
)

PEERS = (
    Peer(
        name="restate",
        title="Restate",
        program="restate_runs",
        package="restate-sdk",
        requirements="restate",
        server="restate",
        durability="its server's log on RocksDB, fsync at every (shared) write",
        lacks=DURABLE_PEER,
        remarks=(
            "Three processes share the cores: server, service (Hypercorn) and client.",
            "The limit of concurrent invocations is raised to 100,000. Hypercorn's limit of "
            "requests per connection is removed, because with its default some steps run twice.",
            "In W5 an idle call is suspended after a second instead of a minute, and memory is "
            "that of server and service without the client.",
            "A message sets the state of its key and has no step, because Restate journals the "
            "call anyway.",
        ),
    ),
    Peer(
        name="langgraph",
        title="LangGraph, SQLite",
        program="langgraph_runs",
        package="langgraph",
        requirements="langgraph",
        durability='SQLite in WAL mode, fsync at every commit; durability="sync"',
        lacks=DURABLE_PEER | {"asleep": "no durable timer"},
        remarks=(
            "It has no queue and no recovery. The application calls each run in a thread, keeps "
            "the messages of a key in order itself, and calls every run again after the restart.",
        ),
        sizes={
            "messages": {"keys": 100, "at_once": 64},
            "killed": {"runs": 500, "at_once": 64},
        },
    ),
    Peer(
        name="dbos",
        title="DBOS, SQLite",
        program="dbos_runs",
        package="dbos",
        requirements="dbos",
        durability="SQLite with a rollback journal (its default), fsync at every commit",
        lacks=DURABLE_PEER,
        remarks=(
            "Workflows are called directly, because its queues poll for work. Messages go through "
            "a queue with partition_concurrency=1 that polls every 50 ms.",
        ),
        sizes={
            "messages": {"keys": 25, "at_once": 64},
            "killed": {"runs": 250, "at_once": 64},
            "asleep": {"runs": 1000, "at_once": 64},
        },
    ),
    Peer(
        name="dbos-postgres",
        title="DBOS, PostgreSQL",
        program="dbos_runs",
        package="dbos",
        requirements="dbos",
        server="postgres",
        durability="PostgreSQL with its defaults, fsync of the log at every commit",
        lacks=DURABLE_PEER,
        remarks=(
            "The server has the same two cores. The figure for the disk includes its log, and the "
            "figure for memory its shared memory. In W4 the server is killed and started again.",
        ),
        sizes={
            "messages": {"keys": 200, "at_once": 64},
            "killed": {"runs": 1000, "at_once": 64},
            "asleep": {"runs": 1000, "at_once": 64},
        },
    ),
    Peer(
        name="huey",
        title="Huey, SQLite",
        program="huey_runs",
        package="huey",
        requirements="huey",
        durability="SQLite in WAL mode, fsync at every commit (fsync=True, not its default)",
        lacks=DURABLE_PEER,
        unlike={"asleep": NO_SLEEP},
        remarks=(
            "A run is a pipeline of three tasks. Huey has no keys: one worker keeps all messages "
            "in order, and nothing runs beside them.",
            "A task that runs when the process is killed is not run again.",
        ),
        sizes={"messages": {"keys": 200}, "killed": {"runs": 64}, "asleep": {"runs": 2000}},
    ),
    Peer(
        name="dramatiq",
        title="Dramatiq, Redis",
        program="dramatiq_runs",
        package="dramatiq",
        requirements="dramatiq",
        server="redis",
        durability="Redis with appendfsync=always (not its default)",
        lacks=DURABLE_PEER | {"asleep": NO_SLEEP},
        remarks=(
            "A run is a pipeline of three messages. Dramatiq has no keys: one worker thread keeps "
            "all messages in order, and nothing runs beside them.",
            "A dead worker is detected after 2 seconds instead of 60.",
        ),
        sizes={"messages": {"keys": 300}, "killed": {"runs": 64}},
    ),
    Peer(
        name="asyncio",
        title="asyncio.Queue",
        program="asyncio_actors",
        package="",
        durability="none: in memory",
        lacks=NOT_DURABLE,
        remarks=("A bare task per key: no supervision, no limits, no fairness.",),
    ),
    Peer(
        name="pykka",
        title="Pykka",
        program="pykka_actors",
        package="pykka",
        requirements="pykka",
        durability="none: in memory",
        lacks=NOT_DURABLE,
        remarks=("A thread per actor.",),
    ),
    Peer(
        name="thespian",
        title="Thespian",
        program="thespian_actors",
        package="thespian",
        requirements="thespian",
        durability="none: in memory",
        lacks=NOT_DURABLE,
        remarks=(
            "It uses its simple base, where all actors share the thread of the caller. Its other "
            "bases give each actor a process.",
        ),
    ),
)

NAMES = tuple(peer.name for peer in PEERS)


def keyrun_for(task: str) -> Peer:
    """Which side of Keyrun does a task."""
    return KEYRUN_ACTORS if task in IN_MEMORY else KEYRUN
