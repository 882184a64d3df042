"""Secrets: what a node was given of the environment is kept out of what its errors say, since these
are stored, logged and told."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import quote, quote_plus

from keyrun._errors import KeyrunError


@contextmanager
def kept_out(values: Mapping[str, str]) -> Iterator[None]:
    """Errors of nodes that are raised inside have `$NAME` where they had the value of NAME."""
    try:
        yield
    except KeyrunError as error:
        said = str(error)
        hidden = hide(said, values)
        if hidden == said:
            raise
        # Where it came from says the same in other words.
        error.args = (hidden,)
        raise error from None


def hide(text: str, values: Mapping[str, str]) -> str:
    """A text without these values, also as they are in addresses."""
    forms = {
        form: name
        for name, value in values.items()
        if value
        for form in (value, quote(value), quote(value, safe=""), quote_plus(value))
    }
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, f"${forms[form]}")
    return text
