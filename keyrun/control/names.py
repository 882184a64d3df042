"""The names that annotations of public methods and values use. Many modules import them for the
type checker only, so they are looked up here."""

from types import ModuleType
from typing import Any

import keyrun
import keyrun.graphs
import keyrun.groups
import keyrun.schedules
import keyrun.status

_HIGHER = ("keyrun.control.", "keyrun.hosting.")
"""Modules whose names no annotation uses. They import this one."""


def _public(module: ModuleType, names: list[str]) -> dict[str, Any]:
    return {name: getattr(module, name) for name in names if not name.startswith("_")}


NAMES: dict[str, Any] = {}
for _module in (keyrun.graphs, keyrun.groups, keyrun.schedules, keyrun.status):
    NAMES |= _public(_module, dir(_module))
NAMES |= _public(
    keyrun, [name for name, home in keyrun._DEFINED_IN.items() if not home.startswith(_HIGHER)]
)
