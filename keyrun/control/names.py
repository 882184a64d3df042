"""The names that annotations of public methods and values use. Many modules import them for the
type checker only, so they are looked up here."""

from types import ModuleType
from typing import Any

import keyrun
import keyrun.graphs
import keyrun.groups
import keyrun.schedules
import keyrun.status


def _public(module: ModuleType) -> dict[str, Any]:
    return {name: getattr(module, name) for name in dir(module) if not name.startswith("_")}


NAMES: dict[str, Any] = {}
for _module in (keyrun.graphs, keyrun.groups, keyrun.schedules, keyrun.status, keyrun):
    NAMES |= _public(_module)
