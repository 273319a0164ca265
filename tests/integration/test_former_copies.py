"""A copy that is another one than that of the map: lost while no worker ran, found without a record, and no group is placed by it.

At the end clusters that are rebuilt under running workers: wiped, at the same address.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

import pytest

from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.class_names import SOURCE_NAME
from mm2py.flows.flow_offsets import FlowOffsets
from mm2py.flows.view_models import Direction, GroupPartitionView, TranslationView
from mm2py.mirror.failovers import GroupMove
from mm2py.mirror.offset_lookup import Place, Translation
from mm2py.mirror_client import exact_offsets, translate_offset
from mm2py.types import TopicPartition
from mm2py_jobs.failover.clusters import FailoverClusters
from mm2py_jobs.failover.groups import move_groups
from mm2py_jobs.open_flow import flow_plan
from tests.integration.active_active import IDENTITY
from tests.integration.cluster_changes import delete_topic, topics_of
from tests.integration.exactly_once import ENABLED
from tests.integration.ledger_scenes import Entry, wait_for_entries
from tests.integration.mirror_process import (
    GROUPS,
    PROMPT,
    SHORT_SESSION,
    Flow,
    running,
    until,
    until_equal,
)
from tests.integration.rest_asking import ask, public_url
from tests.integration.setups import Setup
from tests.integration.test_checkpoints import checkpoints_in
from tests.integration.traffic import (
    Sent,
    assert_equal,
    commit,
    committed,
    committed_positions,
    ends,
    numbered,
    wait_for_copy,
    write,
)
from tests.kit.regions import NewRegion

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

RECORDS: Final = 148
UNKNOWN: Final = Translation(Place.UNKNOWN, -1)


def copied_and_stopped(setup: Setup, topic: str, group: str) -> Flow:
    """Copy a topic whose group has read everything, and sync the group."""
    write(setup.a, topic, numbered(0, RECORDS))
    commit(setup.a, group, topic, {0: RECORDS})
    flow = setup.flow(topic, {**GROUPS, **PROMPT, "groups": group})
    with running(flow.file, ready=False) as mirror:
        until_equal(
            lambda: committed(setup.b, group, flow.remote(topic)), {0: RECORDS}, alive=mirror
        )
    return flow


async def planned_moves(flow: Flow) -> list[GroupMove]:
    """Return what a failover would do with the flow's group: with the source, and without it."""
    back = f"{flow.target_alias}->{flow.source_alias}"
    plans = flow_plan(flow.file, flow.name), flow_plan(flow.file, back)
    async with FailoverClusters(*plans, SYSTEM_CLOCK) as clusters:
        return [
            move
            for there in (True, False)
            for move in await move_groups(clusters, source_there=there, writes=False)
        ]


async def shown(flow: Flow, source: TopicPartition) -> tuple[TranslationView, GroupPartitionView]:
    """Return what ``group translate`` and ``group describe`` show."""
    plan = flow_plan(flow.file, flow.name)
    config = plan.resolve(plan.connectors[SOURCE_NAME])
    async with FlowOffsets(plan.name, config, SYSTEM_CLOCK, has_checkpoints=True) as offsets:
        translated = await offsets.translate(source, 100, Direction.TO_TARGET)
        ((part,),) = [group.partitions for group in await offsets.groups(None, 10)]
    return translated, part


@pytest.mark.faults
@pytest.mark.parametrize("change", ["deleted", "renamed"])
def test_a_copy_that_was_lost_while_no_worker_ran_is_reported_and_its_group_begins_in_the_new_one(
    setup: Setup, change: str
) -> None:
    topic, group = setup.topic("orders"), setup.unique("billing")
    flow = copied_and_stopped(setup, topic, group)
    checkpoints = f"{flow.source_alias}.checkpoints.internal"
    copy = flow.remote(topic)
    if change == "deleted":
        delete_topic(setup.b, copy)
        until(lambda: copy not in topics_of(setup.b), 90, "deletion")
    else:
        copy = topic
        names = f"replication.policy.class = {IDENTITY}\n"
        flow.file.write_text(flow.file.read_text("latin-1") + names, encoding="latin-1")
    before = len(checkpoints_in(setup.b, checkpoints))
    with running(flow.file, ready=False) as mirror:
        lost = wait_for_entries(flow, 1, mirror)
        assert lost == [Entry("target-lost", topic, 0, 0, RECORDS - 1, "")]
        assert ends(setup.b, copy) == {0: 0}, "no record was needed for it"
        until_equal(lambda: committed(setup.b, group, copy), {0: 0}, alive=mirror)
        write(setup.a, topic, numbered(RECORDS, 5))
        commit(setup.a, group, topic, {0: RECORDS + 2})
        until_equal(lambda: committed(setup.b, group, copy), {0: 2}, alive=mirror)
    assert wait_for_entries(flow, 1, mirror) == lost, "it is reported once"
    written = [
        it.downstream
        for it in checkpoints_in(setup.b, checkpoints)[before:]
        if it.partition.topic == copy
    ]
    assert written
    assert max(written) <= 2, "none is of the former copy"


def test_between_two_copies_every_question_is_answered_with_unknown(setup: Setup) -> None:
    topic, group = setup.topic("orders"), setup.unique("billing")
    flow = copied_and_stopped(setup, topic, group)
    copy, props = flow.remote(topic), {"bootstrap.servers": setup.b.bootstrap_servers}
    source, target = TopicPartition(topic, 0), TopicPartition(copy, 0)
    alias = flow.source_alias
    assert translate_offset(props, alias, source, 100) == Translation(Place.COPIED, 100)
    assert exact_offsets(props, alias, group)[target].offset == RECORDS

    def answers() -> None:
        assert translate_offset(props, alias, source, 100) == UNKNOWN
        assert translate_offset(props, alias, target, 100, to_source=True) == UNKNOWN
        assert exact_offsets(props, alias, group) == {}
        translated, part = asyncio.run(shown(flow, source))
        assert (translated.place, translated.to_offset) == (Place.UNKNOWN, None)
        assert "another copy" in translated.text
        assert (part.place, part.exact, part.continues_at) == (Place.UNKNOWN, None, None)
        by_map, by_checkpoints = asyncio.run(planned_moves(flow))
        assert (by_map.group, by_map.moved) == (group, 0)
        assert by_map.left[0].startswith(f"{topic}-0 {RECORDS} has no place there: ")
        assert by_checkpoints == GroupMove(
            group=group, moved=0, left=(f"{copy}-0 {RECORDS} is of a former copy",)
        )

    delete_topic(setup.b, copy)
    until(lambda: copy not in topics_of(setup.b), 90, "deletion")
    answers()
    setup.create_topic(setup.b, copy, 1)
    answers()


@pytest.mark.faults
@pytest.mark.parametrize("keeps_id", [False, True])
def test_a_source_that_is_rebuilt_is_copied_on_with_its_groups_and_its_offset_syncs(
    setup: Setup, new_region: NewRegion, *, keeps_id: bool
) -> None:
    source = new_region("rebuilt")
    topic, group = setup.topic("rebuilt", on=source), setup.unique("billing")
    flow = setup.flow(topic, {**GROUPS, **PROMPT, "groups": group}, source=source)
    copy, syncs = flow.remote(topic), f"mm2-offset-syncs.{flow.target_alias}.internal"

    def at() -> tuple[int | None, int | None]:
        return ends(setup.b, copy).get(0), committed(setup.b, group, copy).get(0)

    write(source, topic, numbered(0, 20))
    commit(source, group, topic, {0: 5})
    with running(flow.file) as mirror:
        until_equal(at, (20, 5), alive=mirror)
        source.kill()
        source.wipe(keeps_id=keeps_id)
        source.start()
        setup.create_topic(source, topic)
        write(source, topic, numbered(0, 12))
        commit(source, group, topic, {0: 8})
        until_equal(at, (32, 28), alive=mirror)
        until(lambda: syncs in topics_of(source), 90, syncs, alive=mirror)
        write(source, topic, numbered(12, 1))
        until(lambda: sum(ends(source, syncs).values()), 90, "a sync", alive=mirror)

        def shown() -> str:
            return str(ask(public_url(mirror) + "flows")[1][0]["errors"])

        until(lambda: shown() == "[]", 90, shown, alive=mirror)


@pytest.mark.faults
@pytest.mark.timeout(400)
@pytest.mark.parametrize("keeps_id", [False, True])
def test_a_target_that_is_rebuilt_says_restart_the_worker_and_is_filled_again(
    setup: Setup, new_region: NewRegion, *, keeps_id: bool
) -> None:
    target = new_region("rebuilt")
    topic = setup.topic("rebuilt", 2)
    # For so long a topic that is not there may only be new.
    properties = {**SHORT_SESSION, "{target}.default.api.timeout.ms": "10000"}
    flow = setup.flow(topic, properties, target=target)
    write(setup.a, topic, [Sent(number % 2, b"%d" % number) for number in range(20)])
    with running(flow.file) as mirror:
        wait_for_copy(mirror, flow, topic)
        target.kill()
        target.wipe(keeps_id=keeps_id)
        write(setup.a, topic, [Sent(number % 2, b"%d" % number) for number in range(20, 40)])
        target.start()
        url = public_url(mirror)

        def shown() -> str:
            return str(ask(url + "flows")[1][0]["errors"])

        cause = "UNKNOWN_TOPIC_OR_PARTITION" if keeps_id else "its cluster id was "
        words = ("restart the flow's workers", "the target was rebuilt", cause)
        until(lambda: all(it in shown() for it in words), 90, shown, alive=mirror)

        def health() -> tuple[int, bool]:
            code, body = ask(url + "health")
            return code, words[0] in body["message"]

        until_equal(health, (503, True), alive=mirror)
    with running(flow.file) as mirror:
        assert_equal(*wait_for_copy(mirror, flow, topic))


@pytest.mark.faults
@pytest.mark.parametrize("kind", [PROMPT, ENABLED], ids=["plain", "exactly-once"])
def test_a_restart_copies_nothing_again_where_the_topic_of_positions_was_deleted(
    setup: Setup, kind: Mapping[str, str]
) -> None:
    """Of an idle topic: the worker that runs writes its positions once more."""
    topic = setup.topic("idle", 2)
    flow = setup.flow(topic, kind)
    write(setup.a, topic, [Sent(it % 2, b"%d" % it) for it in range(20)])
    with running(flow.file) as mirror:
        wait_for_copy(mirror, flow, topic)
        until(lambda: len(committed_positions(flow, topic)) == 2, 90, "positions", alive=mirror)
        stored = committed_positions(flow, topic)
        delete_topic(setup.b, flow.offsets_topic)
        until(lambda: committed_positions(flow, topic) != stored, 90, "the loss", alive=mirror)
        until_equal(lambda: committed_positions(flow, topic), stored, "positions", alive=mirror)
    write(setup.a, topic, [Sent(it, b"behind") for it in range(2)])
    with running(flow.file, name="next") as mirror:
        assert_equal(*wait_for_copy(mirror, flow, topic))
