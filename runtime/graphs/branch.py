"""The branch of a node that is workflow code."""

from keyrun.runtime.pass_end import Halt
from keyrun.runtime.run.branch import Branch


class NodeBranch(Branch):
    """It begins nothing before all outcomes of the journal were given back: which node comes next
    must not depend on what is only under way."""

    __slots__ = ()

    def __init__(self, parent: Branch, prefix: str) -> None:
        super().__init__(parent.run, prefix, apart=True)
        self.bound = True
        self.closed = parent.closed
        parent.add_fork(self)

    async def admit(self) -> None:
        """Return when something may be started that the journal has no outcome of."""
        run, journal = self.run, self.run.journal
        cut = any(scope.expires and not scope.fired for scope in journal.around(self.prefix))
        while not cut and not journal.caught_up():
            missing = await journal.turn_of(self.prefix)
            if missing is not None:
                if not run.going:
                    raise Halt
                said = f"the journal has an outcome of {missing!r} next, but no node asks for it"
                raise run.contradicted(said, missing)
            journal.advance()
        await super().admit()
