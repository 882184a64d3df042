"""The `code` node: run a function in Python, JavaScript or WebAssembly in a child process.

JSON goes in and JSON comes out. When the time of the step is up, the process is killed with all
processes that it has started. It is not a sandbox: it has the rights of the process that runs the
flow, but not its environment. It starts in an empty directory that is removed afterwards.
"""

import os
import re
import shutil
import sys
from base64 import b64encode
from collections.abc import Callable, Collection, Coroutine, Mapping
from pathlib import Path
from symtable import symtable
from tempfile import TemporaryDirectory
from typing import Any, Literal

from keyrun.errors import OutputTooLarge
from keyrun.extras import need
from keyrun.flows import jsons, processes, programs
from keyrun.flows.errors import CodeFailed, NodeFailed
from keyrun.flows.scope import Given, environment, names, scope
from keyrun.flows.secrets import kept_out
from keyrun.flows.templates import as_mapping, renderable
from keyrun.runtime.graphs.output_limit import OUTPUT

Language = Literal["python", "javascript", "wasm"]
LANGUAGES: tuple[Language, ...] = ("python", "javascript", "wasm")
_STAR = re.compile(r"import\s*\*")
_KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "SYSTEMROOT")


def code(
    source: str | bytes,
    *,
    language: Language = "python",
    args: Mapping[str, Any] | str | None = None,
    env: Collection[str] = (),
    max_output: int = OUTPUT,
    where: str = "code",
) -> Callable[[Given], Coroutine[Any, Any, Any]]:
    """Return a node that runs a program in a process of its own. Its output is the result of the
    program.

    - `source`: In Python and JavaScript it defines a function `main` with one argument. In
      WebAssembly it is a WASI program, binary or text, that reads its argument from stdin and
      writes its result to stdout.
    - `language`: the language of the source.
    - `args`: the argument, with templates, or one template that gives the whole mapping. By
      default it has `input`, `output`, `outputs`, `port`, `error`, `failures` and
      `iteration`.
    - `env`: the names of environment variables that the process receives.
    - `max_output`: the number of bytes that the result may have.
    - `where`: the name of the node in errors.

    An exception fails the attempt. The code can raise `PermanentError` to fail without a retry.
    """
    if language not in LANGUAGES:
        raise ValueError(f"language must be one of {', '.join(LANGUAGES)}, got {language!r}")
    if isinstance(source, bytes) and language != "wasm":
        raise TypeError(f"the source of {language} code must be text, got bytes")
    if language == "python" and isinstance(source, str):
        check_python(source)
    command = _command(language)
    given_args = dict(args) if isinstance(args, Mapping) else args
    parts = None if given_args is None else renderable(given_args, f"{where}.args")
    binary = source.encode() if isinstance(source, str) else source
    text = b64encode(binary).decode() if language == "wasm" else binary.decode()

    async def code(given: Given) -> Any:
        if parts is None:
            data = names(given)
        else:
            data = as_mapping(parts.render(scope(given, env)), f"{where}.args")
        question = {"source": text, "data": data, "max_output": max_output}
        own = environment(env)
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        with TemporaryDirectory(prefix="keyrun-code-", ignore_cleanup_errors=True) as folder:
            answer = await processes.ask(
                command,
                # JSON without line breaks, because the line break marks its end.
                jsons.dumps({**question, "folder": folder}).encode() + b"\n",
                max_output=max_output + programs.FRAME,
                env={**kept, "HOME": folder, "TMPDIR": folder, **own},
                cwd=Path(folder),
            )
        with kept_out(own):
            return _result(answer, max_output)

    return code


class InvalidCode(ValueError):
    """Code that cannot run, and the line of its error."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason if line is None else f"line {line}: {reason}")
        self.reason = reason
        self.line = line


def check_python(source: str) -> None:
    """Raise `InvalidCode` if `source` is not Python or defines no function `main`."""
    try:
        compile(source, "<code>", "exec", dont_inherit=True)
        ready = _has_main(source)
    except (RecursionError, MemoryError) as error:
        raise InvalidCode("the code is nested too deep") from error
    except SyntaxError as error:
        raise InvalidCode(f"the code is not Python: {error.msg}", error.lineno) from error
    except ValueError as error:
        raise InvalidCode(f"the code is not Python: {error}") from error
    if not ready:
        raise InvalidCode("the code defines no function 'main'; write def main(data): ...")


def _has_main(source: str) -> bool:
    """Return whether the code defines the name `main`. A star import may define any name."""
    try:
        main = symtable(source, "<code>", "exec").lookup("main")
    except KeyError:
        return _STAR.search(source) is not None
    return main.is_assigned() or main.is_imported()


def _command(language: Language) -> list[str]:
    match language:
        case "python":
            return [sys.executable, "-I", "-c", programs.PYTHON]
        case "javascript":
            node = shutil.which("node")
            if node is None:
                raise NodeFailed("JavaScript requires node, which is not on the PATH; install it")
            return [node, "-e", programs.JAVASCRIPT]
        case "wasm":
            need("wasmtime", for_="WebAssembly", extra="wasm")
            return [sys.executable, "-I", "-c", programs.WASM]


def _result(answer: processes.ProcessOutput, most: int) -> Any:
    try:
        reply = jsons.loads(answer.output)
    except ValueError:
        how = f"was killed by signal {-answer.exit_code}" if answer.exit_code < 0 else "ended"
        if answer.exit_code > 0:
            how = f"exited with {answer.exit_code}"
        errors = f": {answer.errors}" if answer.errors else ""
        raise CodeFailed(f"the code {how} without a result{errors}") from None
    match reply:
        case {"result": result}:
            return result
        case {"size": int(size)}:
            raise OutputTooLarge(
                f"the result of the code has {size:,} bytes, and the limit of this node is "
                f"{most:,}; store it elsewhere, or set max_output"
            )
        case {"error": str(error), "permanent": True}:
            raise NodeFailed(f"the code raised {error}")
        case {"error": str(error)}:
            raise CodeFailed(f"the code raised {error}")
    raise CodeFailed("the code wrote to the stream of its result")
