"""A Java 4.3 Connect worker from the jars, and its REST.

Flow: properties -> ``ConnectDistributed`` -> ``JavaConnect.call``. One JVM costs 15 s of CPU: one per test file.
"""

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Final, cast, final

import httpx

from bench.java_mm2 import QUICK_START_FLAGS
from bench.mirror_process import MirrorProcess
from mm2py_jobs.spark.java import find_java
from tests.integration.connect_stores import eventually
from tests.kit.kafka.jars import fetch_jars
from tests.kit.kafka.ports import HOST, free_ports

CONVERTER: Final = "org.apache.kafka.connect.converters.ByteArrayConverter"
START_S: Final = 90.0
SETTLE_S: Final = 60.0


@final
class JavaConnect:
    """A worker of the group ``prefix`` on the topics ``<prefix>-configs``, ``-statuses``, ``-offsets``."""

    def __init__(self, bootstrap_servers: str, prefix: str, folder: Path) -> None:
        self.url = f"http://{HOST}:{free_ports(1)[0]}"
        settings = {
            "bootstrap.servers": bootstrap_servers,
            "group.id": prefix,
            "key.converter": CONVERTER,
            "value.converter": CONVERTER,
            "listeners": self.url,
            "plugin.discovery": "service_load",
            "scheduled.rebalance.max.delay.ms": "0",
            "offset.flush.interval.ms": "1000",
        }
        for kind, topic in (("config", "configs"), ("status", "statuses"), ("offset", "offsets")):
            settings[f"{kind}.storage.topic"] = f"{prefix}-{topic}"
            settings[f"{kind}.storage.replication.factor"] = "1"
        file = folder / "connect.properties"
        lines = (f"{key}={value}\n" for key, value in settings.items())
        file.write_text("".join(lines), encoding="utf-8")
        command = [
            str(find_java().executable),
            *QUICK_START_FLAGS,
            "-Dlog4j2.level=INFO",
            "-cp",
            os.pathsep.join(str(jar) for jar in fetch_jars("tools")),
            "org.apache.kafka.connect.cli.ConnectDistributed",
            str(file),
        ]
        self.process = MirrorProcess("Java Connect", command, folder / "connect.log")
        self._http = httpx.AsyncClient(base_url=self.url, timeout=30)

    async def ready(self) -> None:
        """Wait until the worker has joined its group and answers."""

        def joined() -> bool:
            self.process.check_running()
            return "Finished starting connectors and tasks" in self.process.log()

        await eventually(joined, "the Java worker works", timeout_s=START_S)

    async def call(
        self, method: str, path: str, body: object = None, *, expected: int = 200
    ) -> object:
        """Send a request and return its JSON, None without a body."""
        content = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"}
        deadline = time.monotonic() + SETTLE_S
        answer = await self._http.request(method, path, content=content, headers=headers)
        # While the group rebalances, which a new session key alone sets off, every answer is 409; before its
        # resources are there Jetty says 404 in HTML.
        while _not_now(answer, expected) and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
            answer = await self._http.request(method, path, content=content, headers=headers)
        assert answer.status_code == expected, (
            f"{method} {path}: {answer.status_code} {answer.text}"
        )
        return cast("object", answer.json()) if answer.content else None

    async def close(self) -> None:
        """End it."""
        await self._http.aclose()
        self.process.__exit__()


def _not_now(answer: httpx.Response, expected: int) -> bool:
    html = answer.headers.get("Content-Type", "").startswith("text/html")
    return answer.status_code == 409 != expected or (answer.status_code == 404 and html)
