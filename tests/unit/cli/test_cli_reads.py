"""``mm2py flow``, ``lag``, ``topics`` and ``group``: what is sent, what they print, and their exit codes."""

import json
from collections.abc import Mapping
from typing import cast

import httpx
import pytest
import yaml

from mm2py.flows.view_models import (
    FlowView,
    GroupPartitionView,
    GroupView,
    PartitionView,
    TopicView,
    TranslationView,
)
from tests.unit.cli.cli_api import FLOW, PARTITION, PATH, TOPIC, FakeApi, Turns, refusal


def api(
    flow: Mapping[str, object] | None = None, topic: Mapping[str, object] | None = None
) -> FakeApi:
    one, rows = {**FLOW, **(flow or {})}, [{**TOPIC, **(topic or {})}]
    return FakeApi(
        {
            ("GET", "/flows"): [one],
            ("GET", PATH): one,
            ("GET", "/lag"): rows,
            ("GET", f"{PATH}/lag"): rows,
        }
    )


def test_the_answers_of_these_tests_are_those_of_the_api() -> None:
    for view, answer in ((FlowView, FLOW), (TopicView, TOPIC), (PartitionView, PARTITION)):
        assert view.model_fields.keys() == answer.keys()


def test_list_prints_a_table_of_flows() -> None:
    ended = api().run("flow", "list")
    assert (ended.code, ended.err) == (0, "")
    title, row = ended.out.splitlines()
    assert title.split()[:4] == ["FLOW", "STATE", "LAG", "RPO"]
    assert row.split() == ["A->B", "RUNNING", "1,234", "5.6", "s", "0.5", "2.5", "KB", "2", "0"]


def test_wide_has_more_columns() -> None:
    ended = api().run("flow", "list", "-o", "wide")
    assert "WORKERS" in ended.out
    assert "w1:1" in ended.out
    assert "1970-01-01 00:00:00" in ended.out


def test_json_and_yaml_are_the_answer_itself() -> None:
    assert json.loads(api().run("flow", "list", "-o", "json").out) == [FLOW]
    assert yaml.safe_load(api().run("flow", "list", "-o", "yaml").out) == [FLOW]
    assert json.loads(api().run("flow", "describe", "A/B", "-o", "json").out) == FLOW
    assert yaml.safe_load(api().run("lag", "-o", "yaml").out) == [TOPIC]


@pytest.mark.parametrize(
    ("flow", "code"),
    [
        ({}, 0),
        ({"state": "PAUSED"}, 0),
        ({"state": "STOPPED"}, 0),
        ({"state": "FAILED"}, 3),
        ({"state": "SUSPENDED"}, 3),
        ({"failed_partitions": 1, "state": "DEGRADED"}, 3),
        ({"incomplete": ["http://w2:1/"]}, 3),
    ],
)
@pytest.mark.parametrize("words", ["flow list", "flow describe A/B", "lag", "lag --flow A/B"])
def test_a_flow_that_is_unwell_ends_with_3(flow: dict[str, object], code: int, words: str) -> None:
    assert api(flow).run(*words.split()).code == code


def test_what_is_wrong_is_told_on_stderr_in_one_line_each() -> None:
    errors = [{"where": "orders-1", "message": "record too large; raise max.message.bytes"}]
    ended = api({"state": "DEGRADED", "errors": errors, "records_lost": 7}).run("flow", "list")
    assert ended.err.splitlines() == [
        "A->B orders-1: record too large; raise max.message.bytes",
        "A->B 7 records lost (mm2py ledger FILE 'A->B' names them)",
    ]


def test_a_worker_that_gives_no_answer_is_told_once() -> None:
    silent, unknown = "http://w2:1/", "leader unknown"
    errors = [{"where": silent, "message": "this worker gave no answer (refused)"}]
    flow = {"state": "DEGRADED", "errors": errors, "incomplete": [silent, unknown]}
    assert api(flow).run("flow", "list").err.splitlines() == [
        f"A->B {silent}: this worker gave no answer (refused)",
        f"A->B numbers are incomplete, no answer from {unknown}",
    ]
    described = api(flow).run("flow", "describe", "A/B").out
    assert [described.count(it) for it in (silent, unknown)] == [1, 1]
    assert api({"state": "SUSPENDED"}).run("flow", "list").err == "A->B is SUSPENDED\n"


@pytest.mark.parametrize("count", [1, 100])
def test_errors_of_one_cause_are_one_line_and_those_of_many_are_five(count: int) -> None:
    same = [{"where": f"t-{it}", "message": "no such topic"} for it in range(count)]
    named = {"where": "big-0", "message": "big-0 at offset 200: too large"}
    ended = api({"state": "DEGRADED", "errors": [*same, named]}).run("lag")
    first = "A->B t-0: no such topic" if count == 1 else "A->B t-0 and 99 more: no such topic"
    assert ended.err.splitlines() == [first, "A->B big-0 at offset 200: too large"]
    many = [{"where": f"t-{it}", "message": f"cause {it}"} for it in range(count + 5)]
    found = api({"state": "DEGRADED", "errors": many})
    assert found.run("flow", "list").err.splitlines()[4:] == [
        "A->B t-4: cause 4",
        f"A->B {count} more causes: mm2py flow describe 'A->B' -o wide",
    ]
    found.answers["GET", f"{PATH}/partitions"] = []
    wide = found.run("flow", "describe", "A/B", "-o", "wide").out
    assert wide.count("WRONG") == min(count + 5, 101)
    assert [it for it in wide.splitlines() if it != it.rstrip()] == [], "nobody needs blanks"


def test_describe_shows_connectors_and_tasks_and_wide_its_partitions() -> None:
    found = api()
    found.answers["GET", f"{PATH}/partitions"] = [
        {**PARTITION, "state": "FAILED", "cause": "the disk is full"}
    ]
    ended = found.run("flow", "describe", "A->B", "-o", "wide")
    assert "MirrorSourceConnector-0" in ended.out
    assert "the disk is full" in ended.out


def test_history_shows_who_changed_what() -> None:
    line = {
        "revision": 3,
        "at_ms": 0,
        "by": "ann",
        "action": "change",
        "target": "A->B",
        "changes": [{"key": "MirrorSourceConnector.topics", "before": "a", "after": None}],
    }
    ended = FakeApi({("GET", f"{PATH}/history"): [line]}).run("flow", "history", "A/B")
    assert ended.code == 0
    assert "1970-01-01 00:00:00  ann" in ended.out
    assert "MirrorSourceConnector.topics: a -> (none)" in ended.out


def test_config_can_show_what_differs_from_the_file() -> None:
    mine = {"key": "topics", "value": "a", "file_value": "b", "changed_by": "ann", "revision": 2}
    files = {"key": "tasks.max", "value": "1", "file_value": "1", "revision": None}
    files["changed_by"] = files["changed_at_ms"] = None
    mine["changed_at_ms"] = 1
    found = FakeApi(
        {("GET", f"{PATH}/config"): [{"connector": "Source", "properties": [mine, files]}]}
    )
    assert "tasks.max" in found.run("flow", "config", "A/B").out
    changed = found.run("flow", "config", "A/B", "--changed")
    assert "topics" in changed.out
    assert "tasks.max" not in changed.out


def test_control_characters_of_an_answer_do_not_reach_the_terminal() -> None:
    evil = {"state": "\x1b[2JRUNNING\n", "errors": [{"where": "x", "message": "\x1b]0;y\x07"}]}
    ended = api(evil).run("flow", "list")
    assert "\x1b" not in ended.out + ended.err
    assert "\\x1b[2JRUNNING\\x0a" in ended.out


@pytest.mark.parametrize(
    ("words", "topic", "code"),
    [
        ("", {}, 0),
        ("", {"failed_partitions": 1}, 3),
        ("--max-records 1234", {}, 0),
        ("--max-records 1233", {}, 3),
        ("--max-seconds 6", {}, 0),
        ("--max-seconds 5", {}, 3),
        ("--max-seconds 5", {"lag_ms": None}, 3),
    ],
)
def test_lag_beyond_a_limit_ends_with_3(words: str, topic: dict[str, object], code: int) -> None:
    assert api(topic=topic).run("lag", *words.split()).code == code


def test_a_paused_flow_is_well_but_not_within_a_limit_unless_it_copies_nothing_on_purpose() -> None:
    assert api({"state": "PAUSED"}).run("lag").code == 0
    ended = api({"state": "PAUSED"}).run("lag", "--max-seconds", "60")
    assert (ended.code, ended.err) == (3, "A->B is PAUSED: it falls behind\n")
    assert api({"state": "PAUSED", "enabled": False}).run("lag", "--max-seconds", "60").code == 0


def test_a_flow_without_topics_is_within_no_limit_unless_it_copies_nothing_on_purpose() -> None:
    for enabled, code in ((True, 3), (False, 0)):
        found = api({"topics": 0, "enabled": enabled})
        found.answers["GET", "/lag"] = []
        assert found.run("lag").code == 0
        assert found.run("lag", "--max-seconds", "60").code == code


def test_lag_shows_the_first_topics_but_judges_all() -> None:
    found = api()
    found.answers["GET", "/lag"] = [TOPIC, {**TOPIC, "topic": "late", "failed_partitions": 1}]
    ended = found.run("lag", "--top", "1")
    assert "late" not in ended.out
    assert ended.code == 3


@pytest.mark.parametrize(
    ("flow", "state", "code"),
    [
        ("RUNNING", "RUNNING", 0),
        ("DEGRADED", "FAILED", 3),
        ("DEGRADED", "HELD", 3),
        ("RUNNING", "HELD", 0),  # by a stream on Spark
        ("DEGRADED", "PARTLY PAUSED", 0),  # another topic is the cause
        ("SUSPENDED", "RUNNING", 3),
        ("WAITING", "RUNNING", 3),
        ("PAUSED", "PAUSED", 0),
    ],
)
def test_topics_and_lag_show_the_state_of_a_topic(flow: str, state: str, code: int) -> None:
    found = api({"state": flow}, {"state": state})
    ended = found.run("topics")
    assert (ended.out.rstrip().endswith(state), ended.code) == (True, code)
    assert f" {state} " in found.run("lag").out


@pytest.mark.parametrize(
    ("state", "errors", "line", "code"),
    [
        ("WAITING", ["waits for target B"], "A->B flow: waits for target B", 3),
        ("STOPPED", [], "A->B is STOPPED: mm2py flow resume 'A->B'", 0),
    ],
)
def test_topics_of_a_flow_that_copies_nothing_are_not_simply_none(
    state: str, errors: list[str], line: str, code: int
) -> None:
    found = api({"state": state, "errors": [{"where": "flow", "message": it} for it in errors]})
    found.answers["GET", "/lag"] = found.answers["GET", f"{PATH}/lag"] = []
    for words in (("topics",), ("topics", "--flow", "A/B"), ("lag",)):
        ended = found.run(*words)
        assert (ended.code, ended.err) == (code, f"no topic is copied\n{line}\n")


def test_topics_takes_a_pattern_and_sorts_by_name() -> None:
    found = api()
    found.answers["GET", "/lag"] = [{**TOPIC, "topic": it} for it in ("b1", "a", "b0")]
    rows = json.loads(found.run("topics", "b*", "-o", "json").out)
    assert [it["topic"] for it in rows] == ["b0", "b1"]
    ended = found.run("topics", "c")
    assert (ended.code, ended.out, ended.err) == (3, "", "no topic c is copied\n")
    note = "MirrorSourceConnector: topics that are left out: __c (topics.exclude leaves it out)"
    found.answers["GET", "/flows"] = [{**FLOW, "notes": [note]}]
    assert found.run("topics", "__c").err == f"no topic __c is copied\nA->B {note}\n"


def test_partitions_are_asked_of_every_flow() -> None:
    found = api()
    found.answers["GET", f"{PATH}/partitions"] = [{**PARTITION, "partition": it} for it in (10, 9)]
    rows = json.loads(found.run("topics", "--partitions", "-o", "json").out)
    assert [it["partition"] for it in rows] == [9, 10]


# -- ``mm2py flow`` and ``mm2py group``


DONE: dict[str, object] = {
    "flow": "A->B",
    "action": "pause",
    "dry_run": False,
    "revision": 4,
    "changes": [{"key": "MirrorSourceConnector", "before": "RUNNING", "after": "PAUSED"}],
}
FLOW_URL = "/flows/A-%3EB"


def change_api(method: str = "POST", path: str = f"{PATH}/pause") -> FakeApi:
    return FakeApi({(method, path): DONE, ("GET", PATH): {**FLOW, "state": "PAUSED"}})


@pytest.mark.parametrize(
    ("words", "method", "path", "query", "body"),
    [
        (["pause", "A/B"], "POST", "/pause", "", None),
        (["pause", "A/B", "--dry-run"], "POST", "/pause", "?dry_run=true", None),
        (["stop", "A->B", "--topic", "t"], "POST", "/stop", "?topic=t", None),
        (["resume", "A/B", "--topic", "t", "--partition", "0"], "POST", "/resume",
         "?topic=t&partition=0", None),
        (["restart", "A/B", "--only-failed"], "POST", "/restart", "?only_failed=true", None),
        (["rollback", "A/B", "0"], "POST", "/rollback", "?revision=0", None),
        (["delete", "A/B", "--yes"], "DELETE", "", "", None),
        (["delete", "A/B", "--topic", "t", "--dry-run"], "DELETE", "", "?topic=t&dry_run=true",
         None),
        (["set", "A/B", "topics=a=b,c", "--unset", "topics.exclude"], "PATCH", "", "",
         {"config": {"topics": "a=b,c", "topics.exclude": None}}),
        (["set", "A/B", "tasks.max=", "--connector", "MirrorHeartbeatConnector", "--dry-run"],
         "PATCH", "", "?dry_run=true",
         {"connectors": {"MirrorHeartbeatConnector": {"tasks.max": ""}}}),
    ],
)  # fmt: skip
def test_a_change_is_one_request(
    words: list[str], method: str, path: str, query: str, body: object
) -> None:
    found = change_api(method, PATH + path)
    ended = found.run("flow", *words)
    assert (ended.code, ended.err.count("\n")) == (0, 1)
    assert found.sent() == [(method, FLOW_URL + path + query, body)]


def test_create_names_both_clusters_and_sends_properties() -> None:
    found = change_api("POST", "/flows")
    assert found.run("flow", "create", "A/B", "topics=x", "tasks.max=2").code == 0
    config = {"topics": "x", "tasks.max": "2"}
    assert found.sent() == [("POST", "/flows", {"source": "A", "target": "B", "config": config})]


def test_what_changed_is_shown_and_the_revision_told() -> None:
    ended = change_api().run("flow", "pause", "A/B")
    assert ended.out.splitlines()[1].split() == ["MirrorSourceConnector", "RUNNING", "PAUSED"]
    assert ended.err == "A->B pause: done, revision 4\n"
    assert json.loads(change_api().run("flow", "pause", "A/B", "-o", "json").out) == DONE


def test_a_dry_run_says_that_nothing_was_changed_and_waits_for_nothing() -> None:
    found = change_api()
    ended = found.run("flow", "pause", "A/B", "--dry-run", "--wait")
    assert ended.err == "A->B pause: dry run, nothing was changed\n"
    assert len(found.requests) == 1
    moved = {"starts": 0, "starting": [], "stops": 40, "stopping": [f"t-{n}" for n in range(40)]}
    found.answers["POST", f"{PATH}/pause"] = {**DONE, "topics": moved}
    said = found.run("flow", "pause", "A/B", "--dry-run").err.splitlines()[1]
    assert said.startswith("topics that will not be copied any more, copies stay: t-0, t-1, ")
    assert said.endswith(" more")


def test_wait_ends_when_the_flow_is_in_its_state() -> None:
    found = change_api()
    busy = refusal(409, "a rebalance is under way")
    (running,) = cast("list[dict[str, object]]", FLOW["connectors"])
    source, beside = {**running, "state": "PAUSED"}, {**running, "name": "beside"}
    resting = {**FLOW, "state": "PAUSED", "connectors": [source, beside]}
    of_a_proxy = httpx.Response(502, text="<html>")
    done = {**resting, "connectors": [source, source]}
    under_way = {**done, "pending": True}
    found.answers["GET", PATH] = Turns([busy, of_a_proxy, resting, under_way, done])
    assert found.run("flow", "pause", "A/B", "--wait").code == 0
    assert len(found.requests) == 6, "a connector beside its source goes on, then a task"


@pytest.mark.parametrize("state", ["RUNNING", "PAUSED", "STOPPED", "DISABLED"])
def test_a_property_of_a_flow_that_rests_is_waited_for_until_it_is_in_force(state: str) -> None:
    found = change_api("PATCH", PATH)
    there = {**FLOW, "state": state}
    found.answers["GET", PATH] = Turns([{**there, "pending": True}, there])
    assert found.run("flow", "set", "A/B", "topics=x", "--wait").code == 0
    assert len(found.requests) == 3


def test_wait_ends_with_3_when_the_flow_does_not_get_there() -> None:
    found = change_api("POST", f"{PATH}/resume")
    error = {"where": "orders-1", "message": "no right"}
    found.answers["GET", PATH] = {**FLOW, "state": "DEGRADED", "errors": [error]}
    ended = found.run("flow", "resume", "A/B", "--wait", "--timeout", "0.1")
    assert ended.code == 3
    late = "A->B is not RUNNING after 0.1 s: DEGRADED"
    assert ended.err.splitlines()[1:] == [late, "A->B orders-1: no right"]


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
        ["set", "A/B", "topics=x", "topics=y"],
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


def test_the_answers_about_groups_are_those_of_the_api() -> None:
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
def test_translate_names_the_place_and_ends_with_3_without_a_record(place: str, code: int) -> None:
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
