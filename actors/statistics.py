"""A snapshot of what a system is doing and has done."""

import attrs


@attrs.frozen(kw_only=True)
class Statistics:
    """Hold a snapshot of an actor system. Its cost grows with the number of active keys, not of
    idle keys."""

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
    """Worker tasks, idle tasks included."""
    idle_workers: int
    """Worker tasks that wait for a message."""
    handled: int
    """Messages handled so far."""
    restarts: int
    """Actors made so far to replace one that crashed."""
    passivations: int
    """Actors dropped so far because they were idle."""
    dead_letters: int
    """Messages that became dead letters so far."""
