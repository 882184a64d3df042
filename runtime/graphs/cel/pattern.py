"""Regular expressions for `matches`, in time that grows with pattern times text.

Python's `re` can take time that is exponential in the text, so this module simulates the automaton
of a pattern instead: it follows all states at once, one character after another, and charges the
budget for each. The syntax is that of RE2 without flags other than a leading `(?i)`, without
classes in classes, and without Unicode scripts: literals, `.`, `[a-z]`, `\\d \\w \\s \\pL`,
groups, `|`, `* + ? {n,m}`, `^ $ \\A \\z \\b \\B`.
"""

from collections.abc import Callable
from unicodedata import category

from keyrun.runtime.graphs.cel.errors import Unanswerable
from keyrun.runtime.graphs.cel.values import Frame, charge

LONGEST = 1000
"""Characters of a pattern."""
STATES = 2000
"""States of an automaton. A counted repetition has a copy of its operand for each count."""
_DEEPEST = 24
"""Levels of nested groups."""
_REPETITIONS = 4
"""Repetitions of one operand, as in `(a{2})*` without the brackets."""

Test = Callable[[str], bool]
Assertion = Callable[[str, int], bool]
_State = tuple[str, object, int, int]
"""The kind of a state ("test", "assert", "split" or "match"), its test or assertion, and the next
state or states."""

_SPACES = frozenset(
    "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000"
    + "".join(map(chr, range(0x2000, 0x200B)))
)
_LETTERS = ((0x24B6, 0x24E9), (0x1F130, 0x1F149), (0x1F150, 0x1F169), (0x1F170, 0x1F189))
"""Symbols that Unicode counts as letters."""
_CONTROL = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_PUNCTUATION = frozenset("\\.+*?()|[]{}^$#&-~/ !\"%',:;=@_`")


def _is_word(letter: str) -> bool:
    kind = category(letter)
    if kind[0] in "LM" or kind in ("Nd", "Nl", "Pc") or letter in "\u200c\u200d":
        return True
    return kind == "So" and any(low <= ord(letter) <= high for low, high in _LETTERS)


def _at_boundary(text: str, at: int) -> bool:
    before = at > 0 and _is_word(text[at - 1])
    return before != (at < len(text) and _is_word(text[at]))


_CLASSES: dict[str, Test] = {
    "d": lambda letter: category(letter) == "Nd",
    "w": _is_word,
    "s": lambda letter: letter in _SPACES,
}
_ASSERTIONS: dict[str, Assertion] = {
    "A": lambda text, at: at == 0,
    "z": lambda text, at: at == len(text),
    "b": _at_boundary,
    "B": lambda text, at: not _at_boundary(text, at),
}


class InvalidPattern(Unanswerable):
    """A pattern that cannot be compiled."""


class Pattern:
    """A compiled pattern."""

    __slots__ = ("_start", "_states", "size")

    def __init__(self, source: str) -> None:
        """Raise `InvalidPattern` if the pattern is not valid, not supported or too large."""
        compiler = _Compiler(source)
        self._start = compiler.start
        self._states = compiler.states
        self.size = len(self._states)

    def found_in(self, frame: Frame, text: str) -> bool:
        """Return whether any part of the text matches."""
        states = self._states
        current: list[int] = []
        for at in range(len(text) + 1):
            # A match may begin at every character.
            current.append(self._start)
            active, seen = [], set()
            while current:
                number = current.pop()
                if number in seen:
                    continue
                seen.add(number)
                kind, test, one, other = states[number]
                if kind == "test":
                    active.append(number)
                elif kind == "split":
                    current += (other, one)
                elif kind == "match":
                    return True
                elif test(text, at):  # type: ignore[operator]
                    current.append(one)
            charge(frame, 2 + 2 * len(seen))
            if at < len(text):
                letter = text[at]
                for number in active:
                    _, test, one, _ = states[number]
                    if test(letter):  # type: ignore[operator]
                        current.append(one)
        return False


class _Compiler:
    """Parse a pattern from the end to the start, so that the next state always exists.

    A part of a pattern is parsed into a function that adds its states before a given state.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        if len(source) > LONGEST:
            raise self._refused(f"has {len(source):,} characters; at most {LONGEST:,} are allowed")
        self._at = 0
        self._depth = 0
        self._groups: set[str] = set()
        self._folds = source.startswith("(?i)")
        self._at += 4 * self._folds
        self.states: list[_State] = []
        build = self._alternatives()
        if self._at < len(source):
            raise self._refused("has an unopened ')'")
        self.start = build(self._add("match", None, 0, 0))

    def _add(self, kind: str, test: object, one: int, other: int) -> int:
        if len(self.states) >= STATES:
            raise self._refused(f"needs more than {STATES:,} states; use smaller counts in {{n,m}}")
        self.states.append((kind, test, one, other))
        return len(self.states) - 1

    def _alternatives(self) -> "_Build":
        ways = [self._sequence()]
        while self._take("|"):
            ways.append(self._sequence())

        def build(then: int) -> int:
            start = ways[-1](then)
            for way in ways[-2::-1]:
                start = self._add("split", None, way(then), start)
            return start

        return ways[0] if len(ways) == 1 else build

    def _sequence(self) -> "_Build":
        parts: list[_Build] = []
        while self._at < len(self._source) and self._source[self._at] not in "|)":
            parts.append(self._repeated(self._atom()))

        def build(then: int) -> int:
            for part in reversed(parts):
                then = part(then)
            return then

        return build

    def _repeated(self, part: "_Build") -> "_Build":
        levels = 0
        while self._at < len(self._source) and self._source[self._at] in "*+?{":
            sign = self._source[self._at]
            self._at += 1
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(sign) or self._counts()
            # Whether a repetition is lazy makes no difference to whether there is a match.
            self._take("?")
            part = self._repeat(part, least, most)
            levels += 1
            if levels > _REPETITIONS:
                raise self._refused(f"has more than {_REPETITIONS} repetitions in a row")
        return part

    def _counts(self) -> tuple[int, int | None]:
        end = self._source.find("}", self._at)
        if end < 0:
            raise self._refused("has an unclosed '{'")
        low, comma, high = self._source[self._at : end].partition(",")
        self._at = end + 1
        counts = [low, high] if high else [low]
        if not all(count.isascii() and count.isdigit() and len(count) < 6 for count in counts):
            raise self._refused("has a repetition that is not of the form {n}, {n,} or {n,m}")
        least = int(low)
        most = int(high) if high else None if comma else least
        if most is not None and most < least:
            raise self._refused(f"has the repetition {{{least},{most}}}, whose limits are reversed")
        return least, most

    def _repeat(self, part: "_Build", least: int, most: int | None) -> "_Build":
        def build(then: int) -> int:
            if most is None:
                loop = self._add("split", None, 0, then)
                self.states[loop] = ("split", None, part(loop), then)
                then = loop
            else:
                end = then
                for _ in range(most - least):
                    then = self._add("split", None, part(then), end)
            for _ in range(least):
                # A part that adds no state is empty, and repeating it changes nothing.
                before = len(self.states)
                then = part(then)
                if len(self.states) == before:
                    break
            return then

        return build

    def _atom(self) -> "_Build":
        sign = self._source[self._at]
        self._at += 1
        match sign:
            case "(":
                return self._group()
            case "[":
                return self._test(self._class())
            case ".":
                return self._test(lambda letter: letter != "\n")
            case "^":
                return self._assertion(_ASSERTIONS["A"])
            case "$":
                return self._assertion(_ASSERTIONS["z"])
            case "\\":
                letter = self._source[self._at : self._at + 1]
                if letter and letter in _ASSERTIONS:
                    self._at += 1
                    return self._assertion(_ASSERTIONS[letter])
                return self._test(self._one(self._escape()))
            case "*" | "+" | "?" | "{":
                raise self._refused(f"has a {sign!r} with nothing to repeat before it")
        return self._test(self._one(sign))

    def _group(self) -> "_Build":
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._refused(f"has groups that are nested more than {_DEEPEST} deep")
        if self._take("?"):
            named = self._take("P<") or (self._take("<") and self._source[self._at] not in "=!")
            if named:
                end = self._source.find(">", self._at)
                name = self._source[self._at : end]
                if end < 0 or not name.isidentifier() or name in self._groups:
                    raise self._refused("has a group with an invalid or repeated name")
                self._groups.add(name)
                self._at = end + 1
            elif not self._take(":"):
                raise self._refused(
                    "has a group that is not supported: use (...), (?:...) or (?P<name>...)"
                )
        inside = self._alternatives()
        if not self._take(")"):
            raise self._refused("has an unclosed '('")
        self._depth -= 1
        return inside

    def _escape(self) -> str | Test:
        """Parse what follows a backslash: one character, or the test of a class."""
        letter = self._source[self._at : self._at + 1]
        self._at += 1
        if letter and letter in "dwsDWS":
            return _negated(_CLASSES[letter.lower()], letter.isupper())
        if letter and letter in "pP":
            return self._category(negated=letter == "P")
        if letter == "x":
            return self._hexadecimal()
        if letter in _CONTROL:
            return _CONTROL[letter]
        if letter not in _PUNCTUATION:
            raise self._refused(f"has the escape sequence '\\{letter}', which is not supported")
        return letter

    def _hexadecimal(self) -> str:
        digits = self._source[self._at : self._at + 2]
        if len(digits) < 2 or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
            raise self._refused("has a '\\x' without two hexadecimal digits")
        self._at += 2
        return chr(int(digits, 16))

    def _category(self, *, negated: bool) -> Test:
        name = self._source[self._at : self._at + 1]
        self._at += 1
        if name == "{":
            end = self._source.find("}", self._at)
            name = self._source[self._at : max(end, self._at)]
            self._at = end + 1
        if name not in _CATEGORIES:
            raise self._refused(
                f"has the Unicode class {name!r}; general categories like L or Nd work"
            )
        return _negated(lambda letter: category(letter).startswith(name), negated)

    def _class(self) -> Test:
        """Parse a class after its opening bracket."""
        negated = self._take("^")
        tests: list[Test] = []
        ranges: list[tuple[str, str]] = []
        first = True
        while first or not self._take("]"):
            low = self._class_item(first=first)
            first = False
            if callable(low):
                tests.append(low)
                continue
            high = low
            if self._source[self._at : self._at + 1] == "-" and self._source[
                self._at + 1 : self._at + 2
            ] not in ("]", ""):
                self._at += 1
                end = self._class_item(first=False)
                if callable(end) or end < low:
                    raise self._refused("has an invalid range in a class")
                high = end
            ranges.append((low, high))

        def holds(letter: str) -> bool:
            return any(low <= letter <= high for low, high in ranges) or any(
                test(letter) for test in tests
            )

        return _negated(_folded(holds) if self._folds else holds, negated)

    def _class_item(self, *, first: bool) -> str | Test:
        if self._at >= len(self._source):
            raise self._refused("has an unclosed '['")
        letter = self._source[self._at]
        pair = self._source[self._at : self._at + 2]
        if letter == "[" or pair in ("&&", "--", "~~") or (letter == "]" and not first):
            raise self._refused("has a class in a class, which is not supported")
        self._at += 1
        return self._escape() if letter == "\\" else letter

    def _one(self, letter: str | Test) -> Test:
        if callable(letter):
            return _folded(letter) if self._folds else letter
        return _folded(letter.__eq__) if self._folds else letter.__eq__

    def _test(self, test: Test) -> "_Build":
        return lambda then: self._add("test", test, then, 0)

    def _assertion(self, assertion: Assertion) -> "_Build":
        return lambda then: self._add("assert", assertion, then, 0)

    def _take(self, sign: str) -> bool:
        found = self._source.startswith(sign, self._at)
        self._at += len(sign) * found
        return found

    def _refused(self, reason: str) -> InvalidPattern:
        shown = self._source if len(self._source) <= 60 else f"{self._source[:57]}..."
        return InvalidPattern(f"the pattern {shown!r} {reason}")


_Build = Callable[[int], int]
_CATEGORIES = frozenset(
    (
        *("L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "Me", "N", "Nd", "Nl", "No"),
        *("P", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S", "Sm", "Sc", "Sk", "So"),
        *("Z", "Zs", "Zl", "Zp"),
    )
)


def _negated(test: Test, negated: bool) -> Test:
    return (lambda letter: not test(letter)) if negated else test


def _folded(test: Test) -> Test:
    """Return a test that ignores case."""

    def holds(letter: str) -> bool:
        return any(
            test(each)
            for each in (letter, letter.lower(), letter.upper(), letter.casefold())
            if len(each) == 1
        )

    return holds


def compiled(frame: Frame, source: str) -> Pattern:
    """Compile a pattern that comes from the data."""
    charge(frame, 20 * min(len(source), LONGEST))
    pattern = Pattern(source)
    charge(frame, 20 * pattern.size)
    return pattern
