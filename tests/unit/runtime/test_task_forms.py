"""The two forms of a task config; the names are the invariants of ``mm2py.runtime.herder.task_forms``."""

import asyncio
from dataclasses import replace

import pytest

from mm2py.config.class_names import (
    MIRROR_CHECKPOINT_CONNECTOR,
    MIRROR_HEARTBEAT_CONNECTOR,
    MIRROR_SOURCE_CONNECTOR,
)
from mm2py.errors import RequestTimedOutError, RetriableError
from mm2py.mirror.start_positions import LATE_PARTITIONS
from mm2py.runtime.herder import leader_duties
from mm2py.runtime.herder.herder import Herder
from mm2py.runtime.herder.task_forms import TaskForms
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.storage.config_state import ConnectorConfig
from mm2py.storage.connect_json import TaskPut, encode_config_record
from mm2py.testing.waiting import until
from mm2py.types import TaskId
from tests.unit.runtime.herder_fakes import Cluster, Node, TestConnector

FORMS = TaskForms(Plugins(), lambda: ("id-of-a", "id-of-b"))
CLASS = "connector.class"
IDS = {"task.source.cluster.id": "id-of-a", "task.target.cluster.id": "id-of-b"}
SOURCE = {CLASS: MIRROR_SOURCE_CONNECTOR, "topics": "t"}
LIMITED = SOURCE | {"flow.max.bytes.per.second": "900"}
CHOSEN = SOURCE | {"loop.suppression": "all"}
GROUPS = {CLASS: MIRROR_CHECKPOINT_CONNECTOR}
BEATS = {CLASS: MIRROR_HEARTBEAT_CONNECTOR}
HAND = {"task.assigned.partitions": "t-0,t-2"}
LATE = {LATE_PARTITIONS: "t-2"}
TASK = {"task.class": "org.example.TestTask"}
JAVAS = b'{"properties":{"p":"1","task.class":"org.example.TestTask"}}'
PART = {"flow.max.bytes.per.second": "300"}


@pytest.mark.parametrize(
    ("connector", "java", "told"),
    [
        pytest.param(SOURCE, HAND, HAND | IDS | {"loop.suppression": "on"}, id="loops"),
        pytest.param(CHOSEN, HAND | {"loop.suppression": "all"}, HAND | CHOSEN | IDS, id="chosen"),
        pytest.param(LIMITED, LIMITED | HAND, HAND | PART, id="rate"),
        pytest.param(SOURCE, HAND | LATE, HAND | LATE | IDS, id="late"),
        pytest.param(
            GROUPS,
            {"task.assigned.groups": "a,b"},
            {"task.group.tasks": "3", "task.group.partitions": "9"},
            id="groups",
        ),
        pytest.param(BEATS, {}, {}, id="beats"),
    ],
)
def test_two_forms_of_one_task_are_one_task(
    connector: dict[str, str], java: dict[str, str], told: dict[str, str]
) -> None:
    one, other = connector | java, connector | told
    assert FORMS.same(one, other, connector)
    assert FORMS.same(other, one, connector)
    assert not FORMS.same(one, other | {"topics": "other"}, connector)
    assert not FORMS.same(None, other, connector)


@pytest.mark.parametrize(
    "changed",
    [
        {"task.assigned.partitions": "t-0"},
        {"loop.suppression": "off"},
        {"task.target.cluster.id": "another"},
        LATE,
    ],
    ids=lambda it: next(iter(it)),
)
def test_what_differs_in_more_than_its_form_is_another_task(changed: dict[str, str]) -> None:
    told = SOURCE | HAND | IDS | {"loop.suppression": "on"}
    assert not FORMS.same(told, told | changed, SOURCE)


def test_what_a_task_runs_with_does_not_depend_on_the_form_in_which_it_is_published() -> None:
    for config in (LIMITED | HAND, LIMITED | HAND | IDS | PART):
        assert FORMS.in_force(config, LIMITED, 3) == LIMITED | HAND | IDS | PART
    for config in (GROUPS | {"task.assigned.groups": "a"}, GROUPS | {"task.group.tasks": "1"}):
        assert FORMS.in_force(config, GROUPS, 2) == GROUPS | {"task.group.tasks": "2"}
    told = {"task.group.partitions": "9", "task.group.tasks": "2"}
    assert FORMS.in_force(GROUPS | told, GROUPS, 2) == GROUPS | told, "one number for all tasks"
    unknown: ConnectorConfig = {CLASS: "org.example.Unknown"}
    assert FORMS.plain(LIMITED | PART, unknown) == LIMITED | PART
    any_cluster = TaskForms(Plugins(), None)
    assert any_cluster.in_force(LIMITED | HAND, LIMITED, 3) == LIMITED | HAND


# ---- the end of a group


async def started(cluster: Cluster) -> Node:
    node = cluster.node().start()
    await node.put(work="0 1", java="1 0")
    await node.runs("c-0", "c-1")
    return node


def published(node: Node) -> list[dict[str, str | None]]:
    return [dict(it) for it in node.config.snapshot().task_configs.values()]


def commits(cluster: Cluster) -> int:
    return sum(it.key == b"commit-c" for it in cluster.configs.records)


def recorded(cluster: Cluster) -> bytes:
    """Return the last record of task 0, as a Java worker reads it."""
    return [r.value for r in cluster.configs.records if r.key == b"task-c-0"][-1] or b""


@pytest.mark.parametrize("support", ["disabled", "enabled"])
async def test_the_last_worker_leaves_javas_deal_and_the_next_one_keeps_it(
    cluster: Cluster, support: str
) -> None:
    """Workers of earlier builds know our form alone, so the next one publishes it; not where that starts every task anew."""
    first = await started(cluster)
    assert published(first) == [{"p": it, "told": "yes"} | TASK for it in "01"]
    assert first.host.running[TaskId("c", 0)].config["told"] == "2 ('cluster A', 'cluster B')"
    await first.stop()
    assert recorded(cluster) == JAVAS
    cluster.nodes.clear()
    second = cluster.node("n2", exactly_once_source_support=support).start()
    await second.runs("c-0", "c-1")
    told = support == "disabled"
    await until(lambda: ("told" in str(published(second))) is told)
    await cluster.clock.settle()
    starts = [event for event in second.host.events if not event.startswith("keep")]
    assert sorted(starts) == ["start c-0 1", "start c-1 0"], "each once, with Java's deal"
    assert {it[LATE_PARTITIONS] for it in published(second)} == {"t-0"}
    written = commits(cluster)
    await second.stop()
    assert recorded(cluster) == JAVAS
    assert commits(cluster) == written + told, "what is there already is not written again"


@pytest.mark.parametrize("support", ["disabled", "enabled"])
async def test_the_next_worker_continues_with_the_deal_of_the_last_one_and_java_with_its_own(
    cluster: Cluster, support: str
) -> None:
    first = cluster.node().start()
    await first.put(work="0 1", java="1 0", keeps="yes")
    await first.runs("c-0", "c-1")
    await first.stop()
    cluster.nodes.clear()
    for number in (2, 3):
        assert recorded(cluster) == JAVAS
        written = commits(cluster)
        node = cluster.node(f"n{number}", exactly_once_source_support=support).start()
        await node.runs("c-0", "c-1")
        told = support == "disabled"

        def is_published(node: Node = node, told: str = str(told)) -> bool:
            return str("told" in str(published(node))) == told

        await until(is_published)
        await cluster.clock.settle()
        starts = [event for event in node.host.events if not event.startswith("keep")]
        assert sorted(starts) == ["start c-0 0", "start c-1 1"], "each once, with our deal"
        await node.stop()
        cluster.nodes.clear()
        assert commits(cluster) == written + 2 * told, "what is there already is not written again"


async def test_a_task_of_javas_form_runs_with_what_it_is_told_later(cluster: Cluster) -> None:
    first = await started(cluster)
    await first.stop()
    cluster.nodes.clear()
    second = cluster.node("n2").start()
    await second.runs("c-0", "c-1")
    await until(lambda: "told" in str(published(second)))
    await cluster.clock.settle()
    connector = TestConnector.made[-1]
    connector.configs = [{**it, "told": "no"} for it in connector.configs]
    assert connector.context is not None
    connector.context.request_reconfiguration()
    await until(lambda: second.host.events.count("stop c-0") == 1)
    await second.runs("c-0", "c-1")


async def test_a_worker_whose_connectors_read_any_cluster_leaves_one_form(cluster: Cluster) -> None:
    node = cluster.node()
    node.parts = replace(node.parts, cluster_ids=None)
    node.herder = Herder(node.parts, clock=cluster.clock)
    node.start()
    await node.put(work="0 1", java="1 0")
    await node.runs("c-0", "c-1")
    before = recorded(cluster)
    await node.stop()
    assert recorded(cluster) == before


async def test_what_was_cut_off_before_its_commit_is_written_over_before_compaction_keeps_it(
    cluster: Cluster,
) -> None:
    first = await started(cluster)
    await first.stop()
    cluster.nodes.clear()
    cut_off = TaskPut(TaskId("c", 0), {"p": "0"})
    cluster.configs.append(*encode_config_record(cut_off))
    written = commits(cluster)
    second = cluster.node("n2", exactly_once_source_support="enabled").start()
    await until(lambda: commits(cluster) > written)
    await second.runs("c-0", "c-1")
    assert [it["p"] for it in published(second)] == ["1", "0"]


async def test_all_that_the_last_worker_writes_has_one_deadline(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_duties, "HAND_OVER_S", 0.02)
    node = await started(cluster)
    await node.put("d", work="0 1", java="1 0")
    await node.runs("c-0", "c-1", "d-0", "d-1")
    asked, before = list[object](), recorded(cluster)

    async def put_tasks(name: str, *_: object) -> None:
        asked.append(name)
        await asyncio.Event().wait()

    node.config.put_tasks = put_tasks  # type: ignore[method-assign, assignment]
    await cluster.stop()
    assert (asked, recorded(cluster)) == (["c"], before)


@pytest.mark.parametrize("answer", ["alone", "not alone", "refused", "no answer"])
async def test_a_worker_that_left_since_the_last_plan_is_no_other_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    monkeypatch.setattr(leader_duties, "HAND_OVER_S", 0.02)
    node = await started(cluster)
    before = recorded(cluster)

    async def is_alone() -> bool:
        if answer == "refused":
            raise RetriableError("the coordinator is unreachable")
        if answer == "no answer":
            await asyncio.Event().wait()
        return answer == "alone"

    monkeypatch.setattr(node.membership, "member_urls", lambda: ("http://n1/", "http://n2/"))
    monkeypatch.setattr(node.membership, "is_alone", is_alone)
    await node.stop()
    assert recorded(cluster) == (JAVAS if answer == "alone" else before)


@pytest.mark.parametrize("spoiled", ["another worker", "permit", "refused", "changed"])
async def test_only_the_last_worker_that_may_write_leaves_javas_deal_and_its_stop_never_waits(
    cluster: Cluster, spoiled: str
) -> None:
    node = await started(cluster)
    stop_task = node.host.stop_task

    async def spoil(task: TaskId, timeout_s: float) -> None:
        await stop_task(task, timeout_s)
        if spoiled == "permit":
            node.permit.abandon()
        elif spoiled == "changed":
            await node.put(work="0 1", java="1 0", other="x")

    node.host.stop_task = spoil  # type: ignore[method-assign]
    if spoiled == "another worker":
        other = cluster.node("n2").start()
        await until(lambda: len(cluster.group.members) == 2)
        await cluster.settled("c-0", "c-1")
        cluster.nodes.pop("n2")
        await node.stop()
        await other.runs("c-0", "c-1")
        assert "told" in str(recorded(cluster))
        await other.stop()
        return

    async def put_tasks(*_: object) -> None:
        raise RequestTimedOutError("not confirmed")

    if spoiled == "refused":
        node.config.put_tasks = put_tasks  # type: ignore[method-assign, assignment]
    before = recorded(cluster)
    await cluster.stop()
    assert recorded(cluster) == before
