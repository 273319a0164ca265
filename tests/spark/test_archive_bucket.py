"""Archive and restore in a bucket of an S3 server, over pyarrow.fs and over fsspec (s3fs)."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Final, cast

import pytest
from pyarrow import parquet

from mm2py.types import TopicPartition
from mm2py_jobs.archive.archive import archive_flow
from mm2py_jobs.archive.archive_format import FileManifest, Shape, chain_of, put_manifest
from mm2py_jobs.archive.archive_store import ArchiveStore
from mm2py_jobs.open_flow import flow_sides
from mm2py_jobs.spark.session import OpenSession
from tests.integration.mirror_process import until
from tests.integration.setups import Setup
from tests.integration.traffic import assert_equal, read, write
from tests.spark.backfill_process import BackfillProcess
from tests.spark.bucket_server import ACCESS, NEEDS_SERVER, Bucket
from tests.spark.test_archive import archived, old_records, restored
from tests.spark.test_verify import differences_of, report_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.chaos,
    pytest.mark.timeout(600),
    NEEDS_SERVER,
    pytest.mark.parametrize("scheme", ACCESS),
]

AT_ONCE: Final = 8


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with Bucket(tmp_path_factory.mktemp("bucket")) as found:
        yield found


def offsets_in(bucket: Bucket, folder: str) -> dict[int, list[int]]:
    """Return the offsets of all rows of an archive of records, by partition, as others read it."""
    found: dict[int, list[int]] = {}
    for file in (it for it in bucket.names(folder) if it.endswith(".parquet")):
        with bucket.system.open_input_file(file) as opened:
            table = parquet.ParquetFile(opened).read(columns=["topic", "partition", "offset"])
        for row in cast("list[dict[str, int]]", table.to_pylist()):
            assert f"/topic={row['topic']}/partition={row['partition']}/" in file
            found.setdefault(row["partition"], []).append(row["offset"])
    return {it: sorted(offsets) for it, offsets in found.items()}


def dense(ends: Sequence[int]) -> dict[int, list[int]]:
    return {partition: list(range(end)) for partition, end in enumerate(ends)}


@pytest.fixture
def place(setup: Setup, scheme: str) -> str:
    """A folder of the bucket that nothing else uses."""
    return setup.unique(f"archive-{scheme}")


def test_an_archive_is_continued_and_restored(
    setup: Setup, lanes_session: OpenSession, bucket: Bucket, scheme: str, place: str
) -> None:
    topic = setup.topic("kept", 2, config={"retention.ms": "-1"})
    flow, url = setup.flow(topic), bucket.url(scheme, place)
    for turn in range(2):
        write(setup.a, topic, [*old_records(900, 0, turn), *old_records(100, 1, turn)])
        assert archived(lanes_session, flow, topic, url)["records"] == 1_000
        assert archived(lanes_session, flow, topic, url)["records"] == 0
        assert restored(flow, url)["restored_records"] == 1_000
    proof = report_of(lanes_session, flow, topic, 2)
    assert (differences_of(proof), proof["checked_records"]) == ([], 2_000)


def test_records_are_read_by_others(
    setup: Setup, lanes_session: OpenSession, bucket: Bucket, scheme: str, place: str
) -> None:
    topic = setup.topic("rows", 2)
    flow, url = setup.flow(topic), bucket.url(scheme, place)
    for turn in range(2):
        write(setup.a, topic, [*old_records(900, 0, turn), *old_records(100, 1, turn)])
        archived(lanes_session, flow, topic, url, Shape.RECORDS)
    assert offsets_in(bucket, place) == dense([1_800, 200])
    duckdb = pytest.importorskip("duckdb")
    fsspec = pytest.importorskip("fsspec")
    pytest.importorskip("s3fs")
    connection = duckdb.connect()
    connection.register_filesystem(fsspec.filesystem("s3"))
    files = f"s3://lake/{place}/{flow.source_alias}-{flow.target_alias}/topic={topic}/*/*/*.parquet"
    query = 'SELECT partition, count(DISTINCT "offset"), count(*) FROM read_parquet(?) GROUP BY 1'
    rows = connection.execute(query, [files]).fetchall()
    assert sorted(rows) == [(0, 1_800, 1_800), (1, 200, 200)]


@pytest.mark.parametrize("shape", list(Shape))
def test_of_two_runs_at_once_neither_loses_or_doubles_a_record(
    setup: Setup, lanes_session: OpenSession, bucket: Bucket, scheme: str, place: str, shape: Shape
) -> None:
    """They have made their plans before either has archived anything."""
    topic = setup.topic("twice", 4, config={"retention.ms": "-1"})
    flow, url = setup.flow(topic), bucket.url(scheme, place)
    planned = Barrier(2, timeout=90)

    def opened() -> OpenSession:
        planned.wait()
        return OpenSession(lanes_session.spark, owned=False, lanes=1)

    def run(_number: int) -> dict[str, object]:
        return archive_flow(flow_sides(flow.file, flow.name, topic), url, shape, opened)

    for turn in range(3):
        records = [it for number in range(4) for it in old_records(250, number, turn)]
        write(setup.a, topic, records)
        with ThreadPoolExecutor(2) as threads:
            for report in threads.map(run, range(2)):
                assert report["records"] in {0, 1_000}, report
    assert archived(lanes_session, flow, topic, url, shape)["records"] == 0
    if shape is Shape.RECORDS:
        assert offsets_in(bucket, place) == dense([750] * 4)
        return
    assert restored(flow, url)["records"] == 3_000
    assert_equal(read(setup.a, topic), read(setup.b, flow.remote(topic)))


def test_of_writers_at_once_each_offset_is_read_once(
    bucket: Bucket, scheme: str, place: str
) -> None:
    store, tp = ArchiveStore(bucket.url(scheme, place)), TopicPartition("t", 0)
    begin = Barrier(AT_ONCE, timeout=60)

    def run(number: int) -> None:
        manifest = FileManifest(
            topic="t", partition=0, first=0, end=100 + number, records=1, size_bytes=1,
            file=f"{number}.parquet", sha256="",
        )  # fmt: skip
        begin.wait()
        put_manifest(store, manifest)

    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(run, range(AT_ONCE)))
    chain = chain_of(store, tp)
    assert [it.begins for it in chain] == [0, *(it.end for it in chain[:-1])]
    assert chain[-1].end >= 100


def test_what_a_killed_run_has_left_is_continued(
    setup: Setup, lanes_session: OpenSession, bucket: Bucket, scheme: str, place: str
) -> None:
    topic = setup.topic("killed", 8, config={"retention.ms": "-1"})
    flow, url = setup.flow(topic), bucket.url(scheme, place)
    write(setup.a, topic, [it for number in range(8) for it in old_records(4_000, number)])

    def manifests() -> list[str]:
        return [it for it in bucket.names(place) if "/partition=" in it and it.endswith(".json")]

    options = "--to", url, "--shape", "records", "--rate-limit", "200000", "--lanes", "8"
    with BackfillProcess(flow, *options, words=("archive",)) as run:
        until(manifests, 240, "the first manifest")
        run.kill()
    assert len(manifests()) < 8
    report = archived(lanes_session, flow, topic, url, Shape.RECORDS)
    assert 0 < int(str(report["records"])) < 32_000
    assert offsets_in(bucket, place) == dense([4_000] * 8)
