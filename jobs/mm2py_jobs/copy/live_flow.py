"""The live flow of a target as drivers on Spark see it: its positions, its group, and that its
workers let go of partitions."""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, Protocol, TypeVar
from urllib.parse import urlsplit

from mm2py.client.connect.admin import ConfigOp
from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.log_reader import newest_values
from mm2py.clock import Clock
from mm2py.errors import FatalServerError, Mm2pyError, ProtocolError, ServerError
from mm2py.mirror.backfills import BEAT_S, Lease
from mm2py.mirror.failovers import Failover, decode_failover, failover_topic
from mm2py.protocol.connect_group import decode_metadata, is_ours
from mm2py.protocol.groups import DescribedGroup
from mm2py.storage.backfill_store import BackfillStore
from mm2py.storage.job_claim import LOOK_S, BackfillRefusedError
from mm2py.types import FlowName, TopicPartition
from mm2py_jobs.copy.copy_again import CopiesAgain
from mm2py_jobs.copy.survey import Known

log = logging.getLogger(__name__)

T = TypeVar("T")

LET_GO_S: Final = 90.0
"""How long workers of the live flow may take to stop copying what was reserved."""


class BackfillFlow(CopiesAgain, Protocol):
    """What a driver asks of the flow's target."""

    async def group(self) -> DescribedGroup: ...
    async def known(self, partitions: Collection[TopicPartition]) -> Known: ...
    async def known_starts(
        self, sources: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]: ...
    async def unfinished_failover(self) -> Failover | None: ...
    async def restored_elsewhere(self) -> Mapping[str, str]: ...
    async def fence(self, transactional_ids: Sequence[str]) -> None: ...
    async def alter_topic_configs(
        self, changes: Mapping[str, Sequence[ConfigOp]]
    ) -> Mapping[str, ServerError | None]: ...


async def refuse_beside_failover(name: str, flow: BackfillFlow) -> None:
    """Refuse to reserve partitions while a failover of the flow is under way; asked only after the
    driver's own record is written.

    A failover asks in the other order (invariant 8 of ``mm2py_jobs.failover.driver``), so that of
    both at least one finds the other's record.

    Raises:
        BackfillRefusedError: there is one.
        RetriableError: that cannot be found out now.
    """
    failover = await flow.unfinished_failover()
    if failover is not None:
        raise BackfillRefusedError(
            f"{failover.kind} {failover.id} of {name} is at {failover.step}: Spark copies "
            "nothing beside it",
            remedy=f"start it again once that has ended: mm2py failover FILE --flow '{name}' "
            "--status shows it",
        )


async def wait_until_released(
    name: str, flow: BackfillFlow, store: BackfillStore, leases: Sequence[Lease], clock: Clock
) -> None:
    """Wait until every worker of the live flow has confirmed that it copies none of the partitions.

    Raises:
        BackfillRefusedError: it does not within ``LET_GO_S``, is run by another program, or its
            group may not be described.
    """
    if not leases:
        return
    await store.refresh()
    reserved, deadline = store.reserved, clock.monotonic() + LET_GO_S
    while True:
        try:
            group = await flow.group()
        except FatalServerError as error:
            raise BackfillRefusedError(
                f"whether workers of the flow {name} have let go of the partitions is not known: "
                f"{error.message}",
                remedy=error.remedy,
            ) from error
        if (refusal := _refusal_beside_another(name, group)) is not None:
            raise refusal
        await store.refresh()
        pending = [worker for worker in workers_of(group) if store.noticed(worker) < reserved]
        if not pending:
            return
        if clock.monotonic() > deadline:
            raise BackfillRefusedError(
                f"workers of the flow {name} have not let go of the partitions within "
                f"{LET_GO_S:.0f} s:"
                f" {', '.join(pending)}",
                remedy="look at their logs; a worker that does not answer leaves the group after "
                "its session timeout",
            )
        await clock.sleep(LOOK_S)


async def first_answer(clock: Clock, *questions: Callable[[], Awaitable[T | None]]) -> T:
    """Ask one question after the other, in each beat of a driver, until one has an answer."""
    while True:
        await clock.sleep(BEAT_S)
        for ask in questions:
            answer = await ask()
            if answer is not None:
                return answer


async def another_program(name: str, flow: BackfillFlow) -> BackfillRefusedError | None:
    """Return why lanes are to end, where workers of another program are in the flow's group: they
    copy what is reserved, too. None also where that is not known now."""
    try:
        return _refusal_beside_another(name, await flow.group())
    except Mm2pyError as error:
        log.debug("who runs the flow is not known now cause=%s", error)
        return None


def _refusal_beside_another(name: str, group: DescribedGroup) -> BackfillRefusedError | None:
    if not group.members or not group.protocol_name or is_ours(group.protocol_name):
        return None
    return BackfillRefusedError(
        f"the flow {name} is run by another program (group {group.group_id}), which does not leave"
        " partitions to Spark",
        remedy="stop its workers, and run this command again",
    )


def workers_of(group: DescribedGroup) -> list[str]:
    """Return the workers of a group, by the addresses in their metadata; members join meanwhile
    have none yet."""
    workers: list[str] = []
    for member in group.members:
        try:
            workers.append(urlsplit(decode_metadata(member.metadata).url).netloc)
        except ProtocolError:
            workers.append(member.client_id or member.member_id)
    return workers


async def unfinished_failover(target: Cluster, flow: FlowName, clock: Clock) -> Failover | None:
    """Return the failover of a flow that has begun and is not over, with what is committed until
    now; creates nothing.

    Raises:
        ProtocolError: the record is damaged, or of a version that this program does not know.
        RetriableError: the target does not answer.
    """
    values = await newest_values(target, failover_topic(flow.source), clock)
    value = values.get(b"failover")
    newest = None if value is None else decode_failover(b"failover", value)
    return newest if isinstance(newest, Failover) and not newest.step.is_over else None
