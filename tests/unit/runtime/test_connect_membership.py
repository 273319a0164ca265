"""A worker's membership of its group, the assignment that the leader plans, and the values that workers hand to each other, signed."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import cast

import pytest

from mm2py.errors import ConfigError, ProtocolError, RequestTimedOutError
from mm2py.observability.metrics import UNKNOWN, NodeSnapshot, PartitionSnapshot
from mm2py.protocol.connect_group import WorkerMetadata, encode_metadata
from mm2py.protocol.groups import GroupProtocol
from mm2py.runtime.errors import ForeignMemberError, SignatureError
from mm2py.runtime.group.assignor import (
    FRESH,
    NO_WORK,
    AssignorState,
    MemberView,
    RoundPlan,
    assign,
)
from mm2py.runtime.group.membership import Lost, MembershipLostError, Rejoin, Round
from mm2py.runtime.group.request_signing import (
    SeenRequests,
    SignedHead,
    check_algorithms,
    new_session_key,
    rotation_due,
    sign_request,
    verify_request,
)
from mm2py.storage.config_backing_store import ConfigBackingStore
from mm2py.storage.config_state import ConfigSnapshot, RestartRequest, SessionKey
from mm2py.testing.clock import FakeClock
from mm2py.types import ClusterAlias, FlowName, TaskId, TopicPartition, Work
from tests.kit.fakes.group_coordinator import MemoryCoordinator, MemoryGroup
from tests.unit.runtime.herder_fakes import a_membership

COUNTS = {"source": 5, "beat": 1}
EVERYTHING = Work(
    frozenset(COUNTS),
    frozenset(TaskId(name, n) for name, count in COUNTS.items() for n in range(count)),
)


class Configs:
    """What a worker has read of the config topic; ``newest`` is what a refresh finds."""

    def __init__(self, snapshot: ConfigSnapshot) -> None:
        self.held = snapshot
        self.newest: ConfigSnapshot | None = None

    def snapshot(self) -> ConfigSnapshot:
        return self.held

    async def refresh(self, timeout_s: float) -> None:
        if self.newest is None:
            raise RequestTimedOutError(f"no answer within {timeout_s} s")
        self.held = self.newest


def configs(counts: Mapping[str, int], offset: int = 7) -> ConfigSnapshot:
    """Connectors with so many tasks each; the class is named after the connector."""
    connectors = {name: {"connector.class": f"x.{name}"} for name in counts}
    return ConfigSnapshot(offset=offset, connectors=connectors, task_counts=counts)


class Worker:
    """A member that obeys its rounds, as the herder does."""

    def __init__(
        self, group: MemoryGroup, name: str, runnable: Callable[[str], bool] = lambda _: True
    ) -> None:
        self.link, self.store = MemoryCoordinator(group, name), Configs(configs(COUNTS))
        store = cast("ConfigBackingStore", self.store)
        self.membership = a_membership(self.link, store, group.clock, runnable=runnable)
        self.owned, self.rounds, self.signals = Work(), list[Round](), list[str]()
        self.has_news = asyncio.Event()
        """Set by a test: as a herder does with a new config, it asks for another round."""

    async def round(self) -> Round:
        """One round, and what follows from it."""
        offset = self.store.snapshot().offset
        done = await self.membership.rejoin(self.owned, offset, lambda _: False)
        self.owned = (self.owned - done.revoked) | done.assigned
        self.rounds.append(done)
        return done

    async def run(self) -> None:
        """Stay in the group until cancelled."""
        while True:
            try:
                if (await self.round()).revoked:
                    continue
            except ForeignMemberError:
                self.owned = Work()
                await self.membership.until_ours()
                continue
            signal = asyncio.create_task(self.membership.signal())
            news = asyncio.create_task(self.has_news.wait())
            try:
                await asyncio.wait({signal, news}, return_when=asyncio.FIRST_COMPLETED)
                self.signals += [signal.result().reason] if signal.done() else []
            finally:
                self.has_news.clear()
                signal.cancel()
                news.cancel()


class Stage:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.group = MemoryGroup(self.clock)
        self.workers: dict[str, Worker] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def make(self, name: str, runnable: Callable[[str], bool] = lambda _: True) -> Worker:
        return self.workers.setdefault(name, Worker(self.group, name, runnable))

    async def start(self, *names: str) -> None:
        for name in names:
            self.tasks[name] = asyncio.create_task(self.make(name).run())
        await self.clock.advance(8.0)

    async def kill(self, *names: str) -> None:
        """End workers without leaving the group."""
        for name in names:
            self.tasks[name].cancel()
        await asyncio.gather(*(self.tasks[name] for name in names), return_exceptions=True)

    def owned(self, *names: str) -> list[Work]:
        return [self.workers[name].owned for name in names]

    def check_all_runs_once(self, *names: str) -> None:
        parts = self.owned(*names)
        together = Work()
        for part in parts:
            assert not together & part, "work runs twice"
            together |= part
        assert together == EVERYTHING
        counts = [len(part.tasks) for part in parts]
        assert max(counts) - min(counts) <= 1, counts

    def leader_and_others(self) -> list[Worker]:
        return sorted(self.workers.values(), key=lambda it: not it.membership.is_leader)


@pytest.fixture
@asynccontextmanager
async def stage() -> AsyncGenerator[Stage]:
    stage = Stage()
    async with stage.group.running():
        try:
            yield stage
        finally:
            await stage.kill(*stage.tasks)
            for worker in stage.workers.values():
                await worker.membership.leave()


async def test_a_follower_that_has_nothing_new_gets_its_last_round_again(stage: Stage) -> None:
    await stage.start("a", "b")
    _, follower = stage.leader_and_others()
    before, generation = follower.owned, follower.membership.generation
    follower.has_news.set()
    await stage.clock.advance(1.0)
    assert (follower.owned, follower.membership.generation) == (before, generation)
    stage.check_all_runs_once("a", "b")


async def test_only_the_leader_knows_who_owns_what(stage: Stage) -> None:
    await stage.start("a", "b")
    leader, other = (it.membership for it in stage.leader_and_others())
    assert leader.member_urls() == ("http://a/", "http://b/")
    for name, worker in stage.workers.items():
        for work in worker.owned.connectors | worker.owned.tasks:
            assert leader.owner_url(work) == f"http://{name}/"
    assert leader.owner_url("unknown") is None
    assert (other.member_urls(), other.owner_url("source")) == ((), None)


async def test_a_worker_is_alone_once_the_others_left_whatever_the_plan_says(stage: Stage) -> None:
    await stage.start("a", "b")
    leader, other = stage.leader_and_others()
    assert not await leader.membership.is_alone()
    await stage.kill(other.link.client)
    await other.membership.leave()
    assert len(leader.membership.member_urls()) == 2
    assert await leader.membership.is_alone()


async def test_news_and_nothing_else_make_a_round(stage: Stage) -> None:
    await stage.start("a")
    await stage.clock.advance(60.0)
    worker = stage.workers["a"]
    assert len(worker.rounds) == 1
    worker.store.held = configs({"source": 2}, offset=9)
    worker.has_news.set()
    await stage.clock.advance(1.0)
    assert worker.signals == []
    assert worker.owned.tasks == {TaskId("source", 0), TaskId("source", 1)}
    assert worker.rounds[1].config_offset == 9


async def test_a_leader_behind_its_members_reads_on_or_refuses_the_round(stage: Stage) -> None:
    stage.make("a")
    stage.make("b").store.held = configs({"source": 2}, offset=9)
    await stage.start("a")
    second = asyncio.create_task(stage.workers["b"].round())
    await stage.clock.advance(2.5)
    assert (await second).failed
    assert stage.workers["a"].rounds[-1].failed
    assert not stage.workers["b"].owned
    stage.workers["a"].store.newest = configs({"source": 2}, offset=9)
    stage.workers["a"].has_news.set()
    await stage.clock.settle()
    third = asyncio.create_task(stage.workers["b"].round())
    await stage.clock.advance(2.5)
    assert ((await third).config_offset, (await third).failed) == (9, False)


async def test_connectors_that_are_not_installed_are_not_assigned(stage: Stage) -> None:
    def installed(java_class: str) -> bool:
        return java_class != "x.beat"

    stage.make("a", installed)
    await stage.start("a")
    assert stage.workers["a"].owned.connectors == {"source"}
    assert len(stage.workers["a"].owned.tasks) == 5


async def test_nothing_that_was_owned_may_be_claimed_after_the_end(stage: Stage) -> None:
    one = stage.make("a")
    signal = await one.membership.signal()
    assert isinstance(signal, Lost)
    assert signal.reason == "not a member"
    await one.round()
    await one.membership.leave()
    with pytest.raises(MembershipLostError, match="the group was left"):
        await one.round()
    one.owned = Work()
    await one.round()
    assert one.owned == EVERYTHING


async def test_a_round_that_failed_is_due_again(stage: Stage) -> None:
    await stage.start("a")
    await stage.kill("a")
    worker = stage.workers["a"]
    joining = asyncio.create_task(worker.round())
    joining.cancel()
    await asyncio.gather(joining, return_exceptions=True)
    worker.link.cut = True
    with pytest.raises(Exception, match="cut off"):
        await worker.round()
    assert await worker.membership.signal() == Rejoin("the last round did not complete")


# ---- foreign members ----


def java_offers() -> tuple[GroupProtocol, ...]:
    return (GroupProtocol("sessioned", encode_metadata(WorkerMetadata(2, "http://java/", 7))),)


async def test_a_java_worker_in_the_group_makes_all_wait_until_it_is_gone(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    await stage.start("a", "b")
    java = MemoryCoordinator(stage.group, "java")
    java_id = (await java.join("", java_offers(), 60_000, 60_000)).member_id
    joining = asyncio.create_task(java.join(java_id, java_offers(), 60_000, 60_000))
    await stage.clock.advance(5.0)
    assert (await joining).protocol_name == "sessioned"
    assert stage.owned("a", "b") == [Work(), Work()]
    assert set(stage.group.members) == {java_id}
    joined = await java.join(java_id, java_offers(), 60_000, 60_000)
    await java.sync(java_id, joined.generation_id, "sessioned", {java_id: b""})
    await stage.clock.advance(15.0)
    assert set(stage.group.members) == {java_id}, "ours wait outside"
    await stage.start("c")
    assert set(stage.group.members) == {java_id}, "a newcomer sees it from outside"
    await java.leave(java_id, 1.0)
    await stage.clock.advance(8.0)
    stage.check_all_runs_once("a", "b", "c")
    waiting = [line for line in caplog.messages if line.startswith("waiting for the other members")]
    assert "members=[java at /h]" in waiting[0]
    assert len([line for line in waiting if "members=[java at /h]" in line]) >= 3


# ---- the assignor


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
) -> RoundPlan:
    return assign(
        state,
        {who: MemberView(f"http://{who}/", 7, work) for who, work in owned.items()},
        configured,
        leader="a",
        generation=state.previous_generation + 1 if generation is None else generation,
        now_ms=now_ms,
        max_delay_ms=max_delay_ms,
    )


def settled(*members: str) -> RoundPlan:
    plan = play(FRESH, dict.fromkeys(members, NO_WORK))
    return play(plan.state, plan.owners)


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


@pytest.mark.parametrize("by", ["a new leader", "one that heard nothing of the round between"])
def test_who_does_not_know_the_last_round_gives_out_at_once_what_nobody_runs(by: str) -> None:
    plan = settled("a", "b")
    state = FRESH if by == "a new leader" else plan.state
    later = plan.state.previous_generation + 2
    after = play(state, {"a": plan.owners["a"]}, generation=later)
    assert (after.delay_ms, after.owners) == (0, {"a": ALL})


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


def test_connectors_run_on_the_leader_and_are_revoked_elsewhere_first() -> None:
    """A change of the leader, also one of workers that spread connectors before: the tasks stay."""
    plan = play(FRESH, {"b": Work(frozenset("c")) | tasks(0, 1), "a": tasks(2, 3)})
    assert plan.revoked == {"a": NO_WORK, "b": Work(frozenset("c"))}
    assert not any(plan.assigned.values()), "not before the old owner has stopped it"
    second = play(plan.state, plan.owners)
    assert second.assigned == {"a": Work(frozenset("c")), "b": NO_WORK}
    assert not any(second.revoked.values())


# ---- values that workers hand to each other


def test_the_impact_of_restarts_is_javas() -> None:
    flags = itertools.product((True, False), (False, True))
    assert [RestartRequest("c", failed, tasks).impact for failed, tasks in flags] == [0, 1, 2, 3]


def test_a_node_snapshot_survives_the_way_to_another_node() -> None:
    partition = PartitionSnapshot(
        source=TopicPartition("t", 1),
        target=None,
        task="c-0",
        state="RUNNING",
        cause="",
        records=3,
        size_bytes=30,
        lag_records=UNKNOWN,
        lag_ms=0,
        newest_ms=UNKNOWN,
        records_per_s=1.5,
        bytes_per_s=15.0,
    )
    snapshot = NodeSnapshot(
        worker="h:1",
        flow=FlowName(ClusterAlias("A"), ClusterAlias("B")),
        at_ms=7,
        state="RUNNING",
        partitions=(partition,),
        events={"retention": 1},
        records_lost=2,
    )
    read = NodeSnapshot.from_json(snapshot.to_json())
    assert read == snapshot
    assert str(read.flow) == "A->B"
    with pytest.raises(ProtocolError, match="same version"):
        NodeSnapshot.from_json(b"{}")


# ---- signed requests between workers


KEY = SessionKey(b"Jefe", "HmacSHA256", 1_000)


@pytest.mark.parametrize(
    ("algorithm", "size"), [("HmacSHA256", 32), ("HmacSHA512", 64), ("HmacSHA1", 64)]
)
def test_a_new_key_has_the_size_that_java_s_has(algorithm: str, size: int) -> None:
    key = new_session_key(5, algorithm)
    assert (len(key.key), key.algorithm, key.created_ms) == (size, algorithm, 5)
    assert key.key != new_session_key(5, algorithm).key
    assert key.key.hex() not in repr(key)
    with pytest.raises(ConfigError, match="Rot13"):
        new_session_key(5, "Rot13")


def test_a_key_is_due_when_old_or_not_as_configured() -> None:
    key = new_session_key(1_000)
    assert not rotation_due(key, 1_059, 60, "HmacSHA256")
    assert rotation_due(key, 1_060, 60, "HmacSHA256")
    assert not rotation_due(key, 941, 60, "HmacSHA256")
    assert rotation_due(key, 940, 60, "HmacSHA256")
    assert rotation_due(key, 1_000, 60, "HmacSHA1")


TARGET = "/connectors/a%2Fb/config?forward=true"


SIGNED_MS = 1_700_000_000_000


def test_a_forwarded_request_is_signed_with_path_query_caller_and_body() -> None:
    headers = sign_request(KEY, "put", TARGET, "ann;operator", b"{}", SIGNED_MS)
    assert headers["X-Mm2py-Caller"] == "ann;operator"
    head = verify_request(headers, "PUT", TARGET, KEY)
    assert (head.caller, head.time_ms) == ("ann;operator", SIGNED_MS)
    head.check_body(b"{}")
    for method, target in (("POST", TARGET), ("PUT", TARGET.replace("true", "false"))):
        with pytest.raises(SignatureError) as raised:
            verify_request(headers, method, target, KEY)
        assert raised.value.status == 403
    with pytest.raises(SignatureError):
        head.check_body(b"{ }")
    with pytest.raises(SignatureError) as raised:
        verify_request(headers, "PUT", TARGET, None)
    assert raised.value.status == 503, "there is no key yet"
    with pytest.raises(ValueError, match="control characters"):
        sign_request(KEY, "GET", "/", "a;reader\nX-Other: 1", b"", 0)


def test_neither_caller_nor_stamp_can_be_exchanged_or_left_out() -> None:
    headers = sign_request(KEY, "GET", "/", "ann;reader", b"", SIGNED_MS)
    other = sign_request(KEY, "GET", "/", "ann;reader", b"", SIGNED_MS)
    for forged in (
        {**headers, "X-Mm2py-Caller": "ann;operator"},
        {**headers, "X-Mm2py-Stamp": other["X-Mm2py-Stamp"]},
        {**headers, "X-Mm2py-Authorization": "*"},
        *({key: text for key, text in headers.items() if key != left} for left in headers),
    ):
        with pytest.raises(SignatureError) as raised:
            verify_request(forged, "GET", "/", KEY)
        assert raised.value.status == 403


def test_a_request_is_taken_once_and_remembered_for_the_time_it_is_valid() -> None:
    seen = SeenRequests()

    def head(now_ms: int) -> SignedHead:
        return verify_request(sign_request(KEY, "GET", "/", "a", b"", now_ms), "GET", "/", KEY)

    first, later = head(SIGNED_MS), head(SIGNED_MS + 60_000)
    seen.take(first, SIGNED_MS)
    seen.take(later, SIGNED_MS)
    for again in (first, later):
        with pytest.raises(SignatureError, match="sent again"):
            seen.take(again, SIGNED_MS + 60_000)
    with pytest.raises(SignatureError, match="was signed 61 s ago"):
        seen.take(first, SIGNED_MS + 61_000)
    # The one that is ahead of us stays valid for longer than its minute here.
    seen.take(head(SIGNED_MS + 100_000), SIGNED_MS + 100_000)
    with pytest.raises(SignatureError, match="sent again"):
        seen.take(later, SIGNED_MS + 119_000)


def test_a_request_for_another_worker_is_refused() -> None:
    headers = sign_request(KEY, "GET", "/", "a", b"", SIGNED_MS, receiver="n1:8084")
    head = verify_request(headers, "GET", "/", KEY)
    with pytest.raises(SignatureError, match="signed for n1:8084, this is n2:8084"):
        SeenRequests("n2:8084").take(head, SIGNED_MS)
    SeenRequests("n1:8084").take(head, SIGNED_MS)


def test_what_is_remembered_is_bounded_by_what_is_valid() -> None:
    seen = SeenRequests()
    for second in range(300):
        now_ms = SIGNED_MS + second * 1_000
        headers = sign_request(KEY, "GET", "/", "a", b"", now_ms)
        seen.take(verify_request(headers, "GET", "/", KEY), now_ms)
        assert len(seen) <= 61


def test_algorithms_of_signatures_have_to_be_known_and_to_fit_each_other() -> None:
    check_algorithms("HmacSHA512", ("HmacSHA256", "HmacSHA512"))
    for signature, verification, prop in (
        ("HmacSHA512", ("HmacSHA256",), "is not in inter.worker.verification.algorithms"),
        ("Rot13", ("HmacSHA256",), "inter.worker.signature.algorithm=Rot13"),
        ("HmacSHA256", ("HmacSHA256", "x"), "inter.worker.verification.algorithms"),
        ("HmacSHA256", (), "inter.worker.verification.algorithms"),
    ):
        with pytest.raises(ConfigError, match=prop):
            check_algorithms(signature, verification)
