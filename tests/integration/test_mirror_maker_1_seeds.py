"""The commands and both property files of the three guides of MirrorMaker 1, as written: only hosts are replaced.

Files that name ZooKeeper are refused first, as clients of Kafka do not use it any more; with brokers in that line they run.
"""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.integration.mirror_maker_1 import Files, start
from tests.integration.mirror_process import Mirror, until
from tests.integration.traffic import Sent, ends, values_of, write
from tests.kit.kafka.region import KafkaAddress, Region, started
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(300)]

SEEDS: Final = Path(__file__).parents[1] / "data" / "config"
_ZOOKEEPER: Final = ("zookeeper.connect=", "zk.connect=")
HDP_CONSUMER: Final = "seed_mm1_hdp_consumer"
HDP_PRODUCER: Final = "seed_mm1_hdp_producer"
HDP_OLD: Final = {
    "groupid": "group.id",
    "compression.codec": "compression.type=none",
    "max.message.size": "max.request.size",
    "queue.time": "linger.ms",
    "mirror.topics.whitelist=app_log": "--whitelist, where the command line",
    "producer.type=async": "how records are sent",
}
"""Names of old in those two files, and what each is taken as."""
# What the guides say against data loss, in the words of each.
HDP_SAFE_CONSUMER: Final = "group.id=safe\nauto.commit.enabled=false\nbootstrap.servers=HOSTS\n"
HDP_SAFE_PRODUCER: Final = (
    "max.in.flight.requests.per.connection=1\nretries=Int.MaxValue\nacks=-1\n"
    "block.on.buffer.full=true\nbootstrap.servers=HOSTS\n"
)
CLOUDERA_CONSUMER: Final = "group.id=cloudera\nauto.commit.enable=false\nbootstrap.servers=HOSTS\n"


class Scene(NamedTuple):
    """One command line of a guide: its files by name of a seed or as text, its options, what it copies and leaves out."""

    consumer: str
    producer: str
    words: str
    copied: tuple[str, ...]
    left_out: tuple[str, ...] = ()


HDINSIGHT: Final = Scene(
    "seed_mm1_hdinsight_consumer",
    "seed_mm1_hdinsight_producer",
    "--whitelist testtopic --num.streams 4",
    ("testtopic",),
)
HDP: Final = Scene(
    HDP_CONSUMER, HDP_PRODUCER, '--whitelist="topic1, topic2"', ("topic1", "topic2"), ("app_log",)
)
SCENES: Final = {
    "hdinsight": HDINSIGHT,
    "hdp": HDP,
    "hdp without a list": Scene(HDP_CONSUMER, HDP_PRODUCER, "", ("app_log",), ("topic1",)),
    "hdp all options": Scene(
        HDP_CONSUMER,
        HDP_PRODUCER,
        "--whitelist my-topic --num.streams 4 --num.producers 2 --queue.size 2000",
        ("my-topic",),
    ),
    "hdp everything": Scene(
        HDP_CONSUMER, HDP_PRODUCER, '--blacklist="__consumer-offsets"', ("topic1", "my-topic")
    ),
    "hdp everything by a white list": Scene(
        HDP_CONSUMER, HDP_PRODUCER, '--white-list=".*"', ("topic2", "app_log")
    ),
    "hdp without loss": Scene(
        HDP_SAFE_CONSUMER, HDP_SAFE_PRODUCER, "--whitelist topic1 --abortOnSendFail", ("topic1",)
    ),
    "hdp without loss, other spelling": Scene(
        HDP_SAFE_CONSUMER, HDP_SAFE_PRODUCER, "--whitelist topic2 --abort.on.send.fail", ("topic2",)
    ),
    "hdp kerberos, without the login": Scene(
        HDP_SAFE_CONSUMER, HDP_SAFE_PRODUCER, "--whitelist my-topic --new.consumer", ("my-topic",)
    ),
    "cloudera": Scene(
        CLOUDERA_CONSUMER,
        "seed_mm1_cloudera_producer",
        "--whitelist testtopic --abort.on.send.failure=true",
        ("testtopic",),
    ),
}


@pytest.fixture(scope="module")
def regions_of_the_guides(create_topic: CreateTopic) -> Iterator[tuple[Region, Region]]:
    """Two clusters that the guides' own topic and group names belong to; the target creates topics by itself."""
    source, target = Region("guide-source"), Region("guide-target")
    with started(source, target):
        create_topic(source, "testtopic", 8)
        for name in ("topic1", "topic2", "my-topic", "app_log"):
            create_topic(source, name, 2)
        yield source, target


def written(
    folder: Path, text_or_seed: str, region: KafkaAddress, name: str, *, hosts: bool
) -> Path:
    """Write a file of a guide; with ``hosts`` its addresses are those of our brokers."""
    seed = SEEDS / f"{text_or_seed}.properties"
    lines = (text_or_seed if "\n" in text_or_seed else seed.read_text()).splitlines()
    servers = f"bootstrap.servers={region.bootstrap_servers}"
    if hosts:
        lines = [
            servers if line.startswith(("bootstrap.servers=", *_ZOOKEEPER)) else line
            for line in lines
        ]
        if servers not in lines:  # Cloudera Manager asks for them on its page
            lines.append(servers)
    file = folder / f"{name}.properties"
    file.write_text("\n".join(lines) + "\n")
    return file


def files_of(scene: Scene, folder: Path, source: KafkaAddress, target: KafkaAddress) -> Files:
    return Files(
        source,
        target,
        "",
        written(folder, scene.consumer, source, "consumer", hosts=True),
        written(folder, scene.producer, target, "producer", hosts=True),
    )


def wait_until_all_is_read(mirror: Mirror, files: Files, topic: str, mark: str) -> None:
    """Write probes until one of each partition has arrived: ``latest`` counts from when a stream has looked up the end."""
    probes = {it: f"probe of {mark} {it}".encode() for it in ends(files.source, topic)}

    def arrived() -> bool:
        write(files.source, topic, [Sent(it, probe, b"k") for it, probe in probes.items()])
        return set(probes.values()) <= set(values_of(files.target, topic))

    until(arrived, 90, f"probes of {topic}", alive=mirror)


@pytest.mark.parametrize("name", SCENES)
def test_a_guides_command_copies_its_topics(
    name: str, regions_of_the_guides: tuple[Region, Region], tmp_path: Path
) -> None:
    scene = SCENES[name]
    source, target = regions_of_the_guides
    files = files_of(scene, tmp_path, source, target)
    wanted = [f"{name} {number}".encode() for number in range(200)]
    with start(files, *shlex.split(scene.words)) as mirror:
        mirror.wait_for_log("partitions assigned")
        for topic in scene.copied:
            wait_until_all_is_read(mirror, files, topic, name)
        left_out = {topic: ends(target, topic) for topic in scene.left_out}
        for topic in scene.left_out:
            write(source, topic, [Sent(0, b"never")])
        for topic in scene.copied:
            write(source, topic, [Sent(n % 2, value, b"key") for n, value in enumerate(wanted)])
            until(
                lambda: set(wanted) <= set(values_of(target, topic)),  # noqa: B023 - called at once
                90,
                f"the records of {topic}",
                alive=mirror,
            )
        assert mirror.stop() == 0
        assert mirror.lines(r"mirrored \d+ records in .* dropped 0")
        taken = [len(mirror.lines(f"{old} is taken as {new}")) for old, new in HDP_OLD.items()]
        assert taken == [1 if scene.consumer == HDP_CONSUMER else 0] * len(taken)
    for topic in scene.copied:
        copied = [it for it in values_of(target, topic) if it in set(wanted)]
        assert sorted(copied) == sorted(wanted), "each of them once"
    assert {topic: ends(target, topic) for topic in scene.left_out} == left_out


@pytest.mark.parametrize("scene", [HDINSIGHT, HDP], ids=["hdinsight", "hdp"])
def test_a_guides_files_with_zookeeper_are_refused_with_what_to_put_instead(
    scene: Scene, regions_of_the_guides: tuple[Region, Region], tmp_path: Path
) -> None:
    source, target = regions_of_the_guides
    consumer = written(tmp_path, scene.consumer, source, "consumer", hosts=False)
    producer = written(tmp_path, scene.producer, target, "producer", hosts=True)
    mirror = start(Files(source, target, "", consumer, producer), *shlex.split(scene.words))
    with mirror:
        assert mirror.wait() == 1
        assert mirror.lines(r"names ZooKeeper.* bootstrap\.servers=HOST:9092")
