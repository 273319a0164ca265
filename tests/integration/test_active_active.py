"""Same names both ways on two real clusters: nothing runs in a circle, nothing is lost."""

import json
import os
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from mm2py.api.context import EventKind
from mm2py.clock import SYSTEM_CLOCK
from mm2py.mirror.ledger import LedgerRecord, decode_ledger_record, ledger_topic
from mm2py.mirror_client import exact_offsets
from tests.integration.active_active import (
    IDENTITY,
    check_sides,
    wait_both_ready,
    wait_until_quiet,
    write_pair,
)
from tests.integration.cluster_changes import delete_records, delete_topic
from tests.integration.failovers import Drivers
from tests.integration.members import READ_OF_60, place_of, read_next
from tests.integration.mirror_process import (
    GROUPS,
    PROMPT,
    READY,
    SHORT_SESSION,
    SINGLE_REPLICA,
    Mirror,
    run_to_end,
    running,
    until,
    until_equal,
    write_file,
)
from tests.integration.rest_asking import ask, public_url
from tests.integration.setups import Setup
from tests.integration.traffic import (
    Load,
    Sent,
    commit,
    committed,
    committed_positions,
    ends,
    numbered,
    read,
    records_of,
    write,
)
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import NewRegion

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(400)]

PARTITIONS = 3
RATE = 500
VALUE_BYTES = 20
"""All of both sides is read into the memory of the test."""
LONG_S = float(os.environ.get("MM2PY_CHAOS_ACTIVE_S", "600"))
MARKS = b"one", b"two"
HOUR_MS = 3_600_000


@pytest.mark.parametrize("exactly_once", [False, True])
def test_each_record_is_once_on_each_side_and_log_ends_rest(
    setup: Setup, exactly_once: bool
) -> None:
    topic = setup.topic_on_both("both-ways", PARTITIONS)
    once = {f"{{{alias}}}.exactly.once.source.support": "enabled" for alias in ("source", "target")}
    flow = write_pair(setup.folder, setup.a, setup.b, topic, once if exactly_once else None)
    # History of both sides from before the first start; each reads the other's producers first.
    for region, mark in zip((setup.a, setup.b), MARKS, strict=True):
        records = [
            Sent(n % PARTITIONS, b"%d:%d:%s" % (n % PARTITIONS, n, mark)) for n in range(100)
        ]
        write(region, topic, records)
    with running(flow.file, ready=False) as mirror:
        one, two = wait_until_quiet(mirror, setup.a, setup.b, topic, 200)
        sides = check_sides(one, two, MARKS, (100, 100))
        assert (sides.loops, sides.doubled) == (0, 0)
        if not exactly_once:  # transactions end in markers
            assert sum(ends(setup.a, topic).values()) == 200
            assert sum(ends(setup.b, topic).values()) == 200


@pytest.mark.timeout(LONG_S * 2 + 1_400)
@pytest.mark.parametrize(
    "length_s", [0, pytest.param(LONG_S, marks=pytest.mark.chaos)], ids=["short", "long"]
)
def test_restarts_and_kills_under_load_lose_nothing_and_start_no_loop(
    setup: Setup, length_s: float
) -> None:
    topic = setup.topic_on_both("both-ways", PARTITIONS)
    flow = write_pair(setup.folder, setup.a, setup.b, topic, SHORT_SESSION)
    with (
        Load(
            setup.a, topic, PARTITIONS, rate=RATE, value_bytes=VALUE_BYTES, mark=MARKS[0]
        ) as first,
        Load(
            setup.b, topic, PARTITIONS, rate=RATE, value_bytes=VALUE_BYTES, mark=MARKS[1]
        ) as second,
    ):
        began = time.monotonic()
        for turn, end in enumerate(("stop", "kill", "stop", "kill"), 1):
            with Mirror(flow.file, name=f"{turn}-{end}") as mirror:
                wait_both_ready(mirror)
                first.wait_acked(2 * RATE)
                while time.monotonic() < began + turn * length_s / 4:
                    first.wait_acked(RATE)
                    mirror.check_running()
                if end == "stop":
                    assert mirror.stop() == 0
                else:
                    mirror.kill()
    with running(flow.file, name="last", ready=False) as mirror:
        written = first.acked, second.acked
        one, two = wait_until_quiet(mirror, setup.a, setup.b, topic, sum(written))
        sides = check_sides(one, two, MARKS, written)
        assert sides.loops == 0
        assert sides.doubled <= 8 * RATE, "what two kills copied again"


def test_what_compaction_leaves_of_a_mirrors_batches_is_still_recognised(setup: Setup) -> None:
    """The cleaner rewrites batches: producer fields stay, and emptied ones keep their header."""
    topic = setup.unique("compacted")
    compact = {
        "cleanup.policy": "compact",
        "segment.ms": "60000",
        "min.cleanable.dirty.ratio": "0.001",
    }
    setup.create_topic(setup.a, topic, 1, config=compact)
    setup.create_topic(setup.b, topic, 1)
    keep = {"sync.topic.configs.enabled": "false"}
    flow = write_pair(setup.folder, setup.b, setup.a, topic, keep)
    hours_ago = SYSTEM_CLOCK.now_ms() - 20 * HOUR_MS
    count = 6 * 500
    with running(flow.file, name="there", ready=False) as mirror:
        for turn, codec in enumerate(("lz4", "none", "gzip", "zstd", "snappy", "none")):
            # Segments roll by the time in the records; each turn leaves holes in those before.
            records = (
                Sent(
                    0,
                    b"0:%d:%s" % (turn * 500 + n, MARKS[0]),
                    b"%d" % (n % (20 + 7 * turn)),
                    (),
                    hours_ago + turn * HOUR_MS,
                )
                for n in range(500)
            )
            write(setup.b, topic, records, compression_type=codec, linger_ms=5)
        until(lambda: sum(ends(setup.a, topic).values()) >= count, 90, "the copy", alive=mirror)

    def has_holes() -> bool:
        write(setup.a, topic, [Sent(0, b"0:0:" + MARKS[1], b"local")])
        (log,) = read(setup.a, topic).values()
        return len(log.records) < count // 2

    until(has_holes, 120, "compaction of what the mirror wrote")
    before = ends(setup.b, topic)[0]
    # The way back begins anew, under other aliases, and reads all that the cleaner left.
    again = write_pair(setup.folder, setup.b, setup.a, topic, keep)
    with running(again.file, name="back", ready=False) as mirror:
        wait_both_ready(mirror)
        until(lambda: ends(setup.b, topic)[0] > before, 90, "the local record", alive=mirror)
        wait_until_quiet(mirror, setup.b, setup.a, topic, 1)
        values = [it.value or b"" for it in read(setup.b, topic)[0].records]
        assert sum(MARKS[0] in value for value in values) == count, "the mirror's came back"
        assert any(MARKS[1] in value for value in values)


def test_conflicting_writes_of_a_compacted_topic_are_counted_both_ways(setup: Setup) -> None:
    topic, keys = setup.topic_on_both("compacted", 1, config={"cleanup.policy": "compact"}), 10
    flow = write_pair(setup.folder, setup.a, setup.b, topic)
    for region, mark, first in ((setup.a, MARKS[0], 0), (setup.b, MARKS[1], keys // 2)):
        write(region, topic, [Sent(0, mark, b"%d" % key) for key in range(first, first + keys)])
    with running(flow.file, ready=False) as mirror:
        url = public_url(mirror, 90)

        def counted() -> bool:
            found = [
                (it["records_looped"], it["conflicts"])
                for it in ask(f"{url}flows")[1]
                if it["state"] == "RUNNING"
            ]
            return found == [(keys, keys // 2)] * 2

        until(counted, 90, lambda: f"{ask(f'{url}flows')[1]}", alive=mirror)


def test_three_regions_that_are_all_connected_have_each_record_once_also_after_a_kill(
    setup: Setup, new_region: NewRegion
) -> None:
    topic = setup.unique("mesh")
    regions = {
        setup.unique("east"): setup.a,
        setup.unique("west"): setup.b,
        setup.unique("north"): new_region("north"),
    }
    for region in regions.values():
        setup.create_topic(region, topic, PARTITIONS)
    file = write_mesh(setup.folder, regions, topic)

    def copied_everywhere(turn: int) -> None:
        wanted = {
            b"%d:%d:%s" % (n % PARTITIONS, n, alias.encode())
            for alias in regions
            for n in range((turn + 1) * 100)
        }
        for region in regions.values():
            until(partial(has_all, region, topic, wanted))

    for turn in range(3):
        with Mirror(file, name=f"turn-{turn}") as mirror:
            until(lambda: len(mirror.lines(READY)) >= 6, 90, "six flows to copy", alive=mirror)
            for alias, region in regions.items():
                numbers = range(turn * 100, (turn + 1) * 100)
                mark = alias.encode()
                write(
                    region,
                    topic,
                    [
                        Sent(n % PARTITIONS, b"%d:%d:%s" % (n % PARTITIONS, n, mark))
                        for n in numbers
                    ],
                )
            if turn == 1:
                mirror.kill()
                continue
            copied_everywhere(turn)
            assert mirror.stop() == 0
    for region in regions.values():
        values = [it.value for log in read(region, topic).values() for it in log.records]
        assert len(values) == len(set(values)) == 900, f"a loop or a double on {region.name}"


def write_mesh(folder: Path, regions: Mapping[str, KafkaAddress], topic: str) -> Path:
    """Write the file of flows from each region to each other one, under the same names."""
    lines = {
        "clusters": ", ".join(regions),
        "topics": topic,
        "replication.policy.class": IDENTITY,
        "loop.suppression": "all",
        "emit.heartbeats.enabled": "false",
        "heartbeats.replication.enabled": "false",
        **dict.fromkeys(SINGLE_REPLICA, "1"),
    }
    for alias, region in regions.items():
        lines[f"{alias}.bootstrap.servers"] = region.bootstrap_servers
        for other in regions.keys() - {alias}:
            lines[f"{alias}->{other}.enabled"] = "true"
    file = folder / "mesh.properties"
    write_file(file, lines)
    return file


def has_all(region: KafkaAddress, topic: str, wanted: set[bytes]) -> bool:
    """Return whether a topic has all these values."""
    return wanted <= {it.value or b"" for log in read(region, topic).values() for it in log.records}


def test_a_file_that_would_run_in_a_circle_is_refused(setup: Setup) -> None:
    flow = write_pair(
        setup.folder, setup.a, setup.b, setup.unique("t"), {"loop.suppression": "off"}
    )
    done = run_to_end(flow.file)
    assert done.returncode != 0
    assert "records would be copied in a circle" in done.stdout + done.stderr
    assert "loop.suppression=on" in done.stdout + done.stderr


def there(region: KafkaAddress, group: str, topic: str) -> dict[int, int]:
    """Return what a group would continue with, of the partitions where it has a place."""
    return {it: at for it, at in committed(region, group, topic).items() if at >= 0}


def test_a_group_that_moves_skips_nothing_of_either_region(setup: Setup) -> None:
    topic, chance = setup.topic_on_both("both-ways", PARTITIONS), random.Random(5)
    sync = {
        "{source}->{target}.sync.group.offsets.enabled": "true",
        "{source}->{target}.groups": f"{topic}-readers",
    }
    flow = write_pair(setup.folder, setup.a, setup.b, topic, sync)
    group = f"{topic}-readers"
    props = {"bootstrap.servers": setup.b.bootstrap_servers}
    at = dict.fromkeys(range(PARTITIONS), 0)
    seen: list[tuple[dict[int, int], dict[int, int]]] = []
    with (
        Load(setup.a, topic, PARTITIONS, rate=RATE // 2, mark=MARKS[0]) as first,
        Load(setup.b, topic, PARTITIONS, rate=RATE // 2, mark=MARKS[1]) as second,
        running(flow.file, ready=False) as mirror,
    ):
        wait_both_ready(mirror)
        for turn in range(20):
            first.wait_acked(100)
            at = {p: chance.randint(at[p], end) for p, end in ends(setup.a, topic).items()}
            commit(setup.a, group, topic, at)
            if not turn:
                until_equal(lambda: len(there(setup.b, group, topic)), PARTITIONS, alive=mirror)
            seen.append((there(setup.b, group, topic), at))
            asked = exact_offsets(props, flow.source_alias, group)
            seen.append(({tp.partition: it.offset for tp, it in asked.items()}, at))
        first.stop()
        second.stop()
        written = first.acked + second.acked
        one, two = wait_until_quiet(mirror, setup.a, setup.b, topic, written)
        at = dict(ends(setup.a, topic))
        commit(setup.a, group, topic, at)
        # Behind the last copy the second region has records of its own only, which are read again.
        copied = {
            partition: 1
            + max(
                place
                for place, record in zip(log.offsets, log.records, strict=True)
                if MARKS[0] in (record.value or b"")
            )
            for partition, log in two.items()
        }
        until_equal(lambda: there(setup.b, group, topic), copied, "its end", alive=mirror)
        seen.append((copied, at))
    assert len({tuple(places.items()) for places, _ in seen}) > 3, "it moved hardly ever"
    for places, here in seen:
        for partition, offset in places.items():
            have_read, passed = (
                {
                    it.value
                    for place, it in zip(log.offsets, log.records, strict=True)
                    if place < end
                }
                for log, end in ((one[partition], here[partition]), (two[partition], offset))
            )
            skipped = passed - have_read
            assert not skipped, f"partition {partition} at {here} skips at {offset}: {skipped}"


def test_a_group_skips_nothing_of_either_region_where_maps_were_lost(setup: Setup) -> None:
    topic = setup.topic_on_both("both-ways", 1)
    sync = {
        "{source}->{target}.sync.group.offsets.enabled": "true",
        "{source}->{target}.groups": f"{topic}-.*",
        "{source}->{target}.refresh.groups.interval.seconds": "1",
    }
    flow = write_pair(setup.folder, setup.a, setup.b, topic, sync)
    sides = setup.a, setup.b
    maps = {
        "back": (setup.a, f"mm2py-offset-map.{flow.target_alias}.internal"),
        "there": (setup.b, f"mm2py-offset-map.{flow.source_alias}.internal"),
    }
    # Each region has its own records first: a group that has read those of the first has read none of the second's. At the
    # end there is one of the second, then one of the first.
    for region, mark in zip(sides, MARKS, strict=True):
        write(region, topic, [Sent(0, b"0:%d:%s" % (n, mark)) for n in range(20)])
    with running(flow.file, name="before", ready=False) as mirror:
        for to, (region, mark) in zip(
            (41, 42), reversed(tuple(zip(sides, MARKS, strict=True))), strict=True
        ):
            until_grown(mirror, sides, topic, to - 1)
            write(region, topic, [Sent(0, b"0:%d:%s" % (to, mark))])
        until_grown(mirror, sides, topic, 42)
    for turn, lost in enumerate((("back",), ("there",), ("back", "there"))):
        for it in lost:
            delete_topic(*maps[it])
        early, newest, last = (f"{topic}-{it}-{turn}" for it in ("early", "newest", "end"))
        at = {early: 20, newest: 41}
        for group, offset in at.items():
            commit(setup.a, group, topic, {0: offset})
        with running(flow.file, name=f"turn-{turn}", ready=False) as mirror:
            wait_both_ready(mirror)
            drill = setup.folder / f"drill-{turn}.json"
            ended = Drivers(flow, mirror).run("drill", "--report", str(drill))
            reasons = " ".join(json.loads(drill.read_text())["reasons"])
            timed = Drivers(flow, mirror).run("failover", "--plan", "--timed")
            assert (ended.code, timed.code) == (3, 3), timed.said
            for group in at if turn != 1 else [newest]:
                wanted = f"group {group}: {topic}-0 {at[group]} has no place there"
                assert wanted in reasons, ended.said
            for region, mark in zip(sides, MARKS, strict=True):
                write(region, topic, [Sent(0, b"0:%d:%s" % (50 + turn, mark))])
            end = 44 + 2 * turn
            until_grown(mirror, sides, topic, end)
            commit(setup.a, last, topic, {0: end})
            until(lambda: there(setup.b, last, topic), 90, "the group at the end", alive=mirror)  # noqa: B023 - called here
            places = [there(setup.b, it, topic).get(0, 0) for it in (early, newest)]
            assert places[0] == 0, f"{lost}: {early} skips the second region's"
            assert places[1] <= 41, f"{lost}: {newest} skips the first region's"


def test_a_flow_that_began_at_the_end_moves_no_group_past_records_that_the_flow_back_has_not_read(
    setup: Setup,
) -> None:
    """They lie below its first copy, where another program's copies might be."""
    topic, other = setup.topic_on_both("began-late", 1), setup.topic_on_both("other", 1)
    group = f"{topic}-readers"
    settings = GROUPS | {"{source}.consumer.auto.offset.reset": "latest"}
    flow = write_pair(setup.folder, setup.a, setup.b, topic, settings)
    text = flow.file.read_text(encoding="latin-1")
    back = f"{flow.target_alias}->{flow.source_alias}.topics"
    flow.file.write_text(text + f"\n{back} = {other}\n", encoding="latin-1")
    write(setup.a, topic, [Sent(0, b"before:%d" % n) for n in range(50)])
    write(setup.b, topic, [Sent(0, b"own:%d" % n) for n in range(10)])
    write(setup.b, other, [Sent(0, b"other")])
    with running(flow.file, ready=False) as mirror:
        until_equal(lambda: committed_positions(flow, topic), {0: 49}, alive=mirror)
        write(setup.a, topic, [Sent(0, b"since:%d" % n) for n in range(10)])
        until_equal(lambda: ends(setup.b, topic), {0: 20}, alive=mirror)
        until(lambda: ends(setup.a, other).get(0), 90, "a flow back", alive=mirror)
        commit(setup.a, group, topic, {0: 55})
        until(lambda: there(setup.b, group, topic), 90, "the group", alive=mirror)
        assert there(setup.b, group, topic) == {0: 0}
    flow.file.write_text(text, encoding="latin-1")
    with running(flow.file, ready=False) as mirror:
        until_equal(lambda: ends(setup.a, topic), {0: 70}, alive=mirror)
        commit(setup.a, group, topic, {0: 70})
        until_equal(lambda: there(setup.b, group, topic), {0: 20}, alive=mirror)


def test_the_targets_own_records_beside_what_positions_were_set_past_go_back(
    setup: Setup,
) -> None:
    """In the middle of a copy, before its first record, and behind records that another program copied.

    Where the source has deleted what was passed, they stay where they are, by name.
    """
    middle, before, behind, gone = range(4)
    topic = setup.topic_on_both("set-past", 4)
    flow = setup.flow(topic, {"replication.policy.class": IDENTITY, **PROMPT})
    written: tuple[list[Sent], list[Sent]] = ([], [])

    def put(side: int, partition: int, what: str, count: int) -> list[Sent]:
        records = [
            Sent(partition, f"{what}:{n}".encode(), timestamp_ms=SYSTEM_CLOCK.now_ms())
            for n in range(count)
        ]
        written[side].extend(records)
        write((setup.a, setup.b)[side], topic, records)
        return records

    for it in (middle, behind, gone):
        put(0, it, "copied", 40)
    with running(flow.file) as mirror:
        url = f"{public_url(mirror)}{flow.name.replace('->', '/')}"
        connector = f"{url}/connectors/MirrorSourceConnector"
        until_equal(
            lambda: committed_positions(flow, topic),
            dict.fromkeys((middle, behind, gone), 39),
            alive=mirror,
        )
        assert ask(f"{connector}/stop", "PUT")[0] == 204
        change = {
            "offsets": [
                {
                    "partition": {"cluster": flow.source_alias, "topic": topic, "partition": it},
                    "offset": {"offset": end + 19},
                }
                for it, end in ends(setup.a, topic).items()
            ]
        }
        until_equal(lambda: ask(f"{connector}/offsets", "PATCH", change)[0], 200, alive=mirror)
        passed = [put(0, it, "passed", 20) for it in range(4)]
        write(setup.b, topic, passed[behind])
        for it in range(4):
            put(1, it, "own", 5)
        assert ask(f"{connector}/resume", "PUT")[0] == 202
        for it in range(4):
            put(0, it, "since", 5)
        copied = {middle: 50, before: 10, behind: 70, gone: 50}
        until_equal(lambda: ends(setup.b, topic), copied, alive=mirror)
        delete_records(setup.a, topic, gone, 60)
        drivers = Drivers(flow, mirror)
        planned = str(drivers.run("failover", "--plan", "-o", "json").document["topics"])
        assert f"20 offsets of partition {middle} were not copied" in planned
        assert f"offsets 40 to 45 of {topic}-{gone} on {flow.target_alias} may be of" in planned
        drivers.execute("failover")
        for it in range(4):
            put(1, it, "last", 1)

        def is_back() -> bool:
            newest = [log.records[-1].value for log in read(setup.a, topic).values()]
            return newest == [b"last:0"] * 4

        until(is_back, 90, "the last ones on the way back", alive=mirror)
    for partition, log in read(setup.a, topic).items():
        wanted = Counter(it.value for side in written for it in side if it.partition == partition)
        if partition == gone:
            wanted = Counter([b"since:%d" % n for n in range(5)] + [b"last:0"])
        assert Counter(it.value for it in log.records) == wanted
    there, back = ((setup.b, flow.source_alias), (setup.a, flow.target_alias))
    assert skipped(*there) == {(middle, 40, 59)}
    assert skipped(*back) == {(gone, 40, 44)}


def skipped(region: KafkaAddress, source: str) -> set[tuple[int, int, int]]:
    """Return what the ledger of a flow has as skipped: partitions, first and last offsets."""
    records = records_of(region, ledger_topic(source))
    found = [decode_ledger_record(it.key, it.value) for it in records]
    return {
        (it.event.partition.partition, it.event.first_offset, it.event.last_offset)
        for it in found
        if isinstance(it, LedgerRecord) and it.event.kind is EventKind.SKIPPED
    }


class Readers:
    """A group of each kind, and which numbers of a topic it has read."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.groups = {kind: f"{topic}-{kind}" for kind in READ_OF_60}
        self.read: dict[str, set[int]] = {kind: set() for kind in READ_OF_60}

    def read_next(self, region: KafkaAddress, kind: str, records: int) -> None:
        """Read on, and commit."""
        numbers = read_next(region, self.topic, self.groups[kind], kind, records)
        # The broker stores where a share group is before its last acknowledgement: the flow back may set it there (never further).
        if kind != "share":
            assert not self.read[kind].intersection(numbers), f"{kind} reads again what it has read"
        self.read[kind].update(numbers)

    def place(self, region: KafkaAddress, kind: str) -> int:
        """Return where a group would continue."""
        return place_of(region, self.topic, self.groups[kind], kind)

    def is_behind(self, region: KafkaAddress, kind: str, offset: int) -> bool:
        """Whether a group would continue at an offset, or behind it."""
        return self.place(region, kind) >= offset

    def check(self, region: KafkaAddress) -> None:
        """No group is past a record that it has not read."""
        for kind, known in self.read.items():
            place = self.place(region, kind)
            numbers = numbers_of(region, self.topic)
            unread = next((at for at, it in enumerate(numbers) if it not in known), len(numbers))
            assert place <= unread, (
                f"{kind} is at {place} of {region.name}, unread from {unread} on"
            )


def numbers_of(region: KafkaAddress, topic: str) -> list[int]:
    """Return the numbers in the first partition of a topic."""
    return [int(it.value or b"-1") for it in read(region, topic)[0].records]


def test_groups_of_each_kind_skip_nothing_of_either_region_while_both_flows_sync_them(
    setup: Setup,
) -> None:
    topic, sides = setup.unique("both-ways"), (setup.a, setup.b)
    for region in sides:
        setup.create_topic(region, topic, 1)
    readers = Readers(topic)
    synced = {
        "groups": ",".join(readers.groups.values()),
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1",
        "emit.checkpoints.interval.seconds": "1",
        "refresh.groups.interval.seconds": "1",
    }
    flows = "{source}->{target}", "{target}->{source}"
    properties = {f"{it}.{key}": value for it in flows for key, value in synced.items()}
    flow = write_pair(setup.folder, setup.a, setup.b, topic, properties)
    with running(flow.file, ready=False) as mirror:
        wait_both_ready(mirror)
        for turn in range(4):
            for number, region in enumerate(sides):
                write(region, topic, numbered(1000 * number + 40 * turn, 40))
            for kind in readers.groups:
                readers.read_next(setup.a, kind, 25)
                readers.check(setup.a)
            readers.check(setup.b)
        until_grown(mirror, sides, topic, 320)
        for kind, known in readers.read.items():
            while len(known) < 320:
                readers.read_next(setup.a, kind, 320 - len(known))
        # Behind the last copy the second region has records of its own only, which may be read again.
        numbers = numbers_of(setup.b, topic)
        behind = 1 + max(at for at, it in enumerate(numbers) if it < 1000)
        for kind in readers.groups:
            until(partial(readers.is_behind, setup.b, kind, behind), alive=mirror)
        readers.check(setup.b)


def until_grown(mirror: Mirror, sides: Sequence[KafkaAddress], topic: str, to: int) -> None:
    """Wait until the first partition of a topic ends there on both sides."""
    until(lambda: all(ends(it, topic).get(0, 0) >= to for it in sides), alive=mirror)
