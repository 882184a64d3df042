"""The target of `keyrun run` and `keyrun serve`: import the module, find the workflow or the app,
and convert the input."""

import importlib
import json
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from keyrun import App, Workflow
from keyrun.cli.exit_codes import USAGE, CommandError
from keyrun.runtime.texts import brief
from keyrun.storage import PayloadCodec, PayloadError, PayloadTypeError


def load(name: str) -> ModuleType:
    """Import a module. The current directory comes first, as with `python -m`."""
    if "/" in name:
        raise CommandError(
            f"{name!r} is a path, not a module; give the name, such as shop for shop.py", USAGE
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise CommandError(
                f"no module named {name!r} in {here} or among the installed packages; run keyrun "
                "in the directory of the module, or correct the name",
                USAGE,
            ) from error
        raise _import_error(name, error) from error
    except (Exception, SystemExit) as error:
        raise _import_error(name, error) from error


def _import_error(name: str, error: BaseException) -> CommandError:
    frames = traceback.extract_tb(error.__traceback__)
    place = ""
    if isinstance(error, SyntaxError):
        place = f" ({error.filename}, line {error.lineno})"
    elif frames and "importlib" not in frames[-1].filename:
        place = f" ({frames[-1].filename}, line {frames[-1].lineno})"
    what = error.msg if isinstance(error, SyntaxError) else error
    _print_traceback(error)
    return CommandError(f"cannot import {name!r}: {type(error).__name__}: {what}{place}", USAGE)


def _print_traceback(error: BaseException) -> None:
    """Print the traceback of an import on stderr, without the frames of Keyrun and of imports."""
    trace = error.__traceback__
    while trace is not None and _is_machinery(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)


def _is_machinery(filename: str) -> bool:
    return filename in (__file__, importlib.__file__) or filename.startswith("<frozen importlib")


def workflows_in(module: ModuleType) -> dict[str, Workflow[Any, Any]]:
    """Return the workflows of a module by the name of the attribute."""
    return {name: value for name, value in vars(module).items() if isinstance(value, Workflow)}


def _split(target: str, form: str) -> tuple[str, str]:
    name, colon, attribute = target.partition(":")
    if not (name and colon and attribute) or name.startswith("."):
        raise CommandError(f"the target must be {form}, got {brief(target)}", USAGE)
    return name, attribute


def find_app(target: str) -> App:
    """Return the application that MODULE:APP names."""
    name, attribute = _split(target, "MODULE:APP, such as shop:app")
    module = load(name)
    found = getattr(module, attribute, None)
    if isinstance(found, App):
        return found
    known = ", ".join(each for each, value in vars(module).items() if isinstance(value, App))
    what = "does not exist" if found is None else f"is {_kind(found)}, not a keyrun.App"
    raise CommandError(
        f"{attribute!r} in module {name!r} {what}; the apps of the module are: {known or 'none'}; "
        f"write {attribute} = keyrun.App(workflows=[...])",
        USAGE,
    )


def find(target: str) -> tuple[ModuleType, Workflow[Any, Any]]:
    """Return the workflow that MODULE:WORKFLOW names, and its module."""
    name, attribute = _split(target, "MODULE:WORKFLOW, such as shop:checkout")
    module = load(name)
    found = getattr(module, attribute, None)
    if isinstance(found, Workflow):
        return module, found
    known = ", ".join(workflows_in(module)) or "none"
    what = "does not exist" if found is None else f"is {_kind(found)}, not a workflow"
    raise CommandError(
        f"{attribute!r} in module {name!r} {what}; the workflows of the module are: {known}", USAGE
    )


def _kind(value: object) -> str:
    if isinstance(value, type):
        return "a class"
    return "a function" if callable(value) else f"of type {type(value).__name__}"


def read_input(text: str | None, source: str = "--input") -> Any:
    """Return the value of an argument or option: JSON, @FILE, or - for stdin."""
    hint = f"""; JSON text has double quotes: {source} '"text"'"""
    if text is None:
        return None
    if text == "-":
        source, hint, text = "the standard input", "", sys.stdin.read()
    elif text.startswith("@"):
        source, hint = text[1:], ""
        try:
            text = Path(source).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"cannot read {source}: {error}", USAGE) from error
    return parse_json(text, source, hint)


def parse_json(text: str, source: str, hint: str = "") -> Any:
    """Return the value of a JSON text. An error names the `source` and ends with the `hint`."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise CommandError(f"{source} is not JSON: {error.msg} at {place}{hint}", USAGE) from error
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{source} is not JSON: {error}", USAGE) from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def convert_input(workflow: Workflow[Any, Any], value: Any) -> Any:
    """Return JSON as the workflow declares its input: an instance, if it declares a class."""
    if not workflow.takes_input and workflow.kind == "function":
        if value is not None:
            raise CommandError(
                f"workflow {workflow.name!r} takes no input, got {brief(value)}; remove --input",
                USAGE,
            )
        return None
    try:
        return PayloadCodec().read(value, workflow.input_type)
    except (PayloadError, PayloadTypeError) as error:
        if value is None:
            raise CommandError(
                f"workflow {workflow.name!r} requires an input; add --input JSON", USAGE
            ) from error
        raise CommandError(
            f"the input does not match the input type of workflow {workflow.name!r}: "
            f"{str(error).replace('value', 'input', 1)}",
            USAGE,
        ) from error


def plain_result(workflow: Workflow[Any, Any], value: Any) -> Any:
    """Return a result as plain data, without the classes that the workflow declares."""
    codec = PayloadCodec()
    return codec.decode(codec.encode(value, workflow.result_type))
