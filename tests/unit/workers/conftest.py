"""Commands set up the log of their process; a test gets it back as it was."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
