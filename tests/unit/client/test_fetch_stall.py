"""What a Fetcher says of partitions whose broker is away."""

from tests.kit.fakes.broker import FakeBroker
from tests.unit.client.fetcher_rig import FIRST, fetching


async def test_a_dead_leader_that_metadata_still_names_is_never_said_to_be_read_again() -> None:
    async with fetching() as rig:
        leader = await FakeBroker(node_id=2, cluster=rig.broker.cluster).start()
        rig.broker.cluster.move_leader(FIRST, 2)
        rig.fill(FIRST, range(3))
        await rig.fetcher.assign({FIRST: 0})
        await rig.until(lambda: rig.fetcher.position(FIRST) == 3)
        rig.stalled.clear()
        rig.read_again.clear()
        await leader.stop()
        await rig.until(lambda: len(rig.stalled) >= 5)
        assert rig.read_again == []
        rig.broker.cluster.move_leader(FIRST, 1)
        await rig.until(lambda: rig.read_again == [FIRST])
        rig.fill(FIRST, range(3, 6))
        await rig.until(lambda: rig.fetcher.position(FIRST) == 6)
        assert rig.read_again == [FIRST]
