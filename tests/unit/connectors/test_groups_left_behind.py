"""Groups in copies that Java made once more, and that the flow does not continue: they are set back to the flow's own."""

import pytest

from mm2py.types import TopicPartition
from tests.unit.connectors.group_fakes import GroupRegion
from tests.unit.connectors.test_mirror_checkpoint import WRITTEN, synced


@pytest.mark.parametrize("behind", [(), ((1_000, 10, 1_500),)])
@pytest.mark.parametrize(
    ("upstream", "now", "after"),
    [(950, 1_300, 950), (950, 1_301, 1_301), (960, 1_300, 1_300)],
    ids=["placed by Java", "moved since", "set back at the source"],
)
async def test_a_group_in_copies_that_the_flow_does_not_continue_is_set_back(
    upstream: int, now: int, after: int, behind: tuple[tuple[int, int, int], ...]
) -> None:
    """Killed before it stored its position, the flow had 1,000 copies; Java made 500 of them again, placed the group there, and was killed too."""
    region = GroupRegion()
    region.map.put("t", 0, (0, 1_000, 0), *behind, covered=1_000 + 10 * len(behind))
    region.log(*WRITTEN).checkpoint("g", "A.t", 0, upstream, 1_300)
    region.at_source.put("g", t_0=950)
    region.at_target.put("g", {"A.t_0": now})
    async with synced(region) as bench:
        await bench.polled(30)
        assert region.at_target.offsets["g"][TopicPartition("A.t", 0)].offset == after
