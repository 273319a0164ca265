"""One request that reached the fake broker, its header read. Data only."""

from dataclasses import dataclass

from tests.kit.fakes.broker_state import FakeCluster
from tests.kit.fakes.wire import AnswerWriter, RequestReader


@dataclass(slots=True)
class Request:
    """One request; ``forced`` is the scripted code, -2 for none."""

    api_key: int
    version: int
    cluster: FakeCluster
    node_id: int
    reader: RequestReader
    forced: int = -2
    apply: bool = True

    @property
    def answer(self) -> AnswerWriter:
        """A writer for the answer in the request's version."""
        return AnswerWriter(flexible=self.reader.flexible)
