"""Internal topics: created as Connect creates them, refused when they would lose data."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from mm2py.client.connect.admin import TopicDescription
from mm2py.errors import ConfigError, RetriableError, ServerError
from mm2py.protocol import error_codes as codes
from mm2py.protocol.configs import ConfigEntry
from mm2py.protocol.topics import NewTopic
from mm2py.storage.internal_topics import InternalTopic, InternalTopics
from tests.unit.runtime.runtime_fakes import EagerClock

OFFSETS = InternalTopic(
    name="mm2-offsets.A.internal",
    purpose="offset.storage",
    partitions=25,
    replication_factor=3,
    configs={"min.insync.replicas": "2", "cleanup.policy": "delete"},
)


class FakeAdmin:
    """Topics in memory."""

    def __init__(self, policy: str | None = "compact", partitions: int = 0) -> None:
        self.policy = policy
        self.existing = partitions
        self.created: list[NewTopic] = []
        self.refusal: ServerError | None = None
        self.refused: Mapping[str, ServerError] = {}
        self.requests = 0
        self.unreadable: ServerError | None = None

    async def create_topics(self, topics: Sequence[NewTopic]) -> Mapping[str, ServerError | None]:
        self.created += topics
        self.requests += 1
        if self.refusal is None or self.refusal.code == codes.TOPIC_ALREADY_EXISTS:
            self.existing = topics[0].partitions
        return {topic.name: self.refused.get(topic.name, self.refusal) for topic in topics}

    async def describe_topics(self, names: Sequence[str]) -> Mapping[str, TopicDescription]:
        if not self.existing:
            return {}
        return {
            name: TopicDescription(name, bytes(16), tuple(range(self.existing)), 1, internal=False)
            for name in names
            if name not in self.refused
        }

    async def describe_topic_configs(
        self, names: Sequence[str]
    ) -> Mapping[str, Sequence[ConfigEntry]]:
        if self.unreadable is not None:
            raise self.unreadable
        if self.policy is None:
            return {}
        return {name: (ConfigEntry("cleanup.policy", self.policy),) for name in names}


def _ensure(admin: "FakeAdmin", topic: InternalTopic) -> int:
    topics = InternalTopics(admin, clock=EagerClock())
    topics.add(topic)
    return asyncio.run(topics.partitions(topic.name))


def test_all_that_is_missing_is_made_in_one_request_and_asked_for_once() -> None:
    admin = FakeAdmin()
    topics = InternalTopics(admin, clock=EagerClock())
    names = [f"mm2-{kind}.A.internal" for kind in ("configs", "offsets", "status")]
    for name in names:
        topics.add(
            InternalTopic(name=name, purpose="status.storage", partitions=1, replication_factor=1)
        )

    async def ask() -> list[int]:
        return [await topics.partitions(name) for name in (*names, *names)]

    assert asyncio.run(ask()) == [1] * 6
    assert admin.requests == 1
    assert [topic.name for topic in admin.created] == names


def test_a_topic_that_cannot_be_used_does_not_keep_the_others_from_being_used() -> None:
    admin = FakeAdmin()
    topics = InternalTopics(admin, clock=EagerClock())
    topics.add(OFFSETS)
    topics.add(InternalTopic(name="ledger", purpose="x", partitions=25, replication_factor=1))
    admin.refused = {"ledger": codes.server_error(codes.TOPIC_AUTHORIZATION_FAILED)}

    async def ask() -> int:
        partitions = await topics.partitions(OFFSETS.name)
        with pytest.raises(ConfigError, match="ledger cannot be created"):
            await topics.partitions("ledger")
        return partitions

    assert asyncio.run(ask()) == 25


def test_a_missing_topic_is_created_compacted_with_the_users_settings() -> None:
    admin = FakeAdmin()
    assert _ensure(admin, OFFSETS) == 25
    (topic,) = admin.created
    assert (topic.partitions, topic.replication_factor) == (25, 3)
    assert topic.configs == {"min.insync.replicas": "2", "cleanup.policy": "compact"}


def test_an_existing_topic_keeps_its_partitions() -> None:
    admin = FakeAdmin(partitions=7)
    assert _ensure(admin, OFFSETS) == 7
    assert admin.created == []


@pytest.mark.parametrize("policy", ["delete", "compact,delete", "delete, compact"])
def test_any_other_cleanup_policy_is_refused(policy: str) -> None:
    with pytest.raises(ConfigError, match="must be exactly compact"):
        _ensure(FakeAdmin(policy, partitions=25), OFFSETS)


def test_an_unreadable_policy_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    admin = FakeAdmin(partitions=25)
    admin.unreadable = codes.server_error(codes.TOPIC_AUTHORIZATION_FAILED)
    assert _ensure(admin, OFFSETS) == 25
    assert "cannot be read" in caplog.text


def test_too_few_brokers_are_waited_for() -> None:
    admin = FakeAdmin()
    admin.refusal = codes.server_error(codes.INVALID_REPLICATION_FACTOR)
    with pytest.raises(RetriableError, match=r"offset\.storage\.replication\.factor"):
        _ensure(admin, OFFSETS)


def test_a_refused_creation_says_what_to_do() -> None:
    admin = FakeAdmin()
    admin.refusal = codes.server_error(codes.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(ConfigError, match="create it by hand"):
        _ensure(admin, OFFSETS)


def test_a_topic_created_by_another_worker_meanwhile_is_fine() -> None:
    admin = FakeAdmin()
    admin.refusal = codes.server_error(codes.TOPIC_ALREADY_EXISTS)
    assert _ensure(admin, OFFSETS) == 25


@pytest.mark.parametrize("name", ["mm2-configs.A.internal", "mm2py-flows.A.internal"])
def test_a_topic_whose_order_counts_must_have_one_partition(name: str) -> None:
    """A change is one batch of the config topic, or of the flow's changes."""
    topic = InternalTopic(
        name=name, purpose="config.storage", partitions=1, replication_factor=1, ordered=True
    )
    with pytest.raises(ConfigError, match="exactly 1"):
        _ensure(FakeAdmin(partitions=3), topic)


def test_a_topic_that_stays_invisible_is_tried_again_later() -> None:
    class Blind(FakeAdmin):
        async def describe_topics(self, names: Sequence[str]) -> Mapping[str, TopicDescription]:
            return {}

    with pytest.raises(RetriableError, match="not visible"):
        _ensure(Blind(), OFFSETS)


def test_a_topic_that_was_deleted_is_created_again() -> None:
    admin = FakeAdmin()
    topics = InternalTopics(admin, clock=EagerClock())
    topics.add(OFFSETS)

    async def ask() -> None:
        await topics.partitions(OFFSETS.name)
        await topics.restore(OFFSETS.name)  # it is there
        admin.existing = 0
        await topics.restore(OFFSETS.name)

    asyncio.run(ask())
    assert [topic.name for topic in admin.created] == [OFFSETS.name] * 2
