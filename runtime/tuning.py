"""Tuning: sizes that no user has to change, and that tests shrink to reach the rare cases."""

import attrs


@attrs.frozen(kw_only=True)
class Tuning:
    """Page sizes, window sizes, limits of caches and times of the watchdog."""

    queue_window: int = 64
    """Runs of one key that are known in memory."""
    pooled_queues: int = 1024
    """Empty queues that are kept for the next run of their key."""
    gate_slack: int = 64
    """Keys that may be under way beyond the number of slots, so that no slot waits for its run."""
    gate_window: int = 10_000
    """Keys at the concurrency gate that are kept in memory with their first run."""
    waiting_in_memory: int = 1000
    """Runs that may wait in memory, even for a short time, before they are evicted."""
    timer_window: int = 1000
    """Timers that are read at once. Ten times as many may be in memory."""
    startup_page: int = 1000
    """Places that are read at once at an open. The runs of one page share their commits."""
    startup_markers: int = 5000
    """Start markers of steps that are read at once at an open, and noted in one commit."""
    startup_heads: int = 64
    """Runs that are read together at an open. Their records are in memory twice meanwhile."""
    startup_passes: int = 16
    """Passes of the event loop between two pages of an open."""
    hook_calls: int = 16
    """Calls of the terminal hook that may run at once. Half of them may be repeated calls."""
    hook_window: int = 256
    """Keys with undelivered ends that are ready and in memory."""
    hook_backoffs: int = 10_000
    """Keys with undelivered ends that are in backoff and in memory."""
    outbox_conversion: int = 100
    """Entries of an old outbox that one commit converts."""
    calls_per_turn: int = 32
    """Calls of one key that run before the actors of other keys run."""
    entity_cache_bytes: int = 8 * 1024 * 1024
    """Bytes that durable states of entities may take in memory."""
    watchdog_period: float = 0.2
    """Seconds between two questions of the watchdog."""
    watchdog_limit: float = 1.0
    """Seconds without an answer of the event loop that the watchdog reports."""
    stalled_after: float = 10.0
    """Seconds by which the event loop may be late before the runtime is not ready."""
    least_disk: int = 64 * 1024 * 1024
    """Bytes that the disk of the store must have left for the runtime to be ready."""
    metric_names: int = 200
    """Workflows, and steps, that metrics count apart. All others count together. With 0, nothing is
    counted."""
    group_page: int = 1000
    """Members of a group that one commit accepts."""
