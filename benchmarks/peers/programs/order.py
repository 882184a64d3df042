"""The order: what a program is told to do, as JSON on its command line."""

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One piece of work. `act` says which; the sizes that it has no use for are ignored."""

    act: str
    folder: str
    at_once: int = 64
    warm_up: float = 1.0
    seconds: float = 5.0
    runs: int = 1000
    keys: int = 1000
    messages: int = 10
    server: str = ""
    """The program of the server that the peer needs, if any."""

    def dump(self) -> str:
        """As it stands on a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> "Order":
        """What `dump` gave."""
        return cls(**json.loads(text))
