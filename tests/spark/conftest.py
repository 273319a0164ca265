"""One Spark session for all tests of this folder, small, closed at the end; brokers as in tests/integration."""

from collections.abc import Iterator

import pytest

from mm2py_jobs.spark.session import OpenSession, open_session
from tests.integration import setups

setup = setups.setup


@pytest.fixture(scope="session")
def lanes_session() -> Iterator[OpenSession]:
    """A session on this machine with two slots and four attempts."""
    with open_session("local[2]", name="mm2py-tests", settings={"spark.ui.port": "0"}) as opened:
        yield opened
