"""The keys of the transforms and predicates that a connector's config names, described and checked
as Connect does.

Flow: connector config -> ``plugin_entries`` -> the answer of validate; -> ``plugin_findings`` ->
what ``mm2py lint`` and a start find in a file. Texts are Connect's.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from mm2py.config.client_properties import with_prefix
from mm2py.config.connect_definitions import ConfigKey, ConfigValue, check_value, described
from mm2py.config.definitions import Option, Problem, options_of
from mm2py.config.findings import Severity
from mm2py.config.java_values import JavaType, JavaValue, invalid, parse_list, rendered
from mm2py.errors import ConfigError
from mm2py.runtime.plugins.catalog import version_problem
from mm2py.runtime.plugins.transforms.chain import (
    KINDS,
    Kind,
    find,
    installed,
    java_class,
    model_of,
)

Entry = tuple[ConfigKey, ConfigValue]
_Texts = Mapping[str, str]

_WORDS: Final[Mapping[Kind, tuple[str, str]]] = {
    "transforms": ("Transforms", "Transformation"),
    "predicates": ("Predicates", "Predicate"),
}
_OF_ALL: Final[Mapping[Kind, frozenset[str]]] = {
    "transforms": frozenset({"type", "plugin.version", "predicate", "negate"}),
    "predicates": frozenset({"type", "plugin.version"}),
}


def plugin_entries(kind: Kind, texts: _Texts) -> Iterator[Entry]:
    """Return the keys of each transform or predicate that a config names, with their values."""
    for alias in dict.fromkeys(parse_list(texts.get(kind, ""))):
        yield from _entries(kind, alias, texts)


def _entries(kind: Kind, alias: str, texts: _Texts) -> Iterator[Entry]:
    (group, word), prefix = _WORDS[kind], f"{kind}.{alias}."
    group = f"{group}: {alias}"

    def placed(option: Option, order: int) -> Option:
        return replace(option, group=group, order=order)

    version = ""
    options: tuple[Option, ...] = ()
    try:
        entry = find(kind, texts.get(f"{prefix}type", ""))
    except ConfigError:
        pass  # a finding of its type
    else:
        model = model_of(entry)
        options = () if model is None else tuple(options_of(model).values())
        version = str(getattr(entry, "plugin_version", ""))
    type_ = Option(
        JavaType.CLASS, f"Class of the {word.lower()}.", name=f"{prefix}type", required=True, importance="HIGH", width="LONG",
        display=f"{word} type for {alias}", class_problem=lambda name: _class_problem(kind, name),
    )  # fmt: skip
    key, value = _entry(placed(type_, 0), texts)
    other = _of_other_kind(kind, texts.get(f"{prefix}type", ""))
    if other:
        wrong_kind = f"Class class {other} does not implement the {word} interface"
        value = replace(value, value=other, errors=(wrong_kind,))
    wrong = [*_version_problems(prefix, version, texts)]
    yield (
        key,
        replace(
            value,
            errors=(*value.errors, *wrong, *_negate_problems(prefix, texts)),
            recommended_values=tuple(map(java_class, installed(kind))),
        ),
    )
    plugin_version = Option(
        JavaType.STRING, "There is one version.", name=f"{prefix}plugin.version", default=version or None, importance="HIGH",
        width="LONG", display=f"{word} version for {alias}",
    )  # fmt: skip
    key, value = _entry(placed(plugin_version, 1), texts)
    yield key, replace(value, errors=(*value.errors, *wrong))
    for order, option in enumerate(options, 2):
        yield _plugin_key(placed(option, order), prefix, texts)
    if kind == "transforms":
        yield from (_entry(placed(it, -1), texts) for it in _choice(prefix, texts))


def _choice(prefix: str, texts: _Texts) -> tuple[Option, Option]:
    """Return the keys that choose by a predicate which records a transform is applied to."""
    predicates = parse_list(texts.get("predicates", ""))

    def is_known(name: str, value: JavaValue) -> str:
        if value is None or value in predicates:
            return ""
        return invalid(name, value, f"not among the predicates {rendered(predicates)}")

    return (
        Option(
            JavaType.BOOLEAN, "Whether it is applied where the predicate does not hold.", name=f"{prefix}negate",
            default="false", importance="MEDIUM", display="negate",
        ),
        Option(
            JavaType.STRING, "Alias of the predicate that chooses the records; unset: all.", name=f"{prefix}predicate",
            importance="MEDIUM", display="predicate", checks=(is_known,),
        ),
    )  # fmt: skip


def _version_problems(prefix: str, version: str, texts: _Texts) -> Iterator[str]:
    """Refuse a version that is not installed, at both keys as Java does."""
    requested = texts.get(f"{prefix}plugin.version", "")
    problem = version and version_problem(str(texts.get(f"{prefix}type")), requested, version)
    if problem:
        yield problem


def _negate_problems(prefix: str, texts: _Texts) -> Iterator[str]:
    if f"{prefix}negate" in texts and f"{prefix}predicate" not in texts:
        yield (
            f"Config '{prefix}negate' was provided but there is no config '{prefix}predicate' "
            "defining a predicate to be negated."
        )


def _of_other_kind(kind: Kind, name: str) -> str:
    """Return a predicate's full name in a transform's place, or the reverse; else nothing."""
    for other in KINDS:
        with suppress(ConfigError):
            if other != kind:
                return java_class(find(other, name))
    return ""


def _class_problem(kind: Kind, name: str) -> str:
    try:
        find(kind, name)
    except ConfigError as error:
        return str(error)
    return ""


def _entry(option: Option, texts: _Texts) -> Entry:
    return described(option), check_value(option, texts)


def _plugin_key(option: Option, prefix: str, texts: _Texts) -> Entry:
    """As Java's embedded definitions: a plug-in's own messages name keys without prefix."""
    key = described(option, prefix)
    if key.name not in texts:
        value = check_value(replace(option, name=key.name), texts)
        further = [check(option.name, None) for check in option.checks if option.required]
        return key, replace(value, errors=(*value.errors, *filter(None, further)))
    value = check_value(option, {option.name: texts[key.name]})
    return key, replace(value, name=key.name)


def plugin_findings(texts: _Texts) -> Iterator[tuple[Severity, Problem]]:
    """Return what is wrong with a config's transforms and predicates, or has no effect."""
    for kind in KINDS:
        aliases = parse_list(texts.get(kind, ""))
        for alias in sorted({it for it in aliases if aliases.count(it) > 1}):
            yield Severity.ERROR, Problem(kind, texts[kind], f"names {alias} twice", "name it once")
        for _, value in plugin_entries(kind, texts):
            for error in value.errors:
                about = f"Invalid value {value.value} for configuration {value.name}: "
                text = error.removeprefix(about)
                yield (
                    Severity.ERROR,
                    Problem(value.name, value.value, text, f"correct {value.name}"),
                )
        yield from _without_effect(kind, aliases, texts)


def _without_effect(
    kind: Kind, aliases: tuple[str, ...], texts: _Texts
) -> Iterator[tuple[Severity, Problem]]:
    """Return the keys that nothing reads."""
    word = _WORDS[kind][1].lower()
    for name in texts:
        if not name.startswith(f"{kind}."):
            continue
        alias = next((it for it in aliases if name.startswith(f"{kind}.{it}.")), None)
        if alias is None:
            listed = rendered(aliases)
            text = f"has no effect: {kind}={listed} names no {word} whose keys begin so"
            yield Severity.WARNING, Problem(name, texts[name], text, f"add its alias to {kind}")
            continue
        keys = _known_keys(kind, with_prefix(texts, f"{kind}.{alias}.").get("type", ""))
        if keys is not None and name.removeprefix(f"{kind}.{alias}.") not in keys:
            text = f"has no effect: the {word} has no such key"
            remedy = f"its keys are {', '.join(sorted(keys))}"
            yield Severity.WARNING, Problem(name, texts[name], text, remedy)


def _known_keys(kind: Kind, name: str) -> frozenset[str] | None:
    """Return the keys of a class, None where they are not known."""
    try:
        plugin = find(kind, name)
    except ConfigError:
        return None
    model = model_of(plugin)
    return None if model is None else _OF_ALL[kind].union(options_of(model))
