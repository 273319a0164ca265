"""What tests of the page share: a browser, flows over fakes that are well, and a listener in front of them."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from starlette.types import ASGIApp

from mm2py.rest.listening import Listener
from mm2py.rest.server import RestServer
from tests.kit.browser import Browser, chromium
from tests.unit.rest.flow_fakes import AB, BA, NAME, Rig, partition, snapshot

MARKS: Final = [
    pytest.mark.skipif(chromium() is None, reason="no Chromium: apt-get install chromium"),
    pytest.mark.timeout(300),
]
SHOTS: Final = Path(".mm2py") / "screenshots"
HOSTILE: Final = "<img src=x onerror=alert(1)>\"'&</script><script>alert(2)</script>"
LOOKS: Final = [(1280, 900, False), (1280, 900, True), (390, 844, False), (390, 844, True)]
GOOD: Final = "document.querySelector('.good:not(marker)')"


@pytest.fixture
def browser() -> Browser:
    path = chromium()
    assert path is not None
    return Browser(path)


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    for name in (AB, BA):
        rig.add(name)
        heal(rig, name)
    return rig


def heal(rig: Rig, name: Any) -> None:
    herder = rig.herders[name]
    herder.snapshot = replace(
        snapshot("worker:8083", name, partition("t", 0, 7), partition("u", 0, 0)), records_lost=0
    )
    herder.configs[NAME].pop("enabled", None)


@asynccontextmanager
async def served(app: ASGIApp, port: int = 0) -> AsyncGenerator[str]:
    server = RestServer([Listener("127.0.0.1", port)], app)
    (url,) = await server.start()
    try:
        yield url
    finally:
        await server.stop(0)


def assert_quiet(browser: Browser, url: str) -> None:
    """Neither an error in the console, nor a request to another host."""
    assert browser.errors == []
    assert {urlsplit(it).netloc for it in browser.requests} == {urlsplit(url).netloc}
