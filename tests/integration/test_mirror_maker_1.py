"""``mirror-maker-py`` on real brokers: records, groups, kills, options and what is printed."""

import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from bench.workloads import batch_shape
from mm2py.protocol.columns import partition_of
from tests.integration.mirror_maker_1 import (
    Files,
    committed,
    install_plugins,
    order_by_key,
    start,
    wait_for_records,
    write_files,
)
from tests.integration.mirror_process import command_here, until, until_equal
from tests.integration.setups import Setup
from tests.integration.traffic import Load, Sent, ends, numbered, read, records_of, values_of, write
from tests.kit.kafka.java import run_java
from tests.kit.kafka.region import ForeignRegion, KafkaAddress, Region
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

PARTITIONS: Final = 4
TARGET_PARTITIONS: Final = 3
RATE: Final = 2_000
TRICKLE: Final = 500
COMMITS: Final = ("--offset.commit.interval.ms", "500")


@pytest.fixture
def topic(setup: Setup) -> str:
    name = setup.topic("legacy", PARTITIONS)
    setup.create_topic(setup.b, name, TARGET_PARTITIONS)
    return name


@pytest.fixture
def files(setup: Setup) -> Files:
    return write_files(setup.folder, setup.a, setup.b, setup.unique("group"))


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


def test_records_keep_their_content_and_the_order_of_their_key(files: Files, topic: str) -> None:
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
        until(are_spread, 120, "records in every partition", alive=mirror)
        assert mirror.stop() == 0
    values = sorted(values_of(files.target, topic))
    assert values == sorted(b"%d" % number for number in range(written))


def lost(files: Files, topic: str) -> dict[int, list[int]]:
    """Return the source offsets, by partition, whose records are not on the target."""
    copied = set(records_of(files.target, topic))
    missing = {
        partition: [at for at, it in zip(log.offsets, log.records, strict=True) if it not in copied]
        for partition, log in read(files.source, topic).items()
    }
    return {partition: offsets for partition, offsets in missing.items() if offsets}


def uncommitted_at_rest(files: Files, topic: str) -> int:
    """Return how many copies are behind the committed offsets, once the brokers have taken what a killed process had sent."""
    seen: list[tuple[int, int]] = []

    def rests() -> bool:
        at, end = committed(files, topic), ends(files.target, topic)
        seen.append((sum(at.values()), sum(end.values())))
        return seen[-2:-1] == seen[-1:]

    until(rests, 90, "both clusters to rest")
    return seen[-1][1] - seen[-1][0]


@pytest.mark.faults
@pytest.mark.parametrize("rate", [TRICKLE, 20 * TRICKLE])
def test_clean_stops_double_nothing_and_a_kill_only_what_was_not_committed(
    files: Files, topic: str, rate: int
) -> None:
    uncommitted = 0
    with Load(files.source, topic, PARTITIONS, rate=rate, trickles=rate == TRICKLE) as load:
        for turn in range(4):
            with start(files, "--whitelist", topic, *COMMITS, name=f"turn-{turn}") as mirror:
                before = sum(ends(files.target, topic).values())
                wait_for_records(files.target, topic, before + rate, mirror)
                if turn == 2:
                    # What came while nobody copied is behind the last commit.
                    goal = sum(ends(files.source, topic).values())
                    until(
                        lambda goal=goal: sum(committed(files, topic).values()) >= goal,  # type: ignore[misc]
                        90,
                        "a commit",
                        alive=mirror,
                    )
                    mirror.kill()
                    uncommitted = uncommitted_at_rest(files, topic)
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
        until(lambda: committed(files, topic) == ends(files.source, topic), alive=mirror)
        assert mirror.stop() == 0
    wanted = set(records_of(files.source, topic))
    found = records_of(files.target, topic)
    assert set(found) == wanted
    assert len(found) - len(wanted) == uncommitted
    assert uncommitted <= 5 * rate, "what came since the last commit, half a second before"


@pytest.mark.faults
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
        until(lambda: committed(files, topic) == ends(files.source, topic), alive=one)
        assert one.stop() == 0
    assert not lost(files, topic)


@pytest.fixture
def narrow(setup: Setup) -> str:
    """A topic whose copy takes less in one batch than the source."""
    name = setup.topic("narrow", 1)
    setup.create_topic(setup.b, name, 1, config={"max.message.bytes": "2000"})
    return name


def test_a_record_that_is_too_large_is_dropped_alone(files: Files, narrow: str) -> None:
    values = [b"%d" % number for number in range(500)]
    values[250] = b"x" * 5_000
    write(files.source, narrow, [Sent(0, value, b"k") for value in values])
    with start(files, "--whitelist", narrow, "--abort.on.send.failure", "false") as mirror:
        wait_for_records(files.target, narrow, 499, mirror)
        until(lambda: mirror.lines("record dropped record=.*offset 250 "), alive=mirror)
        assert mirror.stop() == 0
        assert mirror.lines("mirrored 500 records in .* dropped 1")
    copy = read(files.target, narrow)[0].records
    assert [it.value for it in copy] == values[:250] + values[251:]
    assert committed(files, narrow) == {0: 500}


def test_a_topic_that_takes_only_small_batches_gets_small_ones(setup: Setup, files: Files) -> None:
    topic = setup.topic("small-batches", 1, on=files.source)
    setup.create_topic(files.target, topic, 1, config={"max.message.bytes": "40000"})
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
    setup: Setup, files: Files, new_region: Callable[..., KafkaAddress]
) -> None:
    target = new_region("strict", properties={"auto.create.topics.enable": "false"})
    files = write_files(setup.folder, files.source, target, setup.unique("waits"))
    topic = setup.topic("later", 1, on=files.source)
    write(files.source, topic, [Sent(0, b"%d" % number, b"k") for number in range(100)])
    with start(files, "--whitelist", topic, *COMMITS) as mirror:
        mirror.wait_for_log("the target does not take records yet")
        assert committed(files, topic) == {}
        setup.create_topic(files.target, topic, 1)
        wait_for_records(files.target, topic, 100, mirror)
        assert mirror.stop() == 0
    assert [it.value for it in read(files.target, topic)[0].records] == [
        b"%d" % n for n in range(100)
    ]


def test_a_blacklist_mirrors_the_others_but_no_internal_topic(
    setup: Setup, files: Files, topic: str
) -> None:
    left_out = setup.topic("left-out", 1, on=files.source)
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


def test_a_silent_cluster_is_waited_for_until_a_stop(files: Files, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        away = ForeignRegion("away", f"127.0.0.1:{taken.getsockname()[1]}")
        files = write_files(tmp_path, files.source, away, files.group)
        with start(files, "--whitelist", "any") as mirror:
            mirror.wait_for_log("the target does not answer yet, tried again")
            assert mirror.stop() == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--whitelist", "a", "--blacklist", "b"), "exactly one of --whitelist"),
        ((), "exactly one of --whitelist"),
        (("--whitelist", "a("), "a("),
        (
            ("--whitelist", "a", "--message.handler", "com.acme.Handler"),
            "no message handler com.acme.Handler",
        ),
        (("--whitelist", "a", "--num.streams", "0"), "--num.streams"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(
    files: Files, words: tuple[str, ...], said: str
) -> None:
    mirror = start(files, *words)
    try:
        assert mirror.wait(120) in (1, 2)
    except subprocess.TimeoutExpired:
        mirror.kill()
        raise
    lines = [it for it in mirror.log().splitlines() if it.startswith("mirror-maker-py: ")]
    assert len(lines) == 1
    assert said in lines[0]


def checked(files: Files, *words: str) -> tuple[int, list[list[str]]]:
    """Run the checker; its exit code and the cells of its lines."""
    ended = command_here(
        "consumer-offset-checker", "--bootstrap-server", files.source.bootstrap_servers, *words
    )
    return ended.exit_code, [line.split() for line in (ended.stdout or ended.stderr).splitlines()]


def test_the_checker_shows_positions_lag_and_owners_and_refuses_an_unknown_group(
    files: Files, topic: str
) -> None:
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
    code, (line, *_) = checked(files, "--group", "nobody-has-this")
    assert code == 1
    assert "there is no consumer group nobody-has-this" in " ".join(line)


PLUGINS: Final = Path(__file__).parents[1] / "plugins" / "mirror_plugins.py"
ENTRY_POINTS: Final = """\
[mm2py.message_handlers]
com.acme.Marker = mirror_plugins:Marker
[mm2py.rebalance_listeners]
com.acme.Notes = mirror_plugins:Notes
"""


@pytest.fixture
def plain_topic(setup: Setup) -> str:
    return setup.topic("options", PARTITIONS)


def test_several_producers_with_a_short_queue_lose_nothing_and_keep_the_order_of_each_key(
    files: Files, plain_topic: str, create_topic: CreateTopic
) -> None:
    create_topic(files.target, plain_topic, PARTITIONS - 1)
    words = ("--num.streams", "4", "--num.producers", "2", "--queue.size", "10")
    with start(files, "--whitelist", plain_topic, *words) as mirror:
        mirror.wait_for_log(r"streams=4 producers=2 ")

        def has_settled() -> bool:
            given = mirror.lines("partitions assigned")[-4:]
            return len({line.partition("stream=")[2].split()[0] for line in given}) == 4

        # A stream that joins while a target that has just started does not answer yet makes the others read again.
        until(has_settled, 90, "a partition for each stream", alive=mirror)
        write(files.source, plain_topic, numbered(0, 4_000, PARTITIONS, keys=40))
        wait_for_records(files.target, plain_topic, 4_000, mirror)
        assert mirror.stop() == 0
    assert order_by_key(files.target, plain_topic) == order_by_key(files.source, plain_topic)
    assert committed(files, plain_topic) == ends(files.source, plain_topic)


def batches(region: KafkaAddress, plain_topic: str) -> int:
    assert isinstance(region, Region)
    return batch_shape(region.nodes[0].data_dir, plain_topic).batches


def test_producer_type_sync_waits_for_each_record(setup: Setup, plain_topic: str) -> None:
    if not isinstance(setup.b, Region):
        pytest.skip("needs the files of an embedded broker")
    sync = {"producer.type": "sync", "linger.ms": "0"}
    files = write_files(setup.folder, setup.a, setup.b, setup.unique("sync"), producer=sync)
    write(files.source, plain_topic, numbered(0, 200, PARTITIONS, keys=40))
    with start(files, "--whitelist", plain_topic) as mirror:
        wait_for_records(files.target, plain_topic, 200, mirror)
        assert mirror.stop() == 0
    assert batches(setup.b, plain_topic) == 200, (
        "no record left before the one before was acknowledged"
    )


def test_a_message_handler_and_a_rebalance_listener_are_found_by_entry_point(
    setup: Setup, files: Files, plain_topic: str
) -> None:
    second, notes = setup.unique("second"), setup.folder / "notes.txt"
    for name in (plain_topic, second):
        setup.create_topic(files.target, name, PARTITIONS)
    kept = [
        Sent(0, b"%d" % number, b"k", (("h", b"1"),), 1_600_000_000_000) for number in range(50)
    ]
    write(files.source, plain_topic, [*kept, Sent(0, None, b"k")])
    with start(
        files,
        "--whitelist", plain_topic,
        "--message.handler", "com.acme.Marker",
        "--message.handler.args", second,
        "--consumer.rebalance.listener", "com.acme.Notes",
        "--rebalance.listener.args", str(notes),
        environ=install_plugins(setup.folder / "site", PLUGINS, ENTRY_POINTS),
    ) as mirror:  # fmt: skip
        wait_for_records(files.target, second, 50, mirror)
        assert mirror.stop() == 0
        assert mirror.lines("mirrored 51 records in .* dropped 0")
    copies = records_of(files.target, plain_topic)
    assert copies == read(files.source, plain_topic)[0].records[:50]
    marked = read(files.target, second)
    assert [it.key for it in marked[0].records] == [b"0-%d" % at for at in range(50)]
    assert committed(files, plain_topic) == {0: 51}, (
        "a record that the handler drops is read for good"
    )
    everything = " ".join(f"{plain_topic}-{partition}" for partition in range(PARTITIONS))
    assert notes.read_text().splitlines() == [f"assigned {everything}", f"revoked {everything}"]


def checker_rows(files: Files) -> set[tuple[str, ...]]:
    """Return group, topic, partition, offset, log end, lag, client and host of each row."""
    code, (_titles, *lines) = checked(files, "--group", files.group)
    assert code == 0, lines
    rows: set[tuple[str, ...]] = set()
    for *numbers, owner in lines:
        client, _, host = owner.rpartition("_")
        rows.add((*numbers, client or "-", host if client else "-"))
    return rows


def java_rows(files: Files) -> set[tuple[str, ...]]:
    """Return the same of ``kafka-consumer-groups.sh --describe``."""
    printed = run_java(
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        "--bootstrap-server", files.source.bootstrap_servers,
        "--describe", "--group", files.group,
        timeout_s=90,
    ).check()  # fmt: skip
    lines = [line.split() for line in printed.splitlines() if line.strip()]
    titles = next(it for it in lines if "CURRENT-OFFSET" in it)
    wanted = ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CLIENT-ID", "HOST")  # fmt: skip
    at = [titles.index(name) for name in wanted]
    return {
        tuple(line[position] for position in at)
        for line in lines
        if line[0] == files.group and line is not titles
    }


@pytest.mark.faults
@pytest.mark.java
def test_the_checker_agrees_with_the_java_group_tool(files: Files, plain_topic: str) -> None:
    write(files.source, plain_topic, numbered(0, 100, PARTITIONS, keys=40))
    with start(files, "--whitelist", plain_topic, "--num.streams", "2", *COMMITS) as mirror:
        until(
            lambda: committed(files, plain_topic) == ends(files.source, plain_topic), alive=mirror
        )
        both = {f"{files.group}-0", f"{files.group}-1"}
        until_equal(lambda: {row[6] for row in checker_rows(files)}, both, alive=mirror)
        assert checker_rows(files) == java_rows(files)
        assert mirror.stop() == 0
    write(files.source, plain_topic, [Sent(1, b"more", b"k")] * 3)
    ours, java = checker_rows(files), java_rows(files)
    assert ours == java
    assert {row[5] for row in ours} == {"0", "3"}
