"""Wording: what is said and stored of a user's exceptions and reasons.

Whatever they are, saying something of them must not raise, and what is said must fit into a
record: Unicode without the lone surrogates that, for instance, undecodable file names leave.
"""

import traceback

from keyrun.actors.errors import shown
from keyrun.runtime.errors import InvalidText
from keyrun.runtime.user_errors import leaves

MENTIONED = 3
"""Errors of a group that are named in a reason."""

GIVEN_LIMIT = 200
"""Characters of a value that are repeated in an error."""
TRACEBACK_LIMIT = 4000
"""Characters of a traceback that are stored; the end says most."""


def clean(text: str) -> str:
    """`text` as a record can hold it."""
    return text.encode(errors="backslashreplace").decode()


def check_text(text: object, what: str, error: type[ValueError] = InvalidText) -> str:
    """Return `text` as a plain string that a record can hold; raise `error` that names `what` if it
    has lone surrogates, as undecodable file names have."""
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
    """What to say of a value that somebody gave, which may be anything, and huge."""
    text = clean(shown(value))
    if len(text) <= GIVEN_LIMIT:
        return text
    return f"{text[:GIVEN_LIMIT]}... ({len(text)} characters)"


def a_reason(reason: object) -> str:
    """A reason that a user gave, if it is a string."""
    if not isinstance(reason, str):
        raise TypeError(f"reason must be a string, got {shown(reason)}")
    return clean(reason)


def named(error: BaseException) -> str:
    """The type of an error and what it says; of a group, such as nurseries raise, also what is in
    it."""
    said = f"{type(error).__name__}: {shown(error, str)}"
    if issubclass(type(error), BaseExceptionGroup):
        inside = list(leaves(error))
        more = ", ..." if len(inside) > MENTIONED else ""
        said += f" [{'; '.join(named(one) for one in inside[:MENTIONED])}{more}]"
    return clean(said)


def unreadable_outcome(ident: str, error: BaseException) -> str:
    """What to say of a journaled outcome for which the type of its call raised `error`."""
    return f"the journal has an outcome of {ident!r} that its type does not read: {named(error)}"


def type_of(error: BaseException) -> str:
    """Where the type of an error comes from, and its name."""
    return clean(f"{type(error).__module__}.{type(error).__qualname__}")


def traceback_of(error: BaseException) -> str:
    """The end of the traceback of an error."""
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException as other:
        if isinstance(other, KeyboardInterrupt):
            raise
        text = f"<a traceback that could not be formatted: {type(other).__name__}>"
    return clean(text[-TRACEBACK_LIMIT:])
