"""Keyed, supervised in-memory actors on Trio.

Each key has one actor, which is created on demand. Messages of one key are handled in order, and
different keys run concurrently. An idle key costs a few hundred bytes. This package knows nothing
of runs or disks, and you can use it on its own.
"""

from keyrun.actors.actor import Actor
from keyrun.actors.dead_letters import DeadLetter
from keyrun.actors.errors import (
    ActorFailed,
    ActorStopped,
    AskTimeout,
    KeyQuarantined,
    MailboxFull,
    SystemClosed,
    WouldDeadlock,
)
from keyrun.actors.statistics import Statistics
from keyrun.actors.supervision import Directive, FailedMessage, Supervision
from keyrun.actors.system import ActorSystem

__all__ = [
    "Actor",
    "ActorFailed",
    "ActorStopped",
    "ActorSystem",
    "AskTimeout",
    "DeadLetter",
    "Directive",
    "FailedMessage",
    "KeyQuarantined",
    "MailboxFull",
    "Statistics",
    "Supervision",
    "SystemClosed",
    "WouldDeadlock",
]
