"""Client properties that a connector config may set (``connector.client.config.override.policy``).

Flow: worker property -> ``override_policy`` -> ``refusal`` of one property.
"""

from dataclasses import dataclass
from typing import Final

from mm2py.errors import ConfigError

_PRINCIPAL: Final = frozenset({"security.protocol", "sasl.jaas.config", "sasl.mechanism"})
_ENDING: Final = "ConnectorClientConfigOverridePolicy"


@dataclass(frozen=True, slots=True)
class OverridePolicy:
    """Properties that may be overridden; ``allowed`` None allows everything."""

    name: str
    allowed: frozenset[str] | None

    def refusal(self, name: str) -> str:
        """Return why a client property (without prefix) may not be set, empty where it may."""
        if self.allowed is None or name in self.allowed:
            return ""
        return (
            f"The '{self.name}' policy does not allow '{name}' to be overridden in the connector"
            " configuration."
        )


ALL_OVERRIDES: Final = OverridePolicy("All", None)
"""Java's default since 3.0."""


def override_policy(name: str, allowlist: tuple[str, ...] = ()) -> OverridePolicy:
    """Return the policy of a worker; ``name`` is the property's text, a short name or Java's class.
    ``ConfigError``: there is no such policy."""
    simple = name.strip().rpartition(".")[2].removesuffix(_ENDING)
    allowed: dict[str, frozenset[str] | None] = {
        "All": None,
        "None": frozenset(),
        "Principal": _PRINCIPAL,
        "Allowlist": frozenset(allowlist),
    }
    if simple not in allowed:
        raise ConfigError(
            f"connector.client.config.override.policy={name}: no such policy",
            remedy=f"use one of {', '.join(allowed)}",
        )
    return OverridePolicy(simple, allowed[simple])
