"""What tests of the runtime are given: herders and task hosts on fakes that end with their test."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from tests.unit.runtime.herder_fakes import Cluster


@pytest.fixture
@asynccontextmanager
async def cluster() -> AsyncGenerator[Cluster]:
    cluster = Cluster()
    yield cluster
    await cluster.stop()
