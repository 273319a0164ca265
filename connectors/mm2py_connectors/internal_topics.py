"""Creates MirrorMaker's own compacted topics as Java does (``MirrorUtils.createCompactedTopic``).

Flow: name, replication factor -> created, or assumed to exist where it exists or may not be
created.
"""

import logging
from typing import Final

from mm2py.config.client_properties import Side
from mm2py.errors import (
    FatalError,
    Mm2pyError,
    RetriableError,
    ServerError,
    UnsupportedVersionError,
)
from mm2py.protocol import error_codes as codes
from mm2py.protocol.topics import NewTopic
from mm2py_connectors.clients import MirrorAdmin

log = logging.getLogger(__name__)

_ASSUMED_TO_EXIST: Final = frozenset(
    {
        codes.TOPIC_ALREADY_EXISTS,
        codes.UNSUPPORTED_VERSION,
        codes.TOPIC_AUTHORIZATION_FAILED,
        codes.CLUSTER_AUTHORIZATION_FAILED,
    }
)


COLLISION: Final = (
    "names that differ in dots and underscores alone exclude each other: delete that topic"
)
OTHER_TOPIC: Final = (
    f"{COLLISION} there if no client needs it, or exclude this one (topics.exclude)"
)
FORMER_SEPARATOR: Final = (
    " if it is of a former replication.policy.separator and no client "
    "reads it, or set the separator back"
)


def collides(error: ServerError) -> bool:
    """Whether a broker refuses a name for another one whose metrics would have the same
    (``Topic.hasCollision``)."""
    return error.code == codes.INVALID_TOPIC_EXCEPTION and "collides with" in error.message


async def create_compacted_topic(
    admin: MirrorAdmin,
    topic: str,
    *,
    replication_factor: int,
    factor_property: str,
    side: Side,
    alias: str,
) -> Mm2pyError | None:
    """Create ``topic`` with one partition; the refusal where the cluster does not let us know
    whether it exists. The alias may be empty, as in Java.

    Raises:
        FatalError: The cluster refuses it; names ``factor_property`` where that is the cause.
        RetriableError: The cluster cannot do it now.
    """
    cluster = f"{side} {alias}".rstrip()
    new_topic = NewTopic(topic, 1, replication_factor, {"cleanup.policy": "compact"})
    try:
        error = (await admin.create_topics([new_topic])).get(topic)
    except UnsupportedVersionError as too_old:
        return too_old
    if error is None:
        log.info(
            "internal topic created topic=%s replication_factor=%d cluster=%s",
            topic,
            replication_factor,
            cluster,
        )
    elif error.code in _ASSUMED_TO_EXIST:
        log.debug("internal topic assumed to exist topic=%s: %s", topic, error)
        return None if error.code == codes.TOPIC_ALREADY_EXISTS else error
    elif isinstance(error, RetriableError):
        raise error
    else:
        remedy = "create it by hand with one partition and cleanup.policy=compact"
        if error.code == codes.INVALID_REPLICATION_FACTOR:
            remedy = (
                f"set {factor_property} (now {replication_factor}) to at most the number of brokers"
                f" of {cluster}"
            )
        elif collides(error):
            remedy = (
                f"{COLLISION}{FORMER_SEPARATOR}, or keep dots in internal names: "
                "replication.policy.internal.topic.separator.enabled=false"
            )
        raise FatalError(
            f"topic {topic} cannot be created on {cluster}: {error.message}", remedy=remedy
        ) from error
    return None


def no_offset_syncs(topic: str, error: Exception, side: Side) -> str:
    """Return what is wrong with a topic of offset syncs that cannot be written, and the remedy."""
    elsewhere = "; or set offset-syncs.topic.location=target" if side == "source" else ""
    return (
        f"topic {topic} of the {side} cannot be written, a Java MirrorMaker 2 that takes over "
        f"translates no group by it: {error}{elsewhere}"
    )
