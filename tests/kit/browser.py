"""A headless Chromium, driven by the DevTools protocol over two pipes: no driver, no library, no port.

Flow: ``Chromium`` -> ``Browser``, a tab (context managers) -> ``open(url)`` -> ``until`` a JavaScript expression is true -> ``screenshot``. It
records console messages, exceptions and the URL of each request, so that a test can claim there were none elsewhere.
"""

import asyncio
import base64
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, final

import pytest

NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
DEADLINE_S: Final = 90.0
POLL_S: Final = 0.1
ENDS_S: Final = 10.0
_KEYS: Final = {"Tab": 9, "Enter": 13}
_START: Final = """\
import fcntl, os, sys
kept = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for number, descriptor in enumerate(kept, 3):
    os.dup2(descriptor, number)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Chromium reads descriptor 3 and writes 4."""

_CHUNK: Final = 1 << 16


def chromium() -> str | None:
    """Return the path of a Chromium, None where there is none."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


@final
class Chromium:
    """A process whose browsers are used one after the other; as a context manager it ends with the block."""

    def __init__(self, path: str) -> None:
        self._profile = Path(tempfile.mkdtemp(prefix="mm2py-browser-"))
        inside, self._to = os.pipe()
        self._from, outside = os.pipe()
        arguments = [path, *FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, str(inside), str(outside), *arguments],
                pass_fds=(inside, outside),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "HOME": str(self._profile)},
            )
        finally:
            os.close(inside)
            os.close(outside)
        self._heard: Callable[[dict[str, Any]], object] = lambda _: None
        self._numbers = itertools.count(1)
        self._thread = threading.Thread(target=self._read, name="chromium", daemon=True)
        self._thread.start()

    def tell(self, heard: Callable[[dict[str, Any]], object]) -> None:
        """Hand each message that comes to its reader, in the thread of the pipe."""
        self._heard = heard

    def write(self, message: dict[str, object]) -> None:
        """Send one message."""
        os.write(self._to, json.dumps(message).encode() + b"\0")

    def next_number(self) -> int:
        """Return the number of a message: none is used twice, as a late answer may be to a browser before."""
        return next(self._numbers)

    def _read(self) -> None:
        begun = bytearray()
        with os.fdopen(self._from, "rb", buffering=0) as stream:
            while chunk := stream.read(_CHUNK):
                begun += chunk
                if 0 in chunk:
                    *messages, begun = begun.split(b"\0")
                    for message in messages:
                        self._heard(json.loads(message))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._to)  # it ends with its pipe
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(ENDS_S)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._thread.join(ENDS_S)
        shutil.rmtree(self._profile, ignore_errors=True)


@final
class Browser:
    """One tab, with cookies, passwords and a cache of its own."""

    def __init__(self, chromium: Chromium) -> None:
        self._chromium = chromium
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._session = ""
        self._time_passed, self._requested = asyncio.Event(), asyncio.Event()
        self.errors: list[str] = []
        """Console messages of level error, exceptions, violations of the content security policy."""
        self.requests: list[str] = []

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._chromium.tell(lambda message: loop.call_soon_threadsafe(self._take, message))
        self._context = (await self.send("Target.createBrowserContext"))["browserContextId"]
        try:
            page = await self.send(
                "Target.createTarget", url="about:blank", browserContextId=self._context
            )
            attached = await self.send(
                "Target.attachToTarget", targetId=page["targetId"], flatten=True
            )
            self._session = attached["sessionId"]
            for domain in ("Page", "Runtime", "Network", "Log"):
                await self.send(f"{domain}.enable")
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._session = ""
        try:
            await self.send("Target.disposeBrowserContext", browserContextId=self._context)
        finally:
            self._chromium.tell(lambda _: None)

    async def send(self, method: str, **params: object) -> dict[str, Any]:
        """Ask the browser.

        Raises:
            AssertionError: it refuses, or does not answer in time.
        """
        number = self._chromium.next_number()
        message: dict[str, object] = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await asyncio.to_thread(self._chromium.write, message)
        async with asyncio.timeout(DEADLINE_S):
            found = await answer
        assert "error" not in found, f"{method}: {found['error']}"
        result: dict[str, Any] = found["result"]
        return result

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            waiting = self._answers.pop(message["id"], None)
            if waiting is not None and not waiting.done():
                waiting.set_result(message)
        elif message.get("sessionId") == self._session:
            self._note(message["method"], message.get("params", {}))

    def _note(self, event: str, params: Mapping[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
            self._requested.set()
        elif event == "Emulation.virtualTimeBudgetExpired":
            self._time_passed.set()
        elif event == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif event == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.errors.append(str(params["args"]))
        elif event == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    async def look(self, *, width: int, height: int, dark: bool) -> None:
        """Set the size of the window and the theme."""
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 700,
        )
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[theme])

    async def open(self, url: str) -> None:
        """Show another page, or another place of it."""
        await self.send("Page.navigate", url=url)

    async def evaluate(self, expression: str) -> Any:
        """Return what a JavaScript expression is in the page."""
        answer = await self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, str(answer.get("exceptionDetails"))
        return answer["result"].get("value")

    async def text(self) -> str:
        """Return what a reader sees."""
        return str(await self.evaluate("document.body ? document.body.innerText : ''"))

    async def until(self, expression: str, timeout_s: float = DEADLINE_S) -> None:
        """Wait until a JavaScript expression is true; fails with the page's text."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while not await self.evaluate(f"Boolean({expression})"):
            if loop.time() > deadline:
                text = await self.text()
                raise AssertionError(f"not within {timeout_s:g} s: {expression}\n{text}")
            await asyncio.sleep(POLL_S)

    async def until_text(self, text: str) -> None:
        """Wait until a reader sees a text."""
        await self.until(f"document.body && document.body.innerText.includes({json.dumps(text)})")

    async def until_requests(self, count: int) -> None:
        """Wait until so many requests were made."""
        async with asyncio.timeout(DEADLINE_S):
            while len(self.requests) < count:
                self._requested.clear()
                await self._requested.wait()

    async def pass_time(self, ms: int) -> None:
        """Let so much time pass in the page, at once."""
        self._time_passed.clear()
        await self.send("Emulation.setVirtualTimePolicy", policy="advance", budget=ms)
        async with asyncio.timeout(DEADLINE_S):
            await self._time_passed.wait()
        await self.send("Emulation.setVirtualTimePolicy", policy="advance")

    async def press(self, key: str) -> None:
        """Press a key and let it go."""
        # Without its character Enter activates nothing.
        typed = {"text": "\r"} if key == "Enter" else {}
        for kind, more in (("keyDown" if typed else "rawKeyDown", typed), ("keyUp", {})):
            await self.send(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=_KEYS[key],
                **more,
            )

    async def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Write a PNG of the page, or of the window alone, with its folder."""
        path.parent.mkdir(parents=True, exist_ok=True)
        answer = await self.send("Page.captureScreenshot", captureBeyondViewport=whole)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(answer["data"]))


@pytest.fixture(scope="session")
def chromium_process() -> Iterator[Chromium]:
    """What the browsers of a session are tabs of: a start of its own takes as long as a test."""
    path = chromium()
    assert path is not None
    with Chromium(path) as process:
        yield process


@pytest.fixture
def browser(chromium_process: Chromium) -> Browser:
    return Browser(chromium_process)
