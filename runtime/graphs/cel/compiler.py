"""The compiler: turn a syntax tree into one closure that evaluates it.

A closure takes the frame of an evaluation and returns a value. Work that does not depend on the
data is limited by the length of an expression, so closures do not count it. A macro charges the
budget for each item: one operation for each node of its body. Functions that read or copy values of
any size charge for that size (see `values`).
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any

from keyrun.runtime.graphs.cel import syntax
from keyrun.runtime.graphs.cel.errors import (
    ExpressionFault,
    InvalidExpression,
    MissingKey,
    OverBudget,
    Unanswerable,
)
from keyrun.runtime.graphs.cel.functions import FUNCTIONS, METHODS, PREDICATES
from keyrun.runtime.graphs.cel.pattern import InvalidPattern, Pattern, compiled
from keyrun.runtime.graphs.cel.values import (
    ARITHMETIC,
    LEFT,
    ORDER,
    Frame,
    contains,
    equal,
    field,
    has_field,
    item,
    name_of,
    negative,
    not_bool,
    ordered,
    plain,
    undefined,
    with_items,
)
from keyrun.runtime.texts import did_you_mean

_CONSTANTS = {
    **dict.fromkeys(("True", "TRUE", "yes"), "true"),
    **dict.fromkeys(("False", "FALSE", "no"), "false"),
    **dict.fromkeys(("None", "nil", "NULL", "undefined"), "null"),
}
_FUNCTIONS = {"len": "size", "length": "size", "count": "size", "str": "string", "float": "double"}
_METHODS = {"includes": "contains", "match": "matches", "test": "matches", "search": "matches"}
"""Names of other languages, and what CEL has in their place."""

Evaluate = Callable[[Frame], Any]
_Step = Callable[[Frame, Any], Any]
_Operator = Callable[[Frame, Any, Any], Any]


class Compiler:
    """Compile one expression. The frame has the values of `names`, then the operations that are
    left, then the variables of nested macros."""

    def __init__(self, source: str, names: tuple[str, ...]) -> None:
        self._source = source
        self._names = names
        self._faults: list[ExpressionFault] = []
        self._nodes = 0
        """Nodes that were compiled."""
        self.variables = 0
        """Variables of macros that are in scope at once, at most."""
        self.used: set[str] = set()
        """The names that the expression mentions."""
        tree = syntax.parse(source)
        self.evaluate = self._compiled(tree, {name: at for at, name in enumerate(names)})
        if self._faults:
            raise InvalidExpression(self._faults)

    def _fault(self, at: int, reason: str) -> None:
        fault = syntax.fault_at(self._source, at, reason)
        if fault not in self._faults:
            self._faults.append(fault)

    def _compiled(self, node: syntax.SyntaxNode, scope: Mapping[str, int]) -> Evaluate:
        self._nodes += 1
        match node:
            case syntax.Constant(value):
                return lambda frame: value
            case syntax.Name() | syntax.Path(operand=syntax.Name()):
                return self._path_of_name(node, scope)
            case syntax.Path(operand, steps):
                return _stepping(self._compiled(operand, scope), self._steps(steps, scope))
            case syntax.ListLiteral(items):
                return _listing([self._compiled(each, scope) for each in items])
            case syntax.MapLiteral(entries):
                return _mapping(
                    [(self._compiled(k, scope), self._compiled(v, scope)) for k, v in entries]
                )
            case syntax.Has(operand, name):
                return _having(self._compiled(operand, scope), name)
            case syntax.Call():
                return self._call(node, scope)
            case syntax.Not(operand):
                return _inverting(self._compiled(operand, scope))
            case syntax.Negative(operand):
                inner = self._compiled(operand, scope)
                return lambda frame: negative(inner(frame))
            case syntax.And(operands):
                return _joining([self._compiled(each, scope) for each in operands], False, "&&")
            case syntax.Or(operands):
                return _joining([self._compiled(each, scope) for each in operands], True, "||")
            case syntax.Conditional(branches, otherwise):
                return _choosing(
                    [(self._compiled(t, scope), self._compiled(v, scope)) for t, v in branches],
                    self._compiled(otherwise, scope),
                )
            case syntax.Chain():
                return self._chain(node, scope)

    def _slot(self, name: syntax.Name, scope: Mapping[str, int]) -> int:
        """Return the index of a variable in the frame."""
        slot = scope.get(name.name)
        if slot is None:
            self._fault(name.at, self._unknown(name.name))
            return 0
        if slot < LEFT:
            self.used.add(name.name)
        return slot

    def _unknown(self, name: str) -> str:
        """Return what to write instead of an unknown name."""
        if name in _CONSTANTS:
            return f"write {_CONSTANTS[name]!r} instead of {name!r}"
        known = f"a condition can use {', '.join(self._names[:-1])} and {self._names[-1]}"
        meant = did_you_mean(name, self._names)
        return f"there is no name {name!r}{meant or f'; {known}'}"

    def _path_of_name(self, node: syntax.Name | syntax.Path, scope: Mapping[str, int]) -> Evaluate:
        """Compile a variable with the steps after it. The fields that come first need no closure
        of their own."""
        if isinstance(node, syntax.Name):
            return _reading(self._slot(node, scope), [])
        assert isinstance(node.operand, syntax.Name)
        fields: list[str] = []
        for step in node.steps:
            if not isinstance(step, syntax.FieldAccess):
                break
            fields.append(step.name)
        self._nodes += len(fields)
        read = _reading(self._slot(node.operand, scope), fields)
        rest = node.steps[len(fields) :]
        return _stepping(read, self._steps(rest, scope)) if rest else read

    def _steps(self, steps: tuple[syntax.Step, ...], scope: Mapping[str, int]) -> list[_Step]:
        return [self._step(step, scope) for step in steps]

    def _step(self, step: syntax.Step, scope: Mapping[str, int]) -> _Step:
        self._nodes += 1
        match step:
            case syntax.FieldAccess(name):
                return lambda frame, value: plain(frame, field(frame, value, name))
            case syntax.Index(key):
                index = self._compiled(key, scope)
                return lambda frame, value: item(frame, with_items(value), index(frame))
            case syntax.MethodCall(name, arguments, at):
                return self._method(name, arguments, at, scope)
            case syntax.Loop():
                return self._loop(step, scope)

    def _method(
        self, name: str, arguments: tuple[syntax.SyntaxNode, ...], at: int, scope: Mapping[str, int]
    ) -> _Step:
        given = [self._compiled(each, scope) for each in arguments]
        if name in METHODS and not given:
            return METHODS[name]
        if len(given) == 1 and name == "matches":
            return self._matches(arguments[0], given[0], at)
        if len(given) == 1 and name in PREDICATES:
            predicate, argument = PREDICATES[name], given[0]
            return lambda frame, value: predicate(frame, value, argument(frame))
        known = {*METHODS, *PREDICATES, *syntax.MACROS, "matches"}
        if name in known:
            self._fault(at, f"wrong number of arguments for {name}(): {len(given)}")
        elif name in ("length", "len", "count"):
            self._fault(at, f"there is no method {name!r}; write size(...)")
        else:
            meant = _METHODS.get(name)
            said = f"; did you mean {meant!r}?" if meant else did_you_mean(name, known)
            self._fault(at, f"there is no method {name!r}{said}")
        return lambda frame, value: value

    def _matches(self, node: syntax.SyntaxNode, argument: Evaluate, at: int) -> _Step:
        if isinstance(node, syntax.Constant) and type(node.value) is str:
            try:
                pattern = Pattern(node.value)
            except InvalidPattern as error:
                self._fault(at, str(error))
                return lambda frame, value: value

            def match(frame: Frame, value: Any) -> bool:
                if type(value) is not str:
                    raise undefined("matches", value, "")
                return pattern.found_in(frame, value)

            return match

        def match_any(frame: Frame, value: Any) -> bool:
            wanted = argument(frame)
            if type(value) is not str or type(wanted) is not str:
                raise undefined("matches", value, wanted)
            return compiled(frame, wanted).found_in(frame, value)

        return match_any

    def _call(self, node: syntax.Call, scope: Mapping[str, int]) -> Evaluate:
        given = [self._compiled(each, scope) for each in node.arguments]
        function = FUNCTIONS.get(node.name)
        if function is None:
            known = ("has", *FUNCTIONS)
            meant = _FUNCTIONS.get(node.name)
            said = f"; did you mean {meant!r}?" if meant else did_you_mean(node.name, known)
            said = said or f"; the functions are {', '.join(known)}"
            self._fault(node.at, f"there is no function {node.name!r}{said}")
        elif len(given) != 1:
            self._fault(node.at, f"{node.name}() takes 1 argument, got {len(given)}")
        else:
            return _calling(function, given[0])
        return lambda frame: None

    def _loop(self, loop: syntax.Loop, scope: Mapping[str, int]) -> _Step:
        slot = max(max(scope.values()), LEFT) + 1
        self.variables = max(self.variables, slot - LEFT)
        inner = {**scope, loop.variable: slot}
        before = self._nodes
        test = None if loop.test is None else self._compiled(loop.test, inner)
        result = None if loop.result is None else self._compiled(loop.result, inner)
        cost = 1 + self._nodes - before
        place = f"{loop.macro}()"
        if loop.macro == "map":
            assert result is not None
            return _collecting(place, slot, cost, test, result)
        assert test is not None
        match loop.macro:
            case "all":
                return _searching(place, slot, cost, test, ends_with=False)
            case "exists":
                return _searching(place, slot, cost, test, ends_with=True)
            case "filter":
                return _collecting(place, slot, cost, test, lambda frame: frame[slot])
        return _counting(place, slot, cost, test)

    def _chain(self, node: syntax.Chain, scope: Mapping[str, int]) -> Evaluate:
        if len(node.rest) == 1:
            ((sign, operand),) = node.rest
            if isinstance(operand, syntax.Constant):
                quick = self._compared_with_literal(node.first, sign, operand.value, scope)
                if quick is not None:
                    return quick
        first = self._compiled(node.first, scope)
        rest = [(_operator(sign), self._compiled(each, scope)) for sign, each in node.rest]
        if len(rest) == 1:
            ((apply, second),) = rest
            return lambda frame: apply(frame, first(frame), second(frame))

        def chain(frame: Frame) -> Any:
            value = first(frame)
            for apply, operand in rest:
                value = apply(frame, value, operand(frame))
            return value

        return chain

    def _compared_with_literal(
        self, node: syntax.SyntaxNode, sign: str, literal: object, scope: Mapping[str, int]
    ) -> Evaluate | None:
        """Compile the comparison of a field with a literal. Most conditions consist of these."""
        match node:
            case syntax.Path(syntax.Name() as name, (syntax.FieldAccess(key),)):
                pass
            case _:
                return None
        kind = type(literal)
        if kind not in (str, int) or sign not in _COMPARE:
            return None
        self._nodes += 3
        slot, general = self._slot(name, scope), _operator(sign)
        compare = _COMPARE[sign]

        def compared(frame: Frame) -> Any:
            value = frame[slot]
            try:
                value = value[key] if type(value) is dict else field(frame, value, key)
            except KeyError:
                raise MissingKey(key) from None
            if type(value) is kind:
                return compare(value, literal)
            return general(frame, plain(frame, value), literal)

        return compared


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    **ORDER,
    "==": operator.eq,
    "!=": operator.ne,
}


def _operator(sign: str) -> _Operator:
    if sign in ARITHMETIC:
        return ARITHMETIC[sign]
    if sign == "==":
        return equal
    if sign == "!=":
        return lambda frame, one, other: not equal(frame, one, other)
    if sign == "in":
        return contains
    compare = ORDER[sign]
    return lambda frame, one, other: ordered(frame, sign, compare, one, other)


def _reading(slot: int, fields: list[str]) -> Evaluate:
    if not fields:
        return lambda frame: plain(frame, frame[slot])

    def read(frame: Frame) -> Any:
        value = frame[slot]
        for name in fields:
            value = field(frame, value, name)
        return plain(frame, value)

    return read


def _stepping(first: Evaluate, steps: list[_Step]) -> Evaluate:
    def follow(frame: Frame) -> Any:
        value = first(frame)
        for step in steps:
            value = step(frame, value)
        return value

    return follow


def _listing(items: list[Evaluate]) -> Evaluate:
    return lambda frame: [each(frame) for each in items]


def _mapping(entries: list[tuple[Evaluate, Evaluate]]) -> Evaluate:
    def create(frame: Frame) -> dict[Any, Any]:
        made = {}
        for key, value in entries:
            name = key(frame)
            if type(name) is not str and type(name) is not int:
                raise Unanswerable(f"a map key must be a string or an int, got {name_of(name)}")
            made[name] = value(frame)
        return made

    return create


def _having(operand: Evaluate, name: str) -> Evaluate:
    return lambda frame: has_field(operand(frame), name)


def _calling(function: _Step, argument: Evaluate) -> Evaluate:
    return lambda frame: function(frame, argument(frame))


def _inverting(operand: Evaluate) -> Evaluate:
    def invert(frame: Frame) -> bool:
        value = operand(frame)
        if value is not True and value is not False:
            raise not_bool(value, "'!'")
        return not value

    return invert


def _joining(operands: list[Evaluate], decisive: bool, sign: str) -> Evaluate:
    """Return the closure of `&&` or `||`. A decisive operand hides the errors of the others."""

    def join(frame: Frame) -> Any:
        failed: Unanswerable | None = None
        for operand in operands:
            try:
                value = operand(frame)
            except Unanswerable as error:
                failed = failed or error
                continue
            if value is decisive:
                return decisive
            if value is not True and value is not False:
                failed = failed or not_bool(value, repr(sign))
        if failed is not None:
            raise failed
        return not decisive

    return join


def _choosing(branches: list[tuple[Evaluate, Evaluate]], otherwise: Evaluate) -> Evaluate:
    def choose(frame: Frame) -> Any:
        for test, value in branches:
            found = test(frame)
            if found is True:
                return value(frame)
            if found is not False:
                raise not_bool(found, "'?'")
        return otherwise(frame)

    return choose


def _items(frame: Frame, value: Any, place: str) -> Any:
    if type(value) is not list and type(value) is not dict:
        raise undefined(place, value)
    return value


def _searching(place: str, slot: int, cost: int, test: Evaluate, *, ends_with: bool) -> _Step:
    """Return the step of `all` or `exists`."""

    def search(frame: Frame, value: Any) -> Any:
        for each in _items(frame, value, place):
            left = frame[LEFT] = frame[LEFT] - cost
            if left < 0:
                raise OverBudget
            frame[slot] = plain(frame, each)
            found = test(frame)
            if found is ends_with:
                return ends_with
            if found is not True and found is not False:
                raise not_bool(found, place)
        return not ends_with

    return search


def _counting(place: str, slot: int, cost: int, test: Evaluate) -> _Step:
    """Return the step of `exists_one`."""

    def count(frame: Frame, value: Any) -> Any:
        number = 0
        for each in _items(frame, value, place):
            left = frame[LEFT] = frame[LEFT] - cost
            if left < 0:
                raise OverBudget
            frame[slot] = plain(frame, each)
            found = test(frame)
            if found is not True and found is not False:
                raise not_bool(found, place)
            number += found
        return number == 1

    return count


def _collecting(place: str, slot: int, cost: int, test: Evaluate | None, result: Evaluate) -> _Step:
    """Return the step of `map` or `filter`."""

    def collect(frame: Frame, value: Any) -> list[Any]:
        made = []
        for each in _items(frame, value, place):
            left = frame[LEFT] = frame[LEFT] - cost
            if left < 0:
                raise OverBudget
            frame[slot] = plain(frame, each)
            if test is not None:
                found = test(frame)
                if found is not True and found is not False:
                    raise not_bool(found, place)
                if not found:
                    continue
            made.append(result(frame))
        return made

    return collect
