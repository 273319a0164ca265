"""A scripted broker on loopback that stores, checks and serves batches like a real one.

Flow: connection -> ``FakeBroker`` (script: errors, disconnects, held answers) -> ``broker_api`` -> logs.
Several brokers can share one ``FakeCluster``, so that leaders can move. No groups.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, Self, final

from mm2py.types import TopicPartition
from tests.kit.fakes.broker_api import APIS, answer_error, handle, unsupported
from tests.kit.fakes.broker_log import PartitionLog
from tests.kit.fakes.broker_state import FakeCluster, Request
from tests.kit.fakes.wire import RequestReader
from tests.kit.lines.listening import stop_listening

Outcome = int | Literal["disconnect", "disconnect_after_apply"]
"""An error code for every partition of the request, or what happens to the connection."""

ACCEPT_TURNS: Final = 5
"""An accepted connection is served a few turns of the loop later; one that nothing serves yet would be left open."""

_API_VERSIONS: Final = 18


class _Scripted(NamedTuple):
    outcome: Outcome
    apply: bool


@final
class Hold:
    """Requests that arrived and are not answered yet."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self.waiting = 0
        """How many stand at the barrier."""
        self._free = asyncio.Event()

    def release(self) -> None:
        """Let the request, and later ones, go on."""
        self._free.set()

    async def wait(self) -> None:
        """Stand at the barrier."""
        self.arrived.set()
        self.waiting += 1
        try:
            await self._free.wait()
        finally:
            self.waiting -= 1


@final
class FakeBroker:
    """One broker; ``topics`` are created with it, or with ``create_topic`` later.

    Use as ``async with FakeBroker(topics={"t": 2}) as broker``, or ``start`` and ``stop``.
    """

    def __init__(
        self,
        *,
        topics: Mapping[str, int] | None = None,
        node_id: int = 1,
        cluster: FakeCluster | None = None,
        versions: Mapping[int, tuple[int, int]] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self.node_id = node_id
        self.cluster = FakeCluster() if cluster is None else cluster
        self.port = 0
        self.requests: list[tuple[int, int]] = []
        """(api key, version) of each request, in order of arrival."""
        self.most_connections = 0
        """How many are served at once, as ``max.connections``; later ones are cut. 0: any number."""
        self._versions = {key: (api.oldest, api.newest) for key, api in APIS.items()}
        self._versions.update(versions or {})
        self._script: dict[int, deque[_Scripted]] = {}
        self._holds: dict[int, Hold] = {}
        self._server: asyncio.Server | None = None
        self._serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        for name, partitions in (topics or {}).items():
            self.create_topic(name, partitions)

    # ---- life ----

    async def start(self) -> Self:
        """Listen on a free port, after ``stop`` on the same one."""
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, ssl=self._tls
        )
        self.port = int(self._server.sockets[0].getsockname()[1])
        self.cluster.brokers[self.node_id] = ("127.0.0.1", self.port)
        return self

    async def stop(self) -> None:
        """Stop listening and cut all connections; the logs stay."""
        server, self._server = self._server, None
        if server is not None:
            await stop_listening(server)
        for hold in self._holds.values():
            hold.release()
        for _ in range(ACCEPT_TURNS):
            await self.disconnect()
            await asyncio.sleep(0)
        if server is not None:
            await server.wait_closed()

    async def disconnect(self) -> None:
        """Cut all connections."""
        serving = tuple(self._serving)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def bootstrap_servers(self) -> tuple[tuple[str, int], ...]:
        """For ``ConnectionSettings``."""
        return (("127.0.0.1", self.port),)

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._serving)

    # ---- content ----

    @property
    def topics(self) -> Mapping[str, int]:
        """Partition counts by topic."""
        return {name: len(topic.logs) for name, topic in self.cluster.topics.items()}

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic led by this broker; an existing one is replaced under a new topic id."""
        self.cluster.create_topic(name, partitions, self.node_id)

    def partition(self, tp: TopicPartition) -> PartitionLog:
        """Return a partition's log, to look at or to change."""
        return self.cluster.topics[tp.topic].logs[tp.partition]

    def log(self, tp: TopicPartition) -> list[bytes]:
        """Return the stored batches."""
        return [batch.data for batch in self.partition(tp).batches]

    def append(self, tp: TopicPartition, batch: bytes) -> int:
        """Store a batch as if a producer had sent it; returns its base offset."""
        result = self.cluster.append(tp, batch)
        assert result.error_code == 0, f"the fake broker refused the batch: {result}"
        return result.base_offset

    # ---- script ----

    def fail_next(
        self, api_key: int, outcome: Outcome, times: int = 1, *, apply: bool = False
    ) -> None:
        """Script the next answers of one API; calls add up.

        ``apply`` stores what was produced although the answer is an error, as a leader that is
        deposed before it answers does.
        """
        queue = self._script.setdefault(api_key, deque())
        queue.extend([_Scripted(outcome, apply)] * times)

    def hold(self, api_key: int) -> Hold:
        """Keep requests of one API unanswered (and not applied) until the hold is released."""
        self._holds[api_key] = Hold()
        return self._holds[api_key]

    def count(self, api_key: int) -> int:
        """Return how many requests of one API came."""
        return sum(1 for key, _ in self.requests if key == api_key)

    # ---- inside ----

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if 0 < self.most_connections <= len(self._serving):
            writer.transport.abort()
            return
        self._serving[task] = writer
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                answer = await self._answer(RequestReader(await reader.readexactly(size)))
                if answer is None:
                    return
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            return
        finally:
            del self._serving[task]
            writer.transport.abort()

    async def _answer(self, reader: RequestReader) -> bytes | None:
        """Return the framed answer, None to hang up."""
        api_key, version, correlation_id = reader.int16(), reader.int16(), reader.int32()
        self.requests.append((api_key, version))
        request = Request(api_key, version, self.cluster, self.node_id, reader)
        oldest, newest = self._versions.get(api_key, (0, -1))
        if not oldest <= version <= newest:
            return unsupported(correlation_id, self._versions) if api_key == _API_VERSIONS else None
        api = APIS[api_key]
        reader.string()  # client id: never flexible
        reader.flexible = version >= api.flexible_from
        reader.tags()
        hold = self._holds.get(api_key)
        if hold is not None:
            await hold.wait()
        script = self._script.get(api_key)
        step = script.popleft() if script else None
        if step is None:
            body = await handle(request, self._versions)
        elif isinstance(step.outcome, int):
            body = await answer_error(request, step.outcome, apply=step.apply)
        else:
            if step.outcome == "disconnect_after_apply":
                await handle(request, self._versions)
            return None
        flexible_header = reader.flexible and api_key != _API_VERSIONS
        return body.frame(correlation_id, flexible_header=flexible_header)
