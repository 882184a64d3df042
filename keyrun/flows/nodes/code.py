"""The `code` node: a function in Python, JavaScript or WebAssembly, in a process of its own.

JSON goes in and JSON comes out. The process is killed with all that it has started when the time of
the step is up. It is no sandbox: it has the rights of the process that runs the flow, though not
its environment, and starts in an empty directory that is removed afterwards.
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
from keyrun.flows import child, jsons, programs
from keyrun.flows.errors import CodeFailed, NodeFailed
from keyrun.flows.extras import need
from keyrun.flows.scope import Given, environment, names, scope
from keyrun.flows.secrets import kept_out
from keyrun.flows.templates import fillable
from keyrun.runtime.graphs.output_limit import OUTPUT

Language = Literal["python", "javascript", "wasm"]
LANGUAGES: tuple[Language, ...] = ("python", "javascript", "wasm")
_STAR = re.compile(r"import\s*\*")
_KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "SYSTEMROOT")


def code(
    source: str | bytes,
    *,
    language: Language = "python",
    args: Mapping[str, Any] | None = None,
    env: Collection[str] = (),
    max_output: int = OUTPUT,
    where: str = "code",
) -> Callable[[Given], Coroutine[Any, Any, Any]]:
    """A node that runs `source` and gives what it gives.

    Python and JavaScript define a function `main` of one argument; WebAssembly is a WASI program,
    binary or as text, that reads its argument from stdin and writes its result to stdout. The
    argument is `args` with its templates filled in, or else `input`, `output`, `outputs`, `port`,
    `error` and `iteration`, as templates know them. `env` names variables of the environment that
    the process gets.

    What it raises fails the attempt, and is permanent if it is a `PermanentError`, a name that
    `source` can use.
    """
    if language not in LANGUAGES:
        raise ValueError(f"language must be one of {', '.join(LANGUAGES)}, got {language!r}")
    if isinstance(source, bytes) and language != "wasm":
        raise TypeError(f"the source of {language} is text, got bytes")
    if language == "python" and isinstance(source, str):
        _check_python(source, where)
    command = _command(language)
    parts = None if args is None else fillable(dict(args), f"{where}.args")
    binary = source.encode() if isinstance(source, str) else source
    text = b64encode(binary).decode() if language == "wasm" else binary.decode()

    async def code(given: Given) -> Any:
        data = names(given) if parts is None else parts.fill(scope(given, env))
        question = {"source": text, "data": data, "max_output": max_output}
        own = environment(env)
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        with TemporaryDirectory(prefix="keyrun-code-", ignore_cleanup_errors=True) as folder:
            answer = await child.ask(
                command,
                # Without line ends inside, so that the first one is the end.
                jsons.dumps({**question, "folder": folder}).encode() + b"\n",
                max_output=max_output + programs.FRAME,
                env={**kept, "HOME": folder, "TMPDIR": folder, **own},
                cwd=Path(folder),
            )
        with kept_out(own):
            return _result(answer, max_output)

    return code


def _check_python(source: str, where: str) -> None:
    try:
        compile(source, "<code>", "exec", dont_inherit=True)
        ready = _has_main(source)
    except (RecursionError, MemoryError) as error:
        raise ValueError(f"the code {where} is nested too deep to be read") from error
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        what = error.msg if isinstance(error, SyntaxError) else error
        raise ValueError(f"the code {where}{line}: {what}") from error
    if not ready:
        raise ValueError(
            f"the code {where} has no function main, which is called with one argument"
        )


def _has_main(source: str) -> bool:
    """Whether there is anything of that name. What a star brings, nobody knows before."""
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
                raise NodeFailed("JavaScript needs node, and there is none on the PATH")
            return [node, "-e", programs.JAVASCRIPT]
        case "wasm":
            need("wasmtime", for_="WebAssembly", extra="wasm")
            return [sys.executable, "-I", "-c", programs.WASM]


def _result(answer: child.Answer, most: int) -> Any:
    try:
        told = jsons.loads(answer.output)
    except ValueError:
        how = f"was killed by signal {-answer.exit_code}" if answer.exit_code < 0 else "ended"
        if answer.exit_code > 0:
            how = f"exited with {answer.exit_code}"
        said = f": {answer.said}" if answer.said else ""
        raise CodeFailed(f"the code {how} without a result{said}") from None
    match told:
        case {"result": result}:
            return result
        case {"size": int(size)}:
            raise OutputTooLarge(
                f"the code gave {size:,} bytes, and the output of a node may have {most:,}"
            )
        case {"error": str(error), "permanent": True}:
            raise NodeFailed(f"the code raised {error}")
        case {"error": str(error)}:
            raise CodeFailed(f"the code raised {error}")
    raise CodeFailed("the code wrote something else than a result where its result goes")
