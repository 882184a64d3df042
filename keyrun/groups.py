"""Groups: the members that `rt.submit_group` takes, and the handle and status of a group."""

from keyrun.runtime.groups.handle import GroupHandle
from keyrun.runtime.groups.records import GroupStatus, Member, MemberOutcome

__all__ = [
    "GroupHandle",
    "GroupStatus",
    "Member",
    "MemberOutcome",
]
