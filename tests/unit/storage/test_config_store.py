"""The config store: sequences of records, visible after read back, listeners told once (kcr 2.2, 8)."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest

from mm2py.errors import RequestTimedOutError
from mm2py.storage.config_backing_store import ConfigBackingStore
from mm2py.storage.config_state import RestartRequest, SessionKey
from mm2py.storage.memory import MemoryTopic, memory_configs
from mm2py.storage.table import Entry, Handler
from mm2py.types import TargetState, TaskId

KEY = SessionKey(b"1", "HmacSHA256", 1)
RESTART = RestartRequest("c", only_failed=True, include_tasks=True)


class Heard(list[str]):
    """Listens and notes what it was told."""

    def connector_changed(self, name: str) -> None:
        self.append(f"changed {name}")

    def connector_removed(self, name: str) -> None:
        self.append(f"removed {name}")

    def tasks_changed(self, connector: str) -> None:
        self.append(f"tasks {connector}")

    def target_changed(self, connector: str) -> None:
        self.append(f"target {connector}")

    def restart_requested(self, request: RestartRequest) -> None:
        self.append(f"restart {request.connector}")

    def logger_level_changed(self, namespace: str, level: str) -> None:
        self.append(f"level {namespace} {level}")


class Bench:
    def __init__(self) -> None:
        self.topic = MemoryTopic("configs")
        self.store: ConfigBackingStore = memory_configs(self.topic)
        self.heard = Heard()

    def written(self) -> Mapping[str, str | None]:
        return dict(self.sequence())

    def sequence(self) -> list[tuple[str, str | None]]:
        return [
            ((record.key or b"").decode(), None if record.value is None else record.value.decode())
            for record in self.topic.records
        ]


@pytest.fixture
@asynccontextmanager
async def bench() -> AsyncGenerator[Bench]:
    bench = Bench()
    await bench.store.start(bench.heard)
    try:
        yield bench
    finally:
        await bench.store.stop()


async def test_a_connector_is_visible_after_read_back_and_told_once(bench: Bench) -> None:
    await bench.store.put_connector("c", {"a": "1"})
    assert bench.store.snapshot().connectors == {"c": {"a": "1"}}
    assert bench.store.snapshot().offset == 1
    assert bench.heard == ["changed c"]
    assert bench.sequence() == [("connector-c", '{"properties":{"a":"1"}}')]


async def test_a_condition_is_evaluated_at_every_change_that_is_read(bench: Bench) -> None:
    store = bench.store
    waiting = asyncio.ensure_future(
        store.wait_until(lambda: "d" in store.snapshot().connectors, timeout_s=5)
    )
    await store.put_connector("c", {"a": "1"})
    assert not waiting.done()
    await store.put_connector("d", {"a": "1"})
    assert await waiting
    assert not await store.wait_until(lambda: False, timeout_s=0.001)


async def test_an_initial_state_is_written_first_and_not_told(bench: Bench) -> None:
    await bench.store.put_connector("c", {}, TargetState.STOPPED)
    assert bench.store.snapshot().target("c") is TargetState.STOPPED
    assert bench.heard == ["changed c"]
    assert bench.sequence() == [
        ("target-state-c", '{"state":"PAUSED","state.v2":"STOPPED"}'),
        ("connector-c", '{"properties":{}}'),
    ]


async def test_a_removal_is_two_tombstones_and_leaves_the_task_records(bench: Bench) -> None:
    await bench.store.put_connector("c", {})
    await bench.store.put_tasks("c", [{"n": "0"}])
    await bench.store.remove_connector("c")
    assert bench.store.snapshot().connectors == {}
    assert bench.store.snapshot().targets == {}
    assert bench.sequence()[-2:] == [("connector-c", None), ("target-state-c", None)]
    assert bench.written()["task-c-0"] is not None
    assert bench.heard == ["changed c", "tasks c", "removed c"]


async def test_task_configs_are_written_before_their_commit(bench: Bench) -> None:
    await bench.store.put_connector("c", {})
    await bench.store.put_tasks("c", [{"n": "0"}, {"n": "1"}])
    assert bench.store.snapshot().tasks("c") == (TaskId("c", 0), TaskId("c", 1))
    await bench.store.put_tasks("c", [])
    assert bench.store.snapshot().tasks("c") == ()
    assert bench.sequence()[1:] == [
        ("task-c-0", '{"properties":{"n":"0"}}'),
        ("task-c-1", '{"properties":{"n":"1"}}'),
        ("commit-c", '{"tasks":2}'),
        ("commit-c", '{"tasks":0}'),
    ]


async def test_two_sets_of_task_configs_do_not_mix(bench: Bench) -> None:
    await bench.store.put_connector("c", {})
    await asyncio.gather(
        bench.store.put_tasks("c", [{"n": "old"}] * 3),
        bench.store.put_tasks("c", [{"n": "new"}]),
    )
    assert bench.store.snapshot().task_configs == {TaskId("c", 0): {"n": "new"}}


async def test_states_keys_restarts_and_levels_reach_every_worker_once(bench: Bench) -> None:
    other, heard = memory_configs(bench.topic), Heard()
    await other.start(heard)
    await bench.store.put_connector("c", {})
    await bench.store.put_target("c", TargetState.PAUSED)
    await bench.store.put_target("c", TargetState.PAUSED)
    await bench.store.put_session_key(KEY)
    await bench.store.put_restart(RESTART)
    await bench.store.put_logger_level("root", "WARN")
    await bench.store.put_fenced("c", 2)
    assert bench.store.snapshot().session_key == KEY
    await other.refresh(1)
    assert heard == bench.heard
    assert other.snapshot() == bench.store.snapshot()
    assert heard == ["changed c", "target c", "restart c", "level root WARN"]
    await other.stop()


async def test_what_was_there_before_the_start_is_in_the_snapshot_and_not_told(
    bench: Bench,
) -> None:
    await bench.store.put_connector("c", {})
    await bench.store.put_restart(RESTART)
    await bench.store.put_logger_level("root", "WARN")
    await bench.store.put_session_key(KEY)
    late, heard = memory_configs(bench.topic), Heard()
    await late.start(heard)
    assert late.snapshot() == bench.store.snapshot()
    assert heard == []
    await late.stop()
    await late.stop()


async def test_a_topic_in_memory_does_not_grow_without_end(bench: Bench) -> None:
    for number in range(5_000):
        await bench.store.put_connector("c", {"n": str(number)})
    assert len(bench.topic.records) <= 1_002
    assert bench.heard == ["changed c"] * 5_000
    late = memory_configs(bench.topic)
    await late.start(Heard())
    assert late.snapshot() == bench.store.snapshot()
    assert late.snapshot().offset == 5_000


async def test_records_not_in_form_are_named_once_and_ignored(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bench.topic.append(b"unknown", b"{}")
    bench.topic.append(None, None)
    bench.topic.append(b"task-c-0", None)
    bench.topic.append(b"connector-c", b'{"properties":{"password":7}}')
    await bench.store.refresh(1)
    await bench.store.refresh(1)
    assert bench.store.snapshot().offset == 4
    assert bench.heard == []
    assert caplog.text.count("config record is ignored topic=configs") == 4


async def test_a_write_that_is_not_confirmed_says_that_its_outcome_is_unknown() -> None:
    class Silent:
        topic = "configs"

        async def start(self, handle: Handler) -> None:
            pass

        async def stop(self) -> None:
            pass

        async def read_to_end(self, timeout_s: float) -> None:
            pass

        def post(self, entries: Sequence[Entry]) -> "asyncio.Future[int]":
            posts.append(asyncio.get_running_loop().create_future())
            return posts[-1]

    posts: list[asyncio.Future[int]] = []
    store = ConfigBackingStore(Silent(), write_s=0.01)
    await store.start(Heard())
    with pytest.raises(RequestTimedOutError, match=r"config of connector c .* is unknown"):
        await store.put_connector("c", {})
    assert store.snapshot().connectors == {}
    assert posts[0].cancelled(), "the write was taken back"
