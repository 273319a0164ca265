"""``mirror-maker-py`` between two real clusters: content, order, kills, shared work, refused records."""

import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from mm2py.storage.table import partition_of
from tests.integration.mirror_maker_1 import (
    Files,
    committed,
    order_by_key,
    start,
    wait_for_records,
    write_files,
)
from tests.integration.mirror_process import until
from tests.integration.traffic import Load, Sent, ends, read, write
from tests.kit.kafka.region import ForeignRegion, KafkaAddress
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

PARTITIONS: Final = 4
TARGET_PARTITIONS: Final = 3
RATE: Final = 2_000
TRICKLE: Final = 500
Unique = Callable[[str], str]
COMMITS: Final = ("--offset.commit.interval.ms", "500")


@pytest.fixture
def topic(
    region_a: KafkaAddress, region_b: KafkaAddress, unique: Unique, create_topic: CreateTopic
) -> str:
    name = unique("legacy")
    create_topic(region_a, name, PARTITIONS)
    create_topic(region_b, name, TARGET_PARTITIONS)
    return name


@pytest.fixture
def files(region_a: KafkaAddress, region_b: KafkaAddress, unique: Unique, tmp_path: Path) -> Files:
    return write_files(tmp_path, region_a, region_b, unique("group"))


def every_kind(count: int) -> list[Sent]:
    """Keys, an empty key, null values and empty ones, headers that repeat, old timestamps."""
    found: list[Sent] = []
    for number in range(count):
        key = b"" if number % 10 == 0 else b"key-%d" % (number % 40)
        value = None if number % 7 == 0 else b"" if number % 7 == 1 else b"value %d" % number
        headers = (("a", b"1"), ("a", None), ("b", b"")) if number % 3 == 0 else ()
        # The partition is that of the key on the source, so that each key has one order.
        found.append(
            Sent(partition_of(key, PARTITIONS), value, key, headers, 1_500_000_000_000 + number)
        )
    return found


def test_records_keep_key_value_headers_timestamp_and_the_order_of_their_key(
    files: Files, topic: str
) -> None:
    write(files.source, topic, every_kind(3_000))
    with start(files, "--whitelist", topic, "--num.streams", "3") as mirror:
        wait_for_records(files.target, topic, 3_000, mirror)
        assert mirror.stop() == 0
        assert mirror.lines("mirrored 3000 records in .* dropped 0")
    assert order_by_key(files.target, topic) == order_by_key(files.source, topic)
    for partition, log in read(files.target, topic).items():
        keys = {record.key for record in log.records}
        assert {partition_of(key or b"", TARGET_PARTITIONS) for key in keys} <= {partition}
    assert committed(files, topic) == ends(files.source, topic)


def test_records_without_key_are_spread(files: Files, topic: str) -> None:
    written = 0

    def are_spread() -> bool:
        # All that is sent within some milliseconds goes to one partition, as with Java's producer.
        nonlocal written
        more = range(written, written + 5_000)
        write(files.source, topic, (Sent(it % PARTITIONS, b"%d" % it) for it in more))
        written += len(more)
        wait_for_records(files.target, topic, written, mirror)
        return all(end > 0 for end in ends(files.target, topic).values())

    with start(files, "--whitelist", topic) as mirror:
        until(are_spread, 60, "records in every partition", alive=mirror)
        assert mirror.stop() == 0
    values = sorted(
        it.value or b"" for log in read(files.target, topic).values() for it in log.records
    )
    assert values == sorted(b"%d" % number for number in range(written))


def lost(files: Files, topic: str) -> dict[int, list[int]]:
    """Return the source offsets, by partition, whose records are not on the target."""
    copied = {it for log in read(files.target, topic).values() for it in log.records}
    missing = {
        partition: [at for at, it in zip(log.offsets, log.records, strict=True) if it not in copied]
        for partition, log in read(files.source, topic).items()
    }
    return {partition: offsets for partition, offsets in missing.items() if offsets}


def test_clean_stops_double_nothing_and_a_kill_only_what_was_not_committed(
    files: Files, topic: str
) -> None:
    uncommitted = 0
    with Load(files.source, topic, PARTITIONS, rate=TRICKLE, trickles=True) as load:
        for turn in range(4):
            with start(files, "--whitelist", topic, *COMMITS, name=f"turn-{turn}") as mirror:
                before = sum(ends(files.target, topic).values())
                wait_for_records(files.target, topic, before + TRICKLE, mirror)
                if turn == 2:
                    mirror.kill()
                    at = sum(committed(files, topic).values())
                    uncommitted = sum(ends(files.target, topic).values()) - at
                else:
                    assert mirror.stop() == 0
                    assert committed(files, topic)
                    if turn < 2:
                        at = sum(committed(files, topic).values())
                        assert sum(ends(files.target, topic).values()) == at, (
                            "nothing twice, nothing unread"
                        )
        load.stop()
    with start(files, "--whitelist", topic, *COMMITS, name="last") as mirror:
        until(
            lambda: committed(files, topic) == ends(files.source, topic),
            90,
            "the end",
            alive=mirror,
        )
        assert mirror.stop() == 0
    wanted = {it for log in read(files.source, topic).values() for it in log.records}
    found = [it for log in read(files.target, topic).values() for it in log.records]
    assert set(found) == wanted
    assert len(found) - len(wanted) == uncommitted
    assert uncommitted <= 5 * TRICKLE, "what came since the last commit, half a second before"


def test_two_processes_share_the_partitions_and_one_takes_over(files: Files, topic: str) -> None:
    with (
        Load(files.source, topic, PARTITIONS, rate=RATE) as load,
        start(files, "--whitelist", topic, *COMMITS, name="one") as one,
        start(files, "--whitelist", topic, *COMMITS, name="two") as two,
    ):
        for mirror in (one, two):
            mirror.wait_for_log(r"partitions assigned stream=\S+ partitions=\S+,\S+")
        load.wait_acked(RATE)
        two.send(signal.SIGKILL)
        one.wait_for_log(r"partitions assigned stream=\S+ partitions=(\S+,){3}\S+")
        load.stop()
        until(
            lambda: committed(files, topic) == ends(files.source, topic), 90, "the end", alive=one
        )
        assert one.stop() == 0
    assert not lost(files, topic)


@pytest.fixture
def narrow(
    region_a: KafkaAddress, region_b: KafkaAddress, unique: Unique, create_topic: CreateTopic
) -> str:
    """A topic whose copy takes less in one batch than the source."""
    name = unique("narrow")
    create_topic(region_a, name, 1)
    create_topic(region_b, name, 1, config={"max.message.bytes": "2000"})
    return name


def test_a_record_that_is_too_large_is_dropped_alone(files: Files, narrow: str) -> None:
    values = [b"%d" % number for number in range(500)]
    values[250] = b"x" * 5_000
    write(files.source, narrow, [Sent(0, value, b"k") for value in values])
    with start(files, "--whitelist", narrow, "--abort.on.send.failure", "false") as mirror:
        wait_for_records(files.target, narrow, 499, mirror)
        until(
            lambda: mirror.lines("record dropped record=.*offset 250 "),
            60,
            "its name",
            alive=mirror,
        )
        assert mirror.stop() == 0
        assert mirror.lines("mirrored 500 records in .* dropped 1")
    copy = read(files.target, narrow)[0].records
    assert [it.value for it in copy] == values[:250] + values[251:]
    assert committed(files, narrow) == {0: 500}


def test_a_topic_that_takes_only_small_batches_gets_small_ones(
    files: Files, unique: Unique, create_topic: CreateTopic
) -> None:
    topic = unique("small-batches")
    create_topic(files.source, topic, 1)
    create_topic(files.target, topic, 1, config={"max.message.bytes": "40000"})
    values = [b"%04d" % number * 250 for number in range(2_000)]
    write(files.source, topic, [Sent(0, value, b"k") for value in values])
    with start(files, "--whitelist", topic) as mirror:
        wait_for_records(files.target, topic, len(values), mirror)
        assert mirror.stop() == 0
        assert mirror.lines("mirrored 2000 records in .* dropped 0")
        assert len(mirror.lines("a batch was too large for topic .*batch.size=16384")) == 1
    assert [it.value for it in read(files.target, topic)[0].records] == values
    assert committed(files, topic) == {0: len(values)}


def test_a_refused_record_ends_the_mirror_and_no_position_is_past_it(
    files: Files, narrow: str
) -> None:
    values = [b"%d" % number for number in range(500)]
    values[250] = b"x" * 5_000
    write(files.source, narrow, [Sent(0, value, b"k") for value in values])
    with start(files, "--whitelist", narrow) as mirror:
        assert mirror.wait() == 1
        assert mirror.lines("offset 250 was not taken by the target: MSG_SIZE_TOO_LARGE")
    assert committed(files, narrow).get(0, 0) <= 250


@pytest.mark.faults
def test_a_topic_that_the_target_does_not_have_yet_is_waited_for(
    files: Files,
    unique: Unique,
    create_topic: CreateTopic,
    new_region: Callable[..., KafkaAddress],
    tmp_path: Path,
) -> None:
    target = new_region("strict", properties={"auto.create.topics.enable": "false"})
    files = write_files(tmp_path, files.source, target, unique("waits"))
    topic = unique("later")
    create_topic(files.source, topic, 1)
    write(files.source, topic, [Sent(0, b"%d" % number, b"k") for number in range(100)])
    with start(files, "--whitelist", topic, *COMMITS) as mirror:
        mirror.wait_for_log("the target does not take records yet")
        assert committed(files, topic) == {}
        create_topic(files.target, topic, 1)
        wait_for_records(files.target, topic, 100, mirror)
        assert mirror.stop() == 0
    assert [it.value for it in read(files.target, topic)[0].records] == [
        b"%d" % n for n in range(100)
    ]


def test_a_blacklist_mirrors_the_others_but_no_internal_topic(
    files: Files, topic: str, unique: Unique, create_topic: CreateTopic
) -> None:
    left_out = unique("left-out")
    create_topic(files.source, left_out, 1)
    for name in (topic, left_out):
        write(files.source, name, [Sent(0, b"x", b"k")])
    others = f"(?!{topic}).*"
    with start(
        files, f"--blacklist={others}", "--abort.on.send.failure=true", "--new.consumer"
    ) as mirror:
        wait_for_records(files.target, topic, 1, mirror)
        mirror.wait_for_log(f"topics=1 {topic}")
        assert mirror.stop() == 0
    assert ends(files.target, left_out) == {}


def test_a_cluster_that_does_not_answer_is_waited_for_until_a_stop(
    files: Files, tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        away = ForeignRegion("away", f"127.0.0.1:{taken.getsockname()[1]}")
        files = write_files(tmp_path, files.source, away, files.group)
        with start(files, "--whitelist", "any") as mirror:
            mirror.wait_for_log("the target does not answer yet, tried again")
            assert mirror.stop() == 0


@pytest.mark.parametrize(
    ("words", "consumer", "said"),
    [
        (("--whitelist", "a", "--blacklist", "b"), "", "exactly one of --whitelist"),
        ((), "", "exactly one of --whitelist"),
        (("--whitelist", "a("), "", "a("),
        (
            ("--whitelist", "a", "--message.handler", "com.acme.Handler"),
            "",
            "no message handler com.acme.Handler",
        ),
        (("--whitelist", "a"), "zookeeper.connect=zk:2181", "bootstrap.servers=HOST:9092"),
        (("--whitelist", "a", "--num.streams", "0"), "", "--num.streams"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(
    files: Files, words: tuple[str, ...], consumer: str, said: str
) -> None:
    with files.consumer.open("a") as file:
        file.write(consumer)
    mirror = start(files, *words)
    try:
        assert mirror.wait(60) in (1, 2)
    except subprocess.TimeoutExpired:
        mirror.kill()
        raise
    lines = [it for it in mirror.log().splitlines() if it.startswith("mirror-maker-py: ")]
    assert len(lines) == 1
    assert said in lines[0]


def checked(files: Files, *words: str) -> tuple[int, list[list[str]]]:
    """Run the checker; its exit code and the cells of its lines."""
    command = str(Path(sys.executable).parent / "mm2py")
    ended = subprocess.run(
        [
            command,
            "consumer-offset-checker",
            "--bootstrap-server",
            files.source.bootstrap_servers,
            *words,
        ],
        capture_output=True,
        text=True,
        timeout=90,
    )
    return ended.returncode, [line.split() for line in (ended.stdout or ended.stderr).splitlines()]


def test_the_checker_shows_positions_lag_and_owners(files: Files, topic: str) -> None:
    write(files.source, topic, (Sent(number % 2, b"%d" % number, b"k") for number in range(100)))
    with start(files, "--whitelist", topic, *COMMITS) as mirror:
        until(lambda: committed(files, topic) == {0: 50, 1: 50}, 90, "the commit", alive=mirror)
        code, (titles, *rows) = checked(files, "--group", files.group)
        assert code == 0
        assert titles == ["Group", "Topic", "Pid", "Offset", "logSize", "Lag", "Owner"]
        assert [row[:6] for row in rows[:2]] == [
            [files.group, topic, str(p), "50", "50", "0"] for p in (0, 1)
        ]
        assert {row[6] for row in rows} == {f"{files.group}-0_/127.0.0.1"}
        mirror.wait_for_log("mirrored 100 records, .* lag 0, dropped 0")
        assert mirror.stop() == 0
    write(files.source, topic, [Sent(1, b"more", b"k")])
    _, (_, *rows) = checked(files, "--group", files.group, "--topic", topic)
    assert rows[1] == [files.group, topic, "1", "50", "51", "1", "none"]


def test_the_checker_refuses_an_unknown_group(files: Files) -> None:
    code, (line, *_) = checked(files, "--group", "nobody-has-this")
    assert code == 1
    assert "there is no consumer group nobody-has-this" in " ".join(line)
