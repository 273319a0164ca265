"""Failovers whose source topic was deleted and created again, with as many records, while nothing copied: none of them counts as copied."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.integration.cluster_changes import delete_topic
from tests.integration.failovers import PARTITIONS, Sides, allow_shop, home, secured_pair
from tests.integration.mirror_process import until
from tests.integration.traffic import (
    Sent,
    commit,
    committed,
    committed_positions,
    ends,
    read,
    write,
)
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(600)]

Unique = Callable[[str], str]
RECORDS: Final = 20


@pytest.fixture(scope="module")
def sides() -> Iterator[Sides]:
    with secured_pair("fr") as pair:
        yield pair


@pytest.mark.parametrize("ending", ["copied", "kept"])
def test_records_of_a_topic_that_was_created_again_are_copied_before_clients_move_or_kept(
    sides: Sides, unique: Unique, create_topic: CreateTopic, tmp_path: Path, ending: str
) -> None:
    a, b = sides
    topic, group = unique("orders"), unique("billing")
    with ExitStack() as stack:
        drivers = stack.enter_context(home(sides, topic, create_topic, tmp_path))
        flow, mirror = drivers.flow, drivers.mirror
        write(a, topic, [Sent(n % PARTITIONS, b"old %d" % n) for n in range(RECORDS)])
        until(lambda: sum(ends(b, topic).values()) == RECORDS, 90, "the copy", alive=mirror)
        half = RECORDS // PARTITIONS
        stored = dict.fromkeys(range(PARTITIONS), half - 1)
        until(lambda: committed_positions(flow, topic) == stored, 90, "the commit", alive=mirror)
        drivers.change_flow("pause", "PAUSED")
        delete_topic(a, topic)
        create_topic(a, topic, PARTITIONS)
        allow_shop(a, topic)
        write(a, topic, [Sent(n % PARTITIONS, b"new %d" % n) for n in range(RECORDS)])
        commit(a, group, topic, {0: half - 2})

        plan = drivers.run("failover", "--plan", "-o", "json")
        assert plan.document["would_lose"] == RECORDS
        assert plan.code == 3
        refused = drivers.run("failover", "--execute", "--settle", "1")
        assert f"{RECORDS} offsets would not be copied" in refused.said
        if ending == "copied":
            drivers.change_flow("resume", "RUNNING")
            done = drivers.execute("failover")
            assert done.document["tail"] == []
            copies = {record.value for log in read(b, topic).values() for record in log.records}
            assert {b"new %d" % n for n in range(RECORDS)} <= copies
            assert committed(b, group, topic)[0] == half + half - 2
            return
        done = drivers.execute("failover", "--accept-loss", str(RECORDS))
        assert sum(it["records"] for it in done.document["tail"]) == RECORDS
        kept = read(b, f"mm2py-quarantine.{flow.source_alias}.{topic}.internal")
        assert {record.value for log in kept.values() for record in log.records} == {
            b"new %d" % n for n in range(RECORDS)
        }
        # Nothing was copied of what the group knows: it skips no record there.
        assert committed(b, group, topic).get(0, 0) <= half
        write(b, topic, [Sent(0, b"native")])
        until(lambda: ends(a, topic)[0] == half + 1, 90, "the way back", alive=mirror)
        drivers.execute("failback")
        before = sum(ends(b, topic).values())
        write(a, topic, [Sent(1, b"home")])
        until(lambda: sum(ends(b, topic).values()) > before, 90, "the flow", alive=mirror)
        values = [record.value for record in read(b, topic)[1].records]
        assert values.count(b"home") == 1
        assert not [it for it in values if it is not None and it.startswith(b"new")]
