"""Aliases of declared types, such as NewType, Final and `type` statements.

cattrs resolves them, but converts nothing: Keyrun looks up each resolved type among its exact plans
again.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Never

import cattrs
from cattrs.dispatch import StructureHook, UnstructureHook

from keyrun.storage.plan import Hook, Lookup, TypePlan


class Aliases:
    """Finds the plan of an alias. `refuse` raises for a type that is no alias."""

    def __init__(self, lookup: Lookup, refuse: Callable[[Any], Never]) -> None:
        self._lifting = _Converter(lookup, refuse, attrgetter("lift"))
        self._reading = _Converter(lookup, refuse, attrgetter("read"))
        self._describing = _Converter(lookup, refuse, attrgetter("schema"))

    def plan(self, declared: Any) -> TypePlan:
        """Return the plan of the type that `declared` is an alias of."""
        lower = self._lifting.lowering(declared)
        return TypePlan(
            lower,
            self._lifting.making(declared),
            self._reading.making(declared),
            self._describing.making(declared),
        )


class _Converter(cattrs.Converter):
    """Sees through aliases. `hook` is the hook of a plan that makes values."""

    def __init__(
        self, lookup: Lookup, refuse: Callable[[Any], Never], hook: Callable[[TypePlan], Hook]
    ) -> None:
        super().__init__(
            detailed_validation=False,
            unstructure_fallback_factory=refuse,
            structure_fallback_factory=refuse,
        )
        self._lookup = lookup
        self._hook = hook

    def lowering(self, declared: Any) -> Hook:
        """Return the hook that lowers values."""
        return super().get_unstructure_hook(declared)

    def making(self, declared: Any) -> Hook:
        """Return the hook that makes values."""
        make = super().get_structure_hook(declared)
        return lambda data: make(data, declared)

    def get_unstructure_hook(self, type: Any, cache_result: bool = True) -> UnstructureHook:  # noqa: A002
        return self._lookup(type).lower

    def get_structure_hook(self, type: Any, cache_result: bool = True) -> StructureHook:  # noqa: A002
        make = self._hook(self._lookup(type))
        return lambda data, _: make(data)
