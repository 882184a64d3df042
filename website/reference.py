"""python -m website.reference: write docs/reference.md and docs/reference/ from the docstrings.

The text comes from docstrings, and signatures come from the source, so that they read as they are
written there. `contents` says which name is on which page. A public name without a place, or
without a docstring, is an error.
"""

import argparse
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from enum import Enum
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Any, is_typeddict

import griffe

from keyrun.control import openapi
from website import http_api
from website.contents import (
    CONSTRUCTED,
    DECORATORS,
    HIDDEN,
    MODULES,
    PAGES,
    SHOWN,
    SPELLED,
    Page,
    Section,
)

ROOT = Path(__file__).parent.parent
WIDTH = 88
"""The longest signature on one line."""

_SPAN = re.compile(r"`([^`\n]+)`")
_FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?:^|\n\n)((?: {4}.*\n?)+)")
_NAME = re.compile(r"[A-Za-z_]\w*")


def _from(here: str, target: str) -> str:
    """Return a link to an entry as the page of another entry has it."""
    page, _, name = target.partition("#")
    return f"#{name}" if here.partition("#")[0] == page else target


class Incomplete(Exception):
    """Raised if a public name has no place in the reference or no description."""


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and the site make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def heading(name: str) -> str:
    """Return the heading of the entry of a public name."""
    return f"@{name} decorator" if name in DECORATORS else name


def is_own(found: Any) -> bool:
    """Return whether an object, or what an import refers to, is a part of Keyrun."""
    return not found.is_alias or str(found.target_path).startswith("keyrun.")


def final(found: Any) -> Any:
    """Return an object, or the object that an import refers to."""
    return found.final_target if found.is_alias else found


@cache
def parsed() -> Any:
    """Return the source of Keyrun, parsed."""
    return griffe.load("keyrun", search_paths=[ROOT], resolve_aliases=True)


class Reference:
    """The public names, their objects in the source, and the place of each in the reference."""

    def __init__(self) -> None:
        self._package = parsed()
        self.modules = {name: importlib.import_module(name).__all__ for name in MODULES}
        self.homes: dict[str, str] = {}
        for module, names in self.modules.items():
            for name in names:
                self.homes.setdefault(name, module)
        self._pages: dict[str, str] = {}
        for page in PAGES:
            for section in page.sections:
                for name in section.names.split():
                    if name in self._pages:
                        raise Incomplete(f"{name} is twice in the contents of the reference")
                    self._pages[name] = page.file
        for name in self.homes.keys() ^ self._pages.keys():
            raise Incomplete(f"{name} is either not public or not in website/contents.py")
        self.members = {
            name: dict(self._members(name)) for name in self.homes if self.source(name).is_class
        }

    def source(self, name: str) -> Any:
        """Return the object of a public name in the source."""
        value = self.value(name)
        is_code = inspect.isclass(value) or inspect.isfunction(value)
        module = value.__module__ if is_code else self.homes[name]
        return final(self._package[f"{module}.{name}".removeprefix("keyrun.")])

    def value(self, name: str) -> Any:
        """Return the value of a public name."""
        return getattr(importlib.import_module(self.homes[name]), name)

    def _members(self, name: str) -> Iterator[tuple[str, Any]]:
        """Yield the public members of a class and of its bases that are not public."""
        if is_typeddict(self.value(name)):
            return  # the options of a function, which describes them
        hidden = set(HIDDEN.get(name, "").split())
        shown = SHOWN[name].split() if name in SHOWN else None
        seen: set[str] = set()
        for owner in self._owners(self.source(name)):
            for member, found in owner.members.items():
                if member.startswith("_") or member in seen or found.is_alias:
                    continue
                seen.add(member)
                if member not in hidden and (shown is None or member in shown):
                    yield member, found
        if missing := {*hidden, *(shown or ())} - seen:
            raise Incomplete(f"{name} has no {', '.join(missing)}: correct website/contents.py")

    def _owners(self, source: Any) -> Iterator[Any]:
        yield source
        for base in source.resolved_bases:
            if base.name not in self.homes and base.name != "RuntimeFault":
                yield from self._owners(base)

    def public_bases(self, name: str) -> list[str]:
        """Return the public classes that a class derives from."""
        found = []
        for owner in self._owners(self.source(name)):
            for base in owner.resolved_bases:
                if base.name in self.homes and base.name not in found:
                    found.append(base.name)
        further = {each for base in found for each in self.public_bases(base)}
        return [base for base in found if base not in further]

    def place(self, name: str) -> str:
        """Return the page and the anchor of a public name."""
        return f"{self._pages[name]}#{anchor(heading(name))}"

    def target(self, span: str) -> str | None:
        """Return the link to the entry that a span of code names, if it names one."""
        called = span.endswith(")") or span.startswith("@")
        dotted = re.sub(r"\(.*\)$", "", span.removeprefix("@")).removeprefix("async ")
        for prefix, classes in SPELLED.items():
            if dotted.startswith(prefix):
                names = [f"{each}.{dotted.removeprefix(prefix)}" for each in classes]
                break
        else:
            names = [dotted]
        for name in names:
            owner, _, member = name.removeprefix("keyrun.").rpartition(".")
            if member in self.members.get(owner, ()):
                place = name if self._has_heading(owner, member) else owner
                return f"{self._pages[owner]}#{anchor(place)}"
            if not owner or f"keyrun.{owner}" in MODULES:
                plain = member.islower() and "_" not in member
                if member in self._pages and (called or owner or not plain):
                    return self.place(member)
        return None

    def _has_heading(self, owner: str, member: str) -> bool:
        found = self.members[owner][member]
        return bool(found.is_function) and "property" not in found.labels

    def linked(self, text: str, here: str, path: str = "") -> str:
        """Return a text with links from its spans of code, except to the entry itself."""

        def link(found: re.Match[str]) -> str:
            target = self.target(found[1])
            if target is None or target == here:
                return found[0]
            return f"[{found[0]}]({path}{_from(here, target)})"

        parts, end = [], 0
        for fence in _FENCE.finditer(text):
            parts += [_SPAN.sub(link, text[end : fence.start()]), fence[0]]
            end = fence.end()
        return "".join([*parts, _SPAN.sub(link, text[end:])])

    def description(self, source: Any, about: str) -> str:
        """Return the docstring of an object as Markdown."""
        if source.docstring is None:
            raise Incomplete(f"{about} has no docstring ({source.filepath}:{source.lineno})")
        text = inspect.cleandoc(source.docstring.value)
        return _INDENTED.sub(lambda found: f"\n\n```py\n{dedent(found[1]).strip()}\n```\n", text)

    def annotation(self, expression: Any, module: Any) -> str:
        """Return a type as the source has it, with the aliases that are not public replaced."""
        text = str(expression).replace(" | Unset", "")
        # A type that is imported late is a string.
        text = re.sub(r"^'([^']+)'$", r"\1", text)

        def resolve(found: re.Match[str]) -> str:
            name = found[0]
            alias = module.members.get(name)
            if alias is None or name in self.homes or not is_own(alias):
                return name
            alias = final(alias)
            value = str(alias.value) if alias.is_attribute else ""
            is_type = value and not value.startswith(("TypeVar", "ParamSpec")) and "(" not in value
            return self.annotation(value, alias.module) if is_type else name

        text = re.sub(rf"(?<![\w.'\"]){_NAME.pattern}(?![\w'\"])", resolve, text)
        return text.replace("'", '"')


def parameters(reference: Reference, function: Any, *, method: bool) -> list[str]:
    """Return the parameters of a function as they are written."""
    written: list[str] = []
    kinds = griffe.ParameterKind
    given = list(function.parameters)[1 if method else 0 :]
    last = None
    for each in given:
        if last is kinds.positional_only and each.kind is not kinds.positional_only:
            written.append("/")
        if each.kind is kinds.keyword_only and last not in (
            kinds.keyword_only,
            kinds.var_positional,
        ):
            written.append("*")
        last = each.kind
        annotation = str(each.annotation)
        unpacked = re.fullmatch(r"Unpack\[(\w+)\]", annotation)
        if unpacked and unpacked[1] not in reference.homes:
            if "*" not in written:
                written.append("*")
            written += _unpacked(reference, function.module, unpacked[1])
            continue
        stars = {kinds.var_positional: "*", kinds.var_keyword: "**"}.get(each.kind, "")
        typed = reference.annotation(each.annotation, function.module)
        text = f"{stars}{each.name}: {typed}"
        if each.default is not None and not stars:
            default = str(each.default)
            if re.fullmatch("[A-Z_]+", default) and default != "UNSET":
                default = str(getattr(importlib.import_module(function.module.path), default))
            text += f" = {_written(default)}"
        written.append(text)
    if last is kinds.positional_only:
        written.append("/")
    return written


def _written(default: str) -> str:
    """Return a default as the source has it, which the parsed form does not keep."""
    if default == "UNSET":
        return "..."
    if default.isdigit() and len(default) > 4:
        return f"{int(default):_}"
    return default.replace("'", '"')


def _unpacked(reference: Reference, module: Any, name: str) -> Iterator[str]:
    """Yield the keywords that a function takes as an unpacked mapping."""
    mapping = final(module[name])
    for base in mapping.resolved_bases:
        yield from _unpacked(reference, base.module, base.name)
    for field, found in mapping.members.items():
        yield f"{field}: {reference.annotation(found.annotation, mapping.module)} = ..."


def fields_of(reference: Reference, name: str) -> list[str]:
    """Return the parameters of a class whose fields are declared."""
    source, written = reference.source(name), []
    kinds = inspect.Parameter
    for parameter in inspect.signature(reference.value(name)).parameters.values():
        if parameter.kind is kinds.KEYWORD_ONLY and "*" not in written:
            written.append("*")
        text = f"{parameter.name}: "
        text += reference.annotation(source[parameter.name].annotation, source.module)
        if parameter.default is not kinds.empty:
            text += f" = {_shown(parameter.default)}"
        written.append(text)
    return written


def _shown(default: Any) -> str:
    if isinstance(default, Enum):
        unset = default.name in ("UNSET", "NOTHING")
        return "..." if unset else f"{type(default).__name__}.{default.name}"
    if isinstance(default, tuple):
        items = [each.__name__ if isinstance(each, type) else repr(each) for each in default]
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    text = repr(default)
    return _written(text) if re.fullmatch(r"[\w.'\"-]+", text) else "..."


def signature(start: str, parts: list[str], returned: str = "") -> str:
    """Return a signature as a block of code, on one line if it fits."""
    end = f" -> {returned}" if returned else ""
    line = f"{start}({', '.join(parts)}){end}"
    if len(line) > WIDTH:
        line = f"{start}(\n" + "".join(f"    {part},\n" for part in parts) + f"){end}"
    return f"```py\n{line}\n```"


def function_signature(
    reference: Reference, function: Any, start: str, *, method: bool = False
) -> str:
    """Return the signature of a function or method."""
    parts = parameters(reference, function, method=method)
    name = function.name
    if not method and name in DECORATORS:
        if parts[0] == "function: F":
            return f"```py\n@{start}\n```"
        if "/" in parts:
            del parts[: parts.index("/") + 1]
        return signature(f"@{start}", parts)
    returned = reference.annotation(function.returns, function.module)
    manager = any("asynccontextmanager" in str(each.value) for each in function.decorators)
    if manager:
        returned = re.sub(r"^AsyncIterator", "AbstractAsyncContextManager", returned)
    awaited = "await " if "async" in function.labels and not manager else ""
    return signature(f"{awaited}{start}", parts, returned)


def entry(reference: Reference, name: str) -> Iterator[str]:
    """Yield the paragraphs of the entry of one public name."""
    source, home = reference.source(name), reference.homes[name]
    here = reference.place(name)
    yield f"### {heading(name)}"
    if source.is_function:
        yield function_signature(reference, source, f"{home}.{name}")
    elif source.is_class and name in CONSTRUCTED.split():
        yield construction(reference, name, f"{home}.{name}")
    elif source.is_class and not issubclass(reference.value(name), BaseException):
        yield f"```py\nclass {home}.{name}\n```"
    elif not source.is_class:
        value = " ".join(str(source.value).split()).strip("() ")
        if len(value) > WIDTH:
            value = "(\n    " + value.replace(" | ", "\n    | ") + "\n)"
        yield f"```py\n{home}.{name} = {value}\n```"
    yield reference.linked(reference.description(source, name), here)
    if not source.is_class:
        return
    if issubclass(reference.value(name), BaseException):
        bases = [_base(base) for base in reference.value(name).__bases__]
        named = " and ".join(f"`{base}`" for base in bases)
        yield reference.linked(f"`{home}.{name}` derives from {named}.", here)
    else:
        bases = [each for each in reference.public_bases(name) if each != "Workflow"]
        for base in bases:
            inherited = reference.members[base].keys() - reference.members[name].keys()
            spans = ", ".join(
                f"[`{each}`]({_from(here, reference.target(f'{base}.{each}') or '')})"
                for each in reference.members[base]
                if each in inherited
            )
            yield reference.linked(f"It also has the members of `{base}`: {spans}.", here)
    yield from members(reference, name, here)


def _base(base: type) -> str:
    return "KeyrunError" if base.__name__ == "RuntimeFault" else base.__name__


def construction(reference: Reference, name: str, start: str) -> str:
    """Return how a program creates an object of a class."""
    if hasattr(reference.value(name), "__attrs_attrs__"):
        return signature(start, fields_of(reference, name))
    made = reference.source(name).all_members.get("__init__")
    if made is None:
        return signature(start, ["*args: object"])
    return signature(start, parameters(reference, final(made), method=True))


def members(reference: Reference, name: str, here: str) -> Iterator[str]:
    """Yield the fields and properties of a class as a list, then each method."""
    found = reference.members[name]
    methods = {member for member in found if reference._has_heading(name, member)}
    listed = [
        field(reference, name, member, found[member], here)
        for member in found
        if member not in methods
    ]
    if listed:
        yield "\n".join(listed)
    for member in found:
        if member in methods:
            source = found[member]
            static = {"classmethod", "staticmethod"} & source.labels
            spelled = next((key for key, each in SPELLED.items() if each[0] == name), "")
            start = f"{name}.{member}" if static else f"{spelled}{member}"
            yield f"#### {name}.{member}"
            yield function_signature(reference, source, start, method=True)
            yield reference.linked(
                reference.description(source, f"{name}.{member}"),
                f"{here.partition('#')[0]}#{anchor(f'{name}.{member}')}",
            )


def field(reference: Reference, name: str, member: str, source: Any, here: str) -> str:
    """Return one line about a field, a property or a value of an enumeration."""
    value = reference.value(name)
    described = source
    if source.docstring is None and name in reference.modules["keyrun.events"]:
        # The first five fields are the same in all events.
        described = reference.members["RunEvent"].get(member, source)
    text = " ".join(reference.description(described, f"{name}.{member}").split())
    text = text.removeprefix("Return ")
    text = reference.linked(text[0].upper() + text[1:], here)
    if issubclass(value, Enum) and member in value.__members__:
        return f"- `{name}.{member}`: `{_written(repr(value[member].value))}`. {text}"
    if source.annotation is None:
        return f"- `{member}`: {text}"
    typed = reference.annotation(source.annotation, source.module)
    # A word in quotes, as in Literal["wait"], is no name.
    names = _NAME.findall(re.sub(r'"[^"]*"', "", typed))
    named = [each for each in names if each in reference.homes and each != name]
    span = f"[`{typed}`]({_from(here, reference.place(named[0]))})" if named else f"`{typed}`"
    return f"- `{member}` ({span}): {text}"


def page(reference: Reference, contents: Page) -> str:
    """Return one page of the reference."""
    parts = [f"# {contents.title}", reference.linked(contents.text, f"{contents.file}#")]
    for section in contents.sections:
        parts.append(f"## {section.title}")
        parts += _section_text(section)
        for name in section.names.split():
            parts += entry(reference, name)
    anchors = [anchor(part.lstrip("# ")) for part in parts if part.startswith("#")]
    if len(anchors) > len(set(anchors)):
        raise Incomplete(f"two headings of {contents.file} have the same anchor: {anchors}")
    return "\n\n".join([*parts[:1], NOTE, *parts[1:]]) + "\n"


def _section_text(section: Section) -> Iterator[str]:
    if section.text == "<hierarchy>":
        from keyrun import errors

        drawing = re.findall(r"^ {4}(.*)$", errors.__doc__ or "", re.MULTILINE)
        second = drawing.index("Exception: raise these in steps")
        lines = "\n".join([*drawing[:second], "", *drawing[second:]])
        yield "The bases of an error besides its parent are in brackets."
        yield f"```text\n{lines}\n```"
    elif section.text:
        yield section.text


NOTE = "<!-- Generated from docstrings: python -m website.reference -->"


def index(reference: Reference) -> str:
    """Return the first page of the reference."""
    tasks = "\n".join(f"| [{page.title}](reference/{page.file}) | {page.task} |" for page in PAGES)
    parts = [
        "# Reference",
        NOTE,
        "Every public name of Keyrun, with its signature. Programs import names from the modules"
        " below. The modules inside of `keyrun.runtime` are not public and change without notice.",
        "## Find it by task",
        f"| page | task |\n|---|---|\n{tasks}",
        "## Find it by module",
        "`keyrun` has the names that most programs use. Every other name is in one module, except"
        " that all errors are in `keyrun.errors`, too.",
    ]
    for module, names in reference.modules.items():
        described = inspect.cleandoc(importlib.import_module(module).__doc__ or "")
        title, _, _ = described.partition("\n\n")
        parts += [f"### {module}", reference.linked(" ".join(title.split()), "", "reference/")]
        links = [f"[`{name}`](reference/{reference.place(name)})" for name in names]
        parts.append(",\n".join(links) + ".")
    return "\n\n".join(parts) + "\n"


def generate() -> dict[str, str]:
    """Return the texts of all pages by their path in docs/."""
    reference = Reference()
    pages = {f"reference/{each.file}": page(reference, each) for each in PAGES}
    return {"reference.md": index(reference), "http-api.md": http_api.page(), **pages}


def stale(docs: Path, pages: dict[str, str]) -> list[str]:
    """Return the pages in a directory that differ from `pages`."""
    found = {f"reference/{path.name}" for path in (docs / "reference").glob("*")}
    differ = {
        name
        for name, text in pages.items()
        if not (docs / name).exists() or (docs / name).read_text() != text
    }
    return sorted(differ | (found - pages.keys()))


def write(docs: Path) -> None:
    """Write all pages, and remove pages that are not in the reference any more."""
    (docs / "reference").mkdir(exist_ok=True)
    pages = generate()
    for path in (docs / "reference").glob("*"):
        if f"reference/{path.name}" not in pages:
            path.unlink()
    for name, text in pages.items():
        (docs / name).write_text(text)


def main() -> int:
    """Return 0, or with --check 1 if a page is not current."""
    parser = argparse.ArgumentParser(
        prog="python -m website.reference",
        description="Write docs/reference.md, docs/reference/, docs/http-api.md and "
        "keyrun/control/openapi.json from the docstrings.",
    )
    parser.add_argument("--check", action="store_true", help="Write nothing, and name stale pages.")
    if not parser.parse_args().check:
        write(ROOT / "docs")
        openapi.FILE.write_text(openapi.text())
        return 0
    names = stale(ROOT / "docs", generate())
    for name in names:
        print(f"docs/{name} is not current: run python -m website.reference")
    return 1 if names else 0


if __name__ == "__main__":
    sys.exit(main())
