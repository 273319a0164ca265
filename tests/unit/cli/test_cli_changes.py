"""``mm2py flow`` and ``mm2py group``: what is sent, what is shown, how it ends."""

import json
from collections.abc import Mapping

import pytest

from mm2py.flows.view_models import GroupPartitionView, GroupView, TranslationView
from tests.unit.cli.cli_api import FLOW, PATH, FakeApi, Turns, refusal

DONE: dict[str, object] = {
    "flow": "A->B",
    "action": "pause",
    "dry_run": False,
    "revision": 4,
    "changes": [{"key": "MirrorSourceConnector", "before": "RUNNING", "after": "PAUSED"}],
}
FLOW_URL = "/flows/A-%3EB"


def api(method: str = "POST", path: str = f"{PATH}/pause") -> FakeApi:
    return FakeApi({(method, path): DONE, ("GET", PATH): {**FLOW, "state": "PAUSED"}})


@pytest.mark.parametrize(
    ("words", "method", "path", "query", "body"),
    [
        (["pause", "A/B"], "POST", "/pause", "", None),
        (["pause", "A/B", "--dry-run"], "POST", "/pause", "?dry_run=true", None),
        (["stop", "A->B", "--topic", "t"], "POST", "/stop", "?topic=t", None),
        (
            ["resume", "A/B", "--topic", "t", "--partition", "0"],
            "POST",
            "/resume",
            "?topic=t&partition=0",
            None,
        ),
        (["restart", "A/B", "--only-failed"], "POST", "/restart", "?only_failed=true", None),
        (["rollback", "A/B", "0"], "POST", "/rollback", "?revision=0", None),
        (["delete", "A/B", "--yes"], "DELETE", "", "", None),
        (
            ["delete", "A/B", "--topic", "t", "--dry-run"],
            "DELETE",
            "",
            "?topic=t&dry_run=true",
            None,
        ),
        (
            ["set", "A/B", "topics=a=b,c", "--unset", "topics.exclude"],
            "PATCH",
            "",
            "",
            {"config": {"topics": "a=b,c", "topics.exclude": None}},
        ),
        (
            ["set", "A/B", "tasks.max=", "--connector", "MirrorHeartbeatConnector", "--dry-run"],
            "PATCH",
            "",
            "?dry_run=true",
            {"connectors": {"MirrorHeartbeatConnector": {"tasks.max": ""}}},
        ),
    ],
)
def test_a_change_is_one_request(
    words: list[str], method: str, path: str, query: str, body: object
) -> None:
    found = api(method, PATH + path)
    ended = found.run("flow", *words)
    assert (ended.code, ended.err.count("\n")) == (0, 1)
    assert found.sent() == [(method, FLOW_URL + path + query, body)]


def test_create_names_both_clusters_and_sends_properties() -> None:
    found = api("POST", "/flows")
    assert found.run("flow", "create", "A/B", "topics=x", "tasks.max=2").code == 0
    config = {"topics": "x", "tasks.max": "2"}
    assert found.sent() == [("POST", "/flows", {"source": "A", "target": "B", "config": config})]


def test_what_changed_is_shown_and_the_revision_told() -> None:
    ended = api().run("flow", "pause", "A/B")
    assert ended.out.splitlines()[1].split() == ["MirrorSourceConnector", "RUNNING", "PAUSED"]
    assert ended.err == "A->B pause: done, revision 4\n"
    assert json.loads(api().run("flow", "pause", "A/B", "-o", "json").out) == DONE


def test_a_dry_run_says_that_nothing_was_changed_and_waits_for_nothing() -> None:
    found = api()
    ended = found.run("flow", "pause", "A/B", "--dry-run", "--wait")
    assert ended.err == "A->B pause: dry run, nothing was changed\n"
    assert len(found.requests) == 1


def test_wait_ends_when_the_flow_is_in_its_state() -> None:
    found = api()
    busy = refusal(409, "a rebalance is under way")
    found.answers["GET", PATH] = Turns([busy, {**FLOW, "state": "PAUSED"}])
    assert found.run("flow", "pause", "A/B", "--wait").code == 0
    assert len(found.requests) == 3


def test_wait_ends_with_3_when_the_flow_does_not_get_there() -> None:
    found = api()
    found.answers["GET", PATH] = FLOW
    ended = found.run("flow", "pause", "A/B", "--wait", "--timeout", "0.1")
    assert ended.code == 3
    assert ended.err.splitlines()[1] == "A->B is not PAUSED after 0.1 s: RUNNING"


@pytest.mark.parametrize(
    "words",
    [
        ["pause", "A"],
        ["pause", "A-"],
        ["pause", "A/"],
        ["pause", "A/B", "--partition", "1"],
        ["pause", "A/B", "--topic", "t", "--partition", "-1"],
        ["pause", "A/B", "--topic", "t", "--wait"],
        ["set", "A/B"],
        ["set", "A/B", "topics"],
        ["set", "A/B", "=x"],
        ["set", "A/B", "topics=x", "--unset", "topics"],
        ["create", "A/B", "x"],
        ["rollback", "A/B", "-1"],
        ["rollback", "A/B"],
        ["delete", "A/B"],
        ["no-such-verb"],
    ],
)
def test_wrong_usage_ends_with_2_and_sends_nothing(words: list[str]) -> None:
    found = FakeApi()
    assert found.run("flow", *words).code == 2
    assert found.requests == []


# -- ``mm2py group list|describe|translate``


PART: Mapping[str, object] = {
    "topic": "orders",
    "partition": 0,
    "target_topic": "A.orders",
    "committed": 4711,
    "exact": 4700,
    "checkpoint": 4690,
    "committed_there": 4690,
    "continues_at": 4690,
    "reads_again": 10,
    "skips": 0,
    "place": "copied",
    "reason": "",
}
GROUP: Mapping[str, object] = {
    "flow": "A->B",
    "group": "bil/ling",
    "type": "consumer",
    "state": "Stable",
    "state_there": "",
    "members": 3,
    "members_there": None,
    "reads_again": 10,
    "skips": 0,
    "not_synced": "it has members on the target",
    "partitions": [PART],
}
FOUND: Mapping[str, object] = {
    "flow": "A->B",
    "direction": "to-target",
    "topic": "orders",
    "partition": 0,
    "offset": 4711,
    "to_topic": "A.orders",
    "to_offset": 4700,
    "place": "copied",
    "text": "the record was copied",
}


def groups_api(**changes: object) -> FakeApi:
    one, place = {**GROUP, **changes}, {**FOUND, **changes}
    return FakeApi(
        {
            ("GET", f"{PATH}/groups"): [one],
            ("GET", f"{PATH}/groups/bil/ling"): one,
            ("GET", f"{PATH}/translate"): place,
            ("GET", f"{PATH}/groups/none"): refusal(404, "No group none on A"),
        }
    )


def test_the_answers_of_these_tests_are_those_of_the_api() -> None:
    for view, answer in ((GroupView, GROUP), (GroupPartitionView, PART), (TranslationView, FOUND)):
        assert view.model_fields.keys() == answer.keys()


def test_list_prints_what_would_be_read_again() -> None:
    ended = groups_api().run("group", "list", "A/B")
    assert (ended.code, ended.err) == (0, "bil/ling not synced: it has members on the target\n")
    title, row = ended.out.splitlines()
    assert title.split()[:3] == ["GROUP", "TYPE", "STATE"]
    assert row.split()[:5] == ["bil/ling", "consumer", "Stable", "1", "10"]


def test_a_group_that_would_skip_ends_with_3() -> None:
    assert groups_api(skips=4).run("group", "list", "A/B").code == 3
    assert groups_api(skips=4).run("group", "describe", "A/B", "bil/ling").code == 3


def test_a_group_without_an_offset_for_the_target_ends_with_3() -> None:
    part = {**PART, "continues_at": None, "reads_again": None, "skips": None, "place": "no-map"}
    found = groups_api(partitions=[PART, part], reads_again=None, skips=None)
    assert found.run("group", "list", "A/B").code == 3
    ended = found.run("group", "describe", "A/B", "bil/ling")
    assert (ended.code, "not copied by mm2py yet" in ended.out) == (3, True)


def test_describe_prints_partitions_and_members() -> None:
    asked = groups_api()
    ended = asked.run("group", "describe", "A/B", "bil/ling")
    assert ended.code == 0
    assert "Stable, 3 members" in ended.out
    assert "(no such group)" in ended.out
    assert "4,711" in ended.out
    assert asked.sent()[0][1].endswith("/groups/bil%2Fling")
    assert json.loads(asked.run("group", "describe", "A/B", "bil/ling", "-o", "json").out) == GROUP
    ended = asked.run("group", "describe", "A/B", "none")
    assert (ended.code, "No group none on A" in ended.err) == (1, True)


@pytest.mark.parametrize(
    ("place", "code"),
    [("copied", 0), ("at-end", 0), ("lost", 3), ("never-existed", 3), ("not-yet-copied", 3)],
)
def test_translate_names_the_place_and_ends_with_3_where_there_is_no_record(
    place: str, code: int
) -> None:
    asked = groups_api(place=place)
    words = ("group", "translate", "A/B", "orders", "0", "4711", "--direction", "to-source")
    ended = asked.run(*words)
    assert (ended.code, place in ended.out) == (code, True)
    query = "topic=orders&partition=0&offset=4711&direction=to-source"
    assert asked.sent()[0][1].endswith(f"/translate?{query}")


@pytest.mark.parametrize(
    "words", ["orders x 1", "orders 0 -1", "orders 0", "orders 0 1 --direction up"]
)
def test_wrong_words_are_wrong_usage(words: str) -> None:
    assert groups_api().run("group", "translate", "A/B", *words.split()).code == 2
