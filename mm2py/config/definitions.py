"""Base of all config models: Java property name, type, default, range and text of every option.

Flow: property texts -> Java's parsing rules (``ConfigDef.parseType``) -> one frozen pydantic model.
A field's Java name is its Python name with ``_`` as ``.``; docs/config.md and lint are made from the
same declarations. Nothing here knows a connector.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TypeVar, cast

from pydantic import BaseModel, ConfigDict

from mm2py.config.java_values import JavaType, JavaValue, parse_value
from mm2py.errors import ConfigError

__all__ = [
    "ConfigModel",
    "ConnectorDefinition",
    "Option",
    "OptionInfo",
    "Problem",
    "check_config",
    "options_of",
    "parse_config",
    "property_name",
]


@dataclass(frozen=True, slots=True)
class Option:
    """What pydantic does not know of a field; stands in its ``Annotated`` type.

    ``low`` and ``high`` bound numbers, ``choices`` texts (compared in lower case if ``any_case``).
    ``java_default`` is given where Java's default differs from ours. ``part`` is the part of the
    product that brings the behaviour behind the option; 1 means it works now.
    """

    type: JavaType
    doc: str
    low: int | None = None
    high: int | None = None
    forbidden: tuple[int, ...] = ()
    choices: tuple[str, ...] = ()
    any_case: bool = False
    unit: str = ""
    group: str = "common"
    importance: str = "medium"
    java_default: str | None = None
    ours: bool = False
    part: int = 1


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """One option of a model, for docs, lint and ``/config/validate``."""

    name: str
    field: str
    option: Option
    required: bool
    default: str


@dataclass(frozen=True, slots=True)
class Problem:
    """A value that a model refuses."""

    name: str
    value: str | None
    message: str
    remedy: str = ""


class ConfigModel(BaseModel):
    """A frozen config object; built by ``parse_config`` from property texts."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=False)

    @classmethod
    def cross_check(cls, props: Mapping[str, str]) -> list[Problem]:
        """Return what is wrong between options; called with raw texts, after each was checked."""
        del props
        return []


@dataclass(frozen=True, slots=True)
class ConnectorDefinition:
    """How a connector of the dedicated mode is named and which options it has."""

    name: str
    java_class: str
    model: type[ConfigModel]
    extra_names: tuple[str, ...] = field(default=())
    """Property names read by its plug-ins; valid with a flow prefix, not at top level."""


ModelT = TypeVar("ModelT", bound=ConfigModel)


def property_name(field_name: str) -> str:
    """Return the Java property name of a model field."""
    return field_name.replace("offset_syncs", "offset-syncs").replace("_", ".")


@cache
def options_of(model: type[ConfigModel]) -> Mapping[str, OptionInfo]:
    """Return the options of a model by property name, in declaration order."""
    found: dict[str, OptionInfo] = {}
    for name, info in model.model_fields.items():
        option = next((m for m in info.metadata if isinstance(m, Option)), None)
        if option is None:
            continue
        required = info.is_required()
        prop = property_name(name)
        found[prop] = OptionInfo(
            prop, name, option, required, "" if required else _default_text(info.default)
        )
    return found


def check_config(model: type[ConfigModel], props: Mapping[str, str]) -> list[Problem]:
    """Return every problem of ``props``; unknown keys are not problems, as in Java."""
    problems = [p for info in options_of(model).values() for p in _parse(info, props)[1]]
    return problems or model.cross_check(props)


def parse_config(
    model: type[ModelT],
    props: Mapping[str, str],
    origin: Callable[[str], str] | None = None,
) -> ModelT:
    """Build the model from property texts.

    ``origin`` names the place of a property (``mm2.properties:12``) for error messages.

    Raises:
        ConfigError: a value has the wrong type, is out of range, or is missing.
    """
    values: dict[str, JavaValue] = {}
    for info in options_of(model).values():
        value, problems = _parse(info, props)
        for problem in problems:
            raise _error(problem, origin)
        if info.name in props:
            values[info.field] = value
    for problem in model.cross_check(props):
        raise _error(problem, origin)
    return model.model_validate(values)


def _error(problem: Problem, origin: Callable[[str], str] | None) -> ConfigError:
    place = origin(problem.name) if origin is not None else ""
    shown = problem.name if problem.value is None else f"{problem.name}={problem.value}"
    text = f"{shown}: {problem.message}"
    return ConfigError(f"{place}: {text}" if place else text, remedy=problem.remedy)


def _parse(info: OptionInfo, props: Mapping[str, str]) -> tuple[JavaValue, list[Problem]]:
    text = props.get(info.name)
    if text is None:
        if not info.required:
            return None, []
        return None, [Problem(info.name, None, "is missing", f"set {info.name}")]
    shown = "********" if info.option.type is JavaType.PASSWORD else text
    try:
        value = parse_value(info.option.type, text)
    except ConfigError as error:
        return None, [Problem(info.name, shown, error.message, error.remedy)]
    refusal = _out_of_range(info.option, value)
    return value, [Problem(info.name, shown, refusal)] if refusal else []


def _out_of_range(option: Option, value: JavaValue) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if option.low is not None and value < option.low:
            return f"must be at least {option.low}{option.unit and ' ' + option.unit}"
        if option.high is not None and value > option.high:
            return f"must be at most {option.high}{option.unit and ' ' + option.unit}"
        if value in option.forbidden:
            return f"must not be {value}"
    if option.choices:
        for item in value if isinstance(value, tuple) else (value,):
            text = str(item)
            if (text.lower() if option.any_case else text) not in option.choices:
                return f"must be one of {', '.join(option.choices)}"
    return ""


def _default_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(str(item) for item in cast("tuple[object, ...]", value))
    return "" if value is None else str(value)
