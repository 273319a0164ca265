"""Where logs begin and end, by their leaders.

Flow: partitions -> ``listed_offsets``, which waits for leaders that are being elected ->
``log_ends``.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, final

from mm2py.client.connect.admin import Admin, ListedOffset
from mm2py.client.connect.cluster import Cluster
from mm2py.clock import Clock
from mm2py.errors import RetriableError
from mm2py.types import EARLIEST, LATEST, TopicPartition

LEADERS_S: Final = 20.0
"""How long a lookup waits for the next leader. Of a topic that was just created a broker answers
UNKNOWN_TOPIC_OR_PARTITION until its metadata has it, then NOT_LEADER_OR_FOLLOWER until it has made
the log (``ReplicaManager.getPartitionOrError``); with thousands of them that takes minutes."""

LOOK_S: Final = 0.3

_Ask = Callable[..., Awaitable[Mapping[TopicPartition, ListedOffset]]]


@final
@dataclass(frozen=True, slots=True)
class LogEnds:
    """Start and end of a partition's log."""

    start: int
    end: int


async def log_ends(
    cluster: Cluster,
    partitions: Sequence[TopicPartition],
    *,
    read_committed: bool,
    waits: bool = False,
) -> Mapping[TopicPartition, LogEnds]:
    """Return the start of each log, and its end for a reader of that isolation level; ``waits`` for
    leaders as ``listed_offsets``. ``Mm2pyError``: a lookup failed."""
    admin = Admin(cluster)
    waiting = partial(listed_offsets, admin, cluster.clock)
    ask: _Ask = waiting if waits else admin.list_offsets
    starts = _offsets(await ask(dict.fromkeys(partitions, EARLIEST)))
    ends = _offsets(await ask(dict.fromkeys(partitions, LATEST), read_committed=read_committed))
    return {tp: LogEnds(starts[tp], ends[tp]) for tp in partitions}


def _offsets(listed: Mapping[TopicPartition, ListedOffset]) -> Mapping[TopicPartition, int]:
    for answer in listed.values():
        if answer.error is not None:
            raise answer.error
    return {tp: answer.offset for tp, answer in listed.items()}


async def listed_offsets(
    admin: Admin,
    clock: Clock,
    asked: Mapping[TopicPartition, int],
    *,
    read_committed: bool = False,
) -> Mapping[TopicPartition, ListedOffset]:
    """Return offsets; topics that were just created have no leaders for a moment, thousands of them
    for as long as more and more have."""
    listed: dict[TopicPartition, ListedOffset] = {}
    waiting, deadline = asked, clock.monotonic() + LEADERS_S
    while True:
        listed |= await admin.list_offsets(waiting, read_committed=read_committed)
        again = {
            tp: at for tp, at in waiting.items() if isinstance(listed[tp].error, RetriableError)
        }
        if len(again) < len(waiting):
            deadline = clock.monotonic() + LEADERS_S
        if not again or clock.monotonic() > deadline:
            return listed
        waiting = again
        await clock.sleep(LOOK_S)
