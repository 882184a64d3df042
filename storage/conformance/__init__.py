"""The conformance suite: tests that every store must pass.

Derive a class from `StoreConformance` in your tests, say in `fresh` how to make an empty place for
a store, and let pytest collect it:

    class TestMyStore(StoreConformance):
        @contextmanager
        def fresh(self) -> Iterator[Place]:
            with TemporaryDirectory() as folder:
                yield MyPlace(folder)

where `MyPlace(folder).store()` makes a store on the records in that folder. The suite needs pytest
and hypothesis, which the extra `conformance` installs, and runs on virtual time.
"""

from keyrun.storage.conformance.commits import CommitConformance
from keyrun.storage.conformance.ends import EndConformance
from keyrun.storage.conformance.model import Place, batch
from keyrun.storage.conformance.records import RecordConformance

__all__ = ["Place", "StoreConformance", "batch"]


class StoreConformance(RecordConformance, CommitConformance, EndConformance):
    """The whole suite."""
