"""Texts: describe exceptions, values and reasons of user code in messages and failures.

Describing a value never raises, even if its `__repr__` or `__str__` does. The text can be stored:
it has no lone surrogates, which for example undecodable file names have.
"""

import traceback
from collections.abc import Collection

from keyrun._errors import class_name
from keyrun.actors.errors import shown
from keyrun.runtime.errors import InvalidText, ScopeTimeout
from keyrun.runtime.redaction import Redaction
from keyrun.runtime.user_errors import leaves
from keyrun.runtime.values import Failure, FailureKind

MENTIONED = 3
"""The number of exceptions of a group that a reason names."""

GIVEN_LIMIT = 200
"""The number of characters of a value that an error message repeats."""
TRACEBACK_LIMIT = 4000
"""The number of characters of a traceback that are stored, from its end."""


def clean(text: str) -> str:
    """Return `text` with lone surrogates escaped."""
    return text.encode(errors="backslashreplace").decode()


def check_text(text: object, what: str, error: type[ValueError] = InvalidText) -> str:
    """Return `text` as a plain string. Raise `error`, which names `what`, if it has lone
    surrogates."""
    if not isinstance(text, str):
        raise TypeError(f"{what} must be a string, got {brief(text)}")
    if type(text) is not str:
        # A member of a StrEnum, for instance. A subclass may also encode itself differently.
        text = str.__str__(text)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise error(f"{what} must be valid Unicode, got {brief(text)}") from None
    return text


def brief(value: object) -> str:
    """Return a description of any value, cut to `GIVEN_LIMIT` characters."""
    text = clean(shown(value))
    if len(text) <= GIVEN_LIMIT:
        return text
    return f"{text[:GIVEN_LIMIT]}... ({len(text)} characters)"


def did_you_mean(word: object, known: Collection[str]) -> str:
    """Return a suggestion if `word` is close to a known name, or an empty text."""
    # Imported here: it is needed for mistakes only.
    from difflib import get_close_matches

    close = get_close_matches(word, known, 1) if isinstance(word, str) else []
    return f"; did you mean {close[0]!r}?" if close else ""


def a_reason(reason: object) -> str:
    """Return the reason that a user passed, or raise if it is not a string."""
    if not isinstance(reason, str):
        raise TypeError(f"reason must be a string, got {shown(reason)}")
    return clean(reason)


def named(error: BaseException, redaction: Redaction) -> str:
    """Return what may be shown of the type and the message of an exception. For a group, as
    nurseries raise, add the first exceptions inside it."""
    return redaction.text(_named(error))


def _named(error: BaseException) -> str:
    said = f"{class_name(error)}: {shown(error, str)}"
    if issubclass(type(error), BaseExceptionGroup):
        found = list(leaves(error))
        more = ", ..." if len(found) > MENTIONED else ""
        said += f" [{'; '.join(_named(one) for one in found[:MENTIONED])}{more}]"
    return clean(said)


_OF_ASYNCIO = (
    "no running event loop",
    "There is no current event loop",
    "unrecognized yield message",  # Trio, of a future that is awaited
    # With trio-asyncio imported, there is no loop instead of an error.
    "'NoneType' object has no attribute 'create_task'",
    "'NoneType' object has no attribute 'create_future'",
    "'NoneType' object has no attribute 'get_debug'",
    "Timeout should be used inside a task",
)


_OF_TRIO = (
    "must be called from async context",
    "Task got bad yield: <class 'trio.",
    "Task got bad yield: WaitTaskRescheduled",
    "'RunContext' object has no attribute",  # a nursery, while Trio does not run at all
)


def needs_asyncio(error: BaseException) -> bool:
    """Return whether code failed because it uses asyncio, and no loop of asyncio runs it."""
    return _says(error, _OF_ASYNCIO)


def needs_trio(error: BaseException) -> bool:
    """Return whether code failed because it uses Trio, and Trio does not run it."""
    return _says(error, _OF_TRIO)


def _says(error: BaseException, texts: tuple[str, ...]) -> bool:
    if issubclass(type(error), BaseExceptionGroup):
        return any(_says(leaf, texts) for leaf in leaves(error))
    # A warning is an error only if a filter makes it one, as in tests.
    if not issubclass(type(error), RuntimeError | TypeError | AttributeError | DeprecationWarning):
        return False
    said = shown(error, str)
    return any(text in said for text in texts)


def unreadable_outcome(ident: str, error: BaseException, redaction: Redaction) -> str:
    """Return the reason for a journaled outcome that the type of its call failed to read."""
    return (
        f"the journal has an outcome of {ident!r} that its declared type cannot read: "
        f"{named(error, redaction)}"
    )


def workflow_error(error: BaseException, redaction: Redaction) -> Failure:
    """Return the failure of a run whose workflow code raised `error`."""
    reason = f"the workflow raised {named(error, redaction)}"
    if needs_asyncio(error):
        reason += (
            "; workflow code runs on Trio and awaits only calls of ctx: use ctx.sleep, ctx.gather, "
            "ctx.fail_after or ctx.move_on_after, and call asyncio code in a step with "
            "@step(asyncio=True)"
        )
    return Failure(
        kind=FailureKind.WORKFLOW_ERROR,
        reason=reason,
        step=getattr(error, "step", None) if issubclass(type(error), ScopeTimeout) else None,
        error_type=type_of(error),
        traceback=traceback_of(error, redaction),
    )


def type_of(error: BaseException) -> str:
    """Return the module and the name of the type of an exception."""
    cls = type(error)
    return clean(f"{shown(_MODULE(cls), str)}.{_QUALNAME(cls)}")


_MODULE, _QUALNAME = (type.__dict__[name].__get__ for name in ("__module__", "__qualname__"))
"""Read these attributes of a class. Its metaclass may define attributes that raise."""


def traceback_of(error: BaseException, redaction: Redaction) -> str:
    """Return what may be shown of the end of the traceback of an exception."""
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException as other:
        if isinstance(other, KeyboardInterrupt):
            raise
        text = f"<a traceback that could not be formatted: {class_name(other)}>"
    # A text that is cut first may hide from the function what it looks for.
    return clean(redaction.text(text)[-TRACEBACK_LIMIT:])
