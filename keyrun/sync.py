"""Keyrun for programs with threads: Flask, Django, scripts, the prompt.

    with keyrun.sync.open_runtime("state", workflows=[checkout]) as rt:
        run = rt.submit(checkout, order, key="customer-42")

The runtime, its handles and its iterators have the methods of the Trio runtime. Each blocks until
it is done, and can be called from any thread. Keyrun runs in a thread of its own.
"""

from keyrun.hosting.sync_host import StartedRuntime
from keyrun.hosting.sync_open import connect, open_runtime, start
from keyrun.runtime.faces.sync_face import GroupHandle, RunHandle, Runtime
from keyrun.runtime.faces.sync_iterators import Events, Watch

__all__ = [
    "Events",
    "GroupHandle",
    "RunHandle",
    "Runtime",
    "StartedRuntime",
    "Watch",
    "connect",
    "open_runtime",
    "start",
]
