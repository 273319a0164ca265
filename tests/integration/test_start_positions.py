"""Where copies begin: ``start.positions``, the end of a log, records of others, and ``mm2py rerun``, on real brokers."""

import json
from typing import Final

import pytest

from mm2py.clock import SYSTEM_CLOCK
from tests.integration.cluster_changes import topics_of
from tests.integration.mirror_process import (
    PROMPT,
    Mirror,
    command_here,
    running,
    until,
    until_equal,
)
from tests.integration.setups import Setup
from tests.integration.traffic import (
    Record,
    Sent,
    committed_positions,
    ends,
    numbered,
    read,
    values_of,
    write,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

HOUR_MS: Final = 3_600_000
COUNT: Final = 400
Values = dict[str, list[list[bytes]]]


def test_each_topic_begins_where_its_rule_says_and_goes_on_after_a_restart(setup: Setup) -> None:
    prefix = setup.unique("starts")
    aged, since, placed, latest, rest = names = [
        f"{prefix}-{it}" for it in ("aged", "since", "placed", "latest", "rest")
    ]
    now_ms = SYSTEM_CLOCK.now_ms()
    for topic in names:
        setup.create_topic(setup.a, topic, 2)
        # Records of four hours, the newest an hour old.
        write(
            setup.a, topic,
            [Sent(n % 2, b"%d" % (n // 2), timestamp_ms=now_ms - (4 - n // 2) * HOUR_MS) for n in range(8)],
        )  # fmt: skip
    rules = (
        f"{placed}:0=offset:3", f"{placed}:1=offset:99", f"{latest}=latest",
        f"{prefix}-a.*=150 minutes ago", f"{since}={now_ms - 3 * HOUR_MS}",
    )  # fmt: skip
    flow = setup.flow(f"{prefix}.*", {**PROMPT, "{source}->{target}.start.positions": ", ".join(rules)})  # fmt: skip
    before: Values = {
        aged: [[b"2", b"3"]] * 2,
        since: [[b"1", b"2", b"3"]] * 2,
        placed: [[b"3"], []],
        latest: [[], []],
        rest: [[b"0", b"1", b"2", b"3"]] * 2,
    }

    def copies() -> dict[str, list[list[bytes | None]]]:
        logs = {it: read(setup.b, flow.remote(it)) for it in names}
        return {
            topic: [[it.value for it in found[number].records] for number in sorted(found)]
            for topic, found in logs.items()
        }

    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        until_equal(copies, before, alive=mirror)
        for topic in (placed, latest):
            until_equal(lambda: committed_positions(flow, topic), {0: 3, 1: 3}, alive=mirror)  # noqa: B023 - called here
        assert mirror.stop() == 0
        assert not mirror.lines("ERROR|lost")
    after: Values = {}
    for topic in names:
        # Too old for the rules: what comes behind the start counts, not its age.
        write(
            setup.a, topic, [Sent(n, b"new", timestamp_ms=now_ms - 9 * HOUR_MS) for n in range(2)]
        )
        after[topic] = [[*values, b"new"] for values in before[topic]]
    with running(flow.file, ready=False) as mirror:
        until_equal(copies, after, alive=mirror)


def test_a_range_is_copied_once_more_exactly_and_nothing_else_is_touched(setup: Setup) -> None:
    topic, now_ms = setup.topic("orders", 3), SYSTEM_CLOCK.now_ms()
    write(
        setup.a,
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
    flow = setup.flow(topic)
    truth = read(setup.a, topic)

    def rerun(into: str, *words: str) -> dict[int, list[Record]]:
        ended = command_here("rerun", str(flow.file), "--flow", flow.name, "--topic", topic, "--into", into, "-o", "json", *words)  # fmt: skip
        assert ended.exit_code == 0, ended.stderr
        rows = json.loads(ended.stdout)
        found = {number: log.records for number, log in read(setup.b, into).items()}
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
    assert flow.remote(topic) not in topics_of(setup.b)

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
        (("--topic", setup.unique("absent"), "--into", "x"), "has no topic"),
        (("--topic", topic, "--into", "x", "--from", "soon"), "--from 'soon' is not understood"),
    ):
        ended = command_here("rerun", str(flow.file), "--flow", flow.name, *words)
        assert ended.exit_code in (1, 2)
        assert said in ended.stderr, ended.stderr


def test_what_comes_while_no_task_runs_is_copied_and_a_topic_made_then(setup: Setup) -> None:
    prefix = setup.unique("latest")
    idle, empty, late = (f"{prefix}-{name}" for name in ("idle", "empty", "late"))
    setup.create_topic(setup.a, idle, 1)
    setup.create_topic(setup.a, empty, 1)
    write(setup.a, idle, [Sent(0, b"old")] * 5)
    reset = {"{source}->{target}.source.consumer.auto.offset.reset": "latest"}
    flow = setup.flow(f"{prefix}.*", reset)

    with running(flow.file, ready=False) as mirror:
        mirror.wait_ready(90)
        until_equal(lambda: committed_positions(flow, idle), {0: 4}, "its start", alive=mirror)
        until_equal(lambda: committed_positions(flow, empty), {0: -1}, "an empty start")
    for topic in (idle, empty):
        write(setup.a, topic, [Sent(0, b"between")] * 3)
    setup.create_topic(setup.a, late, 1)
    write(setup.a, late, [Sent(0, b"new")] * 4)
    with running(flow.file, ready=False) as mirror:
        mirror.wait_ready(90)
        expected = {idle: [b"between"] * 3, empty: [b"between"] * 3, late: [b"new"] * 4}
        until_equal(
            lambda: {it: values_of(setup.b, flow.remote(it)) for it in expected},
            expected,
            alive=mirror,
        )


def test_records_of_others_where_the_copy_should_be_are_not_compared(setup: Setup) -> None:
    topic = setup.topic("orders")
    flow = setup.flow(topic, {"{source}->{target}.start.positions": "latest"})
    copy = flow.remote(topic)
    setup.create_topic(setup.b, copy)
    write(setup.a, topic, numbered(0, 1_000))
    write(setup.b, copy, numbered(5_000, 1_000))
    with running(flow.file) as worker:
        # Where the end was found is its position; what was written before would be left out.
        until(lambda: committed_positions(flow, topic) == {0: 999}, 90, "the end", alive=worker)
        write(setup.a, topic, numbered(1_000, 5))
        until(lambda: ends(setup.b, copy)[0] == 1_005, 90, "the new records", alive=worker)
    asked = ("verify", flow.file, "--flow", flow.name, "--tier", "0", "-o", "json")
    found = command_here(*asked)
    report = json.loads(found.stdout)
    assert (found.exit_code, report["equal"]) == (3, False), found.stdout
    assert "source offsets 0 to 1000 were copied by another program" in report["not_compared"][0]
    limited = command_here(*asked, "--from", "map")
    assert (limited.exit_code, json.loads(limited.stdout)["equal"]) == (0, True), limited.stdout
