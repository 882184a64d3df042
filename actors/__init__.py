"""Keyed, supervised in-memory actors on Trio.

One actor per key, made on demand: work under one key runs in order, different keys run
concurrently, and an idle key costs a few hundred bytes. Knows nothing of runs or disks, and is
useful alone.
"""

from keyrun.actors.actor import Actor
from keyrun.actors.errors import (
    ActorFailed,
    ActorStopped,
    AskTimeout,
    KeyQuarantined,
    MailboxFull,
    SystemClosed,
    WouldDeadlock,
)
from keyrun.actors.letters import DeadLetter
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
