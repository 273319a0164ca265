"""What drivers of backfills and streams ask of a flow's target, in memory."""

from collections.abc import Callable, Collection, Mapping, Sequence

from mm2py.client.connect.admin import ConfigOp
from mm2py.errors import ServerError
from mm2py.mirror.failovers import Failover, FailoverKind, Step
from mm2py.protocol.connect_group import WorkerMetadata, encode_metadata
from mm2py.protocol.groups import DescribedGroup, GroupMember
from mm2py.storage.memory import MemoryTopic
from mm2py.storage.table import Entry
from mm2py.types import TopicPartition
from mm2py_jobs.copy.survey import Known

FAILOVER = Failover(id="f", flow="A->B", kind=FailoverKind.FAILOVER, step=Step.DRAIN, run=1)


class TopicWriter:
    """A ``PrivilegedWriter`` straight into the topic."""

    def __init__(self, topic: MemoryTopic) -> None:
        self._topic = topic
        self.claimed = False
        self.claims: Callable[[], object] = lambda: None

    async def claim(self) -> None:
        self.claims()
        self.claimed = True

    async def write(self, entries: Sequence[Entry]) -> None:
        if not entries:
            raise ValueError("a batch needs at least one record")
        for key, value in entries:
            self._topic.append(key, value)

    async def close(self) -> None:
        self.claimed = False


class Flow:
    def __init__(self) -> None:
        self.members: list[str] = []
        self.protocol = "mm2py-sessioned"
        self.positions: dict[TopicPartition, int] = {}
        self.set: dict[TopicPartition, int] = {}
        self.ends: dict[TopicPartition, int] = {}
        self.deleted: dict[TopicPartition, int] = {}
        self.refuses_deletion: Exception | None = None
        self.cuts: dict[TopicPartition, tuple[int, int]] = {}
        self.fenced: list[str] = []
        self.failover: Failover | None = None
        self.elsewhere: dict[str, str] = {}
        self.altered: list[tuple[str, str, str | None]] = []

    async def group(self) -> DescribedGroup:
        members = tuple(
            GroupMember(
                name, None, name, "h", encode_metadata(WorkerMetadata(0, f"http://{name}/", 0)), b""
            )
            for name in self.members
        )
        return DescribedGroup("A-mm2", 0, "", "Stable", "connect", self.protocol, members)

    async def known(self, partitions: Collection[TopicPartition]) -> Known:
        return Known({it: self.positions[it] for it in partitions if it in self.positions}, {})

    async def set_positions(self, positions: Mapping[TopicPartition, int]) -> None:
        self.set |= positions
        self.positions |= positions

    async def log_ends(self, copies: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {it: self.ends[it] for it in copies}

    async def delete_below(self, ends: Mapping[TopicPartition, int]) -> None:
        if self.refuses_deletion is not None:
            raise self.refuses_deletion
        self.deleted |= ends

    async def cut_maps(self, places: Mapping[TopicPartition, tuple[int, int]]) -> None:
        self.cuts |= places

    async def unfinished_failover(self) -> Failover | None:
        return self.failover

    async def restored_elsewhere(self) -> Mapping[str, str]:
        return self.elsewhere

    async def fence(self, transactional_ids: Sequence[str]) -> None:
        self.fenced += transactional_ids

    async def alter_topic_configs(
        self, changes: Mapping[str, Sequence[ConfigOp]]
    ) -> Mapping[str, ServerError | None]:
        self.altered += [(it.op, it.name, it.value) for ops in changes.values() for it in ops]
        return dict.fromkeys(changes)
