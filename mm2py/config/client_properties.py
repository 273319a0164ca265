"""Client properties of each client of a flow: Java's prefixes and precedence.

Flow: connector or worker config (texts) -> effective properties of one client -> ``clients``.
``MirrorConnectorConfig.sourceConsumerConfig`` and its five siblings, ``Worker.baseProducerConfigs``
and the client.id rule live here; nothing is parsed.
"""

from collections.abc import Mapping
from typing import Final, Literal, TypeVar

from mm2py.config.client_options import CLIENT_KEYS

Side = Literal["source", "target"]
ClientKind = Literal["consumer", "producer", "admin"]

_LONG_MAX: Final = str((1 << 63) - 1)
_INT_MAX: Final = str((1 << 31) - 1)
_ValueT = TypeVar("_ValueT")


def with_prefix(props: Mapping[str, _ValueT], prefix: str) -> dict[str, _ValueT]:
    """Return the properties under ``prefix``, without it."""
    return {
        key[len(prefix) :]: value
        for key, value in props.items()
        if key.startswith(prefix) and len(key) > len(prefix)
    }


def effective_client_properties(
    config: Mapping[str, str],
    side: Side,
    kind: ClientKind,
    *,
    role: str = "",
    task_index: int | None = None,
) -> dict[str, str]:
    """Return what one client of a connector is given, as ``MirrorConnectorConfig`` derives it.

    ``config`` is a connector or task config with its placeholders resolved. With ``role`` the
    client.id rule is applied too. Keys that no client knows may be among the result
    (``consumer.poll.timeout.ms`` becomes ``poll.timeout.ms``), as in Java.
    """
    cluster = with_prefix(config, f"{side}.cluster.")
    props = {key: cluster[key] for key in CLIENT_KEYS if key in cluster}
    props |= _without_overrides(with_prefix(config, f"{kind}."))
    props |= with_prefix(config, f"{side}.{kind}.")
    if kind == "consumer":
        props["enable.auto.commit"] = "false"
        props.setdefault("auto.offset.reset", "earliest")
    if role:
        props["client.id"] = client_id(config, role, task_index, user=props.get("client.id", ""))
    return props


def client_id(
    config: Mapping[str, str], role: str, task_index: int | None = None, *, user: str = ""
) -> str:
    """Return the client.id of a client, for example ``A->B|MirrorSourceConnector-0|role``.

    ``user`` is the client.id that the user set for this client; Java puts it in front.
    """
    source = config.get("source.cluster.alias", "")
    target = config.get("target.cluster.alias", "target")
    name = config.get("name", "") + ("" if task_index is None else f"-{task_index}")
    label = f"{source}->{target}|{name}|{role}"
    return f"{user}|{label}" if user else label


def framework_producer_properties(
    worker_config: Mapping[str, str], connector_config: Mapping[str, str], *, task_index: int = 0
) -> dict[str, str]:
    """Return what the producer of replicated records is given.

    A fixed base, then the worker's ``producer.*`` (``B.producer.*`` in the file), then the
    connector's ``producer.override.*``. Java's base switches idempotence off and sends one request
    at a time; ours is always idempotent, so these two are not in the base.
    """
    props = {
        "max.block.ms": _LONG_MAX,
        "delivery.timeout.ms": _INT_MAX,
        "acks": "all",
        "client.id": f"connector-producer-{connector_config.get('name', '')}-{task_index}",
    }
    return (
        props
        | _worker_client(worker_config, "producer")
        | with_prefix(connector_config, "producer.override.")
    )


def sink_consumer_properties(
    worker_config: Mapping[str, str],
    connector_config: Mapping[str, str],
    *,
    task_index: int = 0,
    source: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return what the consumer of a sink task is given (``Worker.baseConsumerConfigs``).

    A fixed base, then the worker's ``consumer.*``, then the connector's ``consumer.override.*``.
    ``source`` takes the place of the worker's where the connector reads another cluster.
    """
    name = connector_config.get("name", "")
    props = {
        "group.id": f"connect-{name}",
        "auto.offset.reset": "earliest",
        "client.id": f"connector-consumer-{name}-{task_index}",
    }
    props |= _worker_client(worker_config, "consumer") if source is None else source
    props |= with_prefix(connector_config, "consumer.override.")
    return props | {"enable.auto.commit": "false"}


def _worker_client(worker_config: Mapping[str, str], kind: ClientKind) -> dict[str, str]:
    props = {key: worker_config[key] for key in ("bootstrap.servers",) if key in worker_config}
    props |= with_prefix(worker_config, f"{kind}.")
    return _without_overrides(props)


def _without_overrides(props: Mapping[str, str]) -> dict[str, str]:
    """Leave out what ``producer.override.x`` became: it is of the clients of the framework."""
    return {key: value for key, value in props.items() if not key.startswith("override.")}
