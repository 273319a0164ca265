"""Typed reading of Java client properties, by the table that says what they are.

Flow: effective client properties -> ``PropertyReader`` -> numbers and texts for ``clients`` and
``security``. Every refusal names whose property it is.
"""

from collections.abc import Mapping
from typing import final

from mm2py.config.client_table import CLIENT_TABLE, ClientProperty
from mm2py.config.java_values import JavaValue, parse_value
from mm2py.errors import ConfigError

__all__ = ["PropertyReader", "checked_value"]


@final
class PropertyReader:
    """The properties of one client; ``scope`` says whose they are in messages."""

    def __init__(self, props: Mapping[str, str], scope: str = "") -> None:
        self._props, self._scope = props, scope

    def place(self, text: str) -> str:
        """Put the scope in front of a message."""
        return f"{self._scope}: {text}" if self._scope else text

    def wrong(self, name: str, problem: str, remedy: str = "") -> ConfigError:
        """Return the error for a property; never quotes its value."""
        return ConfigError(self.place(f"{name} {problem}"), remedy=remedy or f"correct {name}")

    def number(self, name: str, absent: int) -> int:
        """Return a whole number."""
        value = self._value(name)
        return absent if value is None else int(value)

    def fraction(self, name: str, absent: float) -> float:
        """Return a number."""
        value = self._value(name)
        return absent if value is None else float(value)

    def flag(self, name: str, *, absent: bool) -> bool:
        """Return a truth value."""
        value = self._value(name)
        return absent if value is None else bool(value)

    def text(self, name: str, absent: str) -> str:
        """Return a word in lower case."""
        value = self._value(name)
        return absent if value is None else str(value).strip().lower()

    def raw(self, name: str) -> str | None:
        """Return the text as ``ConfigDef`` reads it, without blanks around it; None where it is absent."""
        text = self._props.get(name)
        return None if text is None else text.strip()

    def plain(self, name: str) -> str:
        """Return the text without blanks around it, empty where it is absent."""
        return self._props.get(name, "").strip()

    def _value(self, name: str) -> int | float | str | None:
        text = self._props.get(name)
        if text is None:
            return None
        try:
            value = checked_value(CLIENT_TABLE[name], text)
        except ConfigError as error:
            raise ConfigError(
                self.place(f"{name}={text}: {error.message}"), remedy=f"correct {name}"
            ) from None
        assert value is not None
        assert not isinstance(value, tuple)
        return value


def checked_value(entry: ClientProperty, text: str) -> JavaValue:
    """Parse a value and check it against its bounds and choices.

    Raises:
        ConfigError: it does not fit; the message does not name the property.
    """
    value = parse_value(entry.type, text)
    if isinstance(value, int) and not isinstance(value, bool):
        if entry.low is not None and value < entry.low:
            raise ConfigError(f"must be at least {entry.low}")
        if entry.high is not None and value > entry.high:
            raise ConfigError(f"must be at most {entry.high}")
    known = [choice.lower() for choice in entry.choices]
    if known and str(value).strip().lower() not in known:
        raise ConfigError(f"must be one of {', '.join(entry.choices)}")
    return value
