"""Keyrun for asyncio programs: FastAPI, Starlette, aiohttp, notebooks.

    async with keyrun.asyncio.open_runtime("state", workflows=[checkout]) as rt:
        run = await rt.submit(checkout, order, key="customer-42")

The runtime, its handles and its iterators have the methods of the Trio runtime, to be awaited from
asyncio. Steps with `asyncio=True` run on the loop of the program.
"""

from keyrun.hosting.asyncio_open import connect, open_runtime
from keyrun.runtime.faces.asyncio_face import GroupHandle, RunHandle, Runtime
from keyrun.runtime.faces.asyncio_iterators import Events, Watch
from keyrun.runtime.host.lifespan import lifespan

__all__ = [
    "Events",
    "GroupHandle",
    "RunHandle",
    "Runtime",
    "Watch",
    "connect",
    "lifespan",
    "open_runtime",
]
