"""Options of a process and its workers: what the process reads once, its REST server, and each
flow's worker.

Flow: top-level texts -> ``ProcessConfig``, ``RestOptions``;
``MirrorMakerConfig.worker_config(flow)`` or ``worker.properties`` ->
``parse_config(WorkerConfig, ...)``. In a mirror maker file the worker's options are under the
target's alias (``B.offset.flush.interval.ms``), because a flow's worker belongs to its target
cluster.
"""

from collections.abc import Mapping
from typing import Annotated, Final

from mm2py.config.class_names import BYTE_ARRAY_CONVERTER
from mm2py.config.definitions import ConfigModel, Effect, Option, Problem, options_of
from mm2py.config.java_values import JavaType

DEFAULT_PORT: Final = 8083
MAX_PORT: Final = 65_535

_BOOLEAN, _STRING, _LONG, _INT = JavaType.BOOLEAN, JavaType.STRING, JavaType.LONG, JavaType.INT
_SHORT, _CLASS, _LIST = JavaType.SHORT, JavaType.CLASS, JavaType.LIST


def _ms(doc: str, java_default: str | None = None, low: int = 0) -> Option:
    return Option(_INT, doc, low=low, unit="ms", java_default=java_default)


def _topic(what: str) -> Option:
    return Option(_STRING, f"Topic on the target that holds {what}.")


def _count(doc: str, kind: JavaType = _INT) -> Option:
    return Option(kind, doc, low=-1, forbidden=(0,))


def _storage(what: str) -> Option:
    doc = f"Replication factor of the {what} topic; -1 takes the target broker's default."
    return _count(doc, _SHORT)


def _default_converter(role: str) -> Option:
    return Option(
        _CLASS,
        f"Converts {role}s of records, not of whole batches, unless a connector has its own.",
    )


class ProcessConfig(ConfigModel):
    """Options that are read once per process (Java's ``MirrorMakerConfig``, and ours)."""

    clusters: Annotated[tuple[str, ...], Option(_LIST, "Aliases of the clusters.")] = ()
    dedicated_mode_enable_internal_rest: Annotated[bool, Option(
        _BOOLEAN, "Workers of one file always use internal.listener.", effect=Effect.WITHOUT_EFFECT,
    )] = False  # fmt: skip
    task_host_processes: Annotated[int | None, Option(
        _INT, "Most child processes that run tasks, started on demand; default: one per core. 0 "
        "runs tasks in the worker.",
        low=0, high=1_000, ours=True,
    )] = None  # fmt: skip
    config_providers: Annotated[tuple[str, ...], Option(
        _LIST, "Names of config providers for `${name:...}`, each with "
        "`config.providers.<name>.class` and `.param.<key>`:"
        " Java's FileConfigProvider, EnvVarConfigProvider, DirectoryConfigProvider.",
    )] = ()  # fmt: skip


class RestOptions(ConfigModel):
    """The REST keys of a worker (Java's ``RestServerConfig`` and ours)."""

    listeners: Annotated[tuple[str, ...], Option(
        _LIST, "Addresses of the public REST API, http or https.", java_default="http://:8083",
    )] = (f"http://127.0.0.1:{DEFAULT_PORT}",)  # fmt: skip
    internal_listener: Annotated[str, Option(
        _STRING, "Address for other workers, signed requests only; not set: a free port of the "
        "advertised address.",
        ours=True,
    )] = "http://:0"  # fmt: skip
    admin_listeners: Annotated[
        tuple[str, ...] | None,
        Option(_LIST, "Empty: no /admin endpoints. Addresses are not supported."),
    ] = None
    rest_advertised_host_name: Annotated[
        str, Option(_STRING, "Host name that other workers use.")
    ] = ""
    rest_advertised_port: Annotated[
        int | None, Option(_INT, "Port that other workers use.", low=0, high=MAX_PORT)
    ] = None
    rest_advertised_listener: Annotated[str, Option(
        _STRING, "Listener that other workers use.", choices=("", "http", "https"), any_case=True,
    )] = ""  # fmt: skip
    rest_extension_classes: Annotated[
        tuple[str, ...], Option(_LIST, "Java's basic authentication; others are refused.")
    ] = ()
    rest_basic_auth_file: Annotated[
        str, Option(_STRING, "File with user=password per line.", ours=True)
    ] = ""
    rest_bearer_tokens_file: Annotated[
        str, Option(_STRING, "File with name=token per line.", ours=True)
    ] = ""
    rest_read_only_users: Annotated[
        tuple[str, ...], Option(_LIST, "Users, token names and CNs that may only read.", ours=True)
    ] = ()
    rest_max_body_bytes: Annotated[int, Option(
        _INT, "Longest request body.", low=1, unit="bytes", ours=True,
    )] = 1_048_576  # fmt: skip
    rest_config_providers_allow: Annotated[
        tuple[str, ...],
        Option(_LIST, "Config providers that configs over REST may use.", ours=True),
    ] = ()
    rest_spark_masters: Annotated[tuple[str, ...], Option(
        _LIST, "Spark masters beside local ones that a backfill over REST may use; tasks get the "
        "flow's credentials.",
        ours=True,
    )] = ()  # fmt: skip
    rest_insecure: Annotated[
        bool, Option(_BOOLEAN, "Serve other machines without authentication.", ours=True)
    ] = False
    access_control_allow_origin: Annotated[
        str, Option(_STRING, "Origins, or *, whose pages may use the API; empty: none.")
    ] = ""
    access_control_allow_methods: Annotated[
        str, Option(_STRING, "Methods allowed to them; empty: POST,HEAD,GET.")
    ] = ""
    response_http_headers_config: Annotated[
        str, Option(_STRING, "Headers of every answer: [set|add|setDate|addDate] name:value, …")
    ] = ""
    ssl_client_auth: Annotated[str, Option(
        _STRING, "Client certificates of https listeners; empty: none.",
        choices=("", "none", "requested", "required"), any_case=True,
    )] = "none"  # fmt: skip


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
        return self.exactly_once_source_support == "enabled"

    @property
    def leader_writes_in_transactions(self) -> bool:
        """Whether the leader writes transactions (``preparing`` and ``enabled``)."""
        return self.exactly_once_source_support != "disabled"

    bootstrap_servers: Annotated[tuple[str, ...], Option(_LIST, "Brokers of the target.")]
    client_id: Annotated[str, Option(_STRING, "Put into client ids of the worker.")] = ""
    group_id: Annotated[str, Option(_STRING, "Group that the workers of a flow join.")]
    config_storage_topic: Annotated[str, _topic("connector and task configs")]
    offset_storage_topic: Annotated[str, _topic("source offsets")]
    status_storage_topic: Annotated[str, _topic("states")]
    config_storage_replication_factor: Annotated[int, _storage("config")] = 3
    offset_storage_replication_factor: Annotated[int, _storage("offset")] = 3
    status_storage_replication_factor: Annotated[int, _storage("status")] = 3
    offset_storage_partitions: Annotated[int, _count("Partitions of the offset topic.")] = 25
    status_storage_partitions: Annotated[int, _count("Partitions of the status topic.")] = 5
    key_converter: Annotated[str, _default_converter("key")] = BYTE_ARRAY_CONVERTER
    value_converter: Annotated[str, _default_converter("value")] = BYTE_ARRAY_CONVERTER
    header_converter: Annotated[str, _default_converter("header")] = BYTE_ARRAY_CONVERTER
    offset_flush_interval_ms: Annotated[int, Option(
        _LONG, "How often positions are written. Fewer than 100 records wait for up to five "
        "intervals, at most 5 s.",
        low=1, unit="ms", java_default="60000",
    )] = 1_000  # fmt: skip
    offset_flush_timeout_ms: Annotated[
        int, Option(_LONG, "Longest wait for a write of positions.", low=1, unit="ms")
    ] = 5_000
    task_shutdown_graceful_timeout_ms: Annotated[
        int, Option(_LONG, "Longest wait for tasks to stop.", low=0, unit="ms")
    ] = 5_000
    session_timeout_ms: Annotated[
        int, _ms("Silence after which a worker is considered dead.", "10000", 1)
    ] = 6_000
    heartbeat_interval_ms: Annotated[
        int, _ms("Time between two heartbeats to the group.", "3000", 1)
    ] = 2_000
    rebalance_timeout_ms: Annotated[
        int, _ms("Longest time a worker may take to rejoin.", None, 1)
    ] = 60_000
    scheduled_rebalance_max_delay_ms: Annotated[
        int, _ms("How long the work of a lost worker waits for its return.", "300000")
    ] = 3_000
    worker_sync_timeout_ms: Annotated[
        int, _ms("Longest time to catch up with the config topic.")
    ] = 3_000
    worker_unsync_backoff_ms: Annotated[int, Option(
        _INT, "A flow's worker restarts after growing pauses.", low=0, unit="ms",
        effect=Effect.WITHOUT_EFFECT,
    )] = 300_000  # fmt: skip
    connect_protocol: Annotated[str, Option(
        _STRING, "Version of the group protocol.", choices=("eager", "compatible", "sessioned"),
        any_case=True,
    )] = "sessioned"  # fmt: skip
    task_auto_restart: Annotated[bool, Option(
        _BOOLEAN, "Restart failed tasks after growing pauses, unless their connector decides.",
        ours=True,
    )] = True  # fmt: skip
    exactly_once_source_support: Annotated[str, Option(
        _STRING, "enabled writes records and positions in one transaction. Roll all workers to "
        "preparing first.",
        choices=("disabled", "preparing", "enabled"), any_case=True,
    )] = "disabled"  # fmt: skip
    topic_creation_enable: Annotated[
        bool,
        Option(_BOOLEAN, "Workers create no topics for records.", effect=Effect.WITHOUT_EFFECT),
    ] = True
    request_timeout_ms: Annotated[int, _ms("Longest wait for one answer.")] = 40_000
    topic_tracking_enable: Annotated[
        bool, Option(_BOOLEAN, "Remember which topics a connector writes to.")
    ] = True
    topic_tracking_allow_reset: Annotated[
        bool, Option(_BOOLEAN, "Allow a reset of remembered topics over REST.")
    ] = True
    connector_client_config_override_policy: Annotated[str, Option(
        _STRING,
        "Which client overrides connector configs may have: All, None, Principal or Allowlist.",
    )] = "All"  # fmt: skip
    connector_client_config_override_allowlist: Annotated[
        tuple[str, ...], Option(_LIST, "Client properties of the policy Allowlist.")
    ] = ()
    inter_worker_key_ttl_ms: Annotated[int, _ms("Life of the session key.")] = 3_600_000
    inter_worker_key_generation_algorithm: Annotated[
        str, Option(_STRING, "Algorithm of the session key.")
    ] = "HmacSHA256"
    inter_worker_signature_algorithm: Annotated[
        str, Option(_STRING, "Checked only: workers sign with HmacSHA256.")
    ] = "HmacSHA256"
    inter_worker_verification_algorithms: Annotated[
        tuple[str, ...], Option(_LIST, "Checked only, as inter.worker.signature.algorithm.")
    ] = ("HmacSHA256",)


class ConnectWorkerConfig(ConfigModel):
    """Further options of a Connect worker; in the dedicated mode bytes stay bytes."""

    key_converter: Annotated[str, _default_converter("key")]
    value_converter: Annotated[str, _default_converter("value")]
    plugin_path: Annotated[str, Option(
        _STRING, "Connectors are Python packages with an entry point in mm2py.connectors.",
        effect=Effect.WITHOUT_EFFECT,
    )] = ""  # fmt: skip


class StandaloneConfig(ConnectWorkerConfig):
    """Further options of a standalone worker."""

    offset_storage_file_filename: Annotated[
        str, Option(_STRING, "File that holds the source offsets.")
    ]


DEDICATED_DEFAULTS: Final = {
    name: (option.default or "", option.java_default)
    for name, option in options_of(WorkerConfig).items()
    if option.java_default is not None
}
"""Property to (our default, Java's): where our dedicated mode differs from Java's."""
