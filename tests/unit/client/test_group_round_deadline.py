"""A member that is late for a round: it stops sending before the coordinator removes it, however well it beats."""

import asyncio

from mm2py.client.group.member import GroupMember
from mm2py.client.permit import Permit
from mm2py.protocol.groups import GroupProtocol
from mm2py.testing.clock import FakeClock
from tests.kit.fakes.group_coordinator import MemoryCoordinator, MemoryGroup

OFFERS = (GroupProtocol("p", b""),)
REBALANCE_S = 10


def member(group: MemoryGroup, name: str, clock: FakeClock) -> GroupMember:
    return GroupMember(
        MemoryCoordinator(group, name),
        Permit(clock),
        session_timeout_ms=6_000,
        heartbeat_interval_ms=2_000,
        rebalance_timeout_ms=REBALANCE_S * 1_000,
        clock=clock,
    )


def test_a_member_that_does_not_join_a_round_is_suspended_before_the_coordinator_removes_it() -> (
    None
):
    async def scenario() -> None:
        clock = FakeClock()
        async with MemoryGroup(clock).running() as group:
            busy, other = member(group, "busy", clock), member(group, "other", clock)
            suspended: list[float] = []
            joined = await busy.join(OFFERS)
            await busy.sync(joined, {joined.member_id: b"work"})

            def changed() -> None:
                if not busy.permit.valid:
                    suspended.append(clock.monotonic())

            busy.permit.watch(changed)
            await clock.advance(3)
            began = clock.monotonic()
            joining = asyncio.ensure_future(other.join(OFFERS))
            while not joining.done():
                assert clock.monotonic() < began + 2 * REBALANCE_S
                await clock.advance(0.25)
            assert list(group.members) == [joining.result().member_id], "the busy one was removed"
            assert len(suspended) >= 1
            assert suspended[0] <= began + REBALANCE_S
            assert suspended[0] > began + 6, "its heartbeats were answered all the time"
            await busy.leave()
            await other.leave()

    asyncio.run(scenario())
