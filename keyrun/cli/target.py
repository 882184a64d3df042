"""The target of `keyrun run`: a workflow, named as module:attribute, and what goes into it."""

import importlib
import json
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from keyrun import Workflow
from keyrun.cli.exits import USAGE, Refusal
from keyrun.storage import PayloadCodec, PayloadError, PayloadTypeError


def load(name: str) -> ModuleType:
    """Import a module, from the current directory first, as Python itself does for -m."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise Refusal(
                f"there is no module {name!r}, neither in {here} nor installed", USAGE
            ) from error
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> Refusal:
    frames = traceback.extract_tb(error.__traceback__)
    place = ""
    if isinstance(error, SyntaxError):
        place = f" ({error.filename}, line {error.lineno})"
    elif frames and "importlib" not in frames[-1].filename:
        place = f" ({frames[-1].filename}, line {frames[-1].lineno})"
    what = error.msg if isinstance(error, SyntaxError) else error
    return Refusal(f"cannot import {name!r}: {type(error).__name__}: {what}{place}", USAGE)


def workflows_in(module: ModuleType) -> dict[str, Workflow[Any, Any]]:
    """The workflows of a module, by the name of the attribute."""
    return {name: value for name, value in vars(module).items() if isinstance(value, Workflow)}


def find(target: str) -> tuple[ModuleType, Workflow[Any, Any]]:
    """The workflow that module:attribute names, and its module."""
    name, colon, attribute = target.partition(":")
    if not (name and colon and attribute) or name.startswith("."):
        raise Refusal(f"name the workflow as module:workflow, got {target!r}", USAGE)
    module = load(name)
    found = getattr(module, attribute, None)
    if isinstance(found, Workflow):
        return module, found
    known = ", ".join(workflows_in(module)) or "none"
    what = "has no" if found is None else "has a"
    why = "" if found is None else f", which is no workflow but {_kind(found)}"
    raise Refusal(f"{name!r} {what} {attribute!r}{why}; its workflows are: {known}", USAGE)


def _kind(value: object) -> str:
    if isinstance(value, type):
        return "a class"
    return "a function" if callable(value) else f"of type {type(value).__name__}"


def read_input(text: str | None) -> Any:
    """The value of `--input`: JSON, or where to find it."""
    source = "--input"
    if text is None:
        return None
    if text == "-":
        source, text = "the standard input", sys.stdin.read()
    elif text.startswith("@"):
        source = text[1:]
        try:
            text = Path(source).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise Refusal(f"cannot read {source}: {error}", USAGE) from error
    try:
        return json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise Refusal(f"{source} is not JSON: {error.msg} at {place}", USAGE) from error
    except (ValueError, RecursionError) as error:
        raise Refusal(f"{source} is not JSON: {error}", USAGE) from error


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number")


def fit_input(workflow: Workflow[Any, Any], value: Any) -> Any:
    """JSON as the workflow declares its input: an instance, if it declares a class."""
    if not workflow.takes_input and workflow.kind == "function":
        if value is not None:
            raise Refusal(f"the workflow {workflow.name!r} takes no input", USAGE)
        return None
    codec = PayloadCodec()
    try:
        return codec.decode(codec.encode(value), workflow.input_type)
    except (PayloadError, PayloadTypeError) as error:
        if value is None:
            raise Refusal(f"the workflow {workflow.name!r} needs an --input", USAGE) from error
        # The error speaks of what older code has stored; what it wraps says only what is wrong.
        wrong = str(error.__context__ or error).partition(";")[0]
        wrong = wrong.replace("what is stored", "it").removeprefix("value: ")
        raise Refusal(
            f"the input does not fit the workflow {workflow.name!r}: {wrong}", USAGE
        ) from error


def plain_result(workflow: Workflow[Any, Any], value: Any) -> Any:
    """A result without the classes that the workflow declares."""
    codec = PayloadCodec()
    return codec.decode(codec.encode(value, workflow.result_type))
