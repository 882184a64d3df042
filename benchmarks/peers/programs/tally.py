"""The tally that every actor of a key keeps: messages are numbered, and each must be the next."""

from benchmarks.peers.programs.order import Order


class Count:
    """What the actors of one program have handled together."""

    def __init__(self) -> None:
        self.handled = 0
        self.disordered = 0

    def facts(self, order: Order, seconds: float) -> dict[str, float]:
        """What was measured."""
        rate = order.keys * order.messages / seconds
        return {"messages_per_second": rate, "disordered": self.disordered}


class Tally:
    """One per actor. The number is the answer, for those who ask."""

    def __init__(self, count: Count) -> None:
        self.count = count
        self.next = 0

    def take(self, number: int) -> int:
        """Handle a message; those with no number of their own are below zero."""
        if number >= 0:
            if number != self.next:
                self.count.disordered += 1
            self.next = number + 1
            self.count.handled += 1
        return number
