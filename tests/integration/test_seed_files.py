"""The property files of the vendors' guides and the examples of this repository run as they are."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.failover.show import show
from examples.scene import Scene
from mm2py.config.lint import lint
from mm2py_connectors.config import CONNECTORS
from tests.integration.cluster_changes import replicas_of, topics_of
from tests.integration.mirror_process import Flow, Mirror, until
from tests.integration.setups import Setup
from tests.integration.traffic import Sent, assert_equal, wait_for_copy, write
from tests.kit.kafka.region import KafkaAddress, Region

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SEEDS = Path(__file__).parents[1] / "data" / "config"
GUIDE_TOPIC = "toa.evehicles-latest-dev"


@pytest.fixture(scope="module")
def primary() -> Iterator[Region]:
    """The cluster the files call source or primary; they ask for three replicas on both sides."""
    with Region("primary", nodes=3) as region:
        yield region


def seed(name: str, source: KafkaAddress, target: KafkaAddress) -> str:
    text = (SEEDS / f"seed_{name}.properties").read_text(encoding="latin-1")
    for prefix, region in (("src", source), ("dest", target)):
        hosts = rf"wn0-{prefix}[- ]kafka\S*"
        text = re.sub(hosts, region.bootstrap_servers, text)
    lines = [line for line in text.splitlines() if not re.search(r"\.(ssl|sasl|security)\.", line)]
    return "\n".join(lines) + "\n"


def write_records(region: KafkaAddress, topic: str) -> None:
    write(region, topic, (Sent(n % 3, b"%d" % n, b"%d" % (n % 7)) for n in range(300)))


def test_both_guides_are_one_file_but_for_security(setup: Setup) -> None:
    plain, secured = (
        [line.strip() for line in seed(name, setup.a, setup.b).splitlines() if "=" in line]
        for name in ("mm2_guide", "mm2_guide_ssl")
    )
    assert plain == secured


@pytest.mark.faults
def test_the_guide_copies_its_one_topic_with_three_replicas(
    setup: Setup, primary: Region, region_three: Region
) -> None:
    setup.create_topic(primary, GUIDE_TOPIC, 3, replicas=3)
    write_records(primary, GUIDE_TOPIC)
    file = setup.folder / "mm2.properties"
    file.write_text(seed("mm2_guide_ssl", primary, region_three), encoding="latin-1")
    flow = Flow(primary, region_three, "source", "destination", file)
    with Mirror(file) as mirror:
        assert_equal(*wait_for_copy(mirror, flow, GUIDE_TOPIC))
        assert replicas_of(region_three, flow.remote(GUIDE_TOPIC)) == 3
        assert mirror.lines(r"WARNING .*topics\.blacklist: .*begin and end with a quote")
        # Java makes them in both directions unless told otherwise.
        until(lambda: "source.heartbeats" in topics_of(region_three), 90, "heartbeats")
        assert mirror.stop() == 0
        assert not mirror.lines("ERROR")


@pytest.mark.faults
@pytest.mark.parametrize(
    ("name", "source", "target", "both_ways"),
    [
        ("mm2_migration_first", "source", "destination", False),
        ("mm2_migration_steps", "source", "destination", True),
        ("mm2_migration_final", "primary-kafka-cluster", "secondary-kafka-cluster", True),
    ],
)
def test_the_migration_guide_copies_every_topic(
    setup: Setup,
    primary: Region,
    region_three: Region,
    name: str,
    source: str,
    target: str,
    both_ways: bool,
) -> None:
    text = seed(name, primary, region_three)
    if name == "mm2_migration_first":
        # Its brokers stand behind a comment sign on one line.
        text = re.sub(
            r"# .* (source\.bootstrap\.servers = .*) (destination\.boot.*)", r"\1\n\2", text
        )
    file = setup.folder / f"{name}.properties"
    file.write_text(text, encoding="latin-1")
    forth, back = setup.topic("forth", 3, on=primary, replicas=3), setup.unique("back")
    setup.create_topic(region_three, back, 3, replicas=3)
    write_records(primary, forth)
    write_records(region_three, back)
    there = Flow(primary, region_three, source, target, file)
    return_flow = Flow(region_three, primary, target, source, file)
    with Mirror(file) as mirror:
        assert_equal(*wait_for_copy(mirror, there, forth))
        # Replication.factor is no property: ours is 2, as Java's.
        assert mirror.lines(r"WARNING .*Replication\.factor: .*replication\.factor")
        assert replicas_of(region_three, there.remote(forth)) == 2
        if both_ways:
            assert_equal(*wait_for_copy(mirror, return_flow, back))
            checkpoints = f"{source}.checkpoints.internal"
            until(lambda: checkpoints in topics_of(region_three), 90, checkpoints, alive=mirror)
        else:
            assert return_flow.remote(back) not in topics_of(primary)
        assert mirror.stop() == 0
        assert not mirror.lines("ERROR")
    mine = [t for t in {**topics_of(primary), **topics_of(region_three)} if forth in t or back in t]
    loops = [t for t in mine if t.count(".") > 1]
    assert not loops


@pytest.mark.faults
def test_a_consumer_group_moves_to_the_secondary_and_continues_where_it_left(
    setup: Setup, primary: Region, region_three: Region
) -> None:
    """The demonstration at the end of the migration guide, with shorter intervals."""
    text = seed("mm2_migration_final", primary, region_three).replace("30000", "1000")
    file = setup.folder / "failover.properties"
    file.write_text(f"{text}emit.checkpoints.interval.seconds = 1\n", encoding="latin-1")
    topic, group = setup.unique("TestMirrorMakerTopic"), setup.unique("my-group")
    setup.create_topic(primary, topic, 3, replicas=3)
    scene = Scene(primary.bootstrap_servers, region_three.bootstrap_servers)
    with Mirror(file) as mirror:
        show(scene, topic, f"primary-kafka-cluster.{topic}", group)
        assert mirror.stop() == 0
        assert not mirror.lines("ERROR")


ROOT = Path(__file__).parents[2]
FOLDERS = sorted(path.parent.name for path in (ROOT / "examples").glob("*/show.py"))


def test_there_is_an_example_for_each_way_of_two_regions() -> None:
    assert FOLDERS == [
        "active_active_default",
        "active_active_same_names",
        "failover",
        "one_way_same_names",
    ]


@pytest.mark.parametrize("folder", FOLDERS)
def test_an_example_shows_what_its_readme_says(setup: Setup, folder: str) -> None:
    clusters = [setup.a.bootstrap_servers, setup.b.bootstrap_servers]
    done = subprocess.run(
        [sys.executable, "-m", f"examples.{folder}.show", *clusters],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "OK"


@pytest.mark.parametrize("folder", FOLDERS)
def test_an_example_is_short_and_its_file_has_no_findings(folder: str) -> None:
    lines = (ROOT / "examples" / folder / "README.md").read_text().splitlines()
    assert len([line for line in lines if line]) <= 10
    assert lint(ROOT / "examples" / folder / "mm2.properties", CONNECTORS) == []
