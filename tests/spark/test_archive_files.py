"""Archives of many small runs whose files are joined and removed: what others read, and what is restored, on a disk and in a bucket."""

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, cast

import pytest
from typer.testing import CliRunner

from mm2py_cli.app import app
from mm2py_jobs.archive.archive_format import Shape
from mm2py_jobs.spark.session import OpenSession
from tests.integration.mirror_process import Flow, until
from tests.integration.setups import Setup
from tests.integration.traffic import Log, assert_equal, read, write
from tests.spark.backfill_process import BackfillProcess
from tests.spark.bucket_server import ACCESS, NEEDS_SERVER, Bucket
from tests.spark.test_archive import archived, old_records, parts_of, restored
from tests.spark.test_archive_bucket import dense, offsets_in
from tests.unit.spark.test_archive_upkeep import rows_in

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]

RUNS: Final = 6
Row = dict[str, object]


def joined(flow: Flow, folder: Path | str, shape: Shape, *options: str) -> dict[str, object]:
    """Run ``mm2py archive --join`` in this process; return its report."""
    arguments = ["archive", str(flow.file), "--flow", flow.name, "--to", str(folder), "--join"]
    done = CliRunner().invoke(app, [*arguments, "--shape", shape.value, *options, "-o", "json"])
    assert done.exit_code == 0, done.output
    return cast("dict[str, object]", json.loads(done.stdout))


def upkeep_of(report: dict[str, object]) -> list[Row]:
    return cast("list[Row]", report["upkeep"])


def test_what_many_runs_leave_is_one_file_of_each_partition_that_others_read(
    setup: Setup, lanes_session: OpenSession
) -> None:
    duckdb = pytest.importorskip("duckdb")
    topic = setup.topic("small", 2, config={"retention.ms": "-1"})
    flow, path = setup.flow(topic), setup.folder / "archive"
    folder = path / f"{flow.source_alias}-{flow.target_alias}" / f"topic={topic}"
    for turn in range(RUNS):
        write(setup.a, topic, [*old_records(300, 0, turn), *old_records(50, 1, turn)])
        if turn < RUNS - 1:
            archived(lanes_session, flow, topic, path, Shape.RECORDS)
    assert len(list(folder.rglob("*.parquet"))) == 2 * (RUNS - 1)
    report = joined(flow, path, Shape.RECORDS)  # adds the last two
    assert report["records"] == 350
    assert [(it["joined"], it["into"], it["cause"]) for it in upkeep_of(report)] == [
        (RUNS, 1, "")
    ] * 2
    files = sorted(folder.rglob("*.parquet"))
    assert [it.parent.parent.name for it in files] == ["partition=0", "partition=1"]
    truth = rows_of(read(setup.a, topic))
    assert [
        (row["partition"], row["offset"], cast("datetime", row["timestamp"]).timestamp(), row["key"],
         row["value"], headers_of(cast("list[Row]", row["headers"])))
        for it in files for row in rows_in(it)
    ] == truth  # fmt: skip
    query = (
        'SELECT partition, "offset", epoch_us("timestamp") / 1e6, key, value, headers FROM '
        "read_parquet(?, hive_partitioning=false) ORDER BY 1, 2"
    )
    found = duckdb.execute(query, [f"{folder}/*/*/*.parquet"]).fetchall()
    assert [(*row[:5], headers_of(row[5])) for row in found] == truth
    write(setup.a, topic, old_records(100, 0, RUNS))
    again = joined(flow, path, Shape.RECORDS)
    assert [(it["from"], it["records"]) for it in parts_of(again)] == [(300 * RUNS, 100)]
    assert [(it["partition"], it["joined"]) for it in upkeep_of(again)] == [(0, 2)]
    assert upkeep_of(joined(flow, path, Shape.RECORDS)) == []


def headers_of(cells: Sequence[dict[str, object]]) -> tuple[tuple[object, object], ...]:
    return tuple((it["key"], it["value"]) for it in cells)


def rows_of(logs: dict[int, Log]) -> list[tuple[object, ...]]:
    return [
        (number, offset, it.timestamp_ms / 1_000, it.key, it.value, it.headers)
        for number, log in sorted(logs.items())
        for offset, it in zip(log.offsets, log.records, strict=True)
    ]


def test_a_joined_archive_is_restored_exactly_and_runs_that_follow_are_too(
    setup: Setup, lanes_session: OpenSession
) -> None:
    """Runs of a transactional writer; the first date is removed before the last restore."""
    topic = setup.topic("kept", 2, config={"retention.ms": "-1"})
    flow, path = setup.flow(topic), setup.folder / "archive"
    for turn in range(RUNS):
        write(setup.a, topic, [*old_records(300, 0, turn), *old_records(50, 1, turn)])
        archived(lanes_session, flow, topic, path)
    assert [it["joined"] for it in upkeep_of(joined(flow, path, Shape.BATCHES))] == [RUNS, RUNS]
    assert restored(flow, path)["records"] == 350 * RUNS
    write(setup.a, topic, [it._replace(timestamp_ms=0) for it in old_records(100, 1, RUNS)])
    joined(flow, path, Shape.BATCHES)
    assert restored(flow, path)["restored_records"] == 100
    assert_equal(read(setup.a, topic), read(setup.b, flow.remote(topic)))
    kept = upkeep_of(joined(flow, path, Shape.BATCHES, "--keep", "1 day"))
    assert [(it["partition"], it["removed"]) for it in kept] == [(1, 1)]
    into = setup.unique("into")
    report = restored(flow, path, rename=f"{topic}={into}")
    assert [(it["records"], it["lost_in_archive"]) for it in parts_of(report)] == [
        (300 * RUNS, 0),
        (100, 50 * RUNS),
    ]
    copies = read(setup.b, into)
    assert copies[1].records == read(setup.a, topic)[1].records[-100:]


# ---- in a bucket


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with Bucket(tmp_path_factory.mktemp("bucket")) as found:
        yield found


@NEEDS_SERVER
@pytest.mark.chaos
@pytest.mark.parametrize("scheme", ACCESS)
@pytest.mark.parametrize("shape", list(Shape))
def test_in_a_bucket_files_are_joined_while_the_next_run_archives(
    setup: Setup, lanes_session: OpenSession, bucket: Bucket, scheme: str, shape: Shape
) -> None:
    """A join that is killed in between has left what it had written."""
    topic, place = setup.topic("small", 4, config={"retention.ms": "-1"}), setup.unique("files")
    flow, url = setup.flow(topic), bucket.url(scheme, place)
    for turn in range(RUNS):
        write(setup.a, topic, [it for number in range(4) for it in old_records(200, number, turn)])
        archived(lanes_session, flow, topic, url, shape)
    write(setup.a, topic, [it for number in range(4) for it in old_records(200, number, RUNS)])
    options = ("--to", url, "--shape", shape.value, "--join", "--lanes", "1")
    with BackfillProcess(flow, *options, words=("archive",)) as run:
        until(
            lambda: any(".joined." in it for it in bucket.names(place)),
            240,
            "the first joined file",
        )
        run.kill()
    archived(lanes_session, flow, topic, url, shape)
    joined(flow, url, shape)
    files = [it for it in bucket.names(place) if it.endswith(".parquet")]
    assert len(files) == 4
    if shape is Shape.RECORDS:
        assert offsets_in(bucket, place) == dense([200 * (RUNS + 1)] * 4)
        return
    assert restored(flow, url)["records"] == 800 * (RUNS + 1)
    assert_equal(read(setup.a, topic), read(setup.b, flow.remote(topic)))
