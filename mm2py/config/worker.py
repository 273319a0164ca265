"""Options of one flow's worker: the ``DistributedConfig`` keys that the dedicated mode uses.

Flow: ``MirrorMakerConfig.worker_config(flow)`` -> ``parse_config(WorkerConfig, ...)``. In the file
these stand under the target's alias (``B.offset.flush.interval.ms``), because a flow's worker
belongs to its target cluster.
"""

from collections.abc import Mapping
from typing import Annotated, Final

from mm2py.config.class_names import BYTE_ARRAY_CONVERTER
from mm2py.config.definitions import ConfigModel, Option, Problem, options_of
from mm2py.config.java_values import JavaType

__all__ = ["DEDICATED_DEFAULTS", "WorkerConfig"]

_STRING, _LONG, _INT = JavaType.STRING, JavaType.LONG, JavaType.INT
_SHORT, _CLASS = JavaType.SHORT, JavaType.CLASS


def _ms(doc: str, java_default: str | None = None, low: int = 0, part: int = 1) -> Option:
    return Option(_INT, doc, low=low, unit="ms", java_default=java_default, part=part)


def _topic(what: str) -> Option:
    return Option(_STRING, f"Topic on the target that holds {what}.", group="topics")


def _storage(what: str) -> Option:
    return Option(
        _SHORT,
        f"Replication factor of the {what} topic; -1 takes the target broker's default.",
        low=-1,
        forbidden=(0,),
        group="topics",
    )


class WorkerConfig(ConfigModel):
    """How the worker of one flow runs (``DistributedConfig``, ``WorkerConfig``)."""

    @classmethod
    def cross_check(cls, props: Mapping[str, str]) -> list[Problem]:
        """Fencing needs workers that send each other signed requests."""
        mode = props.get("exactly.once.source.support", "disabled").strip().lower()
        protocol = props.get("connect.protocol", "sessioned").strip().lower()
        if mode == "disabled" or protocol != "eager":
            return []
        return [
            Problem(
                "connect.protocol",
                protocol,
                f"exactly.once.source.support={mode} needs an incremental protocol",
                "use sessioned or compatible",
            )
        ]

    @property
    def exactly_once(self) -> bool:
        """Whether source tasks write in transactions."""
        return self.exactly_once_source_support.strip().lower() == "enabled"

    @property
    def leader_writes_in_transactions(self) -> bool:
        """Whether the leader's records of the config topic are transactional (``preparing`` and ``enabled``)."""
        return self.exactly_once_source_support.strip().lower() != "disabled"

    bootstrap_servers: Annotated[
        tuple[str, ...], Option(JavaType.LIST, "Brokers of the target.", importance="high")
    ]
    client_id: Annotated[str, Option(_STRING, "Put into client ids of the worker.")] = ""
    group_id: Annotated[
        str, Option(_STRING, "Group that the workers of a flow join.", importance="high")
    ]
    config_storage_topic: Annotated[str, _topic("connector and task configs")]
    offset_storage_topic: Annotated[str, _topic("source offsets")]
    status_storage_topic: Annotated[str, _topic("states")]
    config_storage_replication_factor: Annotated[int, _storage("config")] = 3
    offset_storage_replication_factor: Annotated[int, _storage("offset")] = 3
    status_storage_replication_factor: Annotated[int, _storage("status")] = 3
    offset_storage_partitions: Annotated[
        int, Option(_INT, "Partitions of the offset topic.", low=-1, forbidden=(0,), group="topics")
    ] = 25
    status_storage_partitions: Annotated[
        int, Option(_INT, "Partitions of the status topic.", low=-1, forbidden=(0,), group="topics")
    ] = 5
    key_converter: Annotated[str, Option(_CLASS, "Without effect: bytes stay bytes.")] = (
        BYTE_ARRAY_CONVERTER
    )
    value_converter: Annotated[str, Option(_CLASS, "Without effect: bytes stay bytes.")] = (
        BYTE_ARRAY_CONVERTER
    )
    header_converter: Annotated[str, Option(_CLASS, "Without effect: bytes stay bytes.")] = (
        BYTE_ARRAY_CONVERTER
    )
    offset_flush_interval_ms: Annotated[
        int,
        Option(
            _LONG,
            "How often source offsets are written; what was copied since is copied again after a "
            "kill. Fewer than 100 records of a task wait for up to five intervals, at most 5 s.",
            low=1,
            unit="ms",
            java_default="60000",
        ),
    ] = 1_000
    offset_flush_timeout_ms: Annotated[
        int, Option(_LONG, "Longest wait for a write of source offsets.", low=1, unit="ms")
    ] = 5_000
    task_shutdown_graceful_timeout_ms: Annotated[
        int, Option(_LONG, "Longest wait for the tasks at a stop.", low=0, unit="ms")
    ] = 5_000
    session_timeout_ms: Annotated[
        int, _ms("Silence after which a worker counts as dead.", "10000", 1)
    ] = 6_000
    heartbeat_interval_ms: Annotated[
        int, _ms("Between two heartbeats to the group.", "3000", 1)
    ] = 2_000
    rebalance_timeout_ms: Annotated[
        int, _ms("Longest time a worker may take to rejoin.", None, 1)
    ] = 60_000
    scheduled_rebalance_max_delay_ms: Annotated[
        int, _ms("How long the work of a lost worker waits for it to come back.", "300000")
    ] = 3_000
    worker_sync_timeout_ms: Annotated[
        int, _ms("Longest time to catch up with the config topic.")
    ] = 3_000
    worker_unsync_backoff_ms: Annotated[int, _ms("Pause after failing to catch up.")] = 300_000
    connect_protocol: Annotated[
        str,
        Option(
            _STRING,
            "Version of the group protocol.",
            choices=("eager", "compatible", "sessioned"),
            any_case=True,
        ),
    ] = "sessioned"
    exactly_once_source_support: Annotated[
        str,
        Option(
            _STRING,
            "enabled: records and their source offsets are written in one transaction. Roll all workers of a "
            "group to preparing first: the leader writes the config topic in transactions.",
            choices=("disabled", "preparing", "enabled"),
            any_case=True,
        ),
    ] = "disabled"
    topic_creation_enable: Annotated[
        bool, Option(JavaType.BOOLEAN, "Let connectors' topic.creation.* rules count.", part=5)
    ] = True
    request_timeout_ms: Annotated[int, _ms("Longest wait of the worker for one answer.")] = 40_000
    topic_tracking_enable: Annotated[
        bool, Option(JavaType.BOOLEAN, "Remember which topics a connector writes to.")
    ] = True
    topic_tracking_allow_reset: Annotated[
        bool, Option(JavaType.BOOLEAN, "Let the remembered topics be forgotten over REST.")
    ] = True
    connector_client_config_override_policy: Annotated[
        str,
        Option(
            _STRING,
            "Client properties that connector configs may set by producer.override. and the like: "
            "All, None, Principal or Allowlist.",
        ),
    ] = "All"
    connector_client_config_override_allowlist: Annotated[
        tuple[str, ...],
        Option(JavaType.LIST, "Client properties that the policy Allowlist allows."),
    ] = ()
    inter_worker_key_ttl_ms: Annotated[int, _ms("Life of the session key.")] = 3_600_000
    inter_worker_key_generation_algorithm: Annotated[
        str, Option(_STRING, "Algorithm of the session key.", importance="low")
    ] = "HmacSHA256"
    inter_worker_signature_algorithm: Annotated[
        str, Option(_STRING, "Algorithm of the signatures.", importance="low")
    ] = "HmacSHA256"
    inter_worker_verification_algorithms: Annotated[
        tuple[str, ...],
        Option(JavaType.LIST, "Algorithms that signatures may have.", importance="low"),
    ] = ("HmacSHA256",)


DEDICATED_DEFAULTS: Final = {
    name: (info.default, info.option.java_default)
    for name, info in options_of(WorkerConfig).items()
    if info.option.java_default is not None
}
"""Property to (our default, Java's): where our dedicated mode differs from Java's."""
