"""Bugs: errors that Keyrun's own code came to while it did what a workflow asked for.

They are no failure of the workflow: its key is served again from what is stored, and set aside if
that fails too often, as for any other bug. In doubt an error is the workflow's. It is ours only
if it came to be, and was not raised on purpose, in a module that touches nothing of the user's.
"""

from dis import opmap
from types import TracebackType

from keyrun._errors import KeyrunError
from keyrun.runtime.records.damage import DAMAGE
from keyrun.storage import StoreCorrupt, StoreError

_OURS = ("keyrun.runtime.", "keyrun.storage.", "keyrun.actors.")
_INNER = frozenset(
    f"keyrun.{name}"
    for name in (
        "runtime.steps.invocation",
        "runtime.run.branch",
        "runtime.steps.deadline",
        "runtime.events.feed",
        "runtime.execution.gather",
        "runtime.run.journal",
        "runtime.records.tables",
        "runtime.queue.key_queue",
        "runtime.steps.outcome",
        "runtime.run.run",
        "runtime.run.scope",
        "runtime.host.slots",
        "runtime.steps.execution",
        "runtime.events.emitter",
        "runtime.waiting.sleep",
        "storage.group",
        "storage.group_commit",
        "storage.record",
        "storage.store",
    )
)
_DOORS = frozenset(
    f"keyrun.runtime.{name}" for name in ("runtime", "handle", "groups.handle", "inspect.reader")
)
"""What there is to be asked from outside of a workflow."""
_CALLS = frozenset({"perform", "_call", "in_thread"})
"""Functions that call the function of a step: what it makes of its arguments shows there."""
_RAISE = opmap["RAISE_VARARGS"]


def is_bug(error: BaseException) -> bool:
    """Whether what a workflow let out is an error of Keyrun, or a group with one in it."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(is_bug, error.exceptions))
    frames = _frames(error)
    return bool(frames) and _is_ours(error, frames[-1])


def is_store_failure(error: BaseException) -> bool:
    """Whether what a workflow let out, or something in a group, says that what it asked of its
    context came to nothing since the store gave up. One that says what is damaged does not, nor one
    of a store or a runtime that the workflow uses itself."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(is_store_failure, error.exceptions))
    if not isinstance(error, StoreError) or isinstance(error, DAMAGE):
        return False
    modules = [_module(frame) for frame in _frames(error)][1:]
    ours = [name for name in modules if name.startswith("keyrun.runtime.")]
    return bool(ours) and ours[0] not in _DOORS


def store_failure(error: BaseException) -> StoreError | None:
    """The error that says that the store failed, and not only one record of it: the error itself,
    or one in a group, as nurseries raise them. None if there is none."""
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(store_failure, error.exceptions)), None)
    if isinstance(error, StoreCorrupt):
        return error if error.key is None else None
    return error if isinstance(error, StoreError) else None


def is_bug_in_step(error: BaseException) -> bool:
    """Whether what came of an attempt is an error of Keyrun: nothing of the user's was called."""
    frames = _frames(error)
    if not frames or frames[-1].tb_frame.f_code.co_name in _CALLS:
        return False
    theirs = any(not _module(frame).startswith(_OURS) for frame in frames)
    return not theirs and _is_ours(error, frames[-1])


def _is_ours(error: BaseException, last: TracebackType) -> bool:
    if isinstance(error, KeyrunError) or _module(last) not in _INNER:
        return False
    on_purpose = last.tb_frame.f_code.co_code[last.tb_lasti] == _RAISE
    return not on_purpose or isinstance(error, AssertionError)


def _frames(error: BaseException) -> list[TracebackType]:
    """From where it was caught to where it came to be."""
    frames, frame = [], error.__traceback__
    while frame is not None:
        frames.append(frame)
        frame = frame.tb_next
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, StopIteration):
        # Python makes a RuntimeError of it where it leaves a coroutine.
        frames += _frames(error.__cause__)
    return frames


def _module(frame: TracebackType) -> str:
    name = frame.tb_frame.f_globals.get("__name__")
    return name if isinstance(name, str) else ""
