"""The parser: turn the text of an expression into a syntax tree.

The tree is as deep as the brackets of the expression. Chains (`a.b.c`, `a + b - c`, `a && b && c`,
`a ? b : c ? d : e`) are one node each, so no expression can use up the stack.
"""

import re

import attrs

from keyrun.runtime.graphs.cel.errors import ExpressionFault, InvalidExpression
from keyrun.runtime.graphs.cel.values import LARGEST, SMALLEST, UNSIGNED, Uint

LONGEST = 1000
"""Characters of an expression."""
DEEPEST = 24
"""Levels of nested brackets."""

_TOKEN = re.compile(
    r"""(?P<space>(?:[\t \r\n\f]|//[^\n]*)+)"""
    r"""|(?P<text>[bB]?(?:[rR](?:'''.*?'''|\"{3}.*?\"{3}|'[^'\n\r]*'|"[^"\n\r]*")"""
    r"""|'''(?:\\.|[^\\])*?'''|\"{3}(?:\\.|[^\\])*?\"{3}"""
    r"""|'(?:\\.|[^'\\\n\r])*'|"(?:\\.|[^"\\\n\r])*"))"""
    r"""|(?P<double>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+"""
    r"""|\.[0-9]+(?:[eE][+-]?[0-9]+)?)"""
    r"""|(?P<int>0x[0-9a-fA-F]+|[0-9]+)(?P<unsigned>[uU]?)"""
    r"""|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"""
    r"""|(?P<sign>&&|\|\||[=!<>]=|[][(){}<>.,?:+*/%!-])""",
    re.DOTALL,
)
_ESCAPE = re.compile(
    r"\\(?:([abfnrtv\"'\\?`])|[xX]([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})"
    r"|([0-3][0-7]{2})|(.?))",
    re.DOTALL,
)
_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_CONSTANTS = {"true": True, "false": False, "null": None}
_RESERVED = frozenset(
    (
        *("as", "break", "const", "continue", "else", "for", "function", "if", "import", "let"),
        *("loop", "package", "namespace", "return", "var", "void", "while"),
    )
)
_INSTEAD = {
    "and": "&&",
    "or": "||",
    "not": "!",
    "is": "==",
    "&": "&&",
    "|": "||",
    "=": "==",
    "~": "!",
    "<>": "!=",
}
"""Words and signs of other languages, and what CEL has in their place."""
_RELATIONS = frozenset(("<", "<=", ">", ">=", "==", "!=", "in"))
_SUMS = frozenset("+-")
_PRODUCTS = frozenset("*/%")
MACROS = {"all": 2, "exists": 2, "exists_one": 2, "existsOne": 2, "filter": 2, "map": 2}
"""The macros, each with the number of its arguments; `map` may have one more."""


def fault_at(source: str, at: int, reason: str) -> ExpressionFault:
    """Return a fault with the line and column of an offset."""
    before = source[:at]
    return ExpressionFault(reason, before.count("\n") + 1, at - (before.rfind("\n") + 1) + 1)


@attrs.frozen
class Constant:
    """A literal value."""

    value: object


@attrs.frozen
class Name:
    """A variable."""

    name: str
    at: int


@attrs.frozen
class ListLiteral:
    """A list literal."""

    items: "tuple[SyntaxNode, ...]"


@attrs.frozen
class MapLiteral:
    """A map literal."""

    entries: "tuple[tuple[SyntaxNode, SyntaxNode], ...]"


@attrs.frozen
class Call:
    """A call of a function."""

    name: str
    arguments: "tuple[SyntaxNode, ...]"
    at: int


@attrs.frozen
class Has:
    """The macro `has(operand.field)`."""

    operand: "SyntaxNode"
    field: str


@attrs.frozen
class FieldAccess:
    """A step of a path: `.name`."""

    name: str


@attrs.frozen
class Index:
    """A step of a path: `[key]`."""

    key: "SyntaxNode"


@attrs.frozen
class MethodCall:
    """A step of a path: `.name(arguments)`."""

    name: str
    arguments: "tuple[SyntaxNode, ...]"
    at: int


@attrs.frozen
class Loop:
    """A step of a path: a macro over a list or the keys of a map."""

    macro: str
    variable: str
    test: "SyntaxNode | None"
    """The condition of an item; only `map` can be without one."""
    result: "SyntaxNode | None"
    """The new item, for `map`."""


Step = FieldAccess | Index | MethodCall | Loop


@attrs.frozen
class Path:
    """An operand and the steps that follow it."""

    operand: "SyntaxNode"
    steps: tuple[Step, ...]


@attrs.frozen
class Not:
    """`!operand`."""

    operand: "SyntaxNode"


@attrs.frozen
class Negative:
    """`-operand`."""

    operand: "SyntaxNode"


@attrs.frozen
class Chain:
    """Binary operators of one precedence, which apply from left to right."""

    first: "SyntaxNode"
    rest: "tuple[tuple[str, SyntaxNode], ...]"


@attrs.frozen
class And:
    """Operands joined by `&&`."""

    operands: "tuple[SyntaxNode, ...]"


@attrs.frozen
class Or:
    """Operands joined by `||`."""

    operands: "tuple[SyntaxNode, ...]"


@attrs.frozen
class Conditional:
    """`test ? value : test ? value : otherwise`."""

    branches: "tuple[tuple[SyntaxNode, SyntaxNode], ...]"
    otherwise: "SyntaxNode"


SyntaxNode = (
    Constant
    | Name
    | ListLiteral
    | MapLiteral
    | Call
    | Has
    | Path
    | Not
    | Negative
    | Chain
    | And
    | Or
    | Conditional
)


def parse(source: str) -> SyntaxNode:
    """Return the syntax tree of an expression, or raise `InvalidExpression`."""
    if len(source) > LONGEST:
        reason = f"the expression has {len(source):,} characters; at most {LONGEST:,} are allowed"
        raise InvalidExpression([ExpressionFault(reason)])
    surrogate = _SURROGATE.search(source)
    if surrogate is not None:
        # Expressions are stored as UTF-8, which cannot encode a surrogate.
        raise InvalidExpression(
            [fault_at(source, surrogate.start(), "a lone surrogate is not text")]
        )
    try:
        return _Parser(source).whole()
    except InvalidExpression:
        # Text may contain braces, so this is the reason only if the expression cannot be parsed.
        if (at := source.find("{{")) < 0:
            raise
        reason = "a condition is not a template; write the expression without '{{' and '}}'"
        raise InvalidExpression([fault_at(source, at, reason)]) from None


@attrs.frozen
class _Token:
    kind: str
    text: str
    at: int
    value: object = None


class _Parser:
    """A recursive descent parser. `_expression` is the only method that recurses."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._tokens = self._scan()
        self._next = 0
        self._depth = 0

    def whole(self) -> SyntaxNode:
        tree = self._expression()
        if self._peek().kind != "end":
            raise self._unexpected("an operator or the end")
        return tree

    def _scan(self) -> list[_Token]:
        source, at, tokens = self._source, 0, []
        while at < len(source):
            found = _TOKEN.match(source, at)
            if found is None:
                raise self._refused(at, self._strange(at))
            kind, text = str(found.lastgroup), found[0]
            if kind == "unsigned":
                kind = "int"
            if kind != "space":
                tokens.append(_Token(kind, text, at, self._value(kind, found)))
            at = found.end()
        tokens.append(_Token("end", "the end", len(source)))
        return tokens

    def _strange(self, at: int) -> str:
        """Return what is wrong with a character that begins no token."""
        sign = self._source[at]
        if sign in "'\"":
            return f"the string is not closed; add {sign} at its end"
        if sign == "=" and self._source[at - 1 : at] == "=":
            return "write '==' instead of '==='"
        if sign in _INSTEAD:
            return f"write {_INSTEAD[sign]!r} instead of {sign!r}"
        return f"unexpected {sign!r}"

    def _value(self, kind: str, found: re.Match[str]) -> object:
        """Return the value of a token that is a literal. An int may still get a sign."""
        text, at = found[0], found.start()
        if kind == "int":
            digits = found["int"]
            number = int(digits[2:], 16) if digits.startswith("0x") else int(digits)
            if not found["unsigned"]:
                return number
            if number > UNSIGNED:
                raise self._refused(at, f"{text} is too large for a uint")
            return Uint(number)
        if kind == "double":
            double = float(text)
            if double == float("inf"):
                raise self._refused(at, f"{text} is too large for a double")
            return double
        if kind == "text":
            return self._text(text, at)
        return None

    def _text(self, text: str, at: int) -> str | bytes:
        prefix = text[: min(text.find(quote) for quote in "'\"" if quote in text)].lower()
        body = text[len(prefix) :]
        quotes = 3 if body.startswith(("'''", '"""')) and len(body) >= 6 else 1
        body = body[quotes:-quotes]
        binary = "b" in prefix
        if "r" in prefix:
            return body.encode() if binary else body
        parts: list[bytes] = []
        end = 0
        for found in _ESCAPE.finditer(body):
            parts.append(body[end : found.start()].encode())
            parts.append(self._escaped(found, at, binary=binary))
            end = found.end()
        parts.append(body[end:].encode())
        joined = b"".join(parts)
        return joined if binary else joined.decode()

    def _escaped(self, found: re.Match[str], at: int, *, binary: bool) -> bytes:
        control, hexadecimal, short, long, octal, other = found.groups()
        if other is not None:
            raise self._refused(at, f"unknown escape sequence {found[0]!r}")
        if control is not None:
            return _CONTROL.get(control, control).encode()
        code = int(octal, 8) if octal else int(hexadecimal or short or long, 16)
        if binary and (hexadecimal or octal):
            return bytes([code])
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise self._refused(at, f"{found[0]!r} is not a character")
        return chr(code).encode()

    def _expression(self) -> SyntaxNode:
        self._depth += 1
        branches = []
        while True:
            test = self._or()
            if not self._take("?"):
                break
            value = self._or()
            self._require(":")
            branches.append((test, value))
        self._depth -= 1
        return Conditional(tuple(branches), test) if branches else test

    def _or(self) -> SyntaxNode:
        operands = [self._and()]
        while self._take("||"):
            operands.append(self._and())
        return operands[0] if len(operands) == 1 else Or(tuple(operands))

    def _and(self) -> SyntaxNode:
        operands = [self._relation()]
        while self._take("&&"):
            operands.append(self._relation())
        return operands[0] if len(operands) == 1 else And(tuple(operands))

    def _relation(self) -> SyntaxNode:
        first, rest = self._sum(), []
        while (sign := self._peek()).text in _RELATIONS and sign.kind in ("sign", "name"):
            self._next += 1
            rest.append((sign.text, self._sum()))
        return Chain(first, tuple(rest)) if rest else first

    def _sum(self) -> SyntaxNode:
        first, rest = self._product(), []
        while (sign := self._peek()).text in _SUMS and sign.kind == "sign":
            self._next += 1
            rest.append((sign.text, self._product()))
        return Chain(first, tuple(rest)) if rest else first

    def _product(self) -> SyntaxNode:
        first, rest = self._unary(), []
        while (sign := self._peek()).text in _PRODUCTS and sign.kind == "sign":
            self._next += 1
            rest.append((sign.text, self._unary()))
        return Chain(first, tuple(rest)) if rest else first

    def _unary(self) -> SyntaxNode:
        count = 0
        while self._take("!"):
            count += 1
        if count:
            operand = self._path()
            return Not(operand) if count % 2 else operand
        # The last minus in front of a number belongs to the number.
        while self._peek().text == "-" and not self._is_negative_number():
            self._next += 1
            count += 1
        operand = self._path()
        return Negative(operand) if count % 2 else operand

    def _is_negative_number(self) -> bool:
        sign, number = self._tokens[self._next : self._next + 2]
        return sign.text == "-" and (
            number.kind == "double" or (number.kind == "int" and type(number.value) is int)
        )

    def _path(self) -> SyntaxNode:
        operand, steps = self._primary(), list[Step]()
        while True:
            if self._take("."):
                steps.append(self._member())
            elif self._take("["):
                self._enter()
                steps.append(Index(self._expression()))
                self._require("]")
            else:
                return Path(operand, tuple(steps)) if steps else operand

    def _member(self) -> Step:
        token = self._peek()
        if token.kind != "name" or token.text in _CONSTANTS or token.text == "in":
            raise self._unexpected("a field name")
        self._next += 1
        if not self._take("("):
            return FieldAccess(token.text)
        start = self._next
        arguments = self._arguments(")")
        wanted = MACROS.get(token.text)
        has_test_and_result = token.text == "map" and len(arguments) == 3
        if wanted is None or (len(arguments) != wanted and not has_test_and_result):
            return MethodCall(token.text, arguments, token.at)
        variable = arguments[0]
        if not isinstance(variable, Name):
            raise self._refused(
                self._tokens[start].at, f"{token.text}() requires a variable name first"
            )
        if token.text != "map":
            return Loop(token.text, variable.name, arguments[1], None)
        test = arguments[1] if has_test_and_result else None
        return Loop("map", variable.name, test, arguments[-1])

    def _primary(self) -> SyntaxNode:
        token = self._peek()
        if token.text == "-" and self._is_negative_number():
            self._next += 2
            return self._number(self._tokens[self._next - 1], negative=True)
        self._next += 1
        match token.kind, token.text:
            case (("int" | "double"), _):
                return self._number(token, negative=False)
            case "text", _:
                return Constant(token.value)
            case "name", "true" | "false" | "null":
                return Constant(_CONSTANTS[token.text])
            case "name", name if name != "in":
                return self._named(token)
            case "sign", "(":
                self._enter()
                inner = self._expression()
                self._require(")")
                return inner
            case "sign", "[":
                return ListLiteral(self._arguments("]", comma=True))
            case "sign", "{":
                return self._map()
        self._next -= 1
        raise self._unexpected("a value")

    def _number(self, token: _Token, *, negative: bool) -> Constant:
        value = token.value
        if isinstance(value, float):
            return Constant(-value if negative else value)
        if type(value) is int:
            value = -value if negative else value
            if not SMALLEST <= value <= LARGEST:
                raise self._refused(token.at, f"{value} is out of the range of an int")
        return Constant(value)

    def _named(self, token: _Token) -> SyntaxNode:
        if token.text in _RESERVED:
            raise self._refused(token.at, f"{token.text!r} is a reserved word")
        if not self._take("("):
            return Name(token.text, token.at)
        start = self._next
        arguments = self._arguments(")")
        if token.text != "has":
            return Call(token.text, arguments, token.at)
        match arguments:
            case (Path(operand=operand, steps=(*before, FieldAccess(name=name))),):
                return Has(Path(operand, tuple(before)) if before else operand, name)
        raise self._refused(
            self._tokens[start].at, "has() requires a field, as in has(output.status)"
        )

    def _map(self) -> SyntaxNode:
        self._enter()
        entries = []
        if self._take(","):
            self._require("}")
            return MapLiteral(())
        while not self._take("}"):
            key = self._expression()
            self._require(":")
            entries.append((key, self._expression()))
            if not self._take(","):
                self._require("}", "',' or '}'")
                break
        return MapLiteral(tuple(entries))

    def _arguments(self, closing: str, *, comma: bool = False) -> tuple[SyntaxNode, ...]:
        """Parse expressions up to a bracket. With `comma`, one may stand before the bracket."""
        self._enter()
        items: list[SyntaxNode] = []
        if self._take(closing):
            return ()
        if comma and self._take(","):
            self._require(closing)
            return ()
        while True:
            items.append(self._expression())
            if self._take(closing):
                return tuple(items)
            self._require(",", f"',' or {closing!r}")
            if comma and self._take(closing):
                return tuple(items)

    def _enter(self) -> None:
        """Count a bracket."""
        if self._depth > DEEPEST:
            at = self._tokens[self._next - 1].at
            raise self._refused(at, f"brackets are nested more than {DEEPEST} deep")

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, sign: str) -> bool:
        token = self._tokens[self._next]
        found = token.kind == "sign" and token.text == sign
        self._next += found
        return found

    def _require(self, sign: str, wanted: str | None = None) -> None:
        if not self._take(sign):
            raise self._unexpected(wanted or repr(sign))

    def _unexpected(self, wanted: str) -> InvalidExpression:
        token = self._peek()
        before = self._tokens[self._next - 1] if self._next else token
        for word in (token, before):
            if word.kind == "name" and word.text in _INSTEAD:
                instead = _INSTEAD[word.text]
                return self._refused(word.at, f"write {instead!r} instead of {word.text!r}")
        if (before.text, token.text) == ("<", ">"):
            return self._refused(before.at, "write '!=' instead of '<>'")
        found = token.text if token.kind == "end" else repr(token.text)
        return self._refused(token.at, f"expected {wanted}, found {found}")

    def _refused(self, at: int, reason: str) -> InvalidExpression:
        return InvalidExpression([fault_at(self._source, at, reason)])
