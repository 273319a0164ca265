"""What an operator does to a cluster while it is mirrored, with confluent-kafka's admin client."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import lru_cache, partial
from typing import Any, Final, Protocol, cast

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._group import ConsumerGroupDescription
from confluent_kafka.admin._metadata import ClusterMetadata
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.integration.mirror_process import until
from tests.kit.kafka.java import run_java
from tests.kit.kafka.region import KafkaAddress

TIMEOUT_S: Final = 90.0
DELETE_TRIES: Final = 3
ANONYMOUS: Final = "User:ANONYMOUS"
CLUSTER: Final = "kafka-cluster"
"""The name of the one resource that rules for the whole cluster are of."""

Answers = Mapping[object, "Future[object]"]


class _Admin(Protocol):
    """``AdminClient``, whose own annotations leave the futures' results open."""

    def list_topics(self, *, timeout: float) -> ClusterMetadata: ...
    def create_partitions(self, new: list[NewPartitions], /) -> Answers: ...
    def describe_configs(self, resources: list[ConfigResource], /) -> Answers: ...
    def incremental_alter_configs(self, resources: list[ConfigResource], /) -> Answers: ...
    def create_topics(self, new: list[NewTopic], /) -> Answers: ...
    def delete_topics(self, topics: list[str], /) -> Answers: ...
    def delete_records(self, before: list[TopicPartition], /) -> Answers: ...
    def create_acls(self, acls: list[AclBinding], /) -> Answers: ...
    def delete_acls(self, filters: list[AclBindingFilter], /) -> Answers: ...
    def describe_consumer_groups(
        self, groups: list[str], /
    ) -> "Mapping[str, Future[ConsumerGroupDescription]]": ...
    def describe_acls(self, acls: AclBindingFilter, /) -> "Future[list[AclBinding]]": ...


def _admin(region: KafkaAddress) -> _Admin:
    """Keep it in a variable: it is closed, whatever is under way, when nothing refers to it."""
    return _admin_at(region.bootstrap_servers)


@lru_cache(maxsize=4)
def _admin_at(servers: str) -> _Admin:
    # A broker that was killed comes back.
    settings: dict[str, str | int | float | bool] = {
        "bootstrap.servers": servers,
        "reconnect.backoff.max.ms": 500,
        "log_level": 0,
    }
    return cast("_Admin", AdminClient(settings))


def members_of(region: KafkaAddress, group: str) -> list[set[TopicPartition]]:
    """Return the partitions of each member of a consumer group."""
    admin = _admin(region)
    found = admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)
    return [set(it.assignment.topic_partitions) for it in found.members]


def _results(answers: Answers) -> list[object]:
    return [future.result(TIMEOUT_S) for future in answers.values()]


def topics_of(region: KafkaAddress) -> dict[str, int]:
    """Return the number of partitions by topic."""
    found = _admin(region).list_topics(timeout=TIMEOUT_S).topics
    return {name: len(topic.partitions) for name, topic in found.items()}


def grow(region: KafkaAddress, topic: str, partitions: int) -> None:
    """Give a topic more partitions."""
    admin = _admin(region)
    _results(admin.create_partitions([NewPartitions(topic, partitions)]))


def replicas_of(region: KafkaAddress, topic: str) -> int:
    """Return the replication factor of a topic."""
    admin = _admin(region)
    return len(admin.list_topics(timeout=TIMEOUT_S).topics[topic].partitions[0].replicas)


def leader_of(region: KafkaAddress, topic: str, partition: int) -> int:
    """Return the id of the node that leads a partition."""
    return leaders_of(region, topic)[partition]


def leaders_of(region: KafkaAddress, topic: str) -> dict[int, int]:
    """Return the id of the node that leads each partition, -1 for none."""
    admin = _admin(region)
    partitions = admin.list_topics(timeout=TIMEOUT_S).topics[topic].partitions
    return {number: each.leader for number, each in partitions.items()}


def in_sync(region: KafkaAddress, topic: str) -> int:
    """Return how many replicas of its worst partition are in sync; 0 where one has no leader."""
    admin = _admin(region)
    found = admin.list_topics(timeout=TIMEOUT_S).topics[topic].partitions.values()
    return min(len(each.isrs) if each.leader >= 0 else 0 for each in found)


def configs_of(region: KafkaAddress, topic: str) -> dict[str, str]:
    """Return a topic's effective configs."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = _admin(region)
    (entries,) = _results(admin.describe_configs([resource]))
    found = cast("Mapping[str, ConfigEntry]", entries)
    return {name: str(entry.value) for name, entry in found.items()}


def set_config(region: KafkaAddress, topic: str, name: str, value: str) -> None:
    """Change one config of a topic, and wait until the broker has it: the answer is the controller's."""
    _set_config(region, ResourceType.TOPIC, topic, name, value)
    until(lambda: configs_of(region, topic)[name] == value, 90, f"{topic} {name}={value}")


def set_group_config(region: KafkaAddress, group: str, name: str, value: str) -> None:
    """Change one config of a group, which need not exist."""
    _set_config(region, ResourceType.GROUP, group, name, value)


def _set_config(region: KafkaAddress, kind: ResourceType, of: str, name: str, value: str) -> None:
    change = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(kind, of, incremental_configs=[change])
    admin = _admin(region)
    _results(admin.incremental_alter_configs([resource]))


def create_topics(region: KafkaAddress, topics: Sequence[str]) -> None:
    """Create topics of one partition with one request."""
    admin = _admin(region)
    _results(admin.create_topics([NewTopic(name, 1, 1) for name in topics]))


def create_led_by(
    region: KafkaAddress,
    topic: str,
    replicas: list[list[int]],
    config: dict[str, str] | None = None,
) -> None:
    """Create a topic with these replicas by partition, the leader first."""
    new = NewTopic(
        topic, num_partitions=len(replicas), replica_assignment=replicas, config=config or {}
    )
    admin = _admin(region)
    _results(admin.create_topics([new]))


def delete_topic(region: KafkaAddress, topic: str) -> None:
    """Delete a topic."""
    delete_topics(region, [topic])


def delete_topics(region: KafkaAddress, topics: Sequence[str]) -> None:
    """Delete topics with one request; a connection that was lost on the way is no answer."""
    left = list(topics)
    for _ in range(DELETE_TRIES):
        admin = _admin(region)
        answers = admin.delete_topics(left)
        left = [name for name in left if not _is_deleted(answers[name])]
        if not left:
            return
    raise AssertionError(f"cannot be deleted: {left}")


def _is_deleted(answer: "Future[object]") -> bool:
    try:
        answer.result(TIMEOUT_S)
    except KafkaException as error:
        code = cast("KafkaError", error.args[0]).code()
        if code in {KafkaError._DESTROY_BROKER, KafkaError._TRANSPORT}:
            return False
        if code != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise
    return True


def delete_records(region: KafkaAddress, topic: str, partition: int, before: int) -> None:
    """Delete the records before an offset, as retention does."""
    admin = _admin(region)
    _results(admin.delete_records([TopicPartition(topic, partition, before)]))


def forbid_group(region: KafkaAddress, group: str, operation: AclOperation) -> None:
    """Take one operation on one group from all principals."""
    _forbid(ResourceType.GROUP, operation, region, group)


def permit_group(region: KafkaAddress, group: str, operation: AclOperation) -> None:
    """Undo ``forbid_group``."""
    _permit(ResourceType.GROUP, operation, region, group)


def forbid_creating(region: KafkaAddress, topic: str) -> None:
    """Deny all principals the creation of one topic, which either of two rules would allow."""
    _forbid(ResourceType.BROKER, AclOperation.CREATE, region, CLUSTER)
    _forbid(ResourceType.TOPIC, AclOperation.CREATE, region, topic)


def forbid_cluster(region: KafkaAddress, operation: AclOperation) -> None:
    """Take one operation on the cluster from all principals."""
    _forbid(ResourceType.BROKER, operation, region, CLUSTER)


def permit_cluster(region: KafkaAddress, operation: AclOperation) -> None:
    """Undo ``forbid_cluster``."""
    _permit(ResourceType.BROKER, operation, region, CLUSTER)


def permit_creating(region: KafkaAddress, topic: str) -> None:
    """Undo ``forbid_creating``."""
    _permit(ResourceType.TOPIC, AclOperation.CREATE, region, topic)
    _permit(ResourceType.BROKER, AclOperation.CREATE, region, CLUSTER)


def allow(region: KafkaAddress, topic: str, user: str = "shop") -> None:
    """Let a client that logs in read and write a topic."""
    operations = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
    _create_rules(region, [_grant(topic, user, each) for each in operations])


def take_write(region: KafkaAddress, topic: str, user: str) -> None:
    """Take back the right to write that ``allow`` gave."""
    _delete_rule(region, _grant(topic, user, AclOperation.WRITE))


def _grant(topic: str, user: str, operation: AclOperation) -> tuple[Any, ...]:
    kind, pattern = ResourceType.TOPIC, ResourcePatternType.LITERAL
    return kind, topic, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW


def _forbid(kind: ResourceType, operation: AclOperation, region: KafkaAddress, name: str) -> None:
    rules = [
        (kind, name, ResourcePatternType.LITERAL, ANONYMOUS, "*", each, permission)
        for each, permission in (
            (AclOperation.ALL, AclPermissionType.ALLOW),
            (operation, AclPermissionType.DENY),
        )
    ]
    _create_rules(region, rules)


def _permit(kind: ResourceType, operation: AclOperation, region: KafkaAddress, name: str) -> None:
    place = kind, name, ResourcePatternType.LITERAL
    _delete_rule(region, (*place, ANONYMOUS, "*", operation, AclPermissionType.DENY))


def _create_rules(region: KafkaAddress, rules: Sequence[tuple[Any, ...]]) -> None:
    """Create rules, and wait until the broker obeys them: the answer is the controller's."""
    admin = _admin(region)
    _results(admin.create_acls([AclBinding(*rule) for rule in rules]))
    until(lambda: all(_is_known(admin, rule) for rule in rules), 90, f"{rules}")


def _delete_rule(region: KafkaAddress, rule: tuple[Any, ...]) -> None:
    """Delete a rule, and wait until the broker has forgotten it."""
    admin = _admin(region)
    _results(admin.delete_acls([AclBindingFilter(*rule)]))
    until(lambda: not _is_known(admin, rule), 90, f"not {rule}")


def _is_known(admin: _Admin, rule: tuple[Any, ...]) -> bool:
    return bool(admin.describe_acls(AclBindingFilter(*rule)).result(TIMEOUT_S))


forbid_writing: Final = partial(_forbid, ResourceType.TOPIC, AclOperation.WRITE)
"""Take Write on one topic from everybody; everything else stays allowed."""
permit_writing: Final = partial(_permit, ResourceType.TOPIC, AclOperation.WRITE)
forbid_reading: Final = partial(_forbid, ResourceType.TOPIC, AclOperation.READ)
"""Deny all principals Read on one topic; it can still be described."""
permit_reading: Final = partial(_permit, ResourceType.TOPIC, AclOperation.READ)
forbid_describing: Final = partial(_forbid, ResourceType.TOPIC, AclOperation.DESCRIBE)
"""Deny all principals Describe on one topic: brokers list it no more."""
permit_describing: Final = partial(_permit, ResourceType.TOPIC, AclOperation.DESCRIBE)
forbid_configuring: Final = partial(_forbid, ResourceType.TOPIC, AclOperation.ALTER_CONFIGS)
forbid_reading_configs: Final = partial(_forbid, ResourceType.TOPIC, AclOperation.DESCRIBE_CONFIGS)
permit_configuring: Final = partial(_permit, ResourceType.TOPIC, AclOperation.ALTER_CONFIGS)
forbid_deleting: Final = partial(_forbid, ResourceType.TOPIC, AclOperation.DELETE)
permit_deleting: Final = partial(_permit, ResourceType.TOPIC, AclOperation.DELETE)
forbid_transactions: Final = partial(_forbid, ResourceType.TRANSACTIONAL_ID, AclOperation.WRITE)
"""Take Write on one transactional id from all principals; it can still be described."""
permit_transactions: Final = partial(_permit, ResourceType.TRANSACTIONAL_ID, AclOperation.WRITE)


def set_quota(region: KafkaAddress, kind: str, client_id: str, rate: int) -> None:
    """Set a quota of a client, or of each one by default, in bytes per second; with 0 take it away."""
    name = f"{kind}_byte_rate"
    change = ["--add-config", f"{name}={rate}"] if rate else ["--delete-config", name]
    entity = ["--entity-name", client_id] if client_id else ["--entity-default"]
    done = run_java(
        "kafka.admin.ConfigCommand",
        "--bootstrap-server",
        region.bootstrap_servers,
        "--alter",
        "--entity-type",
        "clients",
        *entity,
        *change,
    )
    assert done.returncode == 0, done.stdout + done.stderr
