"""Secrets: keep the values of environment variables out of errors, which are stored and logged."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import quote, quote_plus

from keyrun._errors import KeyrunError


@contextmanager
def kept_out(values: Mapping[str, str]) -> Iterator[None]:
    """Replace the value of NAME by `$NAME` in the errors of nodes that are raised inside."""
    try:
        yield
    except KeyrunError as error:
        said = str(error)
        hidden = hide(said, values)
        if hidden == said:
            raise
        # The cause has the same text in other words.
        error.args = (hidden,)
        raise error from None


def hide(text: str, values: Mapping[str, str]) -> str:
    """Return a text without these values, and without their forms in addresses."""
    forms = {
        form: name
        for name, value in values.items()
        if value
        for form in (value, quote(value), quote(value, safe=""), quote_plus(value))
    }
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, f"${forms[form]}")
    return text
