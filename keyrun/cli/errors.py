"""Errors: check a store before it is used, and report every error as one message.

The message says what to do. A traceback is printed only for a bug in Keyrun itself.
"""

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import click
import lmdb

from keyrun import NoOwner, UnknownRun
from keyrun._errors import KeyrunError
from keyrun.cli.addresses import StoreAddress, quoted
from keyrun.cli.exit_codes import FAILED, NO_STORE, NOT_FOUND, PIPE_CLOSED, USAGE, CommandError
from keyrun.runtime.errors import UnknownGroup
from keyrun.runtime.texts import brief
from keyrun.storage import StoreCorrupt, StoreError
from keyrun.storage.identity import DATA_FILE, IDENTITY_FILE

P = ParamSpec("P")
T = TypeVar("T")

_GIVE = "give the directory that was passed to open_runtime()"


def check_store(path: Path) -> None:
    """Raise `CommandError` if there is no store at `path`."""
    try:
        if not path.exists():
            raise CommandError(f"no store at {path}: the path does not exist; {_GIVE}", NO_STORE)
        if not path.is_dir():
            raise CommandError(f"no store at {path}: it is a file; {_GIVE}", NO_STORE)
        if not (path / IDENTITY_FILE).exists():
            what = f"it has no {IDENTITY_FILE}" if any(path.iterdir()) else "it is empty"
            raise CommandError(f"no store at {path}: {what}; {_GIVE}", NO_STORE)
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}", NO_STORE) from error


def has_store(path: Path) -> bool:
    """Return whether there is a store at `path`. Raise `CommandError` if none can be made there."""
    if not path.exists():
        return False
    if path.is_dir() and not (path / IDENTITY_FILE).exists():
        if any(path.iterdir()) and not (path / DATA_FILE).exists():
            raise CommandError(
                f"cannot make a store in {path}: the directory is not empty; give another "
                "directory with --store",
                NO_STORE,
            )
        return False
    check_store(path)
    return True


def unknown_run(run_id: str, store: StoreAddress | None = None) -> CommandError:
    """Return the error for a run id that the store does not have."""
    return CommandError(
        f"no run has the id {brief(run_id)}, or the run was forgotten; list the run ids with: "
        f"keyrun runs {quoted(store)}",
        NOT_FOUND,
    )


def command_error(error: Exception, store: StoreAddress | None) -> CommandError:
    """Return the message and the exit code for an error of Keyrun, of LMDB or of the system."""
    text = str(error)
    where = "the store" if store is None else quoted(store)
    match error:
        case StoreCorrupt() | lmdb.Error():
            if isinstance(error, lmdb.Error):
                text = f"{where} is damaged: {text}"
            text = text.replace("run verify()", f"run keyrun verify {where}")
            return CommandError(text, NO_STORE)
        case StoreError() | NoOwner():
            return CommandError(text, NO_STORE)
        case PermissionError(filename=None):
            return CommandError(text, NO_STORE)
        case UnknownRun(run_id=str(run_id)):
            return unknown_run(run_id, store)
        case UnknownGroup():
            return CommandError(text, NOT_FOUND)
        case ValueError() | TypeError() | LookupError():
            return CommandError(text, USAGE)
        case OSError() if error.filename is not None:
            return CommandError(f"{error.filename}: {error.strerror}", NO_STORE)
    return CommandError(text, FAILED)


def report_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Make a command report every error as a message, unless the error is a bug in Keyrun."""

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        store = kwargs.get("store")
        path = store if isinstance(store, Path | str) else None
        try:
            answer = function(*args, **kwargs)
            sys.stdout.flush()
            return answer
        except (click.exceptions.Exit, click.ClickException):
            raise
        except Exception as raised:
            error = _unwrapped(raised)
            if isinstance(error, CommandError):
                raise error from None
            if isinstance(error, BrokenPipeError):
                # `head` closes the pipe when it has enough. The interpreter flushes stdout once
                # more when it exits, and that must not fail.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise click.exceptions.Exit(PIPE_CLOSED) from None
            if isinstance(error, UnicodeEncodeError):
                # Arguments that are not UTF-8 arrive as surrogates.
                raise CommandError(f"{error.object!r} is not valid UTF-8", USAGE) from None
            if isinstance(error, KeyrunError | lmdb.Error | OSError):
                raise command_error(error, path) from error
            raise

    return guarded


def _unwrapped(error: Exception) -> Exception:
    """Return the only exception of a group, as nurseries raise it."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
