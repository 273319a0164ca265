"""How Connect describes the keys of a config, and what it says of each value.

Flow: definitions and a config -> ``ConfigInfos`` -> the answer of validate, or the text of a refusal.
Words (types, importance, width) are Java's.
"""

from dataclasses import dataclass

__all__ = ["ConfigInfos", "ConfigKey", "ConfigValue"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """Definition of one key (Java's ``ConfigKeyInfo``)."""

    name: str
    type: str
    required: bool
    default_value: str | None
    importance: str
    documentation: str
    group: str | None
    order_in_group: int
    width: str
    display_name: str
    dependents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """What one key holds and what is wrong with it (Java's ``ConfigValueInfo``)."""

    name: str
    value: str | None
    recommended_values: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    visible: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigInfos:
    """Outcome of a validation (Java's class of the same name)."""

    name: str
    error_count: int
    groups: tuple[str, ...]
    configs: tuple[tuple[ConfigKey | None, ConfigValue | None], ...]

    def errors(self) -> list[str]:
        """Return all errors, in the order of the keys."""
        return [e for _, value in self.configs if value is not None for e in value.errors]

    def refusal(self) -> str | None:
        """Return the text that refuses the config, None where nothing is wrong.

        ``{connectorType}`` stands literally in it, as in Java.
        """
        if self.error_count == 0:
            return None
        lines = [
            "Connector configuration is invalid and contains the following"
            f" {self.error_count} error(s):",
            *self.errors(),
            "You can also find the above list of errors at the endpoint"
            " `/connector-plugins/{connectorType}/config/validate`",
        ]
        return "\n".join(lines)
