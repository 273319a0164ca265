"""One cluster under two addresses: the flow is refused before the first topic is created; the others run."""

import pytest
from confluent_kafka.admin import AdminClient

from tests.integration.mirror_process import Mirror, running, until
from tests.integration.rest_asking import ask, public_url
from tests.integration.setups import Setup
from tests.kit.kafka.region import ForeignRegion, KafkaAddress

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def topics_of(region: KafkaAddress) -> set[str]:
    return set(_admin(region).list_topics(timeout=10).topics)


def _admin(region: KafkaAddress) -> AdminClient:
    return AdminClient({"bootstrap.servers": region.bootstrap_servers})


def test_a_flow_whose_source_is_its_target_is_refused_with_both_addresses_and_the_id(
    setup: Setup,
) -> None:
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
        _, flows = ask(f"{public_url(worker)}flows")
        (refused,) = [it for it in flows if it["flow"] == flow.name]
        assert (refused["state"], cluster_id in str(refused)) == ("FAILED", True)
        assert topics_of(setup.a).isdisjoint({flow.remote(topic)})
