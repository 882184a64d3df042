"""A snapshot of what a system is doing and has done."""

import attrs


@attrs.frozen(kw_only=True)
class Statistics:
    """Figures of one moment. Taking them costs as much as there are active keys, idle ones
    are free."""

    keys: int
    """Keys that have an actor, messages or crashes that still count."""
    ready: int
    """Keys with messages that wait for a worker."""
    running: int
    """Keys whose actor is handling a message."""
    backoff: int
    """Keys that wait for their restart."""
    quarantined: int
    """Keys that wait for `release`."""
    queued: int
    """Messages in mailboxes, without those being handled."""
    waiting_tellers: int
    """Tasks that wait for room in a mailbox."""
    workers: int
    """Worker tasks, the idle ones included."""
    idle_workers: int
    """Worker tasks that wait for something to do."""
    handled: int
    """Messages handled so far."""
    restarts: int
    """Actors made so far to replace one that crashed."""
    passivations: int
    """Actors dropped so far because they were idle."""
    dead_letters: int
    """Messages given up so far."""
