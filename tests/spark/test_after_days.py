"""A driver that was killed is started again when its clusters have forgotten what they forget in days.

Transactional ids and producers are gone, internal topics are compacted, the source has deleted records.
"""

from functools import partial
from typing import Final

import pytest

from mm2py.types import TopicPartition
from mm2py_jobs.spark.session import OpenSession
from tests.integration.exactly_once import ENABLED
from tests.integration.mirror_process import PROMPT, Flow, running, until, until_equal
from tests.integration.setups import Setup
from tests.integration.traffic import (
    Record,
    assert_equal,
    committed_positions,
    copied,
    ends,
    read,
    wait_for_copy,
    write,
)
from tests.kit.kafka.region import KafkaAddress, Region
from tests.kit.regions import NewRegion
from tests.spark.backfill_process import BackfillProcess, command
from tests.spark.test_archive import archived, parts_of, restored
from tests.spark.test_backfill import history
from tests.spark.test_verify import delete

pytestmark = [
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.faults,
    pytest.mark.timeout(900),
]

DAYS_IN_SECONDS: Final = {
    "transactional.id.expiration.ms": "10000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "1000",
    "producer.id.expiration.ms": "4000",
    "producer.id.expiration.check.interval.ms": "500",
    "offsets.retention.minutes": "1",
    "offsets.retention.check.interval.ms": "1000",
    "log.roll.ms": "1000",
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.cleaner.delete.retention.ms": "0",
}
FOREVER: Final = {"retention.ms": "-1"}


@pytest.fixture
def forgetful(new_region: NewRegion) -> Region:
    """A target of which some seconds are days."""
    return new_region(properties=DAYS_IN_SECONDS)


def wait_for_days(region: KafkaAddress) -> None:
    """Wait until no transactional id is known any more: what expires last."""

    def is_forgotten() -> bool:
        newest: dict[bytes | None, bytes | None] = {}
        for log in read(region, "__transaction_state").values():
            newest |= {it.key: it.value for it in log.records}
        return bool(newest) and not any(newest.values())

    until(is_forgotten, 120, "the end of the transactional ids")


def copy_of(flow: Flow, topic: str, partition: int) -> list[Record]:
    return read(flow.target, flow.remote(topic))[partition].records


@pytest.mark.usefixtures("lanes_session")
def test_a_backfill_goes_on_and_reports_what_the_source_has_deleted_meanwhile(
    setup: Setup, forgetful: Region
) -> None:
    topic = setup.topic("days", 2, config=FOREVER)
    flow = setup.flow(topic, {**ENABLED, **PROMPT}, target=forgetful)
    write(setup.a, topic, history(2, 20_000))
    truth = read(setup.a, topic)
    with BackfillProcess(flow, "--rate-limit", "200000") as run:
        until(
            lambda: (
                run.is_running and min(committed_positions(flow, topic).values(), default=0) > 500
            ),
            240,
        )
        run.kill()
    wait_for_days(forgetful)
    stopped = ends(forgetful, flow.remote(topic))
    # Of one partition some that were to be copied next, of another one all.
    cuts = {0: stopped[0] + 1_000, 1: 10_000}
    for partition, cut in cuts.items():
        delete(setup.a, TopicPartition(topic, partition), cut)
    again = command(flow, "run", "--master", "local[2]")
    assert (again.code, again.report["state"]) == (0, "DONE"), again.err
    lost = {int(str(it["partition"])): (it["from"], it["to"]) for it in again.rows("lost")}
    # Not what was copied behind the stored position.
    assert lost == {it: (stopped[it], cut) for it, cut in cuts.items()}
    write(setup.a, topic, history(2, 200))
    added = read(setup.a, topic)
    with running(flow.file) as mirror:
        for partition in range(2):
            end, cut = stopped[partition], cuts.get(partition, stopped[partition])
            whole = truth[partition].records[:end] + truth[partition].records[cut:]
            whole += added[partition].records[-100:]
            until_equal(partial(copy_of, flow, topic, partition), whole, "the copy")
        mirror.check_defects()


def test_a_restore_goes_on(setup: Setup, forgetful: Region, lanes_session: OpenSession) -> None:
    topic, path = setup.topic("days", 2, config=FOREVER), setup.folder / "archive"
    flow = setup.flow(topic, PROMPT, target=forgetful)
    write(setup.a, topic, history(2, 20_000), batch_size=1_000)
    archived(lanes_session, flow, topic, path)
    options = "--from", str(path), "--rate-limit", "200000"
    with BackfillProcess(flow, *options, words=("restore",)) as run:
        until(lambda: run.is_running and copied(flow, topic) > 2_000, 240, "progress")
        run.kill()
    assert copied(flow, topic) < 20_000
    wait_for_days(forgetful)
    assert restored(flow, path)["records"] == 20_000
    write(setup.a, topic, history(2, 100))
    with running(flow.file) as mirror:
        assert_equal(*wait_for_copy(mirror, flow, topic))


def test_an_archive_goes_on_and_reports_what_the_source_has_deleted_meanwhile(
    setup: Setup, lanes_session: OpenSession
) -> None:
    topic, path = setup.topic("days", 8, config=FOREVER), setup.folder / "archive"
    flow = setup.flow(topic)
    write(setup.a, topic, history(8, 32_000))
    options = "--to", str(path), "--rate-limit", "400000", "--lanes", "8"
    with BackfillProcess(flow, *options, words=("archive",)) as run:
        until(lambda: [*path.rglob("partition=*/*.json")], 240, "the first manifest")
        run.kill()
    done = {int(it.parent.name.partition("=")[2]) for it in path.rglob("partition=*/*.json")}
    assert len(done) < 8
    for partition in range(8):
        delete(setup.a, TopicPartition(topic, partition), 1_500)
    rows = {
        int(str(it["partition"])): it for it in parts_of(archived(lanes_session, flow, topic, path))
    }
    assert set(rows) == set(range(8)) - done
    for row in rows.values():
        assert (row["lost_from"], row["lost_to"], row["records"]) == (0, 1_500, 2_500)
    back = restored(flow, path)
    assert back["records"] == 4_000 * len(done) + 2_500 * len(rows)
