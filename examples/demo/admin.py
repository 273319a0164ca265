"""Creation of topics for the demo's producers, by confluent-kafka."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final, cast

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

TIMEOUT_S: Final = 30.0


def create_topics(bootstrap: str, topics: Sequence[NewTopic]) -> None:
    """Create topics; those that exist are left as they are.

    Raises:
        KafkaException: one could not be created.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})
    creating = cast(
        "dict[str, Future[None]]",
        admin.create_topics(list(topics)),  # pyright: ignore[reportUnknownMemberType] - its Future has no parameter
    )
    for future in creating.values():
        try:
            future.result(timeout=TIMEOUT_S)
        except KafkaException as error:
            cause: object = error.args[0]
            if not isinstance(cause, KafkaError) or cause.name() != "TOPIC_ALREADY_EXISTS":
                raise
