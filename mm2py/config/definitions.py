"""One declaration per property: ``Option``, and what is derived from it.

A property is declared in one place, with its type, defaults, bounds and text:

* as a field of a ``ConfigModel`` (``name: Annotated[type, Option(...)] = default``) where this
  product reads its value. The Java name is the field's name with ``_`` as ``.``; ``parse_config``
  makes the typed, frozen model once, and the code reads attributes, never texts;
* as a plain ``Option(..., name=...)`` in a table where a property is known but has no value to
  read: client properties without effect (``client_options``).

Everything else is derived from ``options_of`` and these tables: the refusal of a wrong value with
its file line (``parse_config``, ``check_config``), Connect's definitions and answers
(``connect_definitions``), lint (``catalog``), docs/reference/config.md (``reference``). Where the
declarations are:

====================
==========================================================================================
``framework``         what Connect itself reads of every connector, its converters, and the loss policies of tasks
``mirror_options``    what replication policies and filters read
``client_options``    Kafka's client properties
``worker``            the worker, the process, REST
a connector's module its own options, for example ``mm2py_connectors.mirror_source_config``
====================
==========================================================================================

To add a property: one field in the model of what reads it. tests/architecture/test_options.py fails
for a declared property that no code reads, and for code that reads a property which is not
declared.

Flow: property texts -> Java's parsing rules (``ConfigDef.parseType``) -> one frozen pydantic model.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import StrEnum
from functools import cache
from typing import NamedTuple, TypeVar, cast

from pydantic import BaseModel, ConfigDict

from mm2py.config.findings import Severity
from mm2py.config.java_values import JavaType, JavaValue, parse_value
from mm2py.errors import ConfigError

Check = Callable[[str, JavaValue], str]
"""Gets name and value (None: no value), returns Connect's whole error text, empty for none."""


class Effect(StrEnum):
    """How this product treats a property."""

    HONOURED = "honoured"
    WITHOUT_EFFECT = "without effect"
    WARNED = "warned"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Option:
    """The declaration of one property; in a model it is part of the field's ``Annotated`` type.

    Value: ``name``, ``field`` and ``default`` (None: null) are filled in from the field.
    ``java_default`` is given where Java's default differs from ours. ``required``: Connect demands
    it, even where the model has a default. ``low`` and ``high`` bound numbers, ``choices`` texts;
    with ``any_case`` they are compared without case and the value is in lower case. ``nullable``
    False: Connect refuses null for a bounded number. ``checks``: further checks of Connect's
    validation, for a list instead of the ordinary one. ``class_problem`` returns why a class cannot
    be used.

    Effect: ``doc`` describes what it does, or why it has no ``effect``. ``kinds``: the clients that
    have it. ``ours``: Java does not know it.

    Connect's description: ``group``, ``order``, ``width``, ``importance``, ``display``.
    """

    type: JavaType
    doc: str
    _: KW_ONLY
    name: str = ""
    field: str = ""
    default: str | None = None
    java_default: str | None = None
    required: bool = False
    low: float | None = None
    high: float | None = None
    forbidden: tuple[int, ...] = ()
    nullable: bool = True
    choices: tuple[str, ...] = ()
    any_case: bool = False
    unit: str = ""
    checks: tuple[Check, ...] = ()
    class_problem: Callable[[str], str] | None = None
    effect: Effect = Effect.HONOURED
    kinds: str = ""
    ours: bool = False
    group: str | None = None
    order: int = -1
    width: str = "NONE"
    importance: str = "LOW"
    display: str = ""


class Problem(NamedTuple):
    """A value that a model refuses."""

    name: str
    value: str | None
    message: str
    remedy: str = ""
    leaves_out: bool = False
    """Over REST it is refused; a connector that has it already runs without tasks, and the rest of
    its flow runs."""


class PropertyRefusal(NamedTuple):
    """Why a value is out of its bounds: in our words, and in Java's; ``value`` is the value or item
    it is about."""

    text: str
    java: str
    value: JavaValue


class ConfigModel(BaseModel):
    """A frozen config object; built by ``parse_config`` from property texts."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=False)

    def __repr_args__(self) -> Iterator[tuple[str | None, object]]:
        options = options_of(type(self))
        for name, value in super().__repr_args__():
            option = None if name is None else options.get(property_name(name))
            if option is None or option.type is not JavaType.PASSWORD:
                yield name, value

    @classmethod
    def cross_check(cls, props: Mapping[str, str]) -> list[Problem]:
        """Return what is wrong between options; called with raw texts, after each was checked."""
        return []


@dataclass(frozen=True, slots=True)
class ConnectorDefinition:
    """How a connector of the dedicated mode is named and which options it has."""

    name: str
    java_class: str
    model: type[ConfigModel]
    extra_names: tuple[str, ...] = field(default=())
    """Property names read by its plug-ins; valid with a flow prefix, not at top level."""
    copies: str = ""
    """The value of ``copy.connector`` that chooses it, empty for one that every flow has."""
    findings: Callable[[Mapping[str, str]], Iterable[tuple[Severity, Problem]]] | None = None
    """Findings that only its plug-ins can make, where they are installed; called with raw texts."""


ModelT = TypeVar("ModelT", bound=ConfigModel)


def property_name(field_name: str) -> str:
    """Return the Java property name of a model field."""
    # offset-syncs is the only word of a declared option with a dash.
    return field_name.replace("offset_syncs", "offset-syncs").replace("_", ".")


@cache
def options_of(model: type[ConfigModel]) -> Mapping[str, Option]:
    """Return the options of a model by property name, in declaration order, with their defaults."""
    options: dict[str, Option] = {}
    for name, info in model.model_fields.items():
        option = next((m for m in info.metadata if isinstance(m, Option)), None)
        if option is None:
            continue
        required = option.required or info.is_required()
        options[property_name(name)] = replace(
            option,
            name=property_name(name),
            field=name,
            required=required,
            default=None if required else _default_text(info.default),
        )
    return options


def to_props(model: type[ConfigModel], **fields: JavaValue) -> dict[str, str]:
    """Return fields of a model as property texts: the way back of ``parse_config``."""
    names = {option.field: name for name, option in options_of(model).items()}
    return {names[field]: _default_text(value) or "" for field, value in fields.items()}


def check_config(model: type[ConfigModel], props: Mapping[str, str]) -> list[Problem]:
    """Return every problem of ``props``; unknown keys are not problems, as in Java."""
    problems = [p for option in options_of(model).values() for p in _parse(model, option, props)[1]]
    # Cross checks read raw texts: they may rely on each being valid by itself.
    return problems or model.cross_check(props)


def parse_config(
    model: type[ModelT],
    props: Mapping[str, str],
    origin: Callable[[str], str] | None = None,
    **derived: object,
) -> ModelT:
    """Build the model from property texts; ``derived`` are fields that are no options.

    ``origin`` names the place of a property (``mm2.properties:12``) for error messages.
    ``ConfigError``: a value has the wrong type, is out of range, or is missing.
    """
    values: dict[str, object] = {}
    for option in options_of(model).values():
        value, problems = _parse(model, option, props)
        for problem in problems:
            raise _error(problem, origin)
        # What is absent keeps the model's default, which is not parsed.
        if option.name in props:
            values[option.field] = value
    for problem in model.cross_check(props):
        if not problem.leaves_out:
            raise _error(problem, origin)
    return model.model_validate(values | derived)


def value_problem(option: Option, text: str) -> str:
    """Return what is wrong with the text of a property, empty if nothing is; without its name."""
    try:
        value = parse_value(option.type, text)
    except ConfigError as error:
        return error.message
    refusal = refusal_of(option, value)
    return "" if refusal is None else refusal.text


def refusal_of(option: Option, value: JavaValue) -> PropertyRefusal | None:
    """Return why a value is out of the bounds or choices of its option, None where it is not."""
    # A bool is an int in Python.
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _out_of_range(option, value)
    if value is None or not option.choices:
        return None
    known = _folded(option, option.choices)
    for item in value if isinstance(value, tuple) else (str(value),):
        if _folded(option, (item,))[0] not in known:
            how = " (case insensitive)" if option.any_case else ""
            words = ", ".join(filter(None, option.choices))
            return PropertyRefusal(
                f"must be one of {words}", f"String must be one of{how}: {words}", item
            )
    return None


def _out_of_range(option: Option, value: float) -> PropertyRefusal | None:
    unit = option.unit and f" {option.unit}"
    if option.low is not None and value < option.low:
        text = f"must be at least {option.low}{unit}"
        return PropertyRefusal(text, f"Value must be at least {option.low}", value)
    if option.high is not None and value > option.high:
        text = f"must be at most {option.high}{unit}"
        return PropertyRefusal(text, f"Value must be no more than {option.high}", value)
    if value in option.forbidden:
        return PropertyRefusal(f"must not be {value}", f"Value must not be {value}", value)
    return None


def _folded(option: Option, texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(text.lower() for text in texts) if option.any_case else texts


def _error(problem: Problem, origin: Callable[[str], str] | None) -> ConfigError:
    place = origin(problem.name) if origin is not None else ""
    shown = problem.name if problem.value is None else f"{problem.name}={problem.value}"
    text = f"{shown}: {problem.message}"
    return ConfigError(f"{place}: {text}" if place else text, remedy=problem.remedy)


def _parse(
    model: type[ConfigModel], option: Option, props: Mapping[str, str]
) -> tuple[JavaValue, list[Problem]]:
    text = props.get(option.name)
    if text is None:
        if not model.model_fields[option.field].is_required():
            return None, []
        return None, [Problem(option.name, None, "is missing", f"set {option.name}")]
    # Messages are logged and answered over REST.
    shown = "********" if option.type is JavaType.PASSWORD else text
    try:
        value = parse_value(option.type, text)
    except ConfigError as error:
        example = f", for example {option.name} = {option.default}" if option.default else ""
        remedy = error.remedy or f"correct {option.name}{example}"
        return None, [Problem(option.name, shown, error.message, remedy)]
    refusal = refusal_of(option, value)
    if refusal is not None:
        return None, [Problem(option.name, shown, refusal.text, f"correct {option.name}")]
    if option.any_case and isinstance(value, str):
        value = value.lower()
    return value, []


def _default_text(value: object) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(str(item) for item in cast("tuple[object, ...]", value))
    return None if value is None else str(value)
