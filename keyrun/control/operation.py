"""An operation: something that a caller in another process can ask of a runtime.

Its route, its OpenAPI description, the method of the Python client and the command of the command
line are derived from it. The arguments come from the signature of its function, and the help from
the docstring.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from functools import cached_property
from types import NoneType
from typing import Any, get_args, get_type_hints

import attrs

from keyrun.control.roles import Role
from keyrun.control.shapes import (
    JSON,
    WIRE,
    Hook,
    Misplaced,
    Payload,
    is_object,
    names,
    one_paragraph,
    read_json,
    read_text,
    takes_several,
)

_PLACES = re.compile(r"\{(\w+)\}")
_ABOUT = re.compile(r"^- ((?:`\w+`(?:, )?)+): (.*?)(?=\n\S|\n\n|\Z)", re.M | re.S)
_GENERAL = {
    "limit": "the number of items after which a page ends.",
    "cursor": "the cursor of the page before.",
    "newest_first": "list in the opposite order.",
    "run_id": "the id of the run.",
    "key": "the ordering key.",
    "gate": "the name of the gate.",
    "by": "the name of the person who decides.",
    "comment": "what the workflow receives with the decision.",
    "group_id": "the id of the group.",
    "schedule_id": "the id of the schedule.",
}
"""What arguments mean that docstrings do not describe."""


@attrs.frozen(kw_only=True)
class Parameter:
    """One argument of an operation."""

    name: str
    declared: Any
    required: bool
    default: Any
    in_path: bool
    named: bool
    """Whether the argument is always given by name."""
    about: str
    """What the argument means."""

    @property
    def is_payload(self) -> bool:
        """Return whether the argument is a value of the application."""
        return self.declared is Payload


class Idle(Enum):
    """Say whether an operation can be performed on a store that no process has open."""

    YES = "yes"
    WITH_APP = "with the application"
    """It needs the workflows of the application, because it stores an input of one of them."""
    NO = "no"
    """It runs code of the application."""


@attrs.frozen(kw_only=True)
class Command:
    """The command of the command line for an operation."""

    name: str
    """The name. With a space, the second word is a command of the group that the first one names,
    as in `schedules pause`."""
    summary: str
    """What it does, as a phrase for the list of commands."""
    done: str = ""
    """What is printed when it is done: a sentence with the names of arguments in braces, and the
    answer as `{answer}`. Without it, the answer is printed."""
    unchanged: str = "Nothing was changed."
    """What is printed if the answer is False."""
    past: str = ""
    """What has happened to the runs that it changed, such as `cancelled`, if it is also performed
    in bulk."""
    about: str = ""
    """More help."""


@attrs.frozen(kw_only=True, eq=False, slots=False)
class Operation:
    """One entry of the table of operations."""

    name: str
    function: Callable[..., Awaitable[Any]]
    """The function. Its first argument is the runtime."""
    verb: str
    """The method of HTTP."""
    path: str
    """The path below `/v1`, with the names of arguments in braces. It is empty if only Python
    clients need the operation."""
    role: Role
    """The role that a caller requires."""
    streams: bool = False
    """Whether the function is an async iterator. Its items are the answer."""
    composite: bool = False
    """Whether the function performs other operations. Its first argument is a `Delegate` instead of
    the runtime."""
    like: Callable[..., Any] | None = None
    """A function whose docstring describes the arguments."""
    idle: Idle = Idle.YES
    """Whether it can be performed on a store that no process has open."""
    command: Command | None = None
    """The command of the command line, if there is one."""

    @property
    def writes(self) -> bool:
        """Return whether the operation changes the store."""
        return self.verb not in ("GET", "HEAD")

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return get_type_hints(self.function, localns=names())

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """Return the arguments, by name."""
        in_path = set(_PLACES.findall(self.path))
        about = _abouts(f"{inspect.getdoc(self.like) or ''}\n\n{self.description}")
        found = {}
        for each in list(inspect.signature(self.function).parameters.values())[1:]:
            required = each.default is inspect.Parameter.empty
            found[each.name] = Parameter(
                name=each.name,
                declared=self._hints[each.name],
                required=required,
                default=None if required else each.default,
                in_path=each.name in in_path,
                named=each.kind is inspect.Parameter.KEYWORD_ONLY,
                about=about.get(each.name, _GENERAL.get(each.name, "")),
            )
        return found

    @property
    def result(self) -> Any:
        """Return the type of the answer, or of each item of a stream."""
        declared = self._hints["return"]
        return declared.__args__[0] if self.streams else declared

    @cached_property
    def answers_object(self) -> bool:
        """Return whether the answer is a JSON object."""
        return is_object(self.result)

    @cached_property
    def may_have_no_answer(self) -> bool:
        """Return whether the answer may be None instead of a value."""
        return NoneType in get_args(self.result)

    @property
    def summary(self) -> str:
        """Return one line of help."""
        text = one_paragraph(inspect.getdoc(self.function))
        return text.partition(". ")[0].rstrip(".") + "."

    @property
    def description(self) -> str:
        """Return the whole help."""
        return inspect.getdoc(self.function) or ""

    @cached_property
    def write_json(self) -> Hook:
        """Return the hook that writes an answer as JSON."""
        return JSON.writer(self.result)

    @cached_property
    def write_wire(self) -> Hook:
        """Return the hook that writes an answer for a Python client."""
        return WIRE.writer(self.result)

    @cached_property
    def _wire_writers(self) -> dict[str, Hook]:
        return {name: WIRE.writer(each.declared, name) for name, each in self.parameters.items()}

    def arguments_on_wire(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments as a Python client sends them."""
        writers = self._wire_writers
        return {name: writers[name](value) for name, value in arguments.items()}

    @cached_property
    def _wire_readers(self) -> dict[str, Hook]:
        return {name: WIRE.reader(each.declared) for name, each in self.parameters.items()}

    def read_wire(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that a Python client sent."""
        readers = self._wire_readers
        try:
            arguments = {name: readers[name](item) for name, item in data.items()}
            for name, item in arguments.items():
                if isinstance(item, Payload):
                    item.name = name
        except ValueError as error:
            raise Misplaced(str(error)) from error
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Misplaced(f"the arguments of {self.name} are not valid: {error!r}") from error
        self.require(arguments)
        return arguments

    def read_json(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments in a JSON object."""
        unknown = sorted(data.keys() - self.parameters.keys())
        if unknown:
            known = ", ".join(self.parameters) or "none"
            raise Misplaced(f"{self.name} has no argument {unknown[0]!r}; it has: {known}")
        return {
            name: read_json(name, item, self.parameters[name].declared)
            for name, item in data.items()
        }

    def read_texts(self, texts: Mapping[str, list[str]]) -> dict[str, Any]:
        """Return the arguments in a query string or a path."""
        unknown = sorted(texts.keys() - self.parameters.keys())
        if unknown:
            known = ", ".join(self.parameters) or "none"
            raise Misplaced(f"{self.name} has no argument {unknown[0]!r}; it has: {known}")
        found = {}
        for name, given in texts.items():
            declared = self.parameters[name].declared
            if len(given) == 1:
                data: Any = [given[0]] if takes_several(declared) else given[0]
            elif takes_several(declared):
                data = given
            else:
                raise Misplaced(f"{name} was given {len(given)} times, and it is one value")
            read = read_json if isinstance(data, list) else read_text
            found[name] = read(name, data, declared)
        return found

    def require(self, arguments: Mapping[str, Any]) -> None:
        """Raise `Misplaced` if an argument is missing."""
        for name, each in self.parameters.items():
            if each.required and name not in arguments:
                raise Misplaced(f"{self.name} requires the argument {name!r}")


def _abouts(text: str) -> dict[str, str]:
    """Return what a docstring says about arguments, in lines such as "- `key`: the key"."""
    found = {}
    for match in _ABOUT.finditer(text):
        about = " ".join(match[2].split())
        found.update(dict.fromkeys(re.findall(r"`(\w+)`", match[1]), about))
    return found
