"""Which sets of flows copy a topic in a circle."""

from collections.abc import Sequence

import pytest

from mm2py.errors import ConfigError
from mm2py.flows.graph import Cycle, new_cycles
from mm2py.types import ClusterAlias, FlowName

IDENTITY = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"
SINK = {"connector.class": "org.apache.kafka.connect.mirror.MirrorSinkConnector"}
TRANSFORMS = "org.apache.kafka.connect.transforms."
MARKS = {
    "transforms": "drop,mark",
    "transforms.drop.type": TRANSFORMS + "Filter",
    "transforms.drop.predicate": "marked",
    "transforms.mark.type": "InsertHeader",
    "transforms.mark.header": "mirrored",
    "transforms.mark.value.literal": "yes",
    "predicates": "marked",
    "predicates.marked.type": TRANSFORMS + "predicates.HasHeaderKey",
    "predicates.marked.name": "mirrored",
}


def flow(text: str) -> FlowName:
    source, target = text.split("->")
    return FlowName(ClusterAlias(source), ClusterAlias(target))


def same(topics: str, suppression: str = "off", **more: str) -> dict[str, str]:
    return {
        "replication.policy.class": IDENTITY,
        "topics": topics,
        "loop.suppression": suppression,
        **more,
    }


def flows(**configs: dict[str, str]) -> dict[FlowName, list[dict[str, str]]]:
    return {flow("->".join(name)): [config] for name, config in configs.items()}


def same_name_cycles(
    configs: dict[FlowName, list[dict[str, str]]], topics: Sequence[str] = ()
) -> tuple[Cycle, ...]:
    return new_cycles({}, configs, topics)


def test_two_flows_that_keep_names_close_a_circle_where_their_topics_meet() -> None:
    (cycle,) = same_name_cycles(flows(AB=same(".*"), BA=same("orders.*")))
    assert cycle.flows == (flow("A->B"), flow("B->A"))
    assert cycle.topic.startswith(("orders", "x", "mm2py"))
    assert str(cycle).startswith("A->B, B->A (topic ")


@pytest.mark.parametrize(
    ("there", "back"),
    [
        ("orders", "payments"),
        ("orders.*", "payments.*"),
        ("eu-.*", "us-.*, asia-.*"),
        ("", ".*"),
    ],
)
def test_topics_that_do_not_meet_are_no_circle(there: str, back: str) -> None:
    assert same_name_cycles(flows(AB=same(there), BA=same(back))) == ()


@pytest.mark.parametrize(
    ("there", "back"),
    [
        ("orders", "a|orders"),
        ("orders\\.eu", "orders.*"),
        ("[a-z]+", "x.*"),
        ("t-\\d+", "t-.*"),
    ],
)
def test_patterns_that_meet_are_found(there: str, back: str) -> None:
    assert len(same_name_cycles(flows(AB=same(there), BA=same(back)))) == 1


def test_excludes_open_the_circle() -> None:
    back = same(".*", **{"topics.exclude": ".*"})
    assert same_name_cycles(flows(AB=same(".*"), BA=back)) == ()


def test_names_with_provenance_never_run_in_a_circle() -> None:
    assert same_name_cycles(flows(AB={"topics": ".*"}, BA={"topics": ".*"})) == ()
    assert same_name_cycles(flows(AB=same(".*"), BA={"topics": ".*"})) == ()


def test_an_empty_separator_gives_no_name_twice() -> None:
    longer = {"topics": ".*", "replication.policy.separator": ""}
    assert same_name_cycles(flows(AB=longer, BA=longer)) == ()


def test_a_ring_of_three_is_found_once() -> None:
    ring = flows(AB=same("t"), BC=same("t"), CA=same("t"))
    assert [cycle.flows for cycle in same_name_cycles(ring)] == [
        (flow("A->B"), flow("B->C"), flow("C->A"))
    ]


def test_a_known_topic_shows_where_odd_patterns_meet() -> None:
    odd = flows(AB=same("(?=o)orders[0-9]{3}"), BA=same("orders12.*"))
    assert len(same_name_cycles(odd, ["orders123"])) == 1


def test_only_circles_that_a_change_closes_are_its_fault() -> None:
    before = flows(AB=same(".*"), BA=same(".*"), BC=same("t"))
    after = {**before, flow("C->B"): [same("t")]}
    assert [set(cycle.flows) for cycle in new_cycles(before, after)] == [
        {flow("B->C"), flow("C->B")}
    ]
    assert new_cycles(before, before) == ()


def test_more_topics_in_a_circle_are_a_new_one() -> None:
    before = flows(AB=same(".*"), BA=same("payments"))
    after = flows(AB=same(".*"), BA=same("payments, orders"))
    assert [cycle.topic for cycle in new_cycles(before, after)] == ["orders"]
    assert new_cycles(after, before) == ()


def test_a_pattern_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ConfigError):
        same_name_cycles(flows(AB=same("["), BA=same(".*")))


def test_patterns_that_are_slow_on_every_name_are_given_a_bounded_time() -> None:
    # Each match stays below the limit of one; 5,000 of them would hold the event loop for minutes.
    slow = same("(a|aa)+$b?")
    names = [f"{'a' * 20}x{number}" for number in range(5_000)]
    with pytest.raises(ConfigError, match=r"more than 0.5 s|needs more than 0.1 s"):
        same_name_cycles(flows(AB=slow, BA=slow), names)


@pytest.mark.parametrize("suppression", ["", "auto", "on", "all"])
def test_two_flows_that_suppress_loops_are_no_circle(suppression: str) -> None:
    both = flows(AB=same(".*", suppression), BA=same(".*", suppression))
    assert same_name_cycles(both) == ()


@pytest.mark.parametrize(("there", "back"), [("on", "off"), ("off", "on")])
def test_a_flow_that_publishes_nothing_cannot_be_recognised(there: str, back: str) -> None:
    assert len(same_name_cycles(flows(AB=same(".*", there), BA=same(".*", back)))) == 1


def test_a_hub_passes_records_on_and_none_of_them_back() -> None:
    spokes = {name: same("t", "on") for name in ("AB", "BA", "BC", "CB")}
    assert same_name_cycles(flows(**spokes)) == ()


def test_a_ring_of_three_that_drops_only_what_came_from_its_target_is_refused() -> None:
    ring = flows(AB=same("t", "on"), BC=same("t", "on"), CA=same("t", "on"))
    assert len(same_name_cycles(ring)) == 1


def test_three_clusters_that_are_all_connected_need_all() -> None:
    def mesh(suppression: str) -> dict[FlowName, list[dict[str, str]]]:
        names = ("AB", "BA", "BC", "CB", "CA", "AC")
        return flows(**{name: same("t", suppression) for name in names})

    assert same_name_cycles(mesh("on"))
    assert same_name_cycles(mesh("all")) == ()


def test_a_circle_that_visits_a_cluster_twice_is_found() -> None:
    # V hands on what Y brought to X and what X brought to Y; both send everything back.
    knot = flows(VX=same("t", "on"), VY=same("t", "on"), XV=same("t", "all"), YV=same("t", "all"))
    assert same_name_cycles(knot) == ()
    knot = flows(
        VX=same("t", "on"), VY=same("t", "on"), XV=same("t", "on"), YV=same("t", "on"),
        YX=same("t", "on"),
    )  # fmt: skip
    (cycle,) = same_name_cycles(knot)
    assert {flow("V->Y"), flow("Y->X"), flow("X->V")} <= set(cycle.flows)


def test_a_second_connector_of_a_flow_counts_by_its_own_config() -> None:
    both = flows(AB=same("t", "on"), BA=same("t", "on"))
    both[flow("A->B")].append(same("t", "off"))
    assert len(same_name_cycles(both)) == 1


@pytest.mark.parametrize("back", ["on", "all", "auto"])
def test_a_flow_copied_by_a_group_cannot_be_recognised_by_the_flow_back(back: str) -> None:
    by_group = same("t", "on", **SINK)
    for other in (same("t", back), same("t", back, **SINK)):
        (cycle,) = same_name_cycles(flows(AB=by_group, BA=other))
        assert "copy.connector=source for A->B" in cycle.remedy
        assert "let each of them suppress loops" not in cycle.remedy
    (cycle,) = same_name_cycles(flows(AB=same("t"), BA=same("t", back)))
    assert "let each of them suppress loops" in cycle.remedy


def stripping(source: str, topics: str = "orders", **more: str) -> dict[str, str]:
    """A flow whose router takes the prefix of the default policy away, and that suppresses nothing."""
    return {
        "topics": topics,
        "loop.suppression": "off",
        "transforms": "strip",
        "transforms.strip.type": TRANSFORMS + "RegexRouter",
        "transforms.strip.regex": rf"{source}\.(.*)",
        "transforms.strip.replacement": "$1",
        **more,
    }


ONLY_ORDERS = {
    "transforms.strip.predicate": "some",
    "predicates": "some",
    "predicates.some.type": TRANSFORMS + "predicates.TopicNameMatches",
    "predicates.some.pattern": ".*orders",
}


@pytest.mark.parametrize("topics", ["orders", ".*", ".*ers"])
@pytest.mark.parametrize("more", [{}, ONLY_ORDERS])
def test_routers_that_take_the_prefix_away_in_both_directions_close_a_circle(
    topics: str, more: dict[str, str]
) -> None:
    (cycle,) = same_name_cycles(
        flows(AB=stripping("A", topics, **more), BA=stripping("B", topics, **more))
    )
    assert cycle.flows == (flow("A->B"), flow("B->A"))
    assert "loop.suppression=on" in cycle.remedy


def test_a_router_whose_names_do_not_come_back_the_same_closes_no_circle() -> None:
    there = stripping("A")
    for back in (
        {"topics": "orders", "loop.suppression": "on"},
        same("bills"),
        stripping("C"),
        stripping("B", **{"transforms.strip.replacement": "copy-$1"}),
        stripping("B", **{"transforms.strip.replacement": "$7"}),
        stripping("B", **ONLY_ORDERS, **{"transforms.strip.negate": "true"}),
        stripping("B", **{**ONLY_ORDERS, "predicates.some.type": "RecordIsTombstone"}),
    ):
        assert same_name_cycles(flows(AB=there, BA=back)) == ()
    assert same_name_cycles(flows(AB=there, BA=same("orders"))), (
        "the way back keeps names by itself"
    )


@pytest.mark.parametrize("chosen", ["on", "auto", "all"])
def test_flows_with_such_routers_suppress_loops_by_themselves(chosen: str) -> None:
    own = {"loop.suppression": chosen}
    assert same_name_cycles(flows(AB=stripping("A", **own), BA=stripping("B", **own))) == ()
    assert same_name_cycles(flows(AB=stripping("A", **own), BA=stripping("B")))
    assert same_name_cycles(flows(AB=stripping("A", **own), BA=same("orders", chosen))) == ()


def test_an_empty_alias_and_separator_keep_names() -> None:
    keeps = {
        "topics": "t", "loop.suppression": "off",
        "replication.policy.separator": "", "source.cluster.alias": "",
    }  # fmt: skip
    assert len(same_name_cycles(flows(AB=keeps, BA=keeps))) == 1


def test_flows_that_drop_what_the_other_one_marks_are_no_circle() -> None:
    marked = same("t", **SINK, **MARKS)
    assert same_name_cycles(flows(AB=marked, BA=marked)) == ()
    assert same_name_cycles(flows(AB=marked, BA=same("t", "on", **MARKS))) == ()
    # One side is enough: what A->B has marked does not come back, and B's own records end on A.
    back = same("t", **SINK, **(MARKS | {"transforms": "drop"}))
    assert same_name_cycles(flows(AB=same("t", **SINK, **(MARKS | {"transforms": "mark"})), BA=back)) == ()  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"transforms": "mark"},
        {"transforms": "drop"},
        {"transforms.drop.negate": "true"},
        {"transforms.drop.predicate": ""},
        {"transforms.mark.predicate": "marked"},
        {"transforms.mark.header": "other"},
        {"predicates.marked.type": "RecordIsTombstone"},
        {"transforms": "drop,mark,bare", "transforms.bare.type": "DropHeaders", "transforms.bare.headers": "mirrored"},
        {"transforms": "drop,mark,own", "transforms.own.type": "com.example.Anything"},
        {"transforms": "own,drop,mark", "transforms.own.type": "com.example.Filter"},
    ],
)  # fmt: skip
def test_marks_that_are_not_on_every_copy_or_drop_not_all_of_them_stop_no_circle(
    change: dict[str, str],
) -> None:
    changed = same("t", **SINK, **(MARKS | change))
    assert len(same_name_cycles(flows(AB=changed, BA=changed))) == 1
