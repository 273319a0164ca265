"""Failovers of flows with transforms: what a chain drops or routes elsewhere is copied, groups inside of it lose nothing, and none of it comes back."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.integration.failovers import (
    PARTITIONS,
    Drivers,
    Sides,
    home,
    secured_pair,
)
from tests.integration.mirror_process import until
from tests.integration.traffic import Sent, commit, committed, ends, read, write
from tests.kit.kafka.region import Region
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(600)]

Unique = Callable[[str], str]
APACHE: Final = "org.apache.kafka.connect.transforms."
CHAIN: Final = {
    "transforms": "drop,route",
    "transforms.drop.type": APACHE + "Filter",
    "transforms.drop.predicate": "gone",
    "transforms.route.type": APACHE + "RegexRouter",
    "transforms.route.predicate": "marked",
    "transforms.route.regex": "(.*)",
    "transforms.route.replacement": "$1-elsewhere",
    "predicates": "gone,marked",
    "predicates.gone.type": APACHE + "predicates.RecordIsTombstone",
    "predicates.marked.type": APACHE + "predicates.HasHeaderKey",
    "predicates.marked.name": "elsewhere",
}
"""Drops tombstones, and sends what has a header to another topic."""
EXACTLY_ONCE: Final = {
    f"{{{side}}}.{key}": value
    for side in ("source", "target")
    for key, value in (
        ("exactly.once.source.support", "enabled"),
        ("consumer.isolation.level", "read_committed"),
    )
}


@pytest.fixture(scope="module")
def sides() -> Iterator[Sides]:
    with secured_pair("fx") as pair:
        yield pair


def plain(word: str, count: int) -> list[Sent]:
    return [Sent(0, b"%s %d" % (word.encode(), n)) for n in range(count)]


def dropped(count: int) -> list[Sent]:
    return [Sent(0, None, b"gone %d" % n) for n in range(count)]


def routed(count: int) -> list[Sent]:
    return [Sent(0, b"routed %d" % n, None, (("elsewhere", b""),)) for n in range(count)]


def values(region: Region, topic: str) -> list[bytes | None]:
    return [it.value for it in read(region, topic, committed=True)[0].records]


@pytest.mark.parametrize("properties", [{}, EXACTLY_ONCE], ids=["plain", "exactly-once"])
def test_what_a_chain_drops_or_routes_is_copied_and_groups_inside_of_it_skip_nothing(
    sides: Sides,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
    properties: Mapping[str, str],
) -> None:
    a, b = sides
    topic = unique("orders")
    elsewhere = f"{topic}-elsewhere"
    create_topic(b, elsewhere, PARTITIONS)
    chain = {f"{{source}}->{{target}}.{key}": value for key, value in CHAIN.items()}
    with home(sides, topic, create_topic, tmp_path, {**chain, **properties}) as drivers:
        # On A: 0-9 left, 10-39 dropped, 40-44 left, 45-64 routed, 65-69 left, 70-99 dropped or routed up to the end.
        write(a, topic, [*plain("one", 10), *dropped(30), *plain("two", 5), *routed(20)])
        write(a, topic, [*plain("three", 5), *dropped(15), *routed(15)])
        # All of the other partition is dropped.
        write(a, topic, [it._replace(partition=1) for it in dropped(40)])
        until(lambda: ends(b, elsewhere).get(0, 0) >= 35, 90, "the copy", alive=drivers.mirror)
        places = {"left": (5, 5), "dropped": (25, 10), "routed": (50, 15), "tail": (80, 20)}
        groups = {unique(it): at for it, at in places.items()}
        for group, (at, _) in groups.items():
            commit(a, group, topic, {0: at, 1: 17})
        planned = drivers.run("failover", "--plan", "-o", "json")
        assert planned.code == 0, planned.said
        assert planned.document["would_lose"] == 0
        done = drivers.execute("failover").document
        assert (done["missing"], done["tail"]) == (0, [])
        for group, (at, there) in groups.items():
            moved = committed(b, group, topic)
            assert (moved[0], moved[1]) == (there, 0), f"{group} at {at}"
        left = [it.value for it in (*plain("one", 10), *plain("two", 5), *plain("three", 5))]
        assert values(b, topic) == left
        check_return(sides, drivers, topic, next(iter(groups)))


def check_return(sides: Sides, drivers: Drivers, topic: str, group: str) -> None:
    """Clients write to B: only that comes to A; the group returns behind it, and the chain is at work again."""
    a, b = sides
    before = ends(a, topic)
    native = [*plain("new", 3), *(it._replace(partition=1) for it in plain("new", 2))]
    write(b, topic, native)
    last = drivers.mirror
    until(lambda: sum(ends(a, topic).values()) >= sum(before.values()) + 5, 90, "back", alive=last)
    # It has read all but the last two, and but the last one; the offsets have holes where transactions ended.
    logs = read(b, topic, committed=True)
    commit(b, group, topic, {0: logs[0].offsets[-2], 1: logs[1].offsets[-1]})
    done = drivers.execute("failback").document
    assert (done["missing"], done["tail"]) == (0, [])
    for partition, count in ((0, 3), (1, 2)):
        found = read(a, topic, committed=True)[partition].records[-count - 1 :]
        assert [it.value for it in found[1:]] == [b"new %d" % n for n in range(count)]
        assert found[0].value is None or found[0].headers, "nothing that came from A came back"
    logs = read(a, topic, committed=True)
    assert committed(a, group, topic) == {0: logs[0].offsets[-2], 1: logs[1].offsets[-1]}
    write(a, topic, [*dropped(3), *plain("home", 1)])
    until(lambda: values(b, topic)[-1] == b"home 0", 90, "home", alive=last)
    assert values(b, topic)[-4:] == [b"new 0", b"new 1", b"new 2", b"home 0"]
