"""Names of properties that hold secrets, which logs, responses and listings must mask.

Flow: key, with or without the prefix of a client -> ``names_a_secret``; config -> ``secrets_in``,
the texts to mask. A key is checked by its words: ``api.key`` is a secret, ``key.converter`` and
``token.endpoint.url`` are none.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from mm2py.config.client_options import CLIENT_OPTIONS
from mm2py.config.jaas import jaas_secrets
from mm2py.config.java_values import JavaType

_CLIENT: Final = re.compile(r".*(?:consumer|producer|admin|override)\.", re.DOTALL)
_ANYWHERE: Final = ("password", "passphrase", "secret", "jaas", "keystore.key")
_WORD: Final = re.compile(
    r"(?:^|[._-])"
    r"(?:tokens?|credentials?|authorization|pem|passwd|pwd|bearer|apikey|user\.info"
    r"|(?:api|access|private|shared|account|sas|signing|encryption|license)[._-]?key)"
    r"(?=$|[._-])"
)
_MISSPELLED: Final = re.compile(
    r"(?:^|[._-])(?:pas+(?=w|o?w?r|$|[._-])|pw(?=$|[._-])|jas+(?=$|[._-])|sec(?:r|ert))"
)
"""Keys that have no effect, and a secret as their value all the same."""
_JAAS_LINE: Final = re.compile(r"LoginModule\b|\b(?:password|clientSecret)\s*=")
_ABOUT: Final = frozenset((
    "algorithm", "claim", "class", "converter", "enable", "enabled", "endpoint", "endpoints",
    "expiry", "file", "format", "header", "id", "interval", "issuer", "lifetime", "location",
    "max", "min", "mode", "ms", "name", "path", "provider", "refresh", "retriever", "scope",
    "seconds", "size", "source", "timeout", "ttl", "type", "uri", "url", "urls", "validator",
))  # fmt: skip
"""Last words of a key that describes a secret and holds none."""


@lru_cache(maxsize=10_000)  # asked for each key of each flow whenever flows are shown
def names_a_secret(key: str) -> bool:
    """Return whether the value of a key must be hidden."""
    lower = key.lower()
    entry = CLIENT_OPTIONS.get(_CLIENT.sub("", key, count=1))
    if entry is not None and entry.type is JavaType.PASSWORD:
        return True
    # Before the endings: ``password.file`` is hidden too, better once too often.
    if any(word in lower for word in _ANYWHERE) or _MISSPELLED.search(lower):
        return True
    if re.split(r"[._-]", lower)[-1] in _ABOUT:
        return False
    return _WORD.search(lower) is not None


def holds_a_secret(key: str, text: str) -> bool:
    """Return whether a property must be hidden, for its key or for what looks like a line of JAAS
    under another one."""
    return names_a_secret(key) or _JAAS_LINE.search(text) is not None


def secrets_in(*configs: Mapping[str, str]) -> frozenset[str]:
    """Return the texts of resolved configs that must not be shown, those inside JAAS texts too."""
    named = {
        text for config in configs for key, text in config.items() if holds_a_secret(key, text)
    }
    return frozenset(named).union(*map(jaas_secrets, named))
