"""Wording: what is said and stored of a user's exceptions and reasons.

Whatever they are, saying something of them must not raise, and what is said must fit into a
record: Unicode without the lone surrogates that, for instance, undecodable file names leave.
"""

import traceback

from keyrun.actors.errors import is_crash, shown

TRACEBACK_LIMIT = 4000
"""Characters of a traceback that are stored; the end says most."""


def clean(text: str) -> str:
    """`text` as a record can hold it."""
    return text.encode(errors="backslashreplace").decode()


def a_reason(reason: object) -> str:
    """A reason that a user gave, if it is a string."""
    if not isinstance(reason, str):
        raise TypeError(f"reason must be a string, got {shown(reason)}")
    return clean(reason)


def named(error: BaseException) -> str:
    """The type of an error and what it says."""
    return clean(f"{type(error).__name__}: {shown(error, str)}")


def type_of(error: BaseException) -> str:
    """Where the type of an error comes from, and its name."""
    return clean(f"{type(error).__module__}.{type(error).__qualname__}")


def traceback_of(error: BaseException) -> str:
    """The end of the traceback of an error."""
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException as other:
        if not is_crash(other):
            raise
        text = f"<a traceback that could not be formatted: {type(other).__name__}>"
    return clean(text[-TRACEBACK_LIMIT:])
