"""The rules of kafka-connect-runtime.md 4.3 and 4.4, round by round (8, no. 87)."""

from collections.abc import Mapping

from mm2py.runtime.group.assignor import (
    FRESH,
    NO_WORK,
    AssignorState,
    MemberView,
    Plan,
    assign,
    assign_eager,
)
from mm2py.types import TaskId, Work

DELAY_MS = 3_000
NOW_MS = 50_000


def tasks(*numbers: int, connector: str = "c") -> Work:
    return Work(tasks=frozenset(TaskId(connector, number) for number in numbers))


ALL = Work(frozenset("c")) | tasks(0, 1, 2, 3)


def play(
    state: AssignorState,
    owned: Mapping[str, Work],
    configured: Work = ALL,
    *,
    now_ms: int = NOW_MS,
    max_delay_ms: int = DELAY_MS,
    generation: int | None = None,
) -> Plan:
    return assign(
        state,
        {who: MemberView(f"http://{who}/", 7, work) for who, work in owned.items()},
        configured,
        leader="a",
        generation=state.previous_generation + 1 if generation is None else generation,
        now_ms=now_ms,
        max_delay_ms=max_delay_ms,
    )


def settled(*members: str) -> Plan:
    plan = play(FRESH, dict.fromkeys(members, NO_WORK))
    return play(plan.state, plan.owners)


def test_first_members_share_everything_at_once() -> None:
    plan = play(FRESH, {"a": NO_WORK, "b": NO_WORK})
    assert {who: len(work.tasks) for who, work in plan.assigned.items()} == {"a": 2, "b": 2}
    assert plan.assigned["a"].connectors == {"c"}
    assert not plan.assigned["b"].connectors
    assert not any(plan.revoked.values())
    assert plan.delay_ms == 0
    again = play(plan.state, plan.owners)
    assert not any(again.assigned.values())
    assert not any(again.revoked.values())


def test_a_joiner_gets_in_the_second_round_what_was_revoked_in_the_first() -> None:
    plan = settled("a")
    first = play(plan.state, {**plan.owners, "b": NO_WORK})
    assert len(first.revoked["a"].tasks) == 2
    assert not any(first.assigned.values()), "not before the old owner has stopped it"
    second = play(first.state, first.owners)
    assert second.assigned["b"] == first.revoked["a"]
    assert not any(second.revoked.values())


def test_a_leaver_is_waited_for_and_then_replaced() -> None:
    plan = settled("a", "b")
    gone = plan.owners["b"]
    first = play(plan.state, {"a": plan.owners["a"]})
    assert (first.delay_ms, first.assigned["a"]) == (DELAY_MS, NO_WORK)
    during = play(first.state, first.owners, now_ms=NOW_MS + 1_000)
    assert (during.delay_ms, during.assigned["a"]) == (DELAY_MS - 1_000, NO_WORK)
    after = play(during.state, during.owners, now_ms=NOW_MS + DELAY_MS)
    assert (after.delay_ms, after.assigned["a"]) == (0, gone)


def test_nothing_is_revoked_for_balance_while_the_delay_runs() -> None:
    plan = settled("a", "b")
    first = play(plan.state, {"a": plan.owners["a"], "new": NO_WORK})
    assert first.delay_ms == DELAY_MS
    assert not any(first.revoked.values())


def test_who_comes_back_within_the_delay_gets_its_work_back_and_nobody_else() -> None:
    plan = settled("a", "b")
    gone = plan.owners["b"]
    first = play(plan.state, {"a": plan.owners["a"]})
    back = play(first.state, {**first.owners, "b2": NO_WORK}, now_ms=NOW_MS + 1_000)
    assert not any(back.assigned.values())
    after = play(back.state, back.owners, now_ms=NOW_MS + DELAY_MS)
    assert after.assigned == {"a": NO_WORK, "b2": gone}


def test_a_candidate_that_left_again_gets_nothing() -> None:
    plan = settled("a", "b")
    first = play(plan.state, {"a": plan.owners["a"], "b2": NO_WORK})
    after = play(first.state, {"a": plan.owners["a"]}, now_ms=NOW_MS + DELAY_MS)
    assert after.owners == {"a": ALL}


def test_lost_work_that_reappears_ends_the_delay() -> None:
    plan = settled("a", "b")
    first = play(plan.state, {"a": plan.owners["a"]})
    again = play(first.state, plan.owners, now_ms=NOW_MS + 500)
    assert again.delay_ms == 0
    assert again.state.delay_ends_ms is None
    assert again.owners == plan.owners


def test_without_a_delay_lost_work_moves_at_once() -> None:
    plan = settled("a", "b")
    after = play(plan.state, {"a": plan.owners["a"]}, max_delay_ms=0)
    assert after.owners == {"a": ALL}


def test_work_that_its_living_owner_never_got_is_given_out_again_at_once() -> None:
    plan = play(FRESH, {"a": NO_WORK, "b": NO_WORK})
    again = play(plan.state, {"a": plan.owners["a"], "b": NO_WORK})
    assert again.delay_ms == 0
    assert again.assigned["b"] == plan.owners["b"]


def test_a_new_leader_gives_out_at_once_what_nobody_runs() -> None:
    plan = settled("a", "b")
    after = play(FRESH, {"a": plan.owners["a"]}, generation=9)
    assert (after.delay_ms, after.owners) == (0, {"a": ALL})


def test_a_round_between_that_did_not_complete_empties_what_the_leader_remembers() -> None:
    plan = settled("a", "b")
    after = play(plan.state, {"a": plan.owners["a"]}, generation=plan.state.previous_generation + 2)
    assert (after.delay_ms, after.owners) == (0, {"a": ALL})


def test_duplicated_work_is_revoked_everywhere_and_then_given_to_one() -> None:
    plan = settled("a", "b")
    doubled = {"a": plan.owners["a"] | tasks(3), "b": plan.owners["b"] | tasks(3)}
    first = play(plan.state, doubled)
    assert TaskId("c", 3) in first.revoked["a"].tasks & first.revoked["b"].tasks
    assert TaskId("c", 3) not in first.owners["a"].tasks | first.owners["b"].tasks
    second = play(first.state, first.owners)
    holders = [who for who, work in second.owners.items() if TaskId("c", 3) in work.tasks]
    assert len(holders) == 1


def test_deleted_connectors_and_tasks_are_revoked_where_they_run_also_by_a_new_leader() -> None:
    plan = settled("a", "b")
    for state in (plan.state, FRESH):
        after = play(state, plan.owners, tasks(0), generation=plan.state.previous_generation + 1)
        assert after.owners["a"] | after.owners["b"] == tasks(0)
        assert not any(after.assigned.values())


def test_rounds_that_revoke_for_balance_are_spaced_and_the_pause_grows() -> None:
    state, now_ms, pauses = settled("a").state, NOW_MS, list[int]()
    for _ in range(4):
        plan = play(state, {"a": ALL, "b": NO_WORK}, now_ms=now_ms)  # stopped, and started again
        assert any(plan.revoked.values())
        waiting = play(plan.state, {"a": ALL, "b": NO_WORK}, now_ms=now_ms)
        assert not any(waiting.revoked.values())
        pauses.append(waiting.delay_ms)
        state, now_ms = waiting.state, now_ms + waiting.delay_ms
    assert pauses == [1, 40, 1_600, DELAY_MS]
    calm = play(state, {"a": tasks(0, 1), "b": tasks(2, 3)}, ALL, now_ms=now_ms)
    assert calm.state.revocations == 0


def test_one_source_task_does_not_go_where_the_only_connector_runs() -> None:
    plan = play(FRESH, {"a": NO_WORK, "b": NO_WORK}, Work(frozenset("c")) | tasks(0))
    assert {len(work) for work in plan.owners.values()} == {1}


def test_connectors_run_on_the_leader_and_are_revoked_elsewhere_first() -> None:
    """A change of the leader, also one of workers that spread connectors before: the tasks stay."""
    plan = play(FRESH, {"b": Work(frozenset("c")) | tasks(0, 1), "a": tasks(2, 3)})
    assert plan.revoked == {"a": NO_WORK, "b": Work(frozenset("c"))}
    assert not any(plan.assigned.values()), "not before the old owner has stopped it"
    second = play(plan.state, plan.owners)
    assert second.assigned == {"a": Work(frozenset("c")), "b": NO_WORK}
    assert not any(second.revoked.values())


def test_connectors_of_a_leader_that_is_gone_do_not_wait_for_it() -> None:
    plan = play(FRESH, {"a": tasks(2, 3)})
    assert plan.assigned["a"].connectors == {"c"}
    gone = play(plan.state, {"b": NO_WORK, "a": NO_WORK})
    assert gone.owners["a"].connectors == {"c"}


def test_eager_deals_tasks_round_robin_and_connectors_to_the_leader() -> None:
    work = Work(frozenset({"x", "y", "z"})) | tasks(0, 1, connector="x")
    dealt = assign_eager(["b", "a"], work, leader="b")
    assert dealt["a"] == Work(tasks=frozenset({TaskId("x", 0)}))
    assert dealt["b"] == Work(work.connectors, frozenset({TaskId("x", 1)}))
