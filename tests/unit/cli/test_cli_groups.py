"""``mm2py group list|describe|translate``: what they print, what they ask, and their exit codes."""

import json
from collections.abc import Mapping

import pytest

from mm2py.flows.view_models import GroupPartitionView, GroupView, TranslationView
from tests.unit.cli.cli_api import PATH, FakeApi, refusal

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


def api(**changes: object) -> FakeApi:
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
    ended = api().run("group", "list", "A/B")
    assert (ended.code, ended.err) == (0, "bil/ling not synced: it has members on the target\n")
    title, row = ended.out.splitlines()
    assert title.split()[:3] == ["GROUP", "TYPE", "STATE"]
    assert row.split()[:5] == ["bil/ling", "consumer", "Stable", "1", "10"]


def test_a_group_that_would_skip_ends_with_3() -> None:
    assert api(skips=4).run("group", "list", "A/B").code == 3
    assert api(skips=4).run("group", "describe", "A/B", "bil/ling").code == 3


def test_a_group_without_an_offset_for_the_target_ends_with_3() -> None:
    part = {**PART, "continues_at": None, "reads_again": None, "skips": None, "place": "no-map"}
    found = api(partitions=[PART, part], reads_again=None, skips=None)
    assert found.run("group", "list", "A/B").code == 3
    ended = found.run("group", "describe", "A/B", "bil/ling")
    assert (ended.code, "not copied by mm2py yet" in ended.out) == (3, True)


def test_describe_prints_partitions_and_members() -> None:
    asked = api()
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
    asked = api(place=place)
    words = ("group", "translate", "A/B", "orders", "0", "4711", "--direction", "to-source")
    ended = asked.run(*words)
    assert (ended.code, place in ended.out) == (code, True)
    query = "topic=orders&partition=0&offset=4711&direction=to-source"
    assert asked.sent()[0][1].endswith(f"/translate?{query}")


@pytest.mark.parametrize(
    "words", ["orders x 1", "orders 0 -1", "orders 0", "orders 0 1 --direction up"]
)
def test_wrong_words_are_wrong_usage(words: str) -> None:
    assert api().run("group", "translate", "A/B", *words.split()).code == 2
