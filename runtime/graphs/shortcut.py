"""Shortcuts: conditions of the usual kind, answered where the data is.

To hand data to CEL takes ten times as long as to answer `output.amount > 100`. What only compares
fields with literals, and joins that with `&&`, `||`, `!` and `has(...)`, is therefore also made
into a function of Python. It answers only where both would mean the same beyond doubt: exact
types, numbers that every kind of number can hold. Everything else is left to CEL, errors included.
"""

import re
from collections.abc import Callable
from typing import Any

Shortcut = Callable[[Any, Any, Any], bool]
"""Takes `output`, `input` and `outputs`. Raises where CEL is to be asked."""

_ROOTS = ("output", "input", "outputs")
_TOKEN = re.compile(
    r"\s*(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<number>\d+(?:\.\d+)?)(?![\w.])"
    r"""|(?P<text>'[^'\\\n]*'|"[^"\\\n]*")|(?P<sign>&&|\|\||[=!<>]=|[<>!().-]))"""
)
_COMPARES = {"==": "==", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_EXACT = 2**53
"""Up to here whole numbers and others are the same."""
_DEEPEST = 20


class Doubt(Exception):
    """Not to be answered here."""


def doubt() -> Any:
    """What stands in for a value that only CEL can judge."""
    raise Doubt


def shortcut(source: str) -> Shortcut | None:
    """The same as `source`, which is valid, in Python; None if it is not of the usual kind."""
    tokens, at, rest = [], 0, source.rstrip()
    while at < len(rest):
        found = _TOKEN.match(rest, at)
        if found is None:
            return None
        tokens.append((str(found.lastgroup), found[0].strip()))
        at = found.end()
    try:
        written = _Writer(tokens).whole()
    except Doubt:
        return None
    names = {"type": type, "int": int, "float": float, "str": str, "bool": bool, "dict": dict}
    code = f"lambda output, input, outputs: {written}"
    try:
        # Of the source there is nothing in it but numbers, and texts between the quotes of repr.
        made: Shortcut = eval(code, {"__builtins__": {}, "doubt": doubt, **names})
    except (SyntaxError, RecursionError, MemoryError):
        # It is nested deeper than Python reads.
        return None
    return made


class _Writer:
    """Reads tokens, and writes them as Python."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = [*tokens, ("end", "")]
        self._at = 0
        self._depth = 0

    def whole(self) -> str:
        written = self._either()
        self._take("end")
        return written

    def _either(self) -> str:
        parts = [self._both()]
        while self._skip("||"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else f"({' or '.join(parts)})"

    def _both(self) -> str:
        parts = [self._one()]
        while self._skip("&&"):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else f"({' and '.join(parts)})"

    def _one(self, *, alone: bool = False) -> str:
        """Something that is true or false, and no part of a comparison; if `alone`, it is none
        either, since `!` comes before all of them."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise Doubt
        if self._skip("!"):
            written = f"(not {self._one(alone=True)})"
        elif self._skip("("):
            written = self._either()
            self._take(")")
        else:
            written = self._comparison(alone=alone)
        if self._tokens[self._at][1] in _COMPARES:
            raise Doubt
        self._depth -= 1
        return written

    def _comparison(self, *, alone: bool) -> str:
        literal = self._literal()
        if alone and literal is not None:
            raise Doubt
        path = self._path()
        if literal is not None:
            sign = self._sign()
            return _compared(path or self._path(), _MIRRORED.get(sign, sign), literal)
        if path is None:
            raise Doubt
        if path[0] == "has":
            self._take("(")
            field = self._path()
            self._take(")")
            if field is None or len(field) == 1:
                raise Doubt
            return f"({field[-1]!r} in {_mapping(field[:-1])})"
        if self._tokens[self._at][1] not in _COMPARES:
            return f"(v if type(v := {_value(path)}) is bool else doubt())"
        if alone:
            raise Doubt
        sign = self._sign()
        return _compared(path, sign, self._literal())

    def _sign(self) -> str:
        sign = self._tokens[self._at][1]
        if sign not in _COMPARES:
            raise Doubt
        self._at += 1
        return sign

    def _literal(self) -> Any:
        """A literal in a list of one; None if there is none here."""
        negative = self._skip("-")
        kind, text = self._tokens[self._at]
        if kind == "number":
            number: float = float(text) if "." in text else int(text)
            value: Any = -number if negative else number
            if not -_EXACT <= number <= _EXACT:
                raise Doubt
        elif negative:
            raise Doubt
        elif kind == "text":
            value = text[1:-1]
        elif kind == "name" and text in ("true", "false", "null"):
            value = {"true": True, "false": False, "null": None}[text]
        else:
            return None
        self._at += 1
        return [value]

    def _path(self) -> tuple[str, ...] | None:
        kind, text = self._tokens[self._at]
        if kind != "name":
            return None
        self._at += 1
        if text == "has":
            return ("has",)
        if text not in _ROOTS:
            raise Doubt
        path = [text]
        while self._skip("."):
            kind, text = self._tokens[self._at]
            if kind != "name":
                raise Doubt
            path.append(text)
            self._at += 1
        if len(path) > _DEEPEST:
            raise Doubt
        return tuple(path)

    def _skip(self, sign: str) -> bool:
        found = self._tokens[self._at] == ("sign", sign)
        self._at += found
        return found

    def _take(self, what: str) -> None:
        if what not in self._tokens[self._at]:
            raise Doubt
        self._at += 1


def _mapping(path: tuple[str, ...]) -> str:
    return f"(d if type(d := {_value(path)}) is dict else doubt())"


def _value(path: tuple[str, ...]) -> str:
    return path[0] if len(path) == 1 else f"{_mapping(path[:-1])}[{path[-1]!r}]"


def _compared(path: tuple[str, ...] | None, sign: str, literal: list[Any] | None) -> str:
    if path is None or path[0] == "has" or literal is None:
        raise Doubt
    (value,) = literal
    found, same = _value(path), sign in ("==", "!=")
    if value is None or isinstance(value, bool):
        if not same:
            raise Doubt
        if value is None:
            return f"({found} {'is' if sign == '==' else 'is not'} None)"
        return f"((v if type(v := {found}) is bool else doubt()) {sign} {value!r})"
    if isinstance(value, str):
        return f"((v if type(v := {found}) is str else doubt()) {sign} {value!r})"
    fits = f"(type(v := {found}) is int or type(v) is float) and {-_EXACT} <= v <= {_EXACT}"
    return f"((v if {fits} else doubt()) {sign} {value!r})"
