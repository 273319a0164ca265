"""``/flows`` of the product on real brokers: flows come, change and go while others run, and outlive restarts.

Flow: one file, several source aliases of one region -> process(es) -> requests -> what arrives on the target.
"""

from typing import Final

import pytest

from tests.integration.cluster_changes import delete_topic
from tests.integration.flow_questions import Asked, flows_file, path_of, push, wait_for_records
from tests.integration.mirror_process import Flow, Mirror, running, until_equal
from tests.integration.setups import Setup
from tests.integration.several_workers import CALM
from tests.integration.traffic import assert_equal, copied, ends, wait_for_copy

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

COUNT: Final = 20
CLIENTS: Final = ("consumer", "producer", "admin", "source.consumer", "target.producer")
KEYS: Final = (
    "request.timeout.ms", "default.api.timeout.ms", "connections.max.idle.ms", "reconnect.backoff.ms",
    "reconnect.backoff.max.ms", "retry.backoff.ms", "retry.backoff.max.ms", "metadata.max.age.ms",
    "socket.connection.setup.timeout.ms", "socket.connection.setup.timeout.max.ms",
)  # fmt: skip


@pytest.fixture
def topics(setup: Setup) -> list[str]:
    """Two topics per flow: the one of the file, and another one."""
    names = [setup.unique(f"flows-{word}") for word in ("kept", "kept2", "new", "new2")]
    for name in names:
        setup.create_topic(setup.a, name, 1)
    return names


@pytest.fixture
def flows(setup: Setup, topics: list[str]) -> list[Flow]:
    """One flow that runs, and one that the file has disabled."""
    names = [topics[0], topics[2]]
    return flows_file(setup.folder, setup.a, setup.b, names, running=1, properties=CALM)


def test_a_flow_is_created_changed_rolled_back_and_deleted_while_another_one_runs(
    flows: list[Flow], topics: list[str]
) -> None:
    kept, new = flows
    body = {"source": new.source_alias, "target": new.target_alias}
    with running(kept.file) as mirror:
        ask = Asked(mirror)
        planned = ask.done("POST", "/flows", body, dry_run=True)
        assert (planned["dry_run"], planned["revision"]) == (True, None)
        assert ends(new.target, f"mm2py-flows.{new.source_alias}.internal") == {}, "nothing is made"
        status, made = ask.patiently("POST", "/flows", body)
        assert (status, made["action"], made["changes"]) == (201, "create", planned["changes"])
        assert ask("POST", "/flows", body)[0] == 409
        push(new, topics[2], COUNT)
        wait_for_records(mirror, new, topics[2], COUNT)

        path = path_of(new)
        both = {"config": {"topics": f"{topics[2]},{topics[3]}"}}
        changed = ask.done("PATCH", path, both)
        assert changed["revision"] == made["revision"] + 1
        push(new, topics[3], COUNT)
        wait_for_records(mirror, new, topics[3], COUNT)

        ask.pause(new, topic=topics[2])
        push(new, topics[2], COUNT)
        push(new, topics[3], COUNT)
        wait_for_records(mirror, new, topics[3], 2 * COUNT)
        assert copied(new, topics[2]) == COUNT, "only the paused topic waits"
        ask.done("POST", f"{path}/restart", topic=topics[2])
        ask.done("POST", f"{path}/resume", topic=topics[2])
        wait_for_records(mirror, new, topics[2], 2 * COUNT)

        ask.done("DELETE", path, topic=topics[3])
        assert ask.properties(new)["topics"] == topics[2]
        ask.done("POST", f"{path}/pause", topic=topics[2], partition=0)
        ask.done("POST", f"{path}/rollback", revision=changed["revision"])
        assert ask.properties(new)["topics"] == both["config"]["topics"]
        assert ask.paused(new) == set()
        ask.done("POST", f"{path}/rollback", revision=made["revision"])
        assert ask.properties(new)["topics"] == topics[2]
        change_fifty_keys(ask, new)
    outlives_a_restart(flows, topics)


def test_what_was_changed_over_rest_outlives_the_topic_that_keeps_it(
    flows: list[Flow], topics: list[str]
) -> None:
    kept = flows[0]
    with running(kept.file) as mirror:
        ask = Asked(mirror)
        ask.done("POST", f"{path_of(kept)}/pause", topic=topics[0])
        ask.done("PATCH", path_of(kept), {"config": {"tasks.max": "3"}})
        history = ask.done("GET", f"{path_of(kept)}/history")
        delete_topic(kept.target, f"mm2py-flows.{kept.source_alias}.internal")
        mirror.wait_for_log("changes over REST are written again")
    with running(kept.file) as mirror:
        ask = Asked(mirror)
        assert ask.paused(kept) == {topics[0]}
        assert ask.properties(kept)["tasks.max"] == "3"
        assert ask.done("GET", f"{path_of(kept)}/history") == history


def change_fifty_keys(ask: Asked, flow: Flow) -> None:
    """Fifty keys are one revision, and go back in one; what fits no record of the config topic changes nothing."""
    before = ask.properties(flow)
    keys = {f"{client}.{key}": "30001" for client in CLIENTS for key in KEYS}
    assert len(keys) == 50
    changed = ask.done("PATCH", path_of(flow), {"config": keys})
    assert len(changed["changes"]) == 50
    assert ask.properties(flow) == before | keys
    back = ask.done("PATCH", path_of(flow), {"config": dict.fromkeys(keys)})
    assert back["revision"] == changed["revision"] + 1
    assert ask.properties(flow) == before

    # Of the record and its line of the history each fits with the other.
    half, more = "x" * 440_000, "x" * 460_000
    taken = ask.done("PATCH", path_of(flow), {"config": {"consumer.client.id": half}})
    status, refused = ask.patiently("PATCH", path_of(flow), {"config": {"consumer.group.id": more}})
    assert (status, "at most 900000 fit a record" in refused["message"]) == (400, True), refused
    assert ask.done("GET", path_of(flow))["revision"] == taken["revision"]
    ask.done("PATCH", path_of(flow), {"config": {"consumer.client.id": None}})
    assert ask.properties(flow) == before


def outlives_a_restart(flows: list[Flow], topics: list[str]) -> None:
    """What was made is there again; deleted, it stays away until it is made again, and goes on then."""
    kept, new = flows
    with running(kept.file, name="again", ready=False) as mirror:
        ask = Asked(mirror)
        ask.wait_there(new)
        push(new, topics[2], COUNT)
        wait_for_records(mirror, new, topics[2], 3 * COUNT)
        assert ask.done("DELETE", path_of(new))["action"] == "delete"
        assert ask("GET", path_of(new))[0] == 404
        # The answer is the end of its work, not of the write that was under way.
        mirror.wait_for_log(f"{new.source_alias}->{new.target_alias}.*flow stopped", 90)
        push(new, topics[2], COUNT)
        push(kept, topics[0], COUNT)
        wait_for_records(mirror, kept, topics[0], COUNT)
    with running(kept.file, name="third") as mirror:
        ask = Asked(mirror)
        push(kept, topics[0], COUNT)
        wait_for_records(mirror, kept, topics[0], 2 * COUNT)
        # A flow whose changes are not read yet shows as the file has it.
        only = [f"{kept.source_alias}->{kept.target_alias}"]
        until_equal(lambda: [it["flow"] for it in ask.done("GET", "/flows")], only, alive=mirror)
        assert copied(new, topics[2]) == 3 * COUNT, "a deleted flow copies nothing"
        ask.done("POST", "/flows", {"source": new.source_alias, "target": new.target_alias})
        assert_equal(*wait_for_copy(mirror, new, topics[2], timeout_s=90))


def test_every_worker_of_a_file_runs_a_flow_that_one_of_them_was_told_of(
    flows: list[Flow], topics: list[str]
) -> None:
    kept, new = flows
    with Mirror(kept.file, name="one") as one, running(kept.file, name="two", ready=False) as two:
        asks = [Asked(one), Asked(two)]
        body = {"source": new.source_alias, "target": new.target_alias}
        assert asks[0].patiently("POST", "/flows", body)[0] == 201
        for ask, worker in zip(asks, (one, two), strict=True):
            worker.wait_for_log(f"{new.source_alias}->{new.target_alias}.*group", 90)
            ask.wait_there(new)
        assert asks[1].patiently("POST", "/flows", body)[0] == 409
        one.kill()
        push(new, topics[2], COUNT)
        wait_for_records(two, new, topics[2], COUNT)
        asks[1].done("DELETE", path_of(new))
        assert asks[1]("GET", path_of(new))[0] == 404
