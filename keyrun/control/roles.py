"""Roles: who calls an operation, and what a caller may do."""

import os
from enum import StrEnum

import attrs

from keyrun.runtime.logger import logger


class Role(StrEnum):
    """Name what a caller may do. Each role may do what the roles before it may do, except for
    `metrics`, which may only read metrics."""

    METRICS = "metrics"
    """Read `/metrics`."""
    READ = "read"
    """Read runs, keys, events and statistics."""
    SUBMIT = "submit"
    """Submit runs, send signals and call entities."""
    OPERATE = "operate"
    """Cancel, pause, resume, redrive, approve, release, and change schedules."""
    ADMIN = "admin"
    """Remove data: forget runs, delete schedules, discard outcomes."""

    def may(self, needed: "Role") -> bool:
        """Return whether a caller with this role may do what requires another role."""
        if Role.METRICS in (self, needed):
            return self is needed or self is Role.ADMIN
        return _RANKS[self] >= _RANKS[needed]


_RANKS = {role: rank for rank, role in enumerate(Role)}


@attrs.frozen(kw_only=True)
class Caller:
    """Who calls an operation."""

    name: str
    """Who it is, for the audit log: `uid 1000`, the name of a token, or the user that the
    application has logged in."""
    role: Role
    """What the caller may do."""


ITSELF = Caller(name=f"uid {os.getuid()}", role=Role.ADMIN)
"""The user of this process. Its name is that of a caller over the socket, because a process repeats
a call itself if it takes the store over."""


class NotAllowed(PermissionError):
    """Raised if the role of a caller does not allow an operation."""


def require(caller: Caller, needed: Role, operation: str) -> None:
    """Raise `NotAllowed` unless a caller may perform an operation."""
    if not caller.role.may(needed):
        logger.warning(
            "refused %s to %r: it has the role %s",
            operation,
            caller.name,
            caller.role,
            extra={"event": "operation_refused"},
        )
        raise NotAllowed(
            f"{operation} requires the role {needed}, and {caller.name} has the role "
            f"{caller.role}; use a token with that role"
        )
