"""The contents of the reference: its pages by task, and the public names on each page."""

import attrs

MODULES = (
    "keyrun",
    "keyrun.policies",
    "keyrun.status",
    "keyrun.events",
    "keyrun.errors",
    "keyrun.types",
    "keyrun.graphs",
    "keyrun.groups",
    "keyrun.schedules",
    "keyrun.asyncio",
    "keyrun.sync",
    "keyrun.web",
    "keyrun.logging",
    "keyrun.metrics",
    "keyrun.tracing",
    "keyrun.testing",
    "keyrun.flows",
    "keyrun.actors",
    "keyrun.storage",
    "keyrun.storage.postgres",
)
"""The public modules. A name that several of them list belongs to the first one."""


@attrs.frozen
class Section:
    """Names that belong together. `text` comes before them."""

    title: str
    names: str
    text: str = ""


@attrs.frozen
class Page:
    """One page of the reference, which is written to docs/reference/."""

    file: str
    title: str
    task: str
    """What a reader wants to do, for the list of pages."""
    text: str
    sections: tuple[Section, ...]


PAGES = (
    Page(
        "runtime.md",
        "Runtime and runs",
        "Open a runtime, submit runs, signal, pause, cancel and redrive them.",
        "Start with the [quickstart](../quickstart.md). [Workflows](../workflows.md) and"
        " [failure and recovery](../failure.md) show these calls in programs.",
        (
            Section("Open a runtime", "open_runtime App open_operator Retention"),
            Section(
                "Call a runtime of another process", "connect", "See [clients](../clients.md)."
            ),
            Section("Control runs", "Runtime"),
            Section("Handle of a run", "RunHandle"),
            Section("Arguments and answers", "Priority Delivery RunOutcome"),
        ),
    ),
    Page(
        "hosts.md",
        "asyncio and threads",
        "Use Keyrun in a program that does not run on Trio.",
        "`keyrun.asyncio` and `keyrun.sync` have the names `open_runtime`, `connect`, `Runtime`,"
        " `RunHandle`, `GroupHandle`, `Events` and `Watch`. They take the same arguments as the"
        " names in [runtime and runs](runtime.md), and their methods have the same names. In"
        " `keyrun.asyncio` you await them from asyncio, and in `keyrun.sync` they block."
        " `keyrun.asyncio.open_runtime` also takes `thread=True`, which runs Keyrun in a thread of"
        " its own, for applications that block their loop.",
        (
            Section("asyncio", "lifespan"),
            Section("Threads", "start StartedRuntime"),
            Section(
                "HTTP",
                "app Control",
                "See [the HTTP API](../http-api.md) and [security](../security.md).",
            ),
            Section(
                "Metrics",
                "register collector exposition RuntimeCollector",
                "See [monitoring](../monitoring.md).",
            ),
            Section(
                "Log lines",
                "StepFilter JsonFormatter",
                "See [serving an application](../serving.md).",
            ),
            Section(
                "Traces",
                "Tracing",
                "See [traces with OpenTelemetry](../tracing.md).",
            ),
        ),
    ),
    Page(
        "workflows.md",
        "Workflows and steps",
        "Define workflows, steps and machines, and call durable operations.",
        "See [writing workflows](../workflows.md), [runs that wait](../waiting.md) and"
        " [children](../children.md).",
        (
            Section("Workflows", "workflow Workflow Context"),
            Section("Steps", "step StepFunction current_step CurrentStep Compensation"),
            Section("Machines", "machine Turn TurnSignal Continue Succeed Fail Cancel"),
            Section("Returned by a context", "DurableCall Approval MoveOnAfter FailAfter"),
        ),
    ),
    Page(
        "policies.md",
        "Limits and policies",
        "Limit time, retries, rates and concurrency.",
        "See [failure and recovery](../failure.md#timeouts-and-limits) and"
        " [resilience](../resilience.md).",
        (
            Section("Limits and retries", "Limits Retry"),
            Section("Policies of steps", "CircuitBreaker RateLimit Resources"),
            Section("Checkpoint policies of workflows", "EverySteps EverySeconds Manual"),
        ),
    ),
    Page(
        "entities.md",
        "Entities",
        "Define classes with durable state under a key.",
        "See [entities](../entities.md). `rt.call` and `rt.entity` call the methods of an entity.",
        (Section("Entities of a key", "entity Entity"),),
    ),
    Page(
        "groups-and-schedules.md",
        "Groups and schedules",
        "Submit many runs as one, or start runs by the clock.",
        "See [groups](../groups.md) and [schedules](../schedules.md).",
        (
            Section("Groups", "Member GroupHandle MemberOutcome GroupStatus"),
            Section("Schedules", "Schedule Once Every Cron ScheduleStatus"),
        ),
    ),
    Page(
        "graphs.md",
        "Graphs",
        "Define a workflow as nodes and edges.",
        "See [graphs](../graphs.md).",
        (
            Section("Define a graph", "Graph GraphBody NodeInput Port durable"),
            Section("Inspect a run of a graph", "ExecutionGraph NodeView NodeState EdgeView"),
        ),
    ),
    Page(
        "status.md",
        "Status and history",
        "Read runs, keys, progress and history, also from another process.",
        "See [watching runs](../watching.md) and [operating a store](../operating.md).",
        (
            Section("Read a store", "open_reader Reader"),
            Section(
                "Status of runs and keys",
                "RunStatus State Failure FailureKind QuarantineCause CompensationProgress"
                " ItemCounts KeyStatus EntityStatus OutboxStatus",
            ),
            Section("Pages of listings", "RunPage KeyPage SchedulePage GroupPage GroupSummary"),
            Section("Approval gates", "ApprovalPage OpenGate"),
            Section("One key", "KeyView EntityView StoredValue Unshown"),
            Section(
                "Policies of steps",
                "PolicyStatus StepPolicyStatus BreakerStatus RateStatus ConcurrencyStatus"
                " ResourceStatus",
            ),
            Section("Family of a run", "Family RunLink"),
            Section("Registered workflows", "WorkflowInfo WorkflowKind"),
            Section("Progress of a run", "Progress StepCounts StepProgress Watch"),
            Section("Why a run does not move", "Explanation Cause"),
            Section("History of a run", "History Happening HistoryPage"),
            Section("Who did what", "AuditPage AuditEntry"),
            Section(
                "Counts and statistics",
                "StoreCounts UnfinishedCount UnpatchedCount RuntimeStatistics LoopStatistics"
                " BacklogStatistics StepGateStatus CircuitStatus CircuitState",
            ),
        ),
    ),
    Page(
        "events.md",
        "Event stream",
        "Subscribe to events of runs, steps, keys and circuits.",
        "See [watching runs](../watching.md#events).",
        (
            Section("Subscribe", "Events EventKind Event"),
            Section(
                "Event types",
                "RunEvent WaitEvent StepEvent SetbackEvent ProgressEvent LimitEvent"
                " BackpressureEvent CircuitEvent KeyEvent Missed",
            ),
        ),
    ),
    Page(
        "errors.md",
        "Errors",
        "Look up an error: what it means and what to do.",
        "Most errors derive from `KeyrunError` and from a builtin. So `except KeyrunError` works,"
        " and for example `except TimeoutError`, too. Errors of the runtime have the attributes"
        " `run_id`, `key` and `step`, which are None where they do not apply. All errors of this"
        " page are in `keyrun.errors`. The errors that callers are expected to catch are also in"
        " `keyrun`. [Actors](actors.md) and [flows](flows.md) have further errors of their own.",
        (
            Section("Hierarchy", "", "<hierarchy>"),
            Section("Raise these in steps", "TransientError PermanentError"),
            Section("Base class", "KeyrunError"),
            Section(
                "Rejected arguments",
                "InvalidKey InvalidRunId InvalidText ReservedHeader InputMismatch InvalidSchedule"
                " InvalidGroup InvalidGraph InvalidHistory PayloadError PayloadMismatch"
                " PayloadTypeError MissingExtra",
            ),
            Section(
                "Unknown names",
                "UnknownWorkflow UnknownRun UnknownGroup UnknownEntity UnknownMethod",
            ),
            Section(
                "Calls that the state does not allow",
                "Backpressure NoOwner RunEnded GateNotWaiting WrongTask TooDeep",
            ),
            Section(
                "Ends of runs",
                "RunFailed RunCancelled RunQuarantined ResultTimeout ChildFailed ChildCancelled"
                " NonDeterminism",
            ),
            Section(
                "Ends of steps, waits and scopes",
                "StepFailed StepTimeout ScopeTimeout SignalTimeout ApprovalRejected CircuitOpen"
                " ConditionError OutputTooLarge",
            ),
            Section("Calls of entities", "CallFailed CallTimeout CallCycle"),
            Section(
                "The store",
                "StoreError StoreClosed StoreLocked StoreLost OwnershipUncertain StoreReadOnly"
                " StoreTooNew StoreFull StoreCorrupt StoreCrashed TooManyTables BatchTooLarge",
            ),
        ),
    ),
    Page(
        "testing.md",
        "Testing",
        "Test workflows on virtual time, with crashes, and against changed code.",
        "See [testing your workflows](../testing.md).",
        (
            Section(
                "A runtime for tests",
                "open_test_runtime RuntimeOptions AsyncioHost SyncHost RecordingHook "
                "virtual_wall EPOCH",
            ),
            Section(
                "Crashes",
                "crash_points CrashPoint CrashingMemoryStore CrashingLmdbStore CrashingStore",
            ),
            Section("Changed code", "replay Replayed"),
        ),
    ),
    Page(
        "flows.md",
        "Flows",
        "Load graphs from files, and use nodes for HTTP, code and models.",
        "See [flows](../flows.md).",
        (
            Section("Load a flow", "load parse InvalidFlow Problem"),
            Section("Nodes", "http code agent approval branch child fail signal switch wait"),
            Section("Errors of nodes", "NodeFailed NodeUnavailable TemplateFailed CodeFailed"),
        ),
    ),
    Page(
        "actors.md",
        "Actors alone",
        "Use keyed actors without runs.",
        "See [actors and the store alone](../layers.md).",
        (
            Section("Actors", "Actor ActorSystem Statistics DeadLetter"),
            Section("Supervision of actors", "Supervision Directive FailedMessage"),
            Section(
                "Errors of actors",
                "MailboxFull AskTimeout ActorFailed ActorStopped KeyQuarantined SystemClosed"
                " WouldDeadlock",
            ),
        ),
    ),
    Page(
        "storage.md",
        "The store alone",
        "Use the store without runs, verify it, or write another store.",
        "See [actors and the store alone](../layers.md) and [operating a store](../operating.md).",
        (
            Section(
                "Stores", "Store LmdbStore MemoryStore store_at Namespace Batch CommitStatistics"
            ),
            Section("A store in PostgreSQL", "PostgresStore Lease"),
            Section("Records and payloads", "seal unseal PayloadCodec Transform"),
            Section("Check and copy a store", "verify Verification Damage compact"),
        ),
    ),
)

DECORATORS = {"durable", "entity", "machine", "step", "workflow"}
"""Functions that are used with `@`."""

CONSTRUCTED = (
    "ActorSystem Batch Cancel CircuitBreaker Continue CrashingLmdbStore CrashingMemoryStore Cron"
    " Every EverySeconds EverySteps Fail Graph Limits LmdbStore Manual Member MemoryStore NodeInput"
    " Once PayloadCodec PermanentError Port RateLimit RecordingHook Resources Retention Succeed"
    " Supervision TransientError"
)
"""Classes that programs create. The reference shows how they are called."""

SHOWN = {
    "CurrentStep": "step attempt run_id key headers idempotency_key deadline cancel_requested memo"
    " state report resources runtime",
    "DurableCall": "",
    "Events": "dropped run_id",
    "FailAfter": "expired",
    "Graph": "from_file validate",
    "GraphBody": "node edge map",
    "MoveOnAfter": "expired",
    "StartedRuntime": "stop",
    "StepFunction": "options",
    "Workflow": "name version",
}
"""The members for users of classes that other parts of Keyrun use in other ways."""

HIDDEN = {
    "ActorSystem": "renew_scope scope suspension wait_slot",
    "Batch": "tables",
    "CircuitStatus": "numbers",
    "Context": "branch",
    "Continue": "timer",
    "Cron": "count following latest",
    "Every": "count following latest",
    "History": "records whole",
    "Limits": "over",
    "LmdbStore": "max_tables view",
    "NodeInput": "of record",
    "Once": "count following latest",
    "PayloadCodec": "canonical_call encode_flat",
    "RateLimit": "room",
    "Resources": "excess",
    "Retry": "delay_for retries",
    "Runtime": "decode_result find_submission status_of wait_for_end",
    "ScheduleStatus": "of",
    "Store": "group_commit open_group",
}
"""Members of other classes that have no underscore and only other parts of Keyrun use."""

SPELLED = {
    "ctx.": ("Context",),
    "current_step().": ("CurrentStep",),
    "group.": ("GroupHandle",),
    "reader.": ("Reader",),
    "rt.": ("Runtime", "Reader"),
    "run.": ("RunHandle",),
    "turn.": ("Turn",),
}
"""How the documentation spells an object, and the classes that have its members."""
