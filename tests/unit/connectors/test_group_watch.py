"""Committed offsets of groups as the task sees them: the log of commits, and what is asked."""

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from dataclasses import replace

from mm2py.errors import ConnectionFailedError, Mm2pyError, RequestTimedOutError
from mm2py.protocol.error_codes import (
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    server_error,
)
from mm2py.testing.contexts import FakeTaskContext
from mm2py.types import TopicPartition
from mm2py_connectors.group_watch import CONSUMER_PACE, GroupShare, GroupWatch
from tests.unit.connectors.group_fakes import FakeGroups, FakeLog, commit_record

TP = TopicPartition("t", 0)


class Renewed:
    """A map that has begun anew that often."""

    renewals = 0

    def renewed(self, source: TopicPartition, /) -> int:
        return self.renewals if source == TP else 0


class Bench:
    def __init__(self, groups: FakeGroups, log: FakeLog) -> None:
        self.groups, self.log = groups, log
        self.context = FakeTaskContext()
        self.clock, self.renewed = self.context.clock, Renewed()
        self.watch = GroupWatch(
            groups,
            log,
            share=GroupShare(lambda group: not group.startswith("_")),
            is_chosen=lambda topic: topic == "t",
            context=self.context,
            on_change=lambda: None,
            renewals=self.renewed,
        )

    def offset(self, group: str) -> int | None:
        known = self.watch.offsets(group).get(TP)
        return None if known is None else known.offset

    def commit(self, group: str, offset: int | None) -> None:
        """Write to the log alone, as if the answers of the coordinator were older."""
        self.log.append(*commit_record(group, TP, offset))


@asynccontextmanager
async def watching(*, follows: bool = True, groups: int = 0) -> AsyncGenerator[Bench]:
    at_source, log = FakeGroups(), FakeLog()
    at_source.log = log
    for number in range(groups):
        at_source.put(f"g{number}", t_0=1)
    if not follows:
        log.broken = [server_error(TOPIC_AUTHORIZATION_FAILED) for _ in range(99)]
    bench = Bench(at_source, log)
    jobs = [asyncio.create_task(bench.watch.follow()), asyncio.create_task(bench.watch.ask(5))]
    await bench.clock.advance(2)
    yield bench
    for job in jobs:
        job.cancel()
    await asyncio.gather(*jobs, return_exceptions=True)


async def test_the_log_only_moves_an_offset_forward_one_that_goes_back_is_asked_for() -> None:
    async with watching(groups=1) as bench:
        assert bench.watch.take_changed(9) == ["g0"]
        bench.commit("g0", 5)
        assert (bench.offset("g0"), bench.watch.take_changed(9)) == (5, ["g0"])
        bench.groups.put("g0", t_0=7)
        bench.commit("g0", 6)
        assert bench.offset("g0") == 7, "an older commit that comes late"
        await bench.clock.advance(1)
        assert bench.offset("g0") == 7
        bench.groups.put("g0", t_0=3)
        assert bench.offset("g0") == 7
        await bench.clock.advance(1)
        assert bench.offset("g0") == 3, "reset by an operator"
        bench.groups.offsets["g0"].clear()
        bench.commit("g0", None)
        await bench.clock.advance(1)
        assert bench.offset("g0") is None
        assert bench.watch.groups_of(TP) == ()


async def test_a_fetched_offset_does_not_replace_one_that_the_log_brought_meanwhile() -> None:
    async with watching(groups=1) as bench:
        committed = bench.groups.committed

        async def slow(groups: Collection[str]) -> dict[str, object]:
            answer = await committed(groups)
            bench.commit("g0", 9)
            return dict(answer)

        bench.groups.committed = slow  # type: ignore[assignment, method-assign]
        await bench.clock.advance(1)
        assert bench.offset("g0") == 9


async def test_where_a_map_has_begun_anew_an_offset_counts_only_if_it_was_asked_for_since() -> None:
    async with watching(groups=1) as bench:
        bench.commit("g0", 319)
        bench.groups.log = None
        bench.groups.put("g0", t_0=50)
        committed = bench.groups.committed

        async def overtaken(groups: Collection[str]) -> dict[str, object]:
            answer: dict[str, object] = dict(await committed(groups))
            answer["g0"] = {TP: replace(bench.groups.offsets["g0"][TP], offset=319)}
            bench.renewed.renewals = 1
            return answer

        bench.groups.committed = overtaken  # type: ignore[assignment, method-assign]
        await bench.clock.advance(1)
        assert bench.offset("g0") == 319, "asked for before the map had begun anew"
        bench.groups.committed = committed  # type: ignore[method-assign]
        assert bench.watch.is_former("g0", TP)
        assert bench.offset("g0") is None
        bench.commit("g0", 300)  # a log that is behind
        bench.commit("g0", 319)
        assert bench.offset("g0") is None
        await bench.clock.advance(1)
        assert (bench.offset("g0"), bench.watch.is_former("g0", TP)) == (50, False)
        bench.commit("g0", 319)
        assert bench.offset("g0") == 50
        bench.groups.put("g0", t_0=60)
        bench.commit("g0", 60)
        await bench.clock.advance(1)
        assert bench.offset("g0") == 60


async def test_new_groups_are_known_by_their_first_commit() -> None:
    async with watching() as bench:
        bench.groups.put("new", t_0=4)
        bench.groups.put("_left out", t_0=4)
        await bench.clock.advance(1)
        assert (bench.offset("new"), bench.offset("_left out")) == (4, None)
        assert bench.groups.lists == 1


async def test_a_group_is_forgotten_only_when_a_complete_list_is_without_it() -> None:
    async with watching(groups=2) as bench:
        bench.groups.missing = "broker 2 is away"
        bench.groups.drop("g0")
        await bench.clock.advance(70)
        assert bench.watch.take_gone() == set()
        bench.groups.missing = ""
        await bench.clock.advance(70)
        assert bench.watch.take_gone() == {"g0"}
        assert list(bench.watch.groups_of(TP)) == ["g1"]


async def test_the_number_of_groups_asked_per_second_is_bounded() -> None:
    async with watching(follows=False, groups=3_000) as bench:
        await bench.clock.advance(20)
        assert all(bench.offset(f"g{number}") == 1 for number in range(3_000))
        assert max(map(len, bench.groups.asked)) <= sum(CONSUMER_PACE)
        for number in range(100):
            bench.groups.put(f"g{number}", t_0=2)
        await bench.clock.advance(16)  # all have had their turn
        assert all(bench.offset(f"g{number}") == 2 for number in range(100))
        for number in range(100):
            bench.groups.put(f"g{number}", t_0=3)
        await bench.clock.advance(1)
        assert all(bench.offset(f"g{number}") == 3 for number in range(100)), "they changed lately"
        text, _, harms = bench.context.findings["commits"]
        assert ("grant the mirror's principal" in text, harms) == (True, False)


async def test_a_note_on_commits_asks_for_rights_only_where_they_are_missing() -> None:
    async with watching() as bench:

        def note(error: Mm2pyError) -> str:
            bench.log.trouble(error)
            return bench.context.findings["commits"][0]

        for away in (ConnectionFailedError("no route"), RequestTimedOutError("no answer")):
            assert note(away).endswith(f"cannot be followed: {away}")
        assert "grant the mirror's principal" in note(server_error(TOPIC_AUTHORIZATION_FAILED))
        missing = server_error(UNKNOWN_TOPIC_OR_PARTITION)
        assert note(missing).endswith("no consumer group: then nothing is to be done")
        late = RequestTimedOutError("not read for 60000 ms")
        late.__cause__ = missing
        assert note(late).endswith("then nothing is to be done")
        assert "grant" not in note(missing)


async def test_a_log_that_is_lost_for_a_while_is_asked_for_what_it_left_out() -> None:
    async with watching(groups=3) as bench:
        trouble: Mm2pyError = ConnectionFailedError("away")
        bench.log.trouble(trouble)
        bench.groups.log = None
        for number in range(3):
            bench.groups.put(f"g{number}", t_0=8)
        bench.log.trouble(None)
        await bench.clock.advance(1)
        assert [bench.offset(f"g{number}") for number in range(3)] == [8, 8, 8]


async def test_a_group_that_no_request_can_name_is_named_and_the_others_are_watched() -> None:
    async with watching() as bench:
        bench.groups.put("", t_0=5)
        bench.groups.put("billing", t_0=7)
        await bench.clock.advance(70)
        assert (bench.offset("billing"), bench.offset("")) == (7, None)
        assert not any("" in asked for asked in bench.groups.asked)
        (note,) = [it[0] for it in bench.context.findings.values() if "''" in it[0]]
        assert "1 groups are not synced, such as '': a request needs a group" in note
        assert "set it, or delete the group" in note
        assert bench.watch.take_changed(9) == ["billing"]
        bench.groups.drop("")
        await bench.clock.advance(70)
        assert not any("''" in it[0] for it in bench.context.findings.values())
