"""What the doctor's flows share: a cluster that is silent for one of them is not asked for the next."""

from mm2py.clock import SYSTEM_CLOCK
from mm2py.errors import RetriableError
from mm2py_jobs.doctor.examine import Shared
from tests.kit.fakes.broker import FakeBroker
from tests.kit.kafka.ports import free_ports
from tests.unit.client.client_stage import cluster_of


async def test_a_cluster_that_did_not_answer_one_flow_is_known_to_be_away_for_the_next() -> None:
    shared, asked = Shared(SYSTEM_CLOCK), list[str]()

    async def ask() -> None:
        asked.append("answered")

    (port,) = free_ports(1)
    first, same, other = cluster_of(port), cluster_of(port), cluster_of(port, request_timeout_ms=1)
    cause = await shared.open(first, ask)
    assert f"127.0.0.1:{port}" in cause
    await first.close()
    await same.close()
    assert await shared.open(same, ask) == cause, "closed: an attempt would fail otherwise"
    await other.close()
    assert await shared.open(other, ask) != cause, "it is reached in another way"
    assert asked == []


async def test_a_question_that_is_refused_does_not_make_the_cluster_away_for_others() -> None:
    shared = Shared(SYSTEM_CLOCK)

    async def refused() -> None:
        raise RetriableError("not for you")

    async def answered() -> None:
        pass

    async with FakeBroker() as broker:
        first, second = cluster_of(broker), cluster_of(broker)
        assert "not for you" in await shared.open(first, refused)
        assert await shared.open(second, answered) == ""
        await first.close()
        await second.close()
