"""What Connect checks of sink connectors alone: topics, the group's name, and the keys of transforms (kcr 1.11, 5.3, 5.4).

Flow: ``ConfigValidator`` -> ``topic_problems``, ``group_problem``, ``plugin_entries``; texts are Connect's.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from mm2py.config.client_properties import with_prefix
from mm2py.config.connect_definitions import ConfigKey, ConfigValue, check_value, described
from mm2py.config.definitions import Option, options_of
from mm2py.config.java_regex import PatternList
from mm2py.config.java_values import JavaType, JavaValue, invalid, parse_list
from mm2py.errors import ConfigError
from mm2py.runtime.plugins.transforms.chain import Kind, find, model_of

__all__ = ["group_problem", "plugin_entries", "topic_problems"]

Entry = tuple[ConfigKey, ConfigValue]
_Texts = Mapping[str, str]

_TOPICS: Final = "topics"
_REGEX: Final = "topics.regex"
_DEAD: Final = "errors.deadletterqueue.topic.name"
_OVERRIDE: Final = "consumer.override."
_WORDS: Final[Mapping[Kind, tuple[str, str]]] = {
    "transforms": ("Transforms", "Transformation"),
    "predicates": ("Predicates", "Predicate"),
}


def topic_problems(texts: _Texts) -> Iterator[tuple[str, str]]:
    """Return what is wrong with the topics of a sink (``SinkConnectorConfig.validate``), by key."""
    named, regex = parse_list(texts.get(_TOPICS, "")), texts.get(_REGEX, "").strip()
    problem = ""
    if named and regex:
        problem = f"{_TOPICS} and {_REGEX} are mutually exclusive options, but both are set."
    elif not named and not regex:
        problem = f"Must configure one of {_TOPICS} or {_REGEX}"
    if problem:
        yield from ((_TOPICS, problem), (_REGEX, problem))
        return
    dead = texts.get(_DEAD, "").strip()
    if dead and dead in named:
        yield (
            _TOPICS,
            f"The DLQ topic '{dead}' may not be included in the list of topics ('{_TOPICS}={list_text(named)}') consumed by the"
            " connector",
        )
    elif dead and regex and _matches(regex, dead):
        yield (
            _REGEX,
            f"The DLQ topic '{dead}' may not be matched by the regex for the topics ('{_REGEX}={regex}') consumed by the"
            " connector",
        )


def list_text(items: tuple[str, ...]) -> str:
    """Return a list as Java prints it."""
    return f"[{', '.join(items)}]"


def _matches(regex: str, topic: str) -> bool:
    try:
        return PatternList((regex,)).matches(topic)
    except ConfigError:
        return False  # a finding of its own


def group_problem(texts: _Texts, worker: _Texts) -> tuple[str, str] | None:
    """Return the key and the text where a sink's consumer group is the workers' own, None where it is not."""
    workers = worker.get("group.id", "")
    given = with_prefix(texts, _OVERRIDE).get("group.id")
    if given is not None and given == workers:
        return (
            f"{_OVERRIDE}group.id",
            f"Consumer group {given} conflicts with Connect worker group {workers}",
        )
    name = texts.get("name", "")
    if given is None and f"connect-{name}" == workers:
        return (
            "name",
            f"Consumer group for sink connector named {name} conflicts with Connect worker group {workers}",
        )
    return None


def plugin_entries(kind: Kind, texts: _Texts) -> Iterator[Entry]:
    """Return the keys of each transform or predicate that a config names, with their values."""
    for alias in dict.fromkeys(parse_list(texts.get(kind, ""))):
        if alias:
            yield from _entries(kind, alias, texts)


def _entries(kind: Kind, alias: str, texts: _Texts) -> Iterator[Entry]:
    (group, word), prefix = _WORDS[kind], f"{kind}.{alias}."
    group = f"{group}: {alias}"

    def placed(option: Option, order: int) -> Option:
        return replace(option, group=group, order=order)

    version = ""
    options: tuple[Option, ...] = ()
    try:
        wanted = find(kind, texts.get(f"{prefix}type", ""))
    except ConfigError:
        pass  # a finding of its type
    else:
        model = model_of(wanted)
        options = () if model is None else tuple(options_of(model).values())
        version = str(getattr(wanted, "plugin_version", ""))
    type_ = Option(
        JavaType.CLASS, f"Class of the {word.lower()}.", name=f"{prefix}type", required=True, importance="HIGH", width="LONG",
        display=f"{word} type for {alias}", class_problem=lambda name: _class_problem(kind, name),
    )  # fmt: skip
    yield _entry(placed(type_, 0), texts)
    plugin_version = Option(
        JavaType.STRING, "There is one version.", name=f"{prefix}plugin.version", default=version or None, importance="HIGH",
        width="LONG", display=f"{word} version for {alias}",
    )  # fmt: skip
    yield _entry(placed(plugin_version, 1), texts)
    for order, option in enumerate(options, 2):
        yield _plugin_key(placed(option, order), prefix, texts)
    if kind == "transforms":
        yield from (_entry(placed(it, -1), texts) for it in _choice(prefix, texts))


def _choice(prefix: str, texts: _Texts) -> tuple[Option, Option]:
    """Return the keys that choose by a predicate which records a transform is applied to."""
    known = parse_list(texts.get("predicates", ""))

    def is_known(name: str, value: JavaValue) -> str:
        if value is None or value in known:
            return ""
        return invalid(name, value, f"not among the predicates {list_text(known)}")

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


def _class_problem(kind: Kind, name: str) -> str:
    try:
        find(kind, name)
    except ConfigError as error:
        return error.message
    return ""


def _entry(option: Option, texts: _Texts) -> Entry:
    return described(option), check_value(option, texts)


def _plugin_key(option: Option, prefix: str, texts: _Texts) -> Entry:
    """As Java's embedded definitions: what a plug-in checks itself is said without the prefix."""
    key = described(option, prefix)
    if key.name not in texts:
        return key, check_value(replace(option, name=key.name), texts)
    value = check_value(option, {option.name: texts[key.name]})
    return key, replace(value, name=key.name)
