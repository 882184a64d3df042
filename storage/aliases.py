"""Aliases of declared types, such as NewType, Final and `type` statements.

cattrs sees through them. It is not left to convert anything: each type that it comes to is looked
up among the exact plans again.
"""

from collections.abc import Callable
from typing import Any, Never

import cattrs
from cattrs.dispatch import StructureHook, UnstructureHook

from keyrun.storage.plan import Lookup, Plan


class Aliases(cattrs.Converter):
    """Finds the plan of an alias. `refuse` raises for a type that is no alias."""

    def __init__(self, lookup: Lookup, refuse: Callable[[Any], Never]) -> None:
        super().__init__(
            detailed_validation=False,
            unstructure_fallback_factory=refuse,
            structure_fallback_factory=refuse,
        )
        self._lookup = lookup

    def plan(self, declared: Any) -> Plan:
        """Return the plan of the type that `declared` is an alias of."""
        lift = super().get_structure_hook(declared)
        return Plan(super().get_unstructure_hook(declared), lambda data: lift(data, declared))

    def get_unstructure_hook(self, type: Any, cache_result: bool = True) -> UnstructureHook:  # noqa: A002
        return self._lookup(type).lower

    def get_structure_hook(self, type: Any, cache_result: bool = True) -> StructureHook:  # noqa: A002
        lift = self._lookup(type).lift
        return lambda data, _: lift(data)
