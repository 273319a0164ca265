"""One cluster under two addresses: the flow is refused before the first topic is created; the others run."""

import pytest
from confluent_kafka.admin import AdminClient

from tests.integration.active_active import IDENTITY
from tests.integration.flow_questions import path_of
from tests.integration.mirror_process import (
    SINGLE_REPLICA,
    Flow,
    Mirror,
    running,
    until,
    until_equal,
    write_file,
)
from tests.integration.rest_asking import ask, public_url
from tests.integration.setups import Setup
from tests.integration.traffic import Sent, ends, numbered, write
from tests.kit.kafka.region import ForeignRegion, KafkaAddress, Region

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def topics_of(region: KafkaAddress) -> set[str]:
    return set(_admin(region).list_topics(timeout=10).topics)


def _admin(region: KafkaAddress) -> AdminClient:
    return AdminClient({"bootstrap.servers": region.bootstrap_servers})


def test_a_flow_whose_source_is_its_target_is_refused_with_addresses_and_id(setup: Setup) -> None:
    topic, other = setup.topic("orders"), setup.unique("other")
    port = setup.a.bootstrap_servers.rpartition(":")[2]
    again = ForeignRegion("again", f"localhost:{port}")
    assert again.bootstrap_servers != setup.a.bootstrap_servers
    flow = setup.flow(topic, target=again)
    with Mirror(flow.file) as worker:
        assert worker.wait() == 1
    cluster_id = str(_admin(setup.a).list_topics(timeout=10).cluster_id)
    said = next(it for it in worker.log().splitlines() if "are one cluster" in it)
    for expected in (setup.a.bootstrap_servers, again.bootstrap_servers, cluster_id, flow.name):
        assert expected in said
    left = {it for it in topics_of(setup.a) if flow.source_alias in it or flow.target_alias in it}
    assert left == set(), "nothing was created"

    pair = f"{flow.source_alias}, {flow.target_alias}"
    beside = {
        f"{other}.bootstrap.servers": setup.b.bootstrap_servers,
        f"{flow.source_alias}->{other}.enabled": "true",
        f"{flow.source_alias}->{other}.topics": topic,
    }
    text = flow.file.read_text().replace(f"clusters = {pair}", f"clusters = {pair}, {other}")
    flow.file.write_text(text + "".join(f"{key} = {value}\n" for key, value in beside.items()))
    with running(flow.file, ready=False) as worker:
        until(lambda: flow.remote(topic) in topics_of(setup.b), 90, "the other flow", alive=worker)

        def refused() -> tuple[object, bool]:
            (view,) = [it for it in ask(f"{public_url(worker)}flows")[1] if it["flow"] == flow.name]
            return view["state"], cluster_id in str(view)

        until_equal(refused, ("FAILED", True), alive=worker)
        assert topics_of(setup.a).isdisjoint({flow.remote(topic)})


def test_a_cloned_cluster_is_told_apart_after_the_remedy_that_the_refusal_names(
    setup: Setup, own_regions: tuple[Region, Region]
) -> None:
    original, clone = own_regions
    topic = setup.topic("orders", on=original)
    write(original, topic, numbered(0, 10))
    original.stop()
    clone.stop()
    clone.clone(original)
    original.start()
    clone.start()
    flow = setup.flow(topic, source=original, target=clone)
    with Mirror(flow.file) as worker:
        assert worker.wait() == 1
    said = next(it for it in worker.log().splitlines() if "are one cluster" in it)
    assert "cloned need ids of their own" in said
    assert "cluster.id in meta.properties" in said
    clone.stop()
    clone.take_new_id()
    clone.start()
    until_equal(lambda: sum(ends(clone, topic).values()), 10, "its own data stay")
    with running(flow.file) as worker:
        until_equal(lambda: ends(clone, flow.remote(topic)), {0: 10}, "the copy", alive=worker)


def site(
    setup: Setup,
    pair: tuple[str, str],
    source: KafkaAddress,
    target: KafkaAddress,
    topics: str,
    **properties: str,
) -> Flow:
    """Write the file of one site, which knows both clusters by aliases of its own."""
    one, two = pair
    lines = {
        "clusters": f"{one}, {two}",
        f"{one}.bootstrap.servers": source.bootstrap_servers,
        f"{two}.bootstrap.servers": target.bootstrap_servers,
        f"{one}->{two}.enabled": "true",
        f"{one}->{two}.topics": topics,
        f"{one}->{two}.refresh.topics.interval.seconds": "1",
        "emit.heartbeats.enabled": "false",
        "heartbeats.replication.enabled": "false",
        **dict.fromkeys(SINGLE_REPLICA, "1"),
        **{key.replace("_", "."): value for key, value in properties.items()},
    }
    file = setup.folder / f"{setup.unique('site')}.properties"
    write_file(file, lines)
    return Flow(
        source, target, one, two, file, keeps_names="replication_policy_class" in properties
    )


def view(worker: Mirror, flow: Flow) -> str:
    return str(ask(public_url(worker) + path_of(flow).removeprefix("/"))[1])


def with_text(region: KafkaAddress, text: str) -> set[str]:
    return {it for it in topics_of(region) if text in it and "internal" not in it}


@pytest.mark.parametrize(
    ("one", "two", "there", "here"),
    [
        (("remote", "local"), ("remote", "local"), {"remote.{a}"}, {"remote.{b}"}),
        (("a1", "b1"), ("b2", "a2"), {"a1.{a}", "a1.b2.{b}"}, {"b2.{b}", "b2.a1.{a}"}),
    ],
    ids=["both call the other remote", "each has names of its own"],
)
def test_a_chain_that_leads_back_ends_and_is_named(
    setup: Setup,
    own_regions: tuple[Region, Region],
    one: tuple[str, str],
    two: tuple[str, str],
    there: set[str],
    here: set[str],
) -> None:
    """Neither file shows a circle: each site names the other cluster as it likes (KAFKA-9914)."""
    a, b = own_regions
    mark = setup.unique("chain")
    first, second = f"{mark}-first", f"{mark}-second"
    setup.create_topic(a, first, 1)
    setup.create_topic(b, second, 1)
    write(a, first, [Sent(0, b"1")])
    write(b, second, [Sent(0, b"2")])
    to_b, to_a = site(setup, one, a, b, ".*"), site(setup, two, b, a, ".*")
    names = {"a": first, "b": second}
    copies_b, copies_a = ({it.format(**names) for it in side} for side in (there, here))
    with running(to_b.file, name="right") as right, running(to_a.file, name="left") as left:
        until(
            lambda: with_text(b, mark) >= copies_b and with_text(a, mark) >= copies_a,
            90,
            lambda: f"{with_text(b, mark)} {with_text(a, mark)}",
            alive=right,
        )
        until(lambda: "came from the source" in view(right, to_b), 90, "the note of one side")
        until(lambda: "came from the source" in view(left, to_a), 90, "the note of the other side")
        # A list of topics that is made later than all copies.
        late = f"{mark}-late"
        setup.create_topic(a, late, 1)
        until(lambda: f"{one[0]}.{late}" in with_text(b, mark), 90, late, alive=right)
        assert {it for it in with_text(b, mark) if "late" not in it} == copies_b | {second}
        assert {it for it in with_text(a, mark) if "late" not in it} == copies_a | {first}


def test_two_sites_that_call_each_other_remote_and_keep_names_copy_each_record_once(
    setup: Setup, own_regions: tuple[Region, Region]
) -> None:
    a, b = own_regions
    topic = setup.unique("same")
    for region, value in ((a, b"1"), (b, b"2")):
        setup.create_topic(region, topic, 1)
        write(region, topic, [Sent(0, value)])
    names = {"replication_policy_class": IDENTITY}
    pair = ("far", "near")  # the stored state of the two above is on these clusters, too
    to_b, to_a = site(setup, pair, a, b, topic, **names), site(setup, pair, b, a, topic, **names)
    with running(to_b.file, name="right") as right, running(to_a.file, name="left") as left:
        until_equal(lambda: [ends(it, topic) for it in (a, b)], [{0: 2}] * 2, alive=right)
        write(a, topic, [Sent(0, b"3")])
        write(b, topic, [Sent(0, b"4")])
        until_equal(lambda: [ends(it, topic) for it in (a, b)], [{0: 4}] * 2, alive=left)
        write(a, topic, [Sent(0, b"5")])
        until_equal(lambda: ends(b, topic), {0: 5}, alive=left)
    assert ends(a, topic) == ends(b, topic) == {0: 5}
