"""The jars of Spark's own Kafka connector: committed list -> the user's jar cache, every hash checked.

They are those of the newest connector that is published for this Spark's Scala; Spark itself brings the codecs.
"""

import os
from pathlib import Path
from typing import Final

from tests.kit.kafka.jars import Jar, cache_dir, fetch

CONNECTOR_VERSION: Final = "4.2.0"
_JARS: Final = {
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTOR_VERSION}": "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705",
    f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{CONNECTOR_VERSION}": "641c7947afc8aa1189e433b7c2d305293993c8691bc1c2062d6d4f513b12518c",
    "org.apache.kafka:kafka-clients:3.9.2": "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8",
    "org.apache.commons:commons-pool2:2.13.1": "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f",
}


def fetch_connector() -> list[Path]:
    """Return the jars, fetching what the cache lacks.

    Raises:
        RetriableError: the repository cannot be reached.
        ConfigError: a jar is not the one of the list.
    """
    jars = [Jar(coordinate, digest) for coordinate, digest in _JARS.items()]
    return fetch(jars, cache_dir() / "jars", os.environ.get("MM2PY_MAVEN_URL", ""))
