"""Where copies begin by ``start.positions``, and ``mm2py rerun``, on real brokers."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from mm2py.clock import SYSTEM_CLOCK
from tests.integration.cluster_changes import topics_of
from tests.integration.mirror_process import Mirror, until, write_flow
from tests.integration.traffic import Record, Sent, committed_positions, read, write
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

COMMAND: Final = str(Path(sys.executable).parent / "mm2py")
HOUR_MS: Final = 3_600_000
COUNT: Final = 400
Unique = Callable[[str], str]
Values = dict[str, list[list[bytes]]]


def test_each_topic_begins_where_its_rule_says_and_continues_there_after_a_restart(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    prefix = unique("starts")
    aged, since, placed, latest, rest = names = [
        f"{prefix}-{it}" for it in ("aged", "since", "placed", "latest", "rest")
    ]
    now_ms = SYSTEM_CLOCK.now_ms()
    for topic in names:
        create_topic(region_a, topic, 2)
        # Records of four hours, the newest an hour old.
        write(
            region_a, topic,
            [Sent(n % 2, b"%d" % (n // 2), timestamp_ms=now_ms - (4 - n // 2) * HOUR_MS) for n in range(8)],
        )  # fmt: skip
    rules = (
        f"{placed}:0=offset:3", f"{placed}:1=offset:99", f"{latest}=latest",
        f"{prefix}-a.*=150 minutes ago", f"{since}={now_ms - 3 * HOUR_MS}",
    )  # fmt: skip
    flow = write_flow(
        tmp_path, region_a, region_b, f"{prefix}.*",
        {"{source}->{target}.start.positions": ", ".join(rules)},
    )  # fmt: skip
    before: Values = {
        aged: [[b"2", b"3"]] * 2,
        since: [[b"1", b"2", b"3"]] * 2,
        placed: [[b"3"], []],
        latest: [[], []],
        rest: [[b"0", b"1", b"2", b"3"]] * 2,
    }

    def copies(topic: str) -> list[list[bytes | None]]:
        logs = read(region_b, flow.remote(topic))
        return [[it.value for it in logs[number].records] for number in sorted(logs)]

    def wait(expected: Values, mirror: Mirror) -> None:
        for topic, values in expected.items():
            until(
                lambda: copies(topic) == values,  # noqa: B023 - called here
                90,
                lambda: f"{topic}: {copies(topic)}, not {values}",  # noqa: B023 - called here
                alive=mirror,
            )

    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        wait(before, mirror)
        until(
            lambda: committed_positions(flow, placed) == {0: 3, 1: 3}, 30, "positions", alive=mirror
        )
        until(
            lambda: committed_positions(flow, latest) == {0: 3, 1: 3}, 30, "the end", alive=mirror
        )
        assert mirror.stop() == 0
        assert not mirror.lines("ERROR|lost")
    after: Values = {}
    for topic in names:
        # Too old for the rules: what comes behind the start counts, not its age.
        write(
            region_a, topic, [Sent(n, b"new", timestamp_ms=now_ms - 9 * HOUR_MS) for n in range(2)]
        )
        after[topic] = [[*values, b"new"] for values in before[topic]]
    with Mirror(flow.file) as mirror:
        wait(after, mirror)
        assert mirror.stop() == 0


def test_an_item_that_is_not_understood_is_refused_with_its_line(
    region_a: KafkaAddress, region_b: KafkaAddress, tmp_path: Path
) -> None:
    rule = {"{source}->{target}.start.positions": "orders=soon"}
    flow = write_flow(tmp_path, region_a, region_b, "t", rule)
    ended = run("lint", str(flow.file))
    assert ended.returncode != 0
    assert "start.positions" in ended.stdout + ended.stderr
    assert "position 'soon' is not understood" in ended.stdout + ended.stderr


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, *words], capture_output=True, text=True, timeout=120)


def test_a_range_is_copied_once_more_exactly_and_nothing_else_is_touched(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    topic, now_ms = unique("orders"), SYSTEM_CLOCK.now_ms()
    create_topic(region_a, topic, 3)
    write(
        region_a,
        topic,
        [
            Sent(
                n % 3,
                None if n % 7 == 0 else b"v%d" % n,
                b"k%d" % (n % 5),
                (("h", b"x"), ("h", None)) if n % 2 else (),
                now_ms - (COUNT - n // 3) * 60_000,
            )
            for n in range(3 * COUNT)
        ],
        linger_ms=50,
    )
    flow = write_flow(tmp_path, region_a, region_b, topic)
    name = f"{flow.source_alias}->{flow.target_alias}"
    truth = read(region_a, topic)

    def rerun(into: str, *words: str) -> dict[int, list[Record]]:
        ended = run("rerun", str(flow.file), "--flow", name, "--topic", topic, "--into", into, "-o", "json", *words)  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        rows = json.loads(ended.stdout)
        found = {number: log.records for number, log in read(region_b, into).items()}
        assert {it["partition"]: it["records"] for it in rows} == {
            it["partition"]: len(found[it["partition"]]) for it in rows
        }
        return found

    part = rerun(f"{topic}-part", "--partition", "1", "--from", "offset:7", "--to", "offset:203")
    assert part == {0: [], 1: truth[1].records[7:203]}
    every = rerun(f"{topic}-all")
    assert every == {number: log.records for number, log in truth.items()}
    timed = rerun(f"{topic}-timed", "--from", str(now_ms - 90 * 60_000), "--to", "30 minutes ago")
    for number, log in truth.items():
        first = next(
            n for n, it in enumerate(log.records) if it.timestamp_ms >= now_ms - 90 * 60_000
        )
        assert timed[number][:1] == log.records[first : first + 1]
        # A minute or more has passed since the times were made up.
        assert timed[number] == log.records[first : first + len(timed[number])]
        assert 60 <= len(timed[number]) <= 65
    assert flow.remote(topic) not in topics_of(region_b)

    for words, said in (
        (("--topic", topic, "--into", f"{topic}-all"), "is not empty; delete it"),
        (
            ("--topic", topic, "--into", f"{topic}-none", "--from", "offset:5", "--to", "offset:3"),
            "has no offsets",
        ),
        (
            ("--topic", topic, "--into", f"{topic}-none", "--from", "5", "--to", "6"),
            "5 is a time in ms since 1970, offset:5 is an offset",
        ),
        (("--topic", topic, "--into", flow.remote(topic)), "is the flow's own copy"),
        (("--topic", topic, "--into", "x", "--partition", "3"), "has no partition 3"),
        (("--topic", unique("absent"), "--into", "x"), "has no topic"),
        (("--topic", topic, "--into", "x", "--from", "soon"), "--from 'soon' is not understood"),
    ):
        ended = run("rerun", str(flow.file), "--flow", name, *words)
        assert ended.returncode in (1, 2)
        assert said in ended.stderr, ended.stderr
