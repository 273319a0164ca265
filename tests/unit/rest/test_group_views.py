"""What a view of a group says of its place on the target."""

from typing import Any, cast

import pytest

from mm2py.client.connect.group_admin import GroupListing
from mm2py.flows.flow_offsets import FlowOffsets
from mm2py.protocol.groups import FetchedOffset
from mm2py.testing.clock import FakeClock
from mm2py.types import ClusterAlias, FlowName, TopicPartition
from tests.unit.connectors.group_fakes import FakeMap
from tests.unit.connectors.mirror_fakes import flow_config

T = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("copied", "is_former", "reason"),
    [
        (None, False, "t-0: not copied or not checkpointed yet"),
        ((200, 50, 200), False, "t-0: it lies below the beginning of the map"),
        ((0, 50, 0), True, "t-0: the map is about another copy than the one that is there now"),
    ],
)
async def test_a_group_without_a_place_is_shown_with_the_reason(
    copied: tuple[int, int, int] | None, is_former: bool, reason: str
) -> None:
    config = flow_config("MirrorCheckpointConnector", sync_group_offsets_enabled="true")
    flow = FlowName(ClusterAlias("A"), ClusterAlias("B"))
    offsets = cast("Any", FlowOffsets(flow, config, FakeClock(), has_checkpoints=True))
    offsets._map = exact = FakeMap()
    if copied is not None:
        offsets._has_map = True
        exact.put("t", 0, copied, covered=copied[0] + copied[1])
    if is_former:
        exact.former.add(T)
    parts = await offsets._partitions({T: FetchedOffset("t", 0, 20, -1, "", 0)}, {}, {}, {})
    view = offsets._view(GroupListing("g", 1, "Empty", "classic"), None, parts, "")
    assert view.not_synced.startswith(reason)
    assert view.partitions[0].continues_at is None
