"""``mm2py flow`` and its changes: what is sent, what is shown, how it ends."""

import json

import pytest

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
