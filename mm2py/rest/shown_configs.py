"""Which configs show their secrets, and to whom.

Flow: stored config -> what this caller sees; a config that carries ``[hidden]`` -> the same with the
stored text. An ordinary worker shows operators what was put (Terraform and kcctl read it back); every
other answer hides what is typed PASSWORD or named like a secret.
"""

from mm2py.observability.logging import HIDDEN
from mm2py.rest.parts import Call, caller_of
from mm2py.runtime.errors import BadRequestError, NotFoundError
from mm2py.storage.config_state import ConnectorConfig


def shown(call: Call, config: ConnectorConfig) -> dict[str, str | None]:
    """Return ``config`` as whoever calls may see it."""
    if not call.parts.dedicated and caller_of(call.request).operator:
        return dict(config)
    typed = _password_keys(call, config)
    return {key: _shown(call, key, value, typed) for key, value in config.items()}


def _shown(call: Call, key: str, value: str | None, typed: frozenset[str]) -> str | None:
    if not value:
        return value
    return (
        HIDDEN if key in typed or call.parts.names_a_secret(key) else call.parts.mask.apply(value)
    )


def _password_keys(call: Call, config: ConnectorConfig) -> frozenset[str]:
    plugin = config.get("connector.class")
    if not plugin:
        return frozenset()
    try:
        definitions = call.parts.catalog.definitions(plugin)
    except NotFoundError:
        return frozenset()
    return frozenset(key.name for key in definitions if key.type == "PASSWORD")


def restored(call: Call, config: ConnectorConfig, stored: ConnectorConfig) -> dict[str, str | None]:
    """Return ``config`` with the stored texts in place of what ``shown`` hides.

    Raises:
        BadRequestError: ``[hidden]`` where nothing hidden is stored.
    """
    if not call.parts.dedicated:
        return dict(config)
    seen = shown(call, stored)
    return {key: _restored(key, value, stored, seen) for key, value in config.items()}


def _restored(
    key: str, value: str | None, stored: ConnectorConfig, seen: ConnectorConfig
) -> str | None:
    if value is None or HIDDEN not in value:
        return value
    if stored.get(key) is None or value not in {HIDDEN, seen[key]}:
        raise BadRequestError(
            f"Configuration {key} holds {HIDDEN}, which stands for a stored secret, but no such secret"
            " is stored under this key"
        )
    return stored[key]
