"""A headless Chromium, driven by the DevTools protocol over two pipes: no driver, no library, no port.

Flow: ``Browser`` (context manager) -> ``open(url)`` -> ``until`` a JavaScript expression is true -> ``screenshot``. It
records console messages, exceptions and the URL of each request, so that a test can claim there were none elsewhere.
"""

import asyncio
import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, final

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

_LONGEST_MESSAGE: Final = 64 << 20


def chromium() -> str | None:
    """Return the path of a Chromium, None where there is none."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


@final
class Browser:
    """One Chromium with one tab and a profile of its own."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._number = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._session = ""
        self._time_passed, self._requested = asyncio.Event(), asyncio.Event()
        self.errors: list[str] = []
        """Console messages of level error, exceptions, violations of the content security policy."""
        self.requests: list[str] = []

    async def __aenter__(self) -> Self:
        self._profile = Path(tempfile.mkdtemp(prefix="mm2py-browser-"))
        inside, self._to = os.pipe()
        self._from, outside = os.pipe()
        arguments = [self._path, *FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", _START, str(inside), str(outside), *arguments),
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
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_LONGEST_MESSAGE)
        self._transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(self._from, "rb")
        )
        self._reading = asyncio.create_task(self._read(reader))
        try:
            targets = await self.send("Target.getTargets")
            page = next(it for it in targets["targetInfos"] if it["type"] == "page")
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
        self._reading.cancel()
        self._transport.close()
        os.close(self._to)  # it ends with its pipe
        with suppress(TimeoutError):
            async with asyncio.timeout(ENDS_S):
                await self._process.wait()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        shutil.rmtree(self._profile, ignore_errors=True)

    async def send(self, method: str, **params: object) -> dict[str, Any]:
        """Ask the browser.

        Raises:
            AssertionError: it refuses, or does not answer in time.
        """
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        await asyncio.to_thread(os.write, self._to, json.dumps(message).encode() + b"\0")
        async with asyncio.timeout(DEADLINE_S):
            found = await answer
        assert "error" not in found, f"{method}: {found['error']}"
        result: dict[str, Any] = found["result"]
        return result

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while True:
            message = json.loads((await reader.readuntil(b"\0"))[:-1])
            if "id" in message:
                waiting = self._answers.pop(message["id"], None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)
                continue
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
