"""Troubles: what becomes of errors, one line that says what to do and never a traceback."""

import functools
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import click
import lmdb

from keyrun import UnknownRun
from keyrun._errors import KeyrunError
from keyrun.cli.exits import FAILED, NO_STORE, NOT_FOUND, PIPE_CLOSED, USAGE, Refusal
from keyrun.storage import StoreCorrupt, StoreError
from keyrun.storage.identity import DATA_FILE, IDENTITY_FILE

P = ParamSpec("P")
T = TypeVar("T")


def find_store(path: Path) -> None:
    """Say what is in the way if there is no store at `path`."""
    try:
        if not path.exists():
            raise Refusal(f"there is nothing at {path}", NO_STORE)
        if not path.is_dir():
            raise Refusal(f"{path} is a file; a store is a directory", NO_STORE)
        if not (path / IDENTITY_FILE).exists():
            if any(path.iterdir()):
                raise Refusal(f"{path} is not a Keyrun store: it has no {IDENTITY_FILE}", NO_STORE)
            raise Refusal(f"{path} is an empty directory; no runtime has used it yet", NO_STORE)
    except OSError as error:
        raise Refusal(f"cannot look into {path}: {error.strerror}", NO_STORE) from error


def may_run_in(path: Path) -> bool:
    """Whether there is a store at `path`; refuses a place where none should be made."""
    if not path.exists():
        return False
    if path.is_dir() and not (path / IDENTITY_FILE).exists():
        if any(path.iterdir()) and not (path / DATA_FILE).exists():
            raise Refusal(
                f"{path} is neither empty nor a Keyrun store; choose another directory", NO_STORE
            )
        return False
    find_store(path)
    return True


def explain(error: Exception, store: Path | None) -> Refusal:
    """What to tell of an error, and how to exit."""
    text = str(error)
    where = "the store" if store is None else shlex.quote(str(store))
    match error:
        case StoreCorrupt() | lmdb.Error():
            if isinstance(error, lmdb.Error):
                text = f"{where} is damaged: {text}"
            text = text.replace("run verify()", f"run keyrun verify {where}")
            return Refusal(text, NO_STORE)
        case StoreError():
            return Refusal(text, NO_STORE)
        case UnknownRun():
            return Refusal(text, NOT_FOUND)
        case ValueError() | TypeError() | LookupError():
            return Refusal(text, USAGE)
        case OSError() if error.filename is not None:
            return Refusal(f"{error.filename}: {error.strerror}", NO_STORE)
    return Refusal(text, FAILED)


def plainly(function: Callable[P, T]) -> Callable[P, T]:
    """Have a command end with one line for every error that is not a mistake in Keyrun itself."""

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        store = kwargs.get("store")
        path = store if isinstance(store, Path) else None
        try:
            answer = function(*args, **kwargs)
            sys.stdout.flush()
            return answer
        except (click.exceptions.Exit, click.ClickException):
            raise
        except Exception as raised:
            error = _one(raised)
            if isinstance(error, Refusal):
                raise error from None
            if isinstance(error, BrokenPipeError):
                # Who closes the pipe early, as `head` does, wants no complaint. The interpreter
                # flushes once more at its end, and must find somebody who listens.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise click.exceptions.Exit(PIPE_CLOSED) from None
            if isinstance(error, UnicodeEncodeError):
                # Bytes that are no text come as surrogates, and a store holds text.
                raise Refusal(f"{error.object!r} has bytes that are no text", USAGE) from None
            if isinstance(error, KeyrunError | lmdb.Error | OSError):
                raise explain(error, path) from error
            raise

    return guarded


def _one(error: Exception) -> Exception:
    """What a nursery has wrapped."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
