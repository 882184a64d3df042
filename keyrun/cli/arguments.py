"""Arguments of operations as arguments and options of commands.

| type of the argument | on the command line |
|---|---|
| a value of the application, or an object | JSON, @FILE, or - for stdin |
| true or false | an option without a value |
| a list of texts | an option to repeat, without the s of the plural |
| texts by name | an option to repeat, with NAME=VALUE |
| anything else | a text |
"""

from collections.abc import Iterator, Mapping
from enum import Enum
from getpass import getuser
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import click

from keyrun.cli.exit_codes import USAGE, CommandError
from keyrun.cli.options import TimeParameter
from keyrun.cli.target import read_input
from keyrun.control.operation import Operation, Parameter
from keyrun.control.shapes import JSON, LISTS, Payload, is_object, is_time, read_json, read_text

_READS_JSON = "As JSON; @FILE reads a file, and - reads stdin."
_EXAMPLES = {
    "args": "10",
    "entity": "Account",
    "gate": "manager",
    "group_id": "import-7",
    "key": "alice",
    "members": "@members.json",
    "method": "deposit",
    "name": "paid",
    "run_id": "order-7",
    "schedule_id": "nightly",
    "when": """'{"cron": "30 3 * * *"}'""",
    "workflow": "checkout",
}
"""Values of arguments in examples."""


class ArgumentKind(Enum):
    """Say how an argument is written."""

    FLAG = "flag"
    TEXT = "text"
    JSON = "JSON"
    TEXTS = "texts"
    JSONS = "several JSON values"
    NAMED_TEXTS = "NAME=VALUE"
    NAMED_JSON = "NAME=JSON"


def kind_of(parameter: Parameter) -> ArgumentKind:
    """Return how an argument is written."""
    declared = _without_none(parameter.declared)
    origin, inner = get_origin(declared) or declared, get_args(declared)
    if origin is bool:
        return ArgumentKind.FLAG
    if origin in LISTS and inner:
        if inner[0] is Payload:
            return ArgumentKind.JSONS
        return ArgumentKind.JSON if is_object(inner[0]) else ArgumentKind.TEXTS
    if origin is dict:
        return ArgumentKind.NAMED_JSON if inner[1] is Payload else ArgumentKind.NAMED_TEXTS
    if parameter.is_payload or is_object(declared):
        return ArgumentKind.JSON
    return ArgumentKind.TEXT


def _without_none(declared: Any) -> Any:
    kept = [each for each in get_args(declared) if each is not NoneType]
    return kept[0] if NoneType in get_args(declared) and len(kept) == 1 else declared


def is_positional(parameter: Parameter) -> bool:
    """Return whether an argument has no option."""
    return not parameter.named and (parameter.required or kind_of(parameter) is ArgumentKind.JSONS)


def option_of(parameter: Parameter) -> str:
    """Return the option for an argument."""
    name = parameter.name
    if kind_of(parameter) in (
        ArgumentKind.TEXTS,
        ArgumentKind.NAMED_TEXTS,
        ArgumentKind.NAMED_JSON,
    ):
        name = name.removesuffix("s")
    return "--" + name.replace("_", "-")


def parameters_of(operation: Operation) -> Iterator[click.Parameter]:
    """Return the arguments and options of the command for an operation."""
    for each in operation.parameters.values():
        kind = kind_of(each)
        if is_positional(each):
            several = kind is ArgumentKind.JSONS
            yield click.Argument(
                [each.name],
                required=each.required,
                nargs=-1 if several else 1,
                metavar=f"[{each.name.upper()}]..." if several else each.name.upper(),
            )
        else:
            yield _option(each, kind)


def _option(parameter: Parameter, kind: ArgumentKind) -> click.Option:
    required, default = parameter.required, None
    if parameter.name == "by":
        required, default = False, getuser
    given: dict[str, Any] = {"required": required, "default": default}
    if kind is ArgumentKind.FLAG:
        given = {"is_flag": True}
    elif kind in (ArgumentKind.TEXTS, ArgumentKind.NAMED_TEXTS, ArgumentKind.NAMED_JSON):
        given = {"multiple": True, "required": required}
    return click.Option(
        [option_of(parameter), parameter.name],
        help=_help(parameter, kind),
        **given,
        **_type(parameter, kind),
    )


def _type(parameter: Parameter, kind: ArgumentKind) -> dict[str, Any]:
    declared = _without_none(parameter.declared)
    if kind is ArgumentKind.FLAG:
        return {}
    if kind is not ArgumentKind.TEXT:
        return {"metavar": "TEXT" if kind is ArgumentKind.TEXTS else kind.value}
    if is_time(parameter.name, parameter.declared):
        return {"type": TimeParameter(), "metavar": "TIME"}
    if get_origin(declared) is Literal:
        return {"type": click.Choice(get_args(declared))}
    if isinstance(declared, type) and issubclass(declared, Enum):
        return {"type": click.Choice([JSON.member(each) for each in declared])}
    return {"metavar": {float: "SECONDS", int: "N"}.get(declared, "TEXT")}


def _help(parameter: Parameter, kind: ArgumentKind) -> str:
    text = sentence(parameter.about)
    if kind in (ArgumentKind.JSON, ArgumentKind.NAMED_JSON):
        text = f"{text} {_READS_JSON}"
    if kind in (ArgumentKind.TEXTS, ArgumentKind.NAMED_TEXTS, ArgumentKind.NAMED_JSON):
        text = f"{text} Repeat the option for more."
    if parameter.name == "by":
        text = f"{text}  [default: your name]"
    return text


def sentence(about: str) -> str:
    """Return what an argument means as a sentence."""
    text = about.replace("`", "").strip()
    return f"{text[:1].upper()}{text[1:].removesuffix('.')}." if text else ""


def example_of(operation: Operation) -> list[str]:
    """Return an example of the command: its arguments, and its options with their values."""
    words = []
    for each in operation.parameters.values():
        value = _EXAMPLES.get(each.name, "")
        if is_positional(each):
            words.append(value)
        elif each.is_payload and each.name in ("input", "payload"):
            words.append(f"""{option_of(each)} '{{"id": 7}}'""")
        elif each.required and each.name != "by":
            words.append(f"{option_of(each)} {value}")
    return words


def read_arguments(operation: Operation, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an operation. What was not given is left out."""
    found = {}
    for name, parameter in operation.parameters.items():
        value = given.get(name)
        if value not in (None, False, ()):
            found[name] = _read(parameter, value)
    return found


def _read(parameter: Parameter, value: Any) -> Any:
    name, declared, kind = parameter.name, parameter.declared, kind_of(parameter)
    place = name.upper() if is_positional(parameter) else option_of(parameter)
    match kind:
        case ArgumentKind.JSON:
            return read_json(name, read_input(value, place), declared)
        case ArgumentKind.JSONS:
            data = [read_input(each, place) for each in value]
            return read_json(name, data, declared)
        case ArgumentKind.NAMED_TEXTS:
            return dict(_pair(each, place) for each in value)
        case ArgumentKind.NAMED_JSON:
            pairs = [_pair(each, place) for each in value]
            return read_json(name, {key: read_input(text, place) for key, text in pairs}, declared)
        case ArgumentKind.TEXTS:
            return list(value)
        case ArgumentKind.TEXT if isinstance(value, str):
            return read_text(name, value, declared)
    return value


def _pair(text: str, place: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise CommandError(f"{place} requires NAME=VALUE, got {text!r}", USAGE)
    return name, value
