import pytest

from xdist.remote import Producer

class LoadFileScheduling:
    def __init__(self, config: pytest.Config, log: Producer | None = ...) -> None: ...
    def _split_scope(self, nodeid: str) -> str: ...
