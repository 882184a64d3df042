"""Durable runs: submission, steps, policies, recovery.

A run is an async function whose steps are remembered: driven again after a crash, steps with a
journaled outcome return it at once. Everything else here follows from that.

The packages and modules, the lowest layer first. A module imports only its own row and rows above.

| package or module      | responsibility                                                      |
|------------------------|---------------------------------------------------------------------|
| `errors`, `values` ... | public errors and value types, limits, verdicts, texts of reasons   |
| `records/`             | everything that is stored, and the tables                           |
| `events/`              | event types, the emitter, subscriptions, log lines                  |
| `policies/`            | retry, circuit breaker, rate limit, checkpoints, resources          |
| `definitions/`         | `@step`, `@workflow`, the registry                                  |
| `host/`                | what a process has once: slots, the asyncio loop, the clock         |
| `run/`                 | one run in memory: journal, branches, waits, inbox, its end         |
| `runs`                 | the run table: where each run is                                    |
| `steps/`               | step execution: attempts, the gate of policies, outcomes            |
| `waiting/`             | timers, signals, approvals, eviction                                |
| `children/`            | child runs, cycle detection over keys                               |
| `execution/`           | the context of a workflow, the driver, gather, compensation         |
| `queue/`               | admission, the queue of a key, its actor, backpressure, the outbox  |
| `operations/`          | cancel, pause, resume, redrive, forget, release, operations once    |
| `entities/` `graphs/` `groups/` `schedules/` `machines` | one feature each                   |
| `recovery/`            | start-up, internal errors, damaged records, retention               |
| `inspect/`             | status, history, progress, explanations, listings, views, replay    |
| `partition`, `open`, `runtime`, `handle` | the wiring and the public `Runtime`               |
"""
