"""Addresses: what the first argument of a command may be, and the token for it."""

import os
from pathlib import Path
from typing import Any, TypeAlias

import click

from keyrun.cli.exit_codes import USAGE, CommandError
from keyrun.cli.screen import shell_word
from keyrun.storage.opening import is_url

StoreAddress: TypeAlias = Path | str
"""The directory of a store, the URL of a database, or the address of a process that has a store
open."""

_TOKEN_FILE = "keyrun.token_file"


class StoreParameter(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.2
    """A directory as a path, or an address as text."""

    name = "store"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a path or an address."""
        is_address = isinstance(value, str) and value.startswith(("unix:", "http://", "https://"))
        return value if is_address or is_url(value) else Path(value)


class DatabaseOrDirectory(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2
    """A directory as a path, or the URL of a database as text."""

    name = "store"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a path or a URL."""
        return value if is_url(value) else Path(value)


def keep_token_file(ctx: click.Context, param: click.Parameter, value: Path | None) -> None:
    """Keep the file until `token` is called."""
    if value is not None:
        ctx.meta[_TOKEN_FILE] = value


def token() -> str | None:
    """Return the token for an address over HTTP: that of `--token-file`, or KEYRUN_TOKEN."""
    path: Path | None = click.get_current_context().meta.get(_TOKEN_FILE)
    if path is None:
        return os.environ.get("KEYRUN_TOKEN") or None
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read the token file {path}: {error}", USAGE) from error
    words = [line.split() for line in lines if line.strip() and not line.startswith("#")]
    if not words:
        raise CommandError(f"the token file {path} has no token", USAGE)
    return words[0][0]


def quoted(store: StoreAddress | None) -> str:
    """Return a store as an argument in a shell."""
    if is_url(store):
        from keyrun.storage.postgres.address import Address

        # Without its password.
        return shell_word(str(Address(str(store), "keyrun")))
    return "STORE" if store is None else shell_word(store)
