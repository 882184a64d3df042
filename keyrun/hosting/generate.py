"""Write the asyncio face and the sync face of the runtime from the classes of the Trio runtime,
`open_runtime` of all three, and the list of commands from the table of operations.

    python -m keyrun.hosting.generate

Signatures, types and docstrings come from the source of `Runtime`, `RunHandle` and `GroupHandle`,
and from that of `open_runtime` of the engine and of `connect`, so that the three faces cannot drift
apart. A test checks that the written files are up to date.
"""

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
RUNTIME = HERE.parent / "runtime"
COMMANDS = HERE.parent / "cli" / "derived.py"
"""The file of the list of commands."""


class Face(NamedTuple):
    """The form of the code of one face."""

    name: str
    is_async: bool

    @property
    def path(self) -> Path:
        """Return the file of the classes."""
        return RUNTIME / "faces" / f"{self.name}_face.py"

    @property
    def home(self) -> str:
        """Return the module of the class of the runtime."""
        is_source = self.name == "trio"
        return f"keyrun.runtime.{'runtime' if is_source else f'faces.{self.name}_face'}"

    @property
    def open_path(self) -> Path:
        """Return the file of `open_runtime`."""
        return HERE / f"{self.name}_open.py"

    @property
    def define(self) -> str:
        """Return the start of a method."""
        return "async def" if self.is_async else "def"

    @property
    def wait(self) -> str:
        """Return the keyword before a call that waits."""
        return "await " if self.is_async else ""

    @property
    def proxy(self) -> str:
        """Return the proxy of an entity, with the type that a type checker sees."""
        proxy = "EntityProxy(self._bridge, proxy)"
        return f"cast(E, {proxy})" if self.is_async else proxy


FACES = (Face("asyncio", True), Face("sync", False))
TRIO = Face("trio", True)
"""Its classes are the source of the others. Only its `open_runtime` is written."""

SOURCES = {
    "RunHandle": [("handle.py", "RunHandle")],
    "GroupHandle": [("groups/handle.py", "GroupHandle")],
    "Runtime": [("runtime.py", "Runtime"), ("inspect/reader.py", "Reader")],
}
"""The classes of a face, and the classes that they are made of. The first one that has a method
decides."""

HANDLES = ("RunHandle", "GroupHandle")
INTERNAL = {"find_submission", "status_of", "wait_for_end"}
"""Methods without an underscore that only Keyrun calls."""

HEADS = {
    "RunHandle": """
class RunHandle(Generic[T]):
    {doc}

    __slots__ = ("_bridge", "_inner")

    def __init__(self, bridge: {bridge}, inner: TrioRunHandle[T]) -> None:
        self._bridge = bridge
        self._inner = inner

    @property
    def newly_submitted(self) -> bool:
        \"\"\"False if the run existed before the submit.\"\"\"
        return self._inner.newly_submitted

    def __repr__(self) -> str:
        return repr(self._inner)
""",
    "GroupHandle": """
class GroupHandle(Generic[T]):
    {doc}

    __slots__ = ("_bridge", "_inner")

    def __init__(self, bridge: {bridge}, inner: TrioGroupHandle[T]) -> None:
        self._bridge = bridge
        self._inner = inner

    @property
    def group_id(self) -> str:
        \"\"\"The id of the group.\"\"\"
        return self._inner.group_id

    @property
    def newly_submitted(self) -> bool:
        \"\"\"False if the group existed before the submit.\"\"\"
        return self._inner.newly_submitted

    def __repr__(self) -> str:
        return repr(self._inner)
""",
    "Runtime": """
class Runtime:
    {doc}

    __slots__ = ("_bridge", "_inner")

    def __init__(self, bridge: {bridge}) -> None:
        self._bridge = bridge
        self._inner = bridge.runtime
""",
}

BODIES = {
    ("Runtime", "submit"): """
submission = self._inner._describe(
    workflow, input, key, run_id, headers, tags, priority, limits, delay
)
return RunHandle(self._bridge, {wait}self._bridge.submit(submission, wait=True))
""",
    ("Runtime", "submit_nowait"): """
submission = self._inner._describe(
    workflow, input, key, run_id, headers, tags, priority, limits, delay
)
return RunHandle(self._bridge, {wait}self._bridge.submit(submission, wait=False))
""",
    ("Runtime", "run"): "return RunHandle(self._bridge, self._inner.run(run_id))",
    ("Runtime", "entity"): """
proxy = self._inner.entity(entity, key, request_id=request_id, timeout=timeout)
return {proxy}
""",
    ("Runtime", "events"): """
return Events(self._bridge, self._inner.events(run_id=run_id, kinds=kinds, buffer=buffer))
""",
    ("Runtime", "watch"): """
return Watch(self._bridge, self._inner.watch(run_id, interval=interval))
""",
    ("Runtime", "value"): "return self._inner.value(stored)",
    ("Runtime", "statistics"): "return self._bridge.now(self._inner.statistics)",
    ("Runtime", "group"): """
found = {wait}self._bridge.call(self._inner.group, group_id)
return None if found is None else GroupHandle(self._bridge, found)
""",
    ("RunHandle", "result"): """
submission = self._inner._submission
if timeout is not None or submission is None:
    return {wait}self._bridge.call(self._inner.result, timeout=timeout)
return self._inner._value_of(submission, {wait}self._bridge.wait_for_end(submission))
""",
    ("GroupHandle", "__aiter__"): "return Outcomes(self._bridge, aiter(self._inner))",
}
"""The bodies of methods that are more than a call."""


class Method(NamedTuple):
    """A public method of a source class."""

    node: ast.FunctionDef | ast.AsyncFunctionDef
    module: Path

    @property
    def name(self) -> str:
        """Return the name of the method."""
        return self.node.name

    @property
    def is_property(self) -> bool:
        """Return whether it is read like an attribute."""
        return any(isinstance(d, ast.Name) and d.id == "property" for d in self.node.decorator_list)


class _Unquoted(ast.NodeTransformer):
    """Replaces annotations in quotes by what is quoted."""

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if isinstance(node.value, str):
            return ast.parse(node.value, mode="eval").body
        return node


def _unquoted(annotation: ast.expr | None) -> ast.expr | None:
    if annotation is None:
        return None
    found = _Unquoted().visit(annotation)
    assert isinstance(found, ast.expr)
    return found


def _class(path: Path, name: str) -> ast.ClassDef:
    tree = ast.parse(path.read_text())
    return next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)


def methods(cls: str) -> list[Method]:
    """Return the public methods of a class of a face, each from the first source that has it."""
    found: dict[str, Method] = {}
    for file, name in SOURCES[cls]:
        for node in _class(RUNTIME / file, name).body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            public = not node.name.startswith("_") or (cls, node.name) in BODIES
            if public and node.name not in INTERNAL and not _is_overload(node):
                found.setdefault(node.name, Method(node, RUNTIME / file))
    return list(found.values())


def overloads(cls: str) -> dict[str, list[Method]]:
    """Return the overloads of methods, by name."""
    found: dict[str, list[Method]] = {}
    for file, name in SOURCES[cls]:
        for node in _class(RUNTIME / file, name).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _is_overload(node):
                found.setdefault(node.name, []).append(Method(node, RUNTIME / file))
    return found


def _is_overload(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "overload" for d in node.decorator_list)


def _docstring(node: ast.AST, face: Face, indent: str) -> str:
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    text = ast.get_docstring(node) or ""
    if not face.is_async:
        text = re.sub(r"\b(await|async) ", "", text)
    lines = textwrap.indent(text, indent).strip()
    last = lines.rsplit("\n", 1)[-1]
    end = '"""' if len(last) + len(indent) < 97 else f'\n{indent}"""'
    return f'"""{lines}{end}'


def _signature(method: Method, face: Face) -> str:
    arguments = method.node.args
    for argument in [
        *arguments.posonlyargs,
        *arguments.args,
        *arguments.kwonlyargs,
        arguments.vararg,
        arguments.kwarg,
    ]:
        if argument is not None:
            argument.annotation = _unquoted(argument.annotation)
    returns = _unquoted(method.node.returns)
    assert returns is not None, method.name
    result = ast.unparse(returns)
    if not face.is_async:
        result = result.replace("AsyncIterator", "Iterator")
        if method.name == "entity":  # the methods of the class do not block
            result = "EntityProxy"
    return f"({ast.unparse(arguments)}) -> {result}"


def _call(method: Method) -> str:
    """Return the call of the same method of the Trio class."""
    arguments = method.node.args
    given = [f"self._inner.{method.name}"]
    given += [each.arg for each in [*arguments.posonlyargs, *arguments.args][1:]]
    if arguments.vararg is not None:
        given.append(f"*{arguments.vararg.arg}")
    given += [f"{each.arg}={each.arg}" for each in arguments.kwonlyargs]
    if arguments.kwarg is not None:
        given.append(f"**{arguments.kwarg.arg}")
    return f"self._bridge.call({', '.join(given)})"


def _body(cls: str, method: Method, face: Face) -> str:
    special = BODIES.get((cls, method.name))
    if special is not None:
        return special.strip().format(wait=face.wait, proxy=face.proxy)
    if method.is_property:
        return f"return self._inner.{method.name}"
    assert isinstance(method.node, ast.AsyncFunctionDef), f"write a body for {cls}.{method.name}"
    call = face.wait + _call(method)
    returned = ast.unparse(_unquoted(method.node.returns) or ast.Constant(None))
    handle = next((name for name in HANDLES if returned.startswith(name + "[")), None)
    if handle is not None:
        return f"return {handle}(self._bridge, {call})"
    return call if returned == "None" else f"return {call}"


def _method(cls: str, method: Method, face: Face, *, overload: bool = False) -> str:
    is_async = isinstance(method.node, ast.AsyncFunctionDef)
    define = face.define if is_async else "def"
    name = method.name
    if name == "__aiter__" and not face.is_async:
        name = "__iter__"
    decorator = "@property\n" if method.is_property else "@overload\n" if overload else ""
    lines = [f"{decorator}{define} {name}{_signature(method, face)}:"]
    if overload:
        return lines[0] + " ..."
    if ast.get_docstring(method.node):
        lines.append(textwrap.indent(_docstring(method.node, face, "        "), "    ", _first))
    lines.append(textwrap.indent(_body(cls, method, face), "    "))
    return "\n".join(lines)


def _first(line: str) -> bool:
    return line.startswith('"""')


def _imports(used: set[str], late: bool) -> Iterator[str]:
    """Yield the imports of names as the sources have them, at run time or for the type checker."""
    for file in {file for sources in SOURCES.values() for file, _ in sources}:
        tree = ast.parse((RUNTIME / file).read_text())
        for top in tree.body:
            checking = isinstance(top, ast.If) and ast.unparse(top.test) == "TYPE_CHECKING"
            nodes = top.body if isinstance(top, ast.If) and checking else [top]
            for node in nodes:
                if isinstance(node, ast.ImportFrom) and checking == late:
                    for alias in node.names:
                        if alias.name in used:
                            yield f"from {node.module} import {alias.name}"


def _names(face: Face) -> set[str]:
    """Return the names that annotations and defaults of a face use."""
    found: set[str] = set()
    for cls in SOURCES:
        every = [*methods(cls), *(each for many in overloads(cls).values() for each in many)]
        for method in every:
            parsed = ast.parse(f"def f{_signature(method, face)}: ...")
            found |= {node.id for node in ast.walk(parsed) if isinstance(node, ast.Name)}
    return found


def write(face: Face) -> str:
    """Return the source of a face."""
    own = {*SOURCES, "EntityProxy", "Events", "Watch", "Outcomes", "TypeVar", "Generic"}
    used = _names(face) - own
    bridge = f"{face.name.capitalize()}Bridge"
    early = sorted(set(_imports(used, late=False)))
    if "Iterator" in used:
        early.append("from collections.abc import Iterator")
    late = sorted(set(_imports(used, late=True)) - set(early))
    parts = [
        f'''"""The {face.name} face of the runtime. `keyrun.hosting.generate` writes this file."""

# mypy: disable-error-code="misc"
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast, overload

from keyrun.runtime.faces.{face.name}_bridge import {bridge}
from keyrun.runtime.faces.{face.name}_iterators import EntityProxy, Events, Outcomes, Watch
from keyrun.runtime.handle import RunHandle as TrioRunHandle
from keyrun.runtime.groups.handle import GroupHandle as TrioGroupHandle
''',
        *early,
        "\nif TYPE_CHECKING:\n" + textwrap.indent("\n".join(late), "    "),
        '\nE = TypeVar("E")\nI = TypeVar("I")  # noqa: E741 (the input)\n',
        'P = ParamSpec("P")\nR = TypeVar("R")\nT = TypeVar("T")\n',
    ]
    for cls, sources in SOURCES.items():
        node = _class(RUNTIME / sources[0][0], sources[0][1])
        doc = _docstring(node, face, "    ")
        parts.append(HEADS[cls].format(doc=doc, bridge=bridge))
        variants = overloads(cls)
        for method in methods(cls):
            for variant in variants.get(method.name, ()):
                parts.append(textwrap.indent(_method(cls, variant, face, overload=True), "    "))
            parts.append(textwrap.indent(_method(cls, method, face), "    ", _is_code) + "\n")
    return "\n".join(parts)


def _is_code(line: str) -> bool:
    return bool(line.strip())


SHARED_NOTES = """
- `app`: an `App`. It takes the place of all arguments that describe an application. An error
  names an argument that is given beside it.
- `control`: With `True`, other processes of the same user can operate the runtime: see
  `keyrun.connect`. With `keyrun.web.Control(http=...)`, also over a network."""

INNER_OPTIONS = ("host_loop", "companion")
"""Options that only Keyrun sets."""

SHARED_OPTIONS = "app: App | None = None, control: bool | Control = False"
OF_APP = "app"
"""The argument that the decorator `takes_app` replaces by what it has."""

OPEN_NOTES = {
    "trio": "",
    "asyncio": """

- `thread`: Run Keyrun in a thread of its own, for applications that block their loop.

A path is opened with a committer in a child process, so that a slow disk does not stop the
loop. `lifespan` and an async `on_terminal` run on the loop of the application.""",
    "sync": """

`lifespan` may also be a plain context manager.""",
}

OPEN_START = {
    "sync": '''

@takes_app
def start({arguments}) -> StartedRuntime:
    """Open a runtime that stays open until `rt.stop()`, or until the program ends:

        rt = keyrun.sync.start("state", workflows=[checkout])

    For the prompt, for notebooks, and for servers that have no place for a block. The arguments are
    those of `open_runtime`."""
    return started({given})
'''
}


CONNECTS = HERE.parent / "control" / "connecting.py"


def write_connect(face: Face) -> str:
    """Return the source of `connect` for a face, without its imports."""
    tree = ast.parse(CONNECTS.read_text())
    node = next(n for n in tree.body if isinstance(n, ast.AsyncFunctionDef) and n.name == "connect")
    doc = ast.get_docstring(node) or ""
    manager, with_ = "AbstractAsyncContextManager", "async with"
    if not face.is_async:
        manager, with_ = "AbstractContextManager", "with"
    doc = doc.replace("`async with connect(", f"`{with_} keyrun.{face.name}.connect(")
    for argument in [*node.args.args, *node.args.kwonlyargs]:
        argument.annotation = _unquoted(argument.annotation)
    given = ["address", *(f"{each.arg}={each.arg}" for each in node.args.kwonlyargs)]
    return f'''

def connect({ast.unparse(node.args)}) -> {manager}[Runtime]:
    """{textwrap.indent(doc, "    ").strip()}
    """
    return connected({", ".join(given)})
'''


def write_open(face: Face) -> str:
    """Return the source of `open_runtime` for a face."""
    path = RUNTIME / "open.py"
    tree = ast.parse(path.read_text())
    node = next(
        n for n in tree.body if isinstance(n, ast.AsyncFunctionDef) and n.name == "open_runtime"
    )
    arguments = node.args
    doc = ast.get_docstring(node) or ""
    for name in INNER_OPTIONS:
        doc = "\n".join(line for line in doc.splitlines() if f"`{name}`" not in line)
    kept = [
        (argument, default)
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if argument.arg not in INNER_OPTIONS
    ]
    shared = ast.parse(f"def f(*, {SHARED_OPTIONS}): ...").body[0]
    assert isinstance(shared, ast.FunctionDef)
    kept += zip(shared.args.kwonlyargs, shared.args.kw_defaults, strict=True)
    arguments.kwonlyargs = [argument for argument, _ in kept]
    arguments.kw_defaults = [default for _, default in kept]
    for argument in [*arguments.args, *arguments.kwonlyargs]:
        argument.annotation = _unquoted(argument.annotation)
        if argument.arg == "lifespan" and not face.is_async:
            argument.annotation = ast.parse("AnyLifespan | None", mode="eval").body
    passed = [each.arg for each in arguments.kwonlyargs if each.arg != OF_APP]
    given = ["store", *(f"{name}={name}" for name in passed)]
    signature = ast.unparse(arguments)
    if face.is_async:
        if face is not TRIO:
            signature += ", thread: bool=False"
            given.append("thread=thread")
        manager = "AbstractAsyncContextManager"
    else:
        doc = re.sub(r"\b(await|async) ", "", doc)
        manager = "AbstractContextManager"
    module = "keyrun" if face is TRIO else f"keyrun.{face.name}"
    with_ = "async with" if face.is_async else "with"
    if face is not TRIO:
        opens = f"on a store:\n`{with_} {module}.open_runtime("
        doc = doc.replace(f"on a store: `{with_} open_runtime(", opens)
    doc = textwrap.indent(doc.rstrip() + SHARED_NOTES + OPEN_NOTES[face.name], "    ").strip()
    used = {
        n.id for n in ast.walk(ast.parse(f"def f({signature}): ...")) if isinstance(n, ast.Name)
    }
    imports = [
        f"from {top.module} import {alias.name}"
        for top in ast.walk(tree)
        if isinstance(top, ast.ImportFrom)
        for alias in top.names
        if alias.name in used
    ]
    imports += [f"import {n}" for n in ("os", "time") if f"{n}." in signature]
    imports.append("from keyrun.control.options import Control")
    imports.append("from keyrun.hosting.app import App, takes_app")
    if face is not TRIO:
        imports.append(f"from keyrun.hosting.{face.name}_host import connected")
        imports.append("import ssl")
    if not face.is_async:
        imports.append("from keyrun.hosting.sync_host import StartedRuntime, started")
        imports.append("from keyrun.runtime.host.lifespan import AnyLifespan")
    what = "`keyrun.open_runtime`"
    if face is not TRIO:
        what = f"`open_runtime` and `connect` of `{module}`"
    parts = [
        f'''"""{what}. `keyrun.hosting.generate` writes this file."""

from contextlib import {manager}
from typing import Any

from keyrun.hosting.{face.name}_host import opened
from {face.home} import Runtime
''',
        *sorted(set(imports)),
        f'''

@takes_app
def open_runtime({signature}) -> {manager}[Runtime]:
    """{doc}
    """
    return opened({", ".join(given)})
''',
    ]
    if face is not TRIO:
        parts.append(write_connect(face))
    if face.name in OPEN_START:
        start = OPEN_START[face.name]
        parts.append(start.format(arguments=signature, given=", ".join(given)))
    return "\n".join(parts)


def formatted(source: str) -> str:
    """Return a source with sorted imports, in the format of the project."""
    for arguments in (["check", "--quiet", "--fix", "--select", "I,F401"], ["format", "--quiet"]):
        command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(HERE / "x.py")]
        done = subprocess.run(
            [*command, "-"], input=source, capture_output=True, text=True, check=True
        )
        source = done.stdout
    return source


def write_commands() -> str:
    """Return the source of the list of commands that come from the table of operations."""
    from keyrun.control.table import OPERATIONS

    found = [each.command for each in OPERATIONS.values() if each.command is not None]
    lines = [f"    {each.name!r}: {each.summary!r},\n" for each in found if " " not in each.name]
    return f'''"""The commands of the table of operations. `keyrun.hosting.generate` writes this
file, so that the help of the command line imports no operation."""

DERIVED = {{
{"".join(lines)}}}
"""The summaries, by the name of the command."""
'''


def main() -> None:
    """Write the files."""
    COMMANDS.write_text(formatted(write_commands()))
    for face in FACES:
        face.path.write_text(formatted(write(face)))
    for face in (*FACES, TRIO):
        face.open_path.write_text(formatted(write_open(face)))


if __name__ == "__main__":
    main()
