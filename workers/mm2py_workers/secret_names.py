"""Which properties hold secrets: what logs and listings must mask.

Flow: key of a properties file, with or without its scope -> ``names_a_secret``. The values are
collected by ``connect_mirror_maker`` and hidden by ``config_commands``.
"""

from typing import Final

from mm2py.config.client_table import CLIENT_TABLE
from mm2py.config.java_values import JavaType

__all__ = ["names_a_secret"]

_WORDS: Final = ("password", "passphrase", "secret", "jaas", "keystore.key")


def names_a_secret(key: str) -> bool:
    """Tell whether the value behind a key must not be shown."""
    name = key.rpartition("consumer.")[2].rpartition("producer.")[2].rpartition("admin.")[2]
    entry = CLIENT_TABLE.get(name)
    if entry is not None and entry.type is JavaType.PASSWORD:
        return True
    return any(word in key.lower() for word in _WORDS)
